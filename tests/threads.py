"""egoloader's threads: which are alive, and which are left behind."""

from __future__ import annotations

import gc
import threading
import time

__all__ = ["LIMIT", "left_behind", "running"]

#: Seconds after which something that should have happened at once never will.
LIMIT = 20


def running() -> list[threading.Thread]:
    """Return egoloader's threads that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("egoloader")]


def left_behind() -> list[threading.Thread]:
    """Return those of egoloader's threads that don't end."""
    gc.collect()  # an iterator in the traceback of a test before this one
    threads = running()
    end = time.monotonic() + LIMIT
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return [thread for thread in threads if thread.is_alive()]
