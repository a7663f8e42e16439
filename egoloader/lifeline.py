"""Worker processes that end when the process that started them does."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait

__all__ = ["end_with_parent"]


def end_with_parent() -> None:
    """Have this process end, at once, when its parent has: the initializer of a pool's workers.

    A process that is killed can't end its workers. They would finish what they were given, which a
    second run finds locked or in its way, and then wait for more without end.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        watch = threading.Thread(target=_watch, args=(parent.sentinel,), daemon=True)
        watch.start()


def _watch(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
