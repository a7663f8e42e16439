"""The plan of a read: which rows of one array to fetch for the windows cut from it.

Pure: integers in, integers out. One plan is one read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.errors import PlanError
from egoloader.windows import Rows, Steps, entry_rows

__all__ = [
    "BatchPlan",
    "EntryPlan",
    "ReadPlan",
    "Window",
    "plan_batch",
    "plan_reads",
    "plan_rows",
    "rows_to_windows",
]

Window = tuple[int, int]
IntArray = npt.NDArray[np.int64]


def plan_reads(windows: Iterable[Window], chunk_rows: int) -> list[Window]:
    """Merge row windows of one array into sorted, disjoint row groups.

    Two windows, neighbours once sorted, merge when every row between them lies in a chunk that one
    of them touches anyway: reading across the gap then decodes nothing more.

    Args:
        windows: half-open (start, stop) rows, in any order; they may overlap or repeat.
        chunk_rows: rows of one decoded chunk.

    Returns:
        Half-open (start, stop) groups: one is a contiguous read, several an orthogonal index.

    Raises:
        PlanError: a window that is empty, reversed or negative, or `chunk_rows` below 1.
    """
    if chunk_rows < 1:
        raise PlanError(f"chunk_rows must be at least 1, got {chunk_rows}")
    groups: list[Window] = []
    for start, stop in sorted(windows):
        if start < 0 or stop <= start:
            raise PlanError(f"windows are (start, stop) with 0 <= start < stop, got {start, stop}")
        if groups and start // chunk_rows - (groups[-1][1] - 1) // chunk_rows <= 1:
            groups[-1] = (groups[-1][0], max(groups[-1][1], stop))
        else:
            groups.append((start, stop))
    return groups


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """One read of one array: sorted, disjoint groups of rows, fetched in this order.

    Attributes:
        groups: half-open (start, stop) rows.
    """

    groups: tuple[Window, ...]

    @property
    def num_rows(self) -> int:
        """Rows that the read returns."""
        return sum(stop - start for start, stop in self.groups)

    @property
    def rows(self) -> IntArray:
        """The rows that the read returns, in order: (num_rows,) int64."""
        return np.concatenate([np.arange(start, stop) for start, stop in self.groups])

    def locate(self, rows: IntArray) -> IntArray:
        """Return where `rows`, any shape, each in some group, stand in what the read returns."""
        starts = np.array([start for start, _ in self.groups], dtype=np.int64)
        sizes = np.array([stop - start for start, stop in self.groups], dtype=np.int64)
        before = np.cumsum(sizes) - sizes
        group = np.searchsorted(starts, rows, side="right") - 1
        return np.asarray(before[group] + rows - starts[group], dtype=np.int64)


def rows_to_windows(rows: IntArray) -> list[Window]:
    """Return the runs of consecutive rows among `rows` (any shape, order, repeats) as windows."""
    distinct = np.unique(rows)
    breaks = np.flatnonzero(np.diff(distinct) > 1) + 1
    bounds = [0, *breaks.tolist(), distinct.size]
    return [
        (int(distinct[a]), int(distinct[b - 1]) + 1) for a, b in itertools.pairwise(bounds) if b > a
    ]


def plan_rows(rows: Sequence[IntArray], chunk_rows: int) -> ReadPlan:
    """Plan the one read that serves all of `rows`, arrays of rows of any shape."""
    windows = rows_to_windows(np.concatenate([part.ravel() for part in rows]))
    return ReadPlan(tuple(plan_reads(windows, chunk_rows)))


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """One keymap entry as one episode sees it.

    Attributes:
        zarr_key: the array that the entry reads.
        steps: the entry's window in frames.
        is_cut: whether the end of an annotation span cuts the window off.
    """

    zarr_key: str
    steps: Steps
    is_cut: bool


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """What B frames of one episode need.

    Attributes:
        rows: per sample key, the rows of its window at each of the B frames.
        reads: per array, the one read that serves every entry and frame.
    """

    rows: Mapping[str, Rows]
    reads: Mapping[str, ReadPlan]


def plan_batch(
    entries: Mapping[str, EntryPlan],
    chunk_rows: Mapping[str, int],
    frames: IntArray,
    total_frames: int,
    cut_ends: IntArray,
) -> BatchPlan:
    """Plan B frames of one episode.

    Args:
        entries: per sample key, the entry.
        chunk_rows: per array, the rows of one decoded chunk.
        frames: (B,) int64, each in [0, total_frames).
        total_frames: the episode's real frames.
        cut_ends: (B,) int64, where cut windows end: one past the last row that they may take.
    """
    ends = np.full_like(frames, total_frames)
    rows: dict[str, Rows] = {}
    wanted: dict[str, list[IntArray]] = {}
    for key, entry in entries.items():
        rows[key] = entry_rows(entry.steps, frames, cut_ends if entry.is_cut else ends)
        wanted.setdefault(entry.zarr_key, []).append(rows[key].rows)
    reads = {key: plan_rows(parts, chunk_rows[key]) for key, parts in wanted.items()}
    return BatchPlan(rows, reads)
