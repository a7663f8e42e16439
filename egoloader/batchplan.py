"""The plan of a batch: what its frames need of each array, over one episode or several.

Pure: integers in, integers out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.plan import FixedPlan, PlanOutline, ReadPlan, Window, merge_runs
from egoloader.timeline import Located, Timeline, locate
from egoloader.windows import (
    Moments,
    Steps,
    entry_pads,
    entry_rows,
    entry_runs,
    inside_rows,
    inside_runs,
)

__all__ = ["BatchPlan", "plan_batch"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
#: Of a window: where the frames' episodes end that clamp it, None where nothing is clamped; all of
#: a window whose frames depend on when each was recorded.
_Ends = IntArray | Located | None


class BatchPlan:
    """What B frames need, of one episode or of several that an outline fits; by `plan_batch`.

    What the episodes' reads of an array return is taken for one: that of the first episode, that of
    the second behind it, and so on.

    Attributes:
        episodes: per episode, its distinct reads, as the outline numbers them.
        lines: per distinct cut, where its rows stand in what the reads of its array return, as an
            index; None of what is not one frame's, and of rows that don't follow one another.
    """

    __slots__ = ("_ends", "_frames", "_outline", "_places", "_rows", "episodes", "lines")

    def __init__(
        self,
        outline: PlanOutline,
        frames: IntArray,
        ends: Sequence[_Ends],
        rows: Sequence[IntArray] | None,
        places: Sequence[IntArray],
        lines: Sequence[slice | int | None],
        episodes: Sequence[Sequence[ReadPlan]],
    ) -> None:
        self._outline, self._frames, self._ends, self._rows = outline, frames, ends, rows
        self._places, self.lines, self.episodes = places, lines, episodes

    @property
    def keys(self) -> tuple[str, ...]:
        """The sample keys whose windows are planned."""
        return tuple(self._outline.entries)

    @property
    def reads(self) -> dict[str, ReadPlan]:
        """Per array, the one read that serves every entry and frame of the first episode."""
        return {key: self.episodes[0][read] for key, read in self._outline.arrays.items()}

    def rows(self, key: str) -> IntArray:
        """Return the rows of an entry's windows: (B, n) int64, (B,) without a time axis.

        Of an interpolated entry: those before its steps, then those behind them, (B, 2n).
        """
        window = self._outline.cuts[self._outline.entries[key]][0]
        if self._rows is not None:
            return self._rows[window]
        return inside_rows(self._outline.constant(window), self._frames)

    def places(self, key: str) -> IntArray:
        """Return where those rows stand in what the reads of their array return."""
        return self._places[self._outline.entries[key]]

    def is_pad(self, key: str) -> npt.NDArray[np.bool_]:
        """Return which steps are clamped or padded: (B, n) bool, (B,) without a time axis."""
        window = self._outline.cuts[self._outline.entries[key]][0]
        ends = self._ends[window]
        if isinstance(ends, Located):
            return ends.is_pad
        steps = self._outline.constant(window)
        if ends is not None:
            return entry_pads(steps, self._frames, ends)
        shape = (len(self._frames), *((steps.num_steps,) if steps.has_time_axis else ()))
        return np.zeros(shape, dtype=np.bool_)

    def weights(self, key: str) -> FloatArray:
        """Return the weights of the later rows of an interpolated entry: (B, n), or (1, n)."""
        window = self._outline.cuts[self._outline.entries[key]][0]
        ends = self._ends[window]
        if isinstance(ends, Located):
            return ends.weights
        between = self._outline.constant(window).between
        assert between is not None
        return between.weights[None]


def plan_batch(
    outline: PlanOutline,
    frames: IntArray,
    numbers: IntArray,
    total_frames: IntArray,
    cut_ends: IntArray | None,
    timelines: Sequence[Timeline] = (),
) -> BatchPlan:
    """Plan B frames of E episodes.

    Args:
        outline: of the keymap's entries, in each of the episodes.
        frames: (B,) int64, each in [0, total_frames) of its episode.
        numbers: (B,) int64, the number of each frame's episode; there is a frame of each.
        total_frames: (E,) int64, the episodes' real frames.
        cut_ends: (B,) int64, where cut windows end: one past the last row that they may take; None
            where all of them end with the episode.
        timelines: of the episodes, where windows depend on when frames were recorded.
    """
    fixed = outline.fixed if len(frames) == 1 else None
    if fixed is not None and fixed.is_inside(frames.item(), total_frames.item()):
        return _plan_one(outline, fixed, frames)
    episode_ends = total_frames.take(numbers)
    margins = int(frames.min()), int((episode_ends - frames).min())
    asked = _Asked(frames, numbers, episode_ends, timelines, margins)
    windows = [
        _resolve(steps, asked, cut_ends if is_cut else None) for steps, is_cut in outline.windows
    ]
    reads = [
        _JointRead([windows[its].runs for its in members], numbers, total_frames, chunk_rows)
        for members, chunk_rows in outline.reads
    ]
    places = [reads[read].locate(windows[window].rows) for window, read in outline.cuts]
    plans = [read.plans(len(total_frames)) for read in reads]
    episodes = [[plan[number] for plan in plans] for number in range(len(total_frames))]
    found, ends = [one.rows for one in windows], [one.ends for one in windows]
    return BatchPlan(outline, frames, ends, found, places, [None] * len(places), episodes)


class _Window(NamedTuple):
    """One window at B frames: its rows, the same as runs, (B, r) int64 each, and what clamps it."""

    rows: IntArray
    runs: tuple[IntArray, IntArray]
    ends: _Ends


class _Asked(NamedTuple):
    """B frames, as `plan_batch` takes them.

    Attributes:
        frames: (B,) int64.
        numbers: (B,) int64, of their episodes.
        episode_ends: (B,) int64, one past the last row.
        timelines: of the episodes, or none.
        margins: the least frame, and the least distance of one from the end.
    """

    frames: IntArray
    numbers: IntArray
    episode_ends: IntArray
    timelines: Sequence[Timeline]
    margins: tuple[int, int]


def _resolve(steps: Steps | Moments, asked: _Asked, cut_ends: IntArray | None) -> _Window:
    """Resolve a window, which `cut_ends` may cut off."""
    frames, ends = asked.frames, asked.episode_ends if cut_ends is None else cut_ends
    if isinstance(steps, Moments):
        found = locate(steps, frames, ends, asked.numbers, asked.timelines)
        rows = found.rows.reshape(len(frames), -1)
        return _Window(found.rows, (rows, rows + 1), found)
    if cut_ends is None and steps.is_inside(*asked.margins):
        return _Window(inside_rows(steps, frames), inside_runs(steps, frames), None)
    return _Window(entry_rows(steps, frames, ends), entry_runs(steps, frames, ends), ends)


class _JointRead:
    """The reads of arrays that are planned alike, of several episodes, planned as if of one.

    In it episodes stand one behind the other, so far apart that nothing of two of them merges.

    Args:
        runs: starts and stops, (B, r) int64 each, of the rows that are needed.
        numbers: (B,) int64, the number of each frame's episode.
        total_frames: (E,) int64, the episodes' real frames.
        chunk_rows: rows of one decoded chunk.
    """

    def __init__(
        self,
        runs: Sequence[tuple[IntArray, IntArray]],
        numbers: IntArray,
        total_frames: IntArray,
        chunk_rows: int,
    ) -> None:
        self._span = (int(total_frames.max()) // chunk_rows + 2) * chunk_rows
        self._bases = (numbers * self._span)[:, None]
        starts = np.concatenate([self._bases + starts for starts, _ in runs], axis=None)
        stops = np.concatenate([self._bases + stops for _, stops in runs], axis=None)
        self._starts, self._stops = merge_runs(starts, stops, chunk_rows)
        sizes = self._stops - self._starts
        self._shifts = sizes.cumsum() - sizes - self._starts

    def locate(self, rows: IntArray) -> IntArray:
        """Return where `rows`, (B, n) or (B,), stand in what the reads return."""
        joint = rows + (self._bases if rows.ndim == 2 else self._bases[:, 0])
        group = self._starts.searchsorted(joint, side="right") - 1
        return np.asarray(joint + self._shifts.take(group))

    def plans(self, num_episodes: int) -> list[ReadPlan]:
        """Return the episodes' reads."""
        groups: list[list[Window]] = [[] for _ in range(num_episodes)]
        numbers = self._starts // self._span
        bases = numbers * self._span
        starts, stops = self._starts - bases, self._stops - bases
        bounds = zip(numbers.tolist(), starts.tolist(), stops.tolist(), strict=True)
        for number, start, stop in bounds:
            groups[number].append((start, stop))
        return [ReadPlan(tuple(one)) for one in groups]


def _plan_one(outline: PlanOutline, fixed: FixedPlan, frames: IntArray) -> BatchPlan:
    """Plan one frame around which no step leaves the episode."""
    at = frames.item()
    reads = [
        ReadPlan(tuple([(at + start, at + stop) for start, stop in groups]))
        for groups in fixed.groups
    ]
    ends: list[_Ends] = [None] * len(outline.windows)
    return BatchPlan(outline, frames, ends, None, fixed.places, fixed.lines, (reads,))
