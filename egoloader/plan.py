"""The plan of a read: which rows of one array to fetch for the windows cut from it.

Pure: integers in, integers out. One plan is one read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.errors import PlanError
from egoloader.windows import Moments, Steps, consecutive_runs, inside_rows

__all__ = [
    "EntryPlan",
    "FixedPlan",
    "PlanOutline",
    "ReadPieces",
    "ReadPlan",
    "Window",
    "merge_runs",
    "outline_plan",
    "plan_reads",
    "plan_rows",
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


def merge_runs(starts: IntArray, stops: IntArray, chunk_rows: int) -> tuple[IntArray, IntArray]:
    """Merge runs of rows as `plan_reads` does windows.

    Args:
        starts: (n,) int64, n >= 1; none negative.
        stops: (n,) int64, each above its start.
        chunk_rows: rows of one decoded chunk.

    Returns:
        Starts and stops of the groups, in order.
    """
    order = starts.argsort()
    starts, stops = starts.take(order), np.maximum.accumulate(stops.take(order))
    is_apart = starts[1:] // chunk_rows - (stops[:-1] - 1) // chunk_rows > 1
    breaks = is_apart.nonzero()[0]
    first, last = np.zeros(len(breaks) + 1, np.int64), np.empty(len(breaks) + 1, np.int64)
    first[1:], last[:-1], last[-1] = breaks + 1, breaks, len(starts) - 1
    return starts.take(first), stops.take(last)


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
        if len(self.groups) == 1:
            return rows - self.groups[0][0]
        bounds, before = [], 0
        for start, stop in self.groups:
            bounds.append((start, before - start))
            before += stop - start
        starts, shifts = np.array(bounds, dtype=np.int64).T
        group = starts.searchsorted(rows, side="right") - 1
        return np.asarray(rows + shifts.take(group))

    def pieces(self, chunk_rows: int) -> ReadPieces:
        """Return what the read takes of chunks of so many rows."""
        chunks: list[int] = []
        slices: list[tuple[int, int, int]] = []
        last = -1
        for start, stop in self.groups:
            for number in range(start // chunk_rows, (stop - 1) // chunk_rows + 1):
                if number != last:
                    chunks.append(number)
                    last = number
                base = number * chunk_rows
                low = start - base if start > base else 0
                high = stop - base if stop - base < chunk_rows else chunk_rows
                slices.append((len(chunks) - 1, low, high))
        return ReadPieces(chunks, slices)


class ReadPieces(NamedTuple):
    """What a read takes of an array's chunks.

    Attributes:
        chunks: numbers of the chunks along the rows, sorted, each once.
        slices: in the order of the read's rows, the place in `chunks` of the chunk, and the first
            and last row + 1 within it.
    """

    chunks: Sequence[int]
    slices: Sequence[tuple[int, int, int]]


def plan_rows(rows: Sequence[IntArray], chunk_rows: int) -> ReadPlan:
    """Plan the one read that serves all of `rows`, arrays of rows of any shape."""
    windows = consecutive_runs(np.concatenate([part.ravel() for part in rows]))
    return ReadPlan(tuple(plan_reads(windows, chunk_rows)))


@dataclass(frozen=True, slots=True)
class EntryPlan:
    """One keymap entry as one episode sees it.

    Attributes:
        zarr_key: the array that the entry reads.
        steps: the entry's window in frames, or the moments of one whose frames depend on when
            each was recorded.
        is_cut: whether the end of an annotation span cuts the window off.
    """

    zarr_key: str
    steps: Steps | Moments
    is_cut: bool


@dataclass(frozen=True, slots=True)
class PlanOutline:
    """What the entries of a keymap have in common: equal windows and reads are planned once.

    Attributes:
        windows: the distinct windows, and whether each is cut off.
        reads: the distinct reads: the windows that one serves, and the rows of a decoded chunk.
        cuts: the distinct pairs of a window and the read that it is cut from.
        entries: per sample key, the number of its pair.
        arrays: per array, the number of its read; arrays of one number are planned alike.
        fixed: how one frame is planned wherever no step leaves the episode; None where that
            depends on where the frame stands in its chunks.
    """

    windows: tuple[tuple[Steps | Moments, bool], ...]
    reads: tuple[tuple[tuple[int, ...], int], ...]
    cuts: tuple[tuple[int, int], ...]
    entries: Mapping[str, int]
    arrays: Mapping[str, int]
    fixed: FixedPlan | None

    def constant(self, window: int) -> Steps:
        """Return a window that is the same steps in frames wherever it is."""
        steps = self.windows[window][0]
        assert isinstance(steps, Steps)
        return steps

    @property
    def identity(self) -> Hashable:
        """Equal for equal outlines."""
        windows = tuple((steps.identity, is_cut) for steps, is_cut in self.windows)
        named = tuple(self.entries.items()), tuple(self.arrays.items())
        return windows, self.reads, self.cuts, named


class FixedPlan(NamedTuple):
    """The plan of one frame, relative to it.

    Attributes:
        first: the earliest frame that any window reaches.
        last: one past the latest.
        groups: per distinct read, its groups.
        places: per distinct cut, (1, n) or (1,) int64, where its rows stand in what is read.
        lines: the same as an index, where they follow one another; else None.
    """

    first: int
    last: int
    groups: tuple[tuple[Window, ...], ...]
    places: tuple[IntArray, ...]
    lines: tuple[slice | int | None, ...]

    def is_inside(self, frame: int, total_frames: int) -> bool:
        """Return whether no step at a frame leaves the episode."""
        return frame + self.first >= 0 and frame + self.last <= total_frames


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
    fixed = _fix_plan(windows.values, reads.values, cuts.values)
    return PlanOutline(
        tuple(windows.values), tuple(reads.values), tuple(cuts.values), cut_of, arrays, fixed
    )


def _fix_plan(
    windows: Sequence[tuple[Steps | Moments, bool]],
    reads: Sequence[tuple[tuple[int, ...], int]],
    cuts: Sequence[tuple[int, int]],
) -> FixedPlan | None:
    """Plan frame 0 of an episode that has no ends, if all frames are planned alike."""
    steps = [one for one, is_cut in windows if isinstance(one, Steps) and not is_cut]
    if not windows or len(steps) < len(windows):
        return None
    first = min(one.reach[0] for one in steps)
    last = max(one.reach[1] for one in steps)
    # Rows can't be negative in a plan, so all is moved to where they are not.
    groups: list[tuple[Window, ...]] = []
    for numbers, chunk_rows in reads:
        runs = [(a - first, b - first) for n in numbers for a, b in steps[n].runs]
        planned = _merged_anywhere(plan_reads(runs, 1), chunk_rows)
        if planned is None:
            return None
        groups.append(planned)
    places = []
    for window, read in cuts:
        rows = inside_rows(steps[window], np.array([-first], dtype=np.int64))
        places.append(ReadPlan(groups[read]).locate(rows))
        places[-1].flags.writeable = False  # every plan of one frame has the same
    moved = tuple(tuple((a + first, b + first) for a, b in group) for group in groups)
    return FixedPlan(first, last, moved, tuple(places), tuple(map(_line, places)))


def _merged_anywhere(groups: Sequence[Window], chunk_rows: int) -> tuple[Window, ...] | None:
    """Merge groups as `plan_reads` does, if it does so alike wherever in its chunks the first is.

    Two rows lie one chunk apart at most where their distance is no longer than a chunk, and two
    chunks apart at least where it is twice as long; between the two that depends on the place.
    """
    merged = [groups[0]]
    for start, stop in groups[1:]:
        distance = start - (merged[-1][1] - 1)
        if distance <= chunk_rows:
            merged[-1] = (merged[-1][0], stop)
        elif distance >= 2 * chunk_rows:
            merged.append((start, stop))
        else:
            return None
    return tuple(merged)


def _line(places: IntArray) -> slice | int | None:
    """Return one frame's places as an index, if they follow one another."""
    if places.ndim == 1:
        return int(places[0])
    (row,) = places.tolist()
    return slice(row[0], row[-1] + 1) if row == list(range(row[0], row[-1] + 1)) else None


class _Numbering:
    """Numbers distinct things in the order in which they are met."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[Hashable, int] = {}

    def number(self, identity: Hashable, value: object) -> int:
        if identity not in self._numbers:
            self._numbers[identity] = len(self.values)
            self.values.append(value)
        return self._numbers[identity]
