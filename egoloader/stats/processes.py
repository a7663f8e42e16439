"""Jobs on episodes, in processes."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from egoloader.errors import SettingsError, WorkerLostError
from egoloader.lifeline import end_with_parent

__all__ = ["EpisodeWorkers", "check_sendable"]

Name = str
Job = TypeVar("Job")
Result = TypeVar("Result")


def check_sendable(what: object, workers: int) -> None:
    """Refuse what can't be handed to worker processes.

    Raises:
        SettingsError: it can't, and there are several.
    """
    if workers < 2:
        return
    try:
        pickle.dumps(what)
    except Exception as error:
        raise SettingsError(
            f"transforms can't be handed to worker processes ({error}); define them in a module, "
            "or set workers to 1"
        ) from error


class EpisodeWorkers:
    """Processes that are started when there is work, and kept until the end of a `with`.

    Args:
        count: processes; with one, this process does the work.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> EpisodeWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(
        self, function: Callable[[Job], Result], jobs: Iterable[tuple[Name, Job]]
    ) -> Iterator[tuple[Name, Result]]:
        """Yield what a function returns for each job, with its name, as they come.

        Args:
            function: of a module, so that any process finds it.
            jobs: by name; they are taken in order, and few at a time.

        Raises:
            WorkerLostError: a process has ended before its work.
            EgoloaderError: what the function raises; the others are left undone.
        """
        if self._count < 2:
            for name, job in jobs:
                yield name, function(job)
            return
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(
                self._count, mp_context=context, initializer=end_with_parent
            )
        waiting, running = iter(jobs), dict[Future[Result], Name]()
        try:
            while True:
                while len(running) < 2 * self._count and (one := next(waiting, None)) is not None:
                    running[self._pool.submit(function, one[1])] = one[0]
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running[future], future.result()
                    del running[future]
        except BrokenProcessPool as error:
            raise WorkerLostError(_lost(running)) from error


def _lost(running: Mapping[Future[Result], Name]) -> str:
    names = sorted(running.values())
    what = f"among them {names[0]!r}" if names else "at their end"
    return (
        f"a process that looked at episodes, {what}, ended before its work, for want of memory or "
        "in a decoder; fewer workers need less memory"
    )
