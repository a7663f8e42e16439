"""Threads that make batches, and the batches in the order in which they were asked for."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from egoloader.errors import LoaderError, SettingsError

__all__ = ["Ordered", "Threads"]

T = TypeVar("T")
R = TypeVar("R")

_here = threading.local()


class Threads:
    """Threads of this process; they end with `close`, or when nobody holds this object any more.

    Args:
        number: how many.

    Raises:
        SettingsError: the number is no whole number above 0.
    """

    def __init__(self, number: int) -> None:
        if type(number) is not int or number < 1:
            raise SettingsError(f"num_threads must be a whole number above 0, got {number!r}")
        self._pool = ThreadPoolExecutor(number, "egoloader", initializer=_mark)
        self._pid = os.getpid()
        self._finalizer = weakref.finalize(self, _end, self._pool, self._pid)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Have a thread work on an item.

        Raises:
            LoaderError: the threads belong to another process, which this one was forked from.
        """
        self.check_process()
        return self._pool.submit(work, item)

    def check_process(self) -> None:
        """Raise where this process was forked from the one that has the threads.

        Raises:
            LoaderError: it was.
        """
        if self._pid != os.getpid():
            raise LoaderError(
                "this iterator's threads are in the process that it was made in; "
                "iterate over the loader anew in this one"
            )

    def close(self) -> None:
        """Drop what was not begun, and end the threads when they are done with what was."""
        self._finalizer()


class Ordered(Iterator[R], Generic[T, R]):
    """What threads make of items, in the order of the items, whichever is done first.

    An error comes in its item's place, and the items behind it after it.

    Args:
        threads: do the work.
        work: from item to result.
        items: drawn from in the caller's thread, `look_ahead` ahead of what was handed out.
        look_ahead: results that are made or wait at once.
    """

    def __init__(
        self, threads: Threads, work: Callable[[T], R], items: Iterable[T], look_ahead: int
    ) -> None:
        self._threads, self._work, self._items = threads, work, iter(items)
        self._look_ahead, self._is_over = look_ahead, False
        self._pending: deque[Future[R]] = deque()

    def __next__(self) -> R:
        self._threads.check_process()
        self._draw()
        if not self._pending:
            raise StopIteration
        future = self._pending.popleft()
        try:
            return future.result()
        except (KeyboardInterrupt, SystemExit):
            self._threads.close()
            raise
        finally:
            # An error's traceback holds this frame; without this it would hold the batch as well.
            del future

    def _draw(self) -> None:
        while not self._is_over and len(self._pending) < self._look_ahead:
            try:
                item = next(self._items)
            except StopIteration:
                self._is_over = True
            except Exception as error:  # of the sampler: it comes behind the batches before it
                self._is_over = True
                failed: Future[Any] = Future()
                failed.set_exception(error)
                self._pending.append(failed)
            else:
                self._pending.append(self._threads.submit(self._work, item))


def _mark() -> None:
    _here.is_worker = True


def _end(pool: ThreadPoolExecutor, pid: int) -> None:
    if pid == os.getpid():
        # The garbage collector may come here in a thread of the pool, which can't wait for itself.
        pool.shutdown(wait=not getattr(_here, "is_worker", False), cancel_futures=True)
