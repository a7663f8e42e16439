"""`watch_workers`: a `DataLoader`'s worker that the system ended is reported with figures."""

from __future__ import annotations

import re
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from multiprocessing.process import BaseProcess
from types import FrameType

from torch.utils.data._utils.signal_handling import _set_SIGCHLD_handler

from egoloader.cache import CACHE_BYTES
from egoloader.errors import WorkerLostError
from egoloader.memory import measure_memory
from egoloader.sharedmemory import free_bytes

__all__ = ["watch_workers"]

#: Seconds for which the system may keep quiet about a worker whose connection has ended already,
#: and between two looks.
_DELAY, _PAUSE = 2.0, 0.02
_LOST = re.compile(r"DataLoader worker \(pid(?:\(s\))? ([\d, ]+)\)[^.]*")


@contextmanager
def watch_workers() -> Iterator[None]:
    """Raise a `WorkerLostError` in the place of PyTorch's error about a worker that has ended.

    PyTorch raises it wherever the main thread is at that moment: while it waits for a batch, in a
    training step, in `Trainer.fit`. So put the whole loop, or the call, below this:

        with watch_workers():
            for batch in DataLoader(dataset, num_workers=4, collate_fn=egoloader.collate): ...

    Other errors pass through. `EpisodeLoader` and `EpisodeDataModule` have no workers.

    Raises:
        WorkerLostError: a worker has ended before its work; says which, who has the memory now, and
            what to do. It is a `RuntimeError` like PyTorch's, which is its cause.
    """
    is_main = threading.current_thread() is threading.main_thread()
    with _handler() if is_main else nullcontext():
        try:
            yield
        except WorkerLostError:
            raise  # of the handler, or of another watch within this one
        except (RuntimeError, OSError, EOFError) as error:
            report = _find(error) or _wait_for_word(error)
            if report is None:
                raise
            raise WorkerLostError(report) from error


@contextmanager
def _handler() -> Iterator[None]:
    """Have PyTorch's handler of the system's signal raise our error, wherever it comes.

    That may be between two lines of anything, of a watch's end, too; and the figures are then of
    the moment itself.
    """
    _set_SIGCHLD_handler()  # else the first `DataLoader` would, over ours
    theirs = signal.getsignal(signal.SIGCHLD)
    if not callable(theirs):  # somebody has taken it away since
        yield
        return

    def tell(number: int, frame: FrameType | None) -> None:
        try:
            theirs(number, frame)
        except RuntimeError as error:
            report = None if isinstance(error, WorkerLostError) else _find(error)
            if report is None:
                raise
            raise WorkerLostError(report) from error

    signal.signal(signal.SIGCHLD, tell)
    try:
        yield
    finally:
        # Another watch that began later and goes on has it; that one puts ours back, harmlessly.
        if signal.getsignal(signal.SIGCHLD) is tell:
            signal.signal(signal.SIGCHLD, theirs)


def _find(error: BaseException) -> str | None:
    """Return the report of a worker that has ended, or None where it is another error.

    Of several errors, each the cause of the one before, the first in time knows the signal.
    """
    found, seen = None, list[BaseException]()
    at: BaseException | None = error
    while at is not None and at not in seen:
        if isinstance(at, WorkerLostError):
            return str(at)
        match = _LOST.match(str(at))
        found = match[0].strip() if match else found
        seen.append(at)
        at = at.__cause__ or at.__context__
    return None if found is None else _describe(found)


def _wait_for_word(error: BaseException) -> str | None:
    """Return the report of a worker that turns out to have ended behind a connection that has.

    A worker's connections end before the system tells of its own end, and PyTorch then raises what
    came of a connection.
    """
    workers = list(_workers_behind(error)) if isinstance(error, ConnectionError | EOFError) else []
    end = time.monotonic() + _DELAY
    while workers and time.monotonic() < end:
        for one in workers:
            if one.exitcode:
                return _describe(f"DataLoader worker (pid {one.pid}) {_how(one.exitcode)}")
        time.sleep(_PAUSE)
    return None


def _workers_behind(error: BaseException) -> Iterator[BaseProcess]:
    """Yield the workers of the iterators that an error came through."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        workers = getattr(frame.f_locals.get("self"), "_workers", None)
        if isinstance(workers, list):
            yield from (one for one in workers if isinstance(one, BaseProcess))


def _how(exitcode: int) -> str:
    """Say how a process has ended, as PyTorch does."""
    if exitcode < 0:
        return f"is killed by signal: {signal.strsignal(-exitcode)}"
    return f"exited unexpectedly with exit code {exitcode}"


def _describe(lost: str) -> str:
    shared = free_bytes()
    figures = f"Memory now: {measure_memory()}" + (
        "" if shared is None else f", and {shared / 2**30:.2f} GiB of shared memory are free"
    )
    return (
        f"{lost}. {figures}. Where memory has run out, use fewer workers, a smaller batch_size or "
        "prefetch_factor, or a smaller cache_bytes, which each worker has for itself "
        f"({CACHE_BYTES / 2**30:.2f} GiB unless given); or EpisodeLoader, which has no workers. "
        "Where it has not, a library or a transform has crashed: num_workers=0 shows where"
    )
