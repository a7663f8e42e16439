"""Many episodes, looked at in parallel."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from egoloader.catalog import find_episodes, is_episode
from egoloader.errors import SettingsError, check_whole
from egoloader.lifeline import end_with_parent
from egoloader.validate.finding import Finding
from egoloader.validate.inspection import validate_episode
from egoloader.validate.stored import Depth, check_depth

__all__ = ["Validation", "validate_paths"]


@dataclass(frozen=True, slots=True)
class Validation:
    """What was looked at, and what was found.

    Attributes:
        episodes: names of all that were looked at, sorted.
        findings: of all, in their order.
    """

    episodes: tuple[str, ...]
    findings: tuple[Finding, ...]

    @property
    def is_good(self) -> bool:
        """Whether nothing bad was found; notes may have been."""
        return not any(one.is_bad for one in self.findings)


def validate_paths(
    paths: Sequence[str | os.PathLike[str]],
    *,
    depth: Depth = "full",
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Validation:
    """Look for everything that is wrong with episodes.

    Args:
        paths: of episodes, or of folders of them. An episode is called by its path below the folder
            that was given, or by its own name.
        depth: see `validate_episode`.
        workers: processes; one a core unless given.
        on_progress: told how many episodes are done, and how many there are.

    Raises:
        FolderNotFoundError: nothing is at a path, or no episode below it.
        SettingsError: an option that can't be meant, no paths, or two episodes of one name.
    """
    check_depth(depth)
    if isinstance(paths, str | os.PathLike) or not paths:
        raise SettingsError(f"paths is a list of episodes or folders of them, got {paths!r}")
    if workers is not None:
        check_whole("workers", workers, 1)
    named = _named(paths)
    found: dict[str, list[Finding]] = {}
    count = min(workers or os.cpu_count() or 1, len(named))
    for name, findings in _validated(named, depth, count):
        found[name] = findings
        if on_progress is not None:
            on_progress(len(found), len(named))
    names = sorted(found)
    return Validation(tuple(names), tuple(one for name in names for one in found[name]))


def _named(paths: Sequence[str | os.PathLike[str]]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for given in paths:
        path = Path(given)
        its = [(path.absolute().name, path)]
        if not is_episode(path):
            its = [(name, path / name) for name in find_episodes(path)]
        for name, where in its:
            if name in named and named[name].resolve() == where.resolve():
                continue  # listed twice
            if name in named:
                raise SettingsError(
                    f"{where} and {named[name]} are both called {name!r}; validate them one by one"
                )
            named[name] = where
    return named


def _validated(
    named: dict[str, Path], depth: Depth, workers: int
) -> Iterator[tuple[str, list[Finding]]]:
    if workers < 2:
        for name, path in named.items():
            yield name, validate_episode(path, name, depth)
        return
    left, lost = dict(named), {}
    while left:
        for name, findings in _in_processes(left, depth, workers):
            path = left.pop(name)
            if findings is None:
                lost[name] = path
            else:
                yield name, findings
    # A process that ends takes the others' work with it: each on its own shows which one it was.
    for name, path in lost.items():
        ((_, findings),) = _in_processes({name: path}, depth, 1)
        message = "the process that looked at it ended, for want of memory or in a decoder"
        yield name, [Finding(name, "process", message)] if findings is None else findings


def _in_processes(
    named: Mapping[str, Path], depth: Depth, workers: int
) -> Iterator[tuple[str, list[Finding] | None]]:
    """Yield what is found of each episode, as they come; None where a process ended.

    With it all others end. Few are waiting at a time, so that few are lost; those that did not come
    to it are not yielded.
    """
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    waiting, running = list(named.items())[::-1], dict[Future[list[Finding]], str]()
    try:
        while waiting or running:
            while waiting and len(running) < 2 * workers:
                name, path = waiting.pop()
                running[_submit(pool, path, name, depth)] = name
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                is_lost = isinstance(future.exception(), BrokenProcessPool)
                yield running.pop(future), None if is_lost else future.result()
                if is_lost:
                    waiting.clear()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(
    pool: ProcessPoolExecutor, path: Path, name: str, depth: Depth
) -> Future[list[Finding]]:
    try:
        return pool.submit(validate_episode, path, name, depth)
    except BrokenProcessPool as error:
        lost: Future[list[Finding]] = Future()
        lost.set_exception(error)
        return lost
