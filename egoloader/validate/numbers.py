"""What is wrong with rows of numbers, whatever they mean."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from egoloader.episode import TIMESTAMP, ZarrEpisode
from egoloader.timestamps import layout_problem, time_faults
from egoloader.validate.finding import Finding
from egoloader.validate.stored import Numbers, each_run

__all__ = ["check_finite", "check_tails", "check_timestamps"]

#: Rows of zeros at an episode's end that are taken for padding.
LEAST_TAIL = 2
#: Numbers of a row from which on an array of them alone is looked at: a gripper or a button rests
#: at zero, and jumps to it.
LEAST_WIDTH = 3
#: A jump to zeros is so many times as long as the 95th percentile of the steps before, and of the
#: rows before at most such a share are zeros.
MANY_TIMES, RARELY = 10, 0.01
#: How far the time between frames may be from 1 / fps, as a share: of the median, and of each.
_MEDIAN_DRIFT, _LONGEST_GAP = 0.05, 2.5


def check_finite(episode: ZarrEpisode, key: str, numbers: Numbers) -> list[Finding]:
    """Find rows that hold NaN or inf."""
    is_bad = numbers.is_read & ~numbers.is_finite
    return each_run(episode, "not finite", "NaN or inf", key, is_bad)


def check_tails(episode: ZarrEpisode, arrays: Mapping[str, Numbers]) -> Iterator[Finding]:
    """Find rows of zeros at the end, as padding leaves them where `total_frames` is too large.

    An array may rest at zero. So they are only taken for padding where it moves, comes to them in a
    jump, from a row that is not small beside its steps, and zeros are rare before; or where all
    arrays end with them, and one that is wide does so, or each does.
    """
    whole = {key: one for key, one in arrays.items() if one.is_read.all()}
    tails = {key: _zero_tail(one) for key, one in whole.items()}
    moving = {key: n for key, n in tails.items() if n < len(whole[key].rows)}
    jumps = {key for key, n in moving.items() if n >= LEAST_TAIL and _ends_abruptly(whole[key], n)}
    wide = {key for key in jumps if math.prod(whole[key].rows.shape[1:]) >= LEAST_WIDTH}
    is_shared = len(moving) > 1 and (bool(wide) or jumps == moving.keys())
    shared = min(moving.values(), default=0) if is_shared else 0
    total = episode.total_frames
    for key, own in moving.items():
        length = own if key in wide else shared
        if length < LEAST_TAIL:
            continue
        yield Finding(
            episode.name,
            "zero tail",
            f"the last {length} rows are zeros; is total_frames too large?",
            key,
            total - length,
            total,
        )


def check_timestamps(episode: ZarrEpisode, arrays: Mapping[str, Numbers]) -> Iterator[Finding]:
    """Find times that windows can't be read by, and such as fps doesn't say."""
    numbers = arrays.get(TIMESTAMP)
    if numbers is None or layout_problem(episode.layout(TIMESTAMP)) or not numbers.rows.size:
        return
    times = numbers.rows.reshape(len(numbers.rows)).astype(np.float64)
    # Those that are not finite are found in every array.
    faults = list(time_faults(times, numbers.is_finite, episode.fps))
    for one in faults:
        yield _finding(episode, one.problem, one.start, one.end)
    if not any((one.start, one.end) == (0, len(times)) for one in faults):
        yield from _check_rate(episode, times, numbers.is_finite)


def _check_rate(
    episode: ZarrEpisode, times: npt.NDArray[np.float64], is_known: npt.NDArray[np.bool_]
) -> Iterator[Finding]:
    """Compare the time between frames to fps: the median, else each."""
    pairs = is_known[1:] & is_known[:-1]
    steps = np.diff(np.where(is_known, times, 0))
    median = float(np.median(steps[pairs])) if pairs.any() else 1 / episode.fps
    if abs(median * episode.fps - 1) > _MEDIAN_DRIFT:
        problem = f"frames are {median:.4g} s apart, fps = {episode.fps:g} says "
        yield _finding(episode, f"{problem}{1 / episode.fps:.4g} s", 0, len(times))
        return
    is_late = pairs & (steps * episode.fps > _LONGEST_GAP)
    for row in (np.flatnonzero(is_late) + 1).tolist():
        problem = f"{steps[row - 1]:.4g} s pass before it, fps says {1 / episode.fps:.4g} s"
        yield _finding(episode, problem, row, row + 1)


def _finding(episode: ZarrEpisode, problem: str, start: int, end: int) -> Finding:
    return Finding(episode.name, "timestamps", problem, TIMESTAMP, start, end, "content")


def _zero_tail(numbers: Numbers) -> int:
    """Return how many rows at the end are zeros."""
    some = np.flatnonzero(~numbers.is_zero)
    return len(numbers.is_zero) - (int(some[-1]) + 1 if len(some) else 0)


def _ends_abruptly(numbers: Numbers, tail: int) -> bool:
    flat = numbers.rows.reshape(len(numbers.rows), -1).astype(np.float64)
    before = flat[: len(flat) - tail]
    before = before[np.isfinite(before).all(axis=1)]
    sizes = np.linalg.norm(before, axis=1)
    steps = np.linalg.norm(np.diff(before, axis=0), axis=1)
    usual = float(np.quantile(steps, 0.95)) if len(steps) else 0.0
    # What hardly ever moves may be a command, which is steady and then taken back.
    return usual > 0 and bool(sizes[-1] > MANY_TIMES * usual and (sizes == 0).mean() < RARELY)
