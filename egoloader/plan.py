"""The plan of a read: which rows of one array to fetch for the windows cut from it.

Pure: integers in, integers out. One plan is one read.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.errors import PlanError
from egoloader.windows import (
    Steps,
    consecutive_runs,
    entry_pads,
    entry_rows,
    entry_runs,
    inside_rows,
)

__all__ = [
    "BatchPlan",
    "EntryPlan",
    "PlanOutline",
    "ReadPlan",
    "Window",
    "outline_plan",
    "plan_batch",
    "plan_reads",
    "plan_rows",
    "touched_chunks",
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


class ReadPlan(NamedTuple):
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
        if len(self.groups) == 1:
            return rows - self.groups[0][0]
        starts = np.array([start for start, _ in self.groups], dtype=np.int64)
        sizes = np.array([stop - start for start, stop in self.groups], dtype=np.int64)
        before = np.cumsum(sizes) - sizes
        group = np.searchsorted(starts, rows, side="right") - 1
        return np.asarray(rows + (before - starts)[group], dtype=np.int64)


def touched_chunks(chunk_rows: int, plan: ReadPlan) -> Sequence[int]:
    """Return the numbers of the chunks along the rows that a plan's rows lie in, each once."""
    if len(plan.groups) == 1:
        start, stop = plan.groups[0]
        return range(start // chunk_rows, (stop - 1) // chunk_rows + 1)
    numbers: list[int] = []
    last = -1
    for start, stop in plan.groups:
        numbers.extend(range(max(start // chunk_rows, last + 1), (stop - 1) // chunk_rows + 1))
        last = numbers[-1]
    return numbers


def plan_rows(rows: Sequence[IntArray], chunk_rows: int) -> ReadPlan:
    """Plan the one read that serves all of `rows`, arrays of rows of any shape."""
    windows = consecutive_runs(np.concatenate([part.ravel() for part in rows]))
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
class PlanOutline:
    """What the entries of a keymap have in common: equal windows and reads are planned once.

    Attributes:
        windows: the distinct windows, and whether each is cut off.
        reads: the distinct reads: the windows that one serves, and the rows of a decoded chunk.
        cuts: the distinct pairs of a window and the read that it is cut from.
        entries: per sample key, the number of its pair.
        arrays: per array, the number of its read.
    """

    windows: tuple[tuple[Steps, bool], ...]
    reads: tuple[tuple[tuple[int, ...], int], ...]
    cuts: tuple[tuple[int, int], ...]
    entries: Mapping[str, int]
    arrays: Mapping[str, int]


def outline_plan(entries: Mapping[str, EntryPlan], chunk_rows: Mapping[str, int]) -> PlanOutline:
    """Find what entries have in common.

    Args:
        entries: per sample key, the entry.
        chunk_rows: per array, the rows of one decoded chunk.
    """
    windows, reads, cuts = _Numbering(), _Numbering(), _Numbering()
    window_of = {
        key: windows.number((entry.steps.identity, entry.is_cut), (entry.steps, entry.is_cut))
        for key, entry in entries.items()
    }
    served: dict[str, set[int]] = {}
    for key, entry in entries.items():
        served.setdefault(entry.zarr_key, set()).add(window_of[key])
    arrays = {}
    for zarr_key, numbers in served.items():
        read = (tuple(sorted(numbers)), chunk_rows[zarr_key])
        arrays[zarr_key] = reads.number(read, read)
    cut_of = {}
    for key, entry in entries.items():
        cut = (window_of[key], arrays[entry.zarr_key])
        cut_of[key] = cuts.number(cut, cut)
    return PlanOutline(
        tuple(windows.values), tuple(reads.values), tuple(cuts.values), cut_of, arrays
    )


class _Numbering:
    """Numbers distinct things in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[object, int] = {}

    def number(self, identity: object, value: object) -> int:
        if identity not in self._numbers:
            self._numbers[identity] = len(self.values)
            self.values.append(value)
        return self._numbers[identity]


class BatchPlan:
    """What B frames of one episode need; made by `plan_batch`.

    Attributes:
        reads: per array, the one read that serves every entry and frame.
    """

    __slots__ = ("_ends", "_frames", "_outline", "_places", "_rows", "reads")

    def __init__(
        self,
        outline: PlanOutline,
        frames: IntArray,
        ends: Sequence[IntArray],
        rows: Sequence[IntArray],
        places: Sequence[IntArray],
        reads: Mapping[str, ReadPlan],
    ) -> None:
        self._outline, self._frames, self._ends = outline, frames, ends
        self._rows, self._places, self.reads = rows, places, reads

    @property
    def keys(self) -> tuple[str, ...]:
        """The sample keys whose windows are planned."""
        return tuple(self._outline.entries)

    def rows(self, key: str) -> IntArray:
        """Return the rows of an entry's windows: (B, n) int64, (B,) without a time axis."""
        return self._rows[self._outline.cuts[self._outline.entries[key]][0]]

    def places(self, key: str) -> IntArray:
        """Return where those rows stand in what their array's read returns."""
        return self._places[self._outline.entries[key]]

    def is_pad(self, key: str) -> npt.NDArray[np.bool_]:
        """Return which of those rows are clamped or padded, of the same shape."""
        window = self._outline.cuts[self._outline.entries[key]][0]
        return entry_pads(self._outline.windows[window][0], self._frames, self._ends[window])


def plan_batch(
    outline: PlanOutline, frames: IntArray, total_frames: int, cut_ends: IntArray | None
) -> BatchPlan:
    """Plan B frames of one episode.

    Args:
        outline: of the keymap's entries.
        frames: (B,) int64, each in [0, total_frames).
        total_frames: the episode's real frames.
        cut_ends: (B,) int64, where cut windows end: one past the last row that they may take; None
            where all of them end with the episode.
    """
    asked = frames.tolist()
    first, last = min(asked), max(asked)
    whole = np.full(len(asked), total_frames, dtype=np.int64)
    rows: list[IntArray] = []
    runs: list[list[Window]] = []
    ends: list[IntArray] = []
    for steps, is_cut in outline.windows:
        end = cut_ends if is_cut and cut_ends is not None else whole
        ends.append(end)
        if end is whole and steps.is_inside(first, last, total_frames):
            rows.append(inside_rows(steps, frames))
            runs.append(
                [(frame + low, frame + high) for frame in asked for low, high in steps.runs]
            )
        else:
            rows.append(entry_rows(steps, frames, end))
            runs.append(entry_runs(steps, frames, end))
    reads = [
        ReadPlan(tuple(plan_reads(itertools.chain(*(runs[n] for n in numbers)), chunk_rows)))
        for numbers, chunk_rows in outline.reads
    ]
    places = [reads[read].locate(rows[window]) for window, read in outline.cuts]
    by_array = {key: reads[read] for key, read in outline.arrays.items()}
    return BatchPlan(outline, frames, ends, rows, places, by_array)
