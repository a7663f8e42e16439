"""Reading an episode's rows where some of them can't be read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeError, SettingsError, near_miss
from egoloader.runs import runs
from egoloader.validate.finding import Finding

__all__ = [
    "MOST_UNREADABLE",
    "Depth",
    "Numbers",
    "blocks",
    "check_depth",
    "each_run",
    "given_up",
    "read_bytes",
    "read_numbers",
]

#: `metadata` decodes nothing, `sampled` some chunks of each array, `full` all of them.
Depth = Literal["metadata", "sampled", "full"]

#: Chunks, or blocks of frames, that are looked at of each array when sampling.
SAMPLED_BLOCKS = 12
#: Bytes of the largest rows of numbers that are kept, and of all of an array's.
LARGEST_ROW, LARGEST_ARRAY = 4096, 2**29
#: Rows of bytes that are read together at most.
BLOCK_ROWS = 64
#: Chunks, or rows of bytes, that can't be read, after which the rest of an array is left.
MOST_UNREADABLE = 1000


class Numbers(NamedTuple):
    """The rows of an array of numbers.

    Attributes:
        rows: (total_frames, D…) numbers; zeros where nothing was read. Of rows as large as those of
            pictures, or as many as nobody records, only the flags are kept, and this is
            (total_frames, 0). Where too many can't be read, all of this ends with the last of them.
        is_read: (total_frames,) which of them were read.
        is_finite: (total_frames,) which of them were read and hold no NaN or inf.
        is_zero: (total_frames,) which of them were read and hold nothing but zeros.
    """

    rows: npt.NDArray[Any]
    is_read: npt.NDArray[np.bool_]
    is_finite: npt.NDArray[np.bool_]
    is_zero: npt.NDArray[np.bool_]


def check_depth(name: str) -> Depth:
    """Return the depth of a name.

    Raises:
        SettingsError: there is none of that name.
    """
    found: tuple[Depth, ...] = get_args(Depth)
    for depth in found:
        if depth == name:
            return depth
    raise SettingsError(f"the level is {name!r}; {near_miss(str(name), found)}")


def blocks(total: int, size: int, depth: Depth) -> Iterator[tuple[int, int]]:
    """Yield the half-open blocks of rows to look at: all, or some that are evenly spread.

    Args:
        total: rows.
        size: of a block; the last may be smaller.
        depth: how many.
    """
    starts = range(0, total, size)
    numbers: Iterable[int] = range(len(starts) if depth != "metadata" else 0)
    if depth == "sampled" and len(starts) > SAMPLED_BLOCKS:
        numbers = np.linspace(0, len(starts) - 1, SAMPLED_BLOCKS).round().astype(np.int64).tolist()
    for number in numbers:
        yield starts[number], min(starts[number] + size, total)


def read_numbers(episode: ZarrEpisode, key: str, depth: Depth) -> tuple[Numbers, list[Finding]]:
    """Read an array of numbers, chunk by chunk where it can't be read whole."""
    layout, total = episode.layout(key), episode.total_frames
    dtype = np.dtype(layout.dtype)
    row_bytes = math.prod(layout.row_shape) * dtype.itemsize
    is_kept = row_bytes <= LARGEST_ROW and row_bytes * total <= LARGEST_ARRAY
    rows = np.zeros((total, *(layout.row_shape if is_kept else (0,))), dtype)
    is_read, is_finite, is_zero = np.zeros((3, total), dtype=np.bool_)
    findings: list[Finding] = []
    for start, stop in blocks(total, max(layout.chunk_rows, 1), depth):
        if len(findings) == MOST_UNREADABLE:
            findings.append(given_up(episode, key, start))
            seen = (rows[:start], is_read[:start], is_finite[:start], is_zero[:start])
            return Numbers(*seen), findings
        try:
            (found,) = episode.read({key: [(start, stop)]})[key]
        except EpisodeError as error:
            findings.append(unreadable(episode, error, key, start, stop))
            continue
        flat = np.asarray(found).reshape(stop - start, -1)
        is_read[start:stop] = True
        is_finite[start:stop] = np.isfinite(flat).all(axis=1)
        is_zero[start:stop] = (flat == 0).all(axis=1)
        if is_kept:
            rows[start:stop] = found
    return Numbers(rows, is_read, is_finite, is_zero), findings


def read_bytes(
    episode: ZarrEpisode, key: str, depth: Depth
) -> Iterator[tuple[int, bytes | Finding]]:
    """Yield rows of an array of bytes, each with its number, or a finding in the place of one.

    When sampling, the blocks are short: of two rows, so that each has a neighbour. Where too many
    rows can't be read, the last finding is in the place of all that follow.
    """
    chunk_rows = max(episode.layout(key).chunk_rows, 1)
    size = 2 if depth == "sampled" else -(-BLOCK_ROWS // chunk_rows) * chunk_rows
    num_lost = 0
    for start, stop in blocks(episode.total_frames, size, depth):
        if num_lost >= MOST_UNREADABLE:
            yield start, given_up(episode, key, start)
            return
        try:
            (found,) = episode.read({key: [(start, stop)]})[key]
            yield from enumerate(found, start)
        except EpisodeError:
            for row, data in _one_by_one(episode, key, start, stop):
                num_lost += isinstance(data, Finding)
                yield row, data


def _one_by_one(
    episode: ZarrEpisode, key: str, start: int, stop: int
) -> Iterator[tuple[int, bytes | Finding]]:
    for row in range(start, stop):
        try:
            ((data,),) = episode.read({key: [(row, row + 1)]})[key]
            yield row, bytes(data)
        except EpisodeError as error:
            yield row, unreadable(episode, error, key, row, row + 1)


def given_up(episode: ZarrEpisode, key: str, start: int, check: str = "unreadable") -> Finding:
    """Return the finding for rows that are not looked at, as too many before can't be read."""
    message = f"more than {MOST_UNREADABLE} parts before can't be read; the rest is not looked at"
    return Finding(episode.name, check, message, key, start, episode.total_frames)


def unreadable(
    episode: ZarrEpisode, error: EpisodeError, key: str | None, start: int | None, end: int | None
) -> Finding:
    """Return the finding for rows that can't be read."""
    return Finding(episode.name, "unreadable", error.message, key, start, end)


def each_run(
    episode: ZarrEpisode, check: str, message: str, key: str, is_bad: npt.NDArray[np.bool_]
) -> list[Finding]:
    """Return a finding for each run of bad rows."""
    return [Finding(episode.name, check, message, key, *run) for run in runs(is_bad)]
