"""Threads that make batches, and the batches in the order in which they were asked for."""

from __future__ import annotations

import atexit
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from egoloader.errors import LoaderError, SettingsError

__all__ = ["Ordered", "Threads", "check_threads"]

T = TypeVar("T")
R = TypeVar("R")
#: A future, what to do for it, and with what; None ends a thread.
_Task = tuple["Future[Any]", Callable[[Any], Any], Any] | None
_Queue = queue.SimpleQueue[_Task]


class Threads:
    """Threads of this process; they end with `close`, or when nobody holds this object any more.

    They are daemons that end before the interpreter does: what they have not begun by then is
    dropped. (`concurrent.futures` would have them do it all first.)

    Args:
        number: how many.

    Raises:
        SettingsError: the number is no whole number above 0.
    """

    def __init__(self, number: int) -> None:
        check_threads(number)
        self._tasks: _Queue = queue.SimpleQueue()
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=_run, args=(self._tasks,), name=f"egoloader_{n}", daemon=True)
            for n in range(number)
        ]
        # The garbage collector may come here in any thread, holding any lock: it must not wait.
        self._finalizer = weakref.finalize(self, _end, self._tasks, self._threads, self._pid)
        self._finalizer.atexit = False
        _POOLS.add(self)
        for thread in self._threads:
            thread.start()  # may fail; those before it end with this object
            _THREADS.add(thread)

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, work: Callable[[T], R], item: T) -> Future[R]:
        """Have a thread work on an item.

        Raises:
            LoaderError: the threads have ended, or belong to another process.
        """
        self.check()
        future: Future[R] = Future()
        self._tasks.put((future, work, item))
        return future

    def check(self) -> None:
        """Raise where these threads can't work any more.

        Raises:
            LoaderError: they have ended, or this process was forked from the one that has them.
        """
        if self._pid != os.getpid():
            raise LoaderError(
                "this iterator's threads are in the process that it was made in; "
                "iterate over the loader anew in this one"
            )
        if not self._finalizer.alive:
            raise LoaderError(
                "this iterator was interrupted or closed; iterate over the loader anew"
            )

    def close(self) -> None:
        """Drop what was not begun, and wait until the threads are done with what was."""
        self._finalizer()
        if self._pid == os.getpid():
            for thread in self._threads:
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join()


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
        if self._is_over and not self._pending:
            raise StopIteration
        self._threads.check()
        future = None
        try:
            self._draw()
            if not self._pending:
                raise StopIteration
            future = self._pending.popleft()
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


_POOLS: weakref.WeakSet[Threads] = weakref.WeakSet()
_THREADS: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """End all threads while there still is an interpreter for them to end in."""
    for pool in list(_POOLS):
        pool.close()
    for thread in list(_THREADS):
        thread.join()


def check_threads(number: object) -> None:
    """Refuse a number of threads that is no whole number above 0.

    Raises:
        SettingsError: it is none.
    """
    if type(number) is not int or number < 1:
        raise SettingsError(f"num_threads must be a whole number above 0, got {number!r}")


def _run(tasks: _Queue) -> None:
    while (task := tasks.get()) is not None:
        future, work, item = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work(item))
            except BaseException as error:  # it is the caller's, whatever it is
                future.set_exception(error)
        del task, future, work, item  # else they would live as long as the next task is waited for


def _end(tasks: _Queue, threads: Sequence[threading.Thread], pid: int) -> None:
    """Cancel what was not begun, and have the threads end; waits for nothing."""
    if pid != os.getpid():
        return  # a forked child has the queue, and none of the threads
    try:
        while True:
            task = tasks.get_nowait()
            if task is not None:
                task[0].cancel()
    except queue.Empty:
        pass
    for _ in threads:
        tasks.put(None)
