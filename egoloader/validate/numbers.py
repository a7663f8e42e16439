"""What is wrong with rows of numbers, whatever they mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from egoloader.episode import TIMESTAMP, ZarrEpisode
from egoloader.validate.finding import Finding
from egoloader.validate.stored import Numbers, each_run

__all__ = ["check_finite", "check_tails", "check_timestamps"]

#: Rows of zeros at an episode's end that are taken for padding.
LEAST_TAIL = 2
#: How far the time between frames may be from 1 / fps, as a share: of the median, and of each.
_MEDIAN_DRIFT, _LONGEST_GAP = 0.05, 2.5


def check_finite(episode: ZarrEpisode, key: str, numbers: Numbers) -> list[Finding]:
    """Find rows that hold NaN or inf."""
    if numbers.rows.dtype.kind != "f":
        return []
    flat = numbers.rows.reshape(len(numbers.rows), -1)
    is_bad = ~np.isfinite(flat).all(axis=1)
    return each_run(episode, "not finite", "NaN or inf", key, is_bad)


def check_tails(episode: ZarrEpisode, arrays: Mapping[str, Numbers]) -> Iterator[Finding]:
    """Find rows of zeros at the end, as padding leaves them where `total_frames` is too large.

    Of one array alone they are only taken for padding where the array comes to them in a jump: from
    a row that is not small beside the others, and zeros are rare before.
    """
    whole = {key: one for key, one in arrays.items() if one.is_read.all() and len(one.rows)}
    tails = {key: _zero_tail(one) for key, one in whole.items()}
    moving = {key: n for key, n in tails.items() if n < len(whole[key].rows)}
    shared = min(moving.values(), default=0) if len(moving) > 1 else 0
    for key, length in moving.items():
        if length < LEAST_TAIL or not (shared >= LEAST_TAIL or _ends_abruptly(whole[key], length)):
            continue
        total = episode.total_frames
        yield Finding(
            episode.name,
            "zero tail",
            f"the last {length} rows are zeros; is total_frames too large?",
            key,
            total - length,
            total,
        )


def check_timestamps(episode: ZarrEpisode, arrays: Mapping[str, Numbers]) -> Iterator[Finding]:
    """Compare the array of timestamps, in seconds, to fps."""
    numbers = arrays.get(TIMESTAMP)
    if numbers is None or len(numbers.rows) < 2:
        return
    times = numbers.rows.reshape(len(numbers.rows)).astype(np.float64)
    is_known = numbers.is_read & np.isfinite(times)
    pairs = is_known[1:] & is_known[:-1]
    steps, rows = np.diff(times)[pairs], np.flatnonzero(pairs) + 1
    if not len(steps):
        return
    for row in rows[steps <= 0].tolist():
        message = f"the time at frame {row} is not later than the one before"
        yield Finding(episode.name, "timestamps", message, TIMESTAMP, row, row + 1, "content")
    median = float(np.median(steps))
    if abs(median * episode.fps - 1) > _MEDIAN_DRIFT:
        yield Finding(
            episode.name,
            "timestamps",
            f"frames are {median:.4g} s apart, fps = {episode.fps:g} says {1 / episode.fps:.4g} s",
            TIMESTAMP,
            harm="content",
        )
        return
    for row in rows[steps * episode.fps > _LONGEST_GAP].tolist():
        message = f"{times[row] - times[row - 1]:.4g} s pass before frame {row}"
        yield Finding(episode.name, "timestamps", message, TIMESTAMP, row, row + 1, "content")


def _is_zero(numbers: Numbers) -> npt.NDArray[np.bool_]:
    flat = numbers.rows.reshape(len(numbers.rows), -1)
    return np.asarray((flat == 0).all(axis=1))


def _zero_tail(numbers: Numbers) -> int:
    """Return how many rows at the end are zeros."""
    some = np.flatnonzero(~_is_zero(numbers))
    return len(numbers.rows) - (int(some[-1]) + 1 if len(some) else 0)


def _ends_abruptly(numbers: Numbers, tail: int) -> bool:
    flat = numbers.rows.reshape(len(numbers.rows), -1).astype(np.float64)
    before = flat[: len(flat) - tail]
    sizes = np.linalg.norm(before, axis=1)
    is_wide = flat.shape[1] > 2  # a gripper or a button rests at 0
    steps = np.linalg.norm(np.diff(before, axis=0), axis=1)
    usual = float(np.quantile(steps, 0.95)) if len(steps) else 0.0
    is_rare = float((sizes == 0).mean()) < 0.01
    return bool(is_wide and is_rare and sizes[-1] > 10 * usual)
