"""LeRobot v2.0 and v2.1 folders (parquet and mp4) to episodes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from egoloader.convert.job import EpisodeJob, EpisodeResult, Recipe, convert_episode
from egoloader.convert.report import ConversionEvent, ConversionReport, Progress, Status
from egoloader.convert.settings import LeRobotSettings
from egoloader.convert.source import EpisodeEntry, LeRobotSource, absent_files, open_source
from egoloader.convert.target import is_converted, target_path
from egoloader.errors import ConversionError, require_extra
from egoloader.lifeline import end_with_parent
from egoloader.memory import measure_memory

__all__ = ["convert_lerobot"]

_SHOWN_EXAMPLES = 3


def convert_lerobot(
    src: Path | str,
    dst: Path | str,
    settings: LeRobotSettings | None = None,
    *,
    on_progress: Callable[[ConversionEvent], None] | None = None,
) -> ConversionReport:
    """Convert a LeRobot v2.0 or v2.1 folder: each episode to `episode_<index>.zarr`.

    Features keep their names, types and shapes. Cameras become JPEG arrays: frame `i` is the
    video's frame `i` in the order shown, RGB. Pictures that are JPEGs already are taken as they
    are, unless `image_size` is given. The task's text becomes `task_name` and `task_description`;
    where an episode holds several tasks, each run of one is an annotation too. `timestamp` is kept
    only where it departs from `i / fps` by more than a millisecond. Strings, depth videos and other
    columns that are neither numbers nor colours are left out and reported. Where the data came from
    and how it was converted is kept in the attribute `lerobot`.

    An episode appears whole or not at all. Run again, those that are there already are skipped.
    With several workers the calling script needs the usual `if __name__ == "__main__":`.

    Args:
        src: the folder that holds `meta/info.json`.
        dst: the folder that the episodes go to; made if need be.
        settings: options; None takes the defaults.
        on_progress: called with each step, in the calling process.

    Raises:
        ConversionError: not a LeRobot folder, an unsupported version, broken metadata, an episode
            that `meta/` does not list, every episode's files missing, or something else already at
            the destination. One episode's failure does not raise: it is in the report's `failed`.
        MissingExtraError: the extra `convert` is not installed.
    """
    chosen = settings or LeRobotSettings()
    for module in ("av", "pyarrow.parquet"):
        require_extra(module, "convert")
    source, folder = open_source(Path(src)), Path(dst)
    if folder.exists() and not folder.is_dir():
        raise ConversionError(f"{folder} is a file; give a folder for the episodes")
    entries = _chosen_entries(source, chosen)
    plan = _plan(_jobs(source, entries, folder, chosen))
    if len(plan.missing) == len(entries):
        raise _all_missing(source, plan.missing)
    folder.mkdir(parents=True, exist_ok=True)
    lengths = {entry.index: entry.length for entry in entries}
    progress = Progress(lengths, [job.entry.index for job in plan.todo], on_progress)
    for index in plan.skipped:
        progress.step("skipped", index)
    for index, absent in plan.missing.items():
        progress.step("missing", index, ", ".join(absent))
    return _report(source, plan, _run(plan.todo, chosen.workers, progress))


@dataclass(frozen=True)
class _Plan:
    """What is to be done with each episode asked for."""

    skipped: tuple[int, ...]
    missing: Mapping[int, tuple[str, ...]]
    todo: tuple[EpisodeJob, ...]


def _plan(jobs: Sequence[EpisodeJob]) -> _Plan:
    skipped = []
    missing = {}
    todo = []
    for job in jobs:
        if not job.overwrite and is_converted(job):
            skipped.append(job.entry.index)
        elif absent := absent_files(job.info, job.entry.index):
            missing[job.entry.index] = absent
        else:
            todo.append(job)
    return _Plan(tuple(skipped), missing, tuple(todo))


def _chosen_entries(source: LeRobotSource, settings: LeRobotSettings) -> list[EpisodeEntry]:
    if settings.episodes is None:
        return list(source.episodes.values())
    unknown = sorted(set(settings.episodes) - set(source.episodes))
    if unknown:
        raise ConversionError(
            f"{source.info.root}: meta/episodes.jsonl lists no episode {unknown[0]}; it lists "
            f"{len(source.episodes)}, from {min(source.episodes)} to {max(source.episodes)}"
        )
    return [source.episodes[index] for index in sorted(settings.episodes)]


def _jobs(
    source: LeRobotSource, entries: Sequence[EpisodeEntry], folder: Path, settings: LeRobotSettings
) -> list[EpisodeJob]:
    embodiment = settings.embodiment or source.info.robot_type
    if embodiment is None:
        raise ConversionError(
            f"{source.info.root}: meta/info.json names no robot_type; "
            "pass the embodiment's name as `embodiment`"
        )
    recipe = Recipe(embodiment, settings.image_size, settings.quality, settings.subsampling)
    return [
        EpisodeJob(
            info=source.info,
            entry=entry,
            target=target_path(folder, entry.index),
            recipe=recipe,
            overwrite=settings.overwrite,
        )
        for entry in entries
    ]


def _all_missing(source: LeRobotSource, missing: Mapping[int, tuple[str, ...]]) -> ConversionError:
    shown = [path for absent in missing.values() for path in absent[:1]][:_SHOWN_EXAMPLES]
    return ConversionError(
        f"{source.info.root} lacks files of every episode asked for ({len(missing)}), "
        f"such as {', '.join(shown)}; download them, or choose others with `episodes`"
    )


def _run(jobs: Sequence[EpisodeJob], workers: int, progress: Progress) -> list[EpisodeResult]:
    done: list[EpisodeResult] = []
    workers = min(workers, len(jobs))
    # Closed at once when a callback raises, so that no process converts on unseen.
    with closing(_results(jobs, workers)) as results:
        for result in results:
            status: Status = "written" if result.error is None else "failed"
            progress.step(status, result.index, result.error or "")
            done.append(result)
    return sorted(done, key=lambda result: result.index)


def _results(jobs: Sequence[EpisodeJob], workers: int) -> Generator[EpisodeResult, None, None]:
    """Yield each job's result as it comes; each episode has one owner, who writes all of it."""
    threads = max(1, (os.cpu_count() or 1) // max(1, workers))
    if workers <= 1:
        for job in jobs:
            yield convert_episode(job, threads)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent)
    try:
        futures = {pool.submit(convert_episode, job, threads): job for job in jobs}
        for future in as_completed(futures):
            yield _outcome(future, futures[future])
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _outcome(future: Future[EpisodeResult], job: EpisodeJob) -> EpisodeResult:
    try:
        return future.result()
    except BrokenProcessPool:
        error = (
            f"episode {job.entry.index}: a worker process ended abruptly, for want of memory or of "
            "`if __name__ == '__main__':` in the calling script; try again with one worker. "
            f"Memory now: {measure_memory()}"
        )
        return EpisodeResult(job.entry.index, error, {}, ())


def _report(
    source: LeRobotSource, plan: _Plan, results: Sequence[EpisodeResult]
) -> ConversionReport:
    left_out = {f.key: f.reason for f in source.info.features if f.kind == "left_out"}
    for result in results:
        left_out.update(result.left_out)
    return ConversionReport(
        written=tuple(result.index for result in results if result.error is None),
        skipped=plan.skipped,
        missing=plan.missing,
        failed={result.index: result.error for result in results if result.error is not None},
        left_out=left_out,
        warnings={result.index: result.warnings for result in results if result.warnings},
    )
