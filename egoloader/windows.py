"""From keymap entries to rows: pure arithmetic on frame indices, vectorised over a batch."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.keymap import KeySpec

__all__ = [
    "Between",
    "Moments",
    "Run",
    "Steps",
    "consecutive_runs",
    "current_frame",
    "cut_ends",
    "entry_moments",
    "entry_pads",
    "entry_rows",
    "entry_runs",
    "entry_steps",
    "inside_rows",
    "inside_runs",
    "step_times",
]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
#: Half-open (start, stop).
Run = tuple[int, int]
#: Frames from which on a distance is as good as any: longer than every episode, and short enough
#: to count a million of them.
_FAR = 2**40
#: Frames by which a time may miss a frame, or the middle of two, and meet it all the same.
_ROUNDING = 1e-6


class Between(NamedTuple):
    """Where steps that are read by time lie among frames.

    Attributes:
        low: (…, n) int64, the last frame at or before each.
        high: (…, n) int64, the first one at or behind it.
        weights: (…, n) float64, of the later one, 0 to below 1; 0 where both are one.
    """

    low: IntArray
    high: IntArray
    weights: FloatArray


@dataclass(frozen=True, slots=True)
class Moments:
    """When the steps of a window that is read by time are: frames from now, and seconds from there.

    Attributes:
        frames: (n,) int64.
        seconds: (n,) float64.
        has_time_axis: whether the sample keeps the axis of n.
        is_horizon: whether the window is a forward chunk, which an annotation may cut off.
        is_interpolated: whether a step is made of the frames before and behind it; else it is the
            nearer one, the earlier of two as near.
    """

    frames: IntArray
    seconds: FloatArray
    has_time_axis: bool
    is_horizon: bool
    is_interpolated: bool

    @property
    def num_steps(self) -> int:
        """How many steps there are."""
        return len(self.seconds)

    @property
    def identity(self) -> Hashable:
        """Equal for equal windows."""
        times = tuple(self.frames.tolist()), tuple(self.seconds.tolist())
        return times, self.has_time_axis, self.is_interpolated


@dataclass(frozen=True, slots=True)
class Steps:
    """An entry's window in frames, for one frame rate.

    Attributes:
        offsets: (n,) int64, the steps relative to the current frame, as the sample orders them; of
            an interpolated window the frames before its steps, then those behind them: (2n,).
        stride: frames between the steps of a history; steps before the episode repeat frame
            `i % stride`, the oldest one that the stride reaches (frame 0 for stride 1).
        has_time_axis: whether the sample keeps the axis of n.
        is_horizon: whether the window is a forward chunk, which an annotation may cut off.
        between: of a window that is read by time, where its steps lie, relative to the current
            frame: (n,) each.
        is_interpolated: whether steps are made of the frames before and behind them; not where all
            of them meet a frame.
        runs: the offsets as half-open runs of consecutive frames, sorted.
        starts: (r,) int64, where the runs start.
        stops: (r,) int64, where they stop.
        reach: the earliest frame that a step lies at or behind, and one past the latest one that
            a step lies at or before.
        identity: equal for equal windows.
    """

    offsets: IntArray
    stride: int
    has_time_axis: bool
    is_horizon: bool
    between: Between | None = None
    is_interpolated: bool = False
    runs: tuple[Run, ...] = field(init=False)
    starts: IntArray = field(init=False)
    stops: IntArray = field(init=False)
    reach: Run = field(init=False)
    identity: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(consecutive_runs(self.offsets)))
        starts, stops = np.array(self.runs, dtype=np.int64).reshape(-1, 2).T
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "stops", stops)
        low, high = self.bounds
        object.__setattr__(self, "reach", (int(low.min()), int(high.max()) + 1))
        lies: tuple[Hashable, ...] = ()
        if self.between is not None:
            shares = self.between.weights.tolist() if self.is_interpolated else ()
            lies = tuple(low.tolist()), tuple(high.tolist()), tuple(shares)
        identity = (tuple(self.offsets.tolist()), self.stride, self.has_time_axis, lies)
        object.__setattr__(self, "identity", identity)

    @property
    def num_steps(self) -> int:
        """How many steps a sample has."""
        return len(self.bounds[0])

    @property
    def bounds(self) -> tuple[IntArray, IntArray]:
        """The frames at or before the steps, and at or behind them, (n,) each."""
        if self.between is None:
            return self.offsets, self.offsets
        return self.between.low, self.between.high

    def is_inside(self, first: int, left: int) -> bool:
        """Return whether no step leaves the episode.

        Args:
            first: the least of some frames.
            left: the least of their distances from the end: `total_frames` - frame.
        """
        return first + self.reach[0] >= 0 and self.reach[1] <= left


def entry_steps(spec: KeySpec, fps: float) -> Steps:
    """Express an entry's window in frames of an episode recorded at `fps` (Hz), evenly in time."""
    return _timed_steps(entry_moments(spec, fps), fps) if spec.is_timed else _counted(spec, fps)


def entry_moments(spec: KeySpec, fps: float) -> Moments:
    """Return when the steps of an entry are that is read by time.

    Args:
        spec: the entry.
        fps: in Hz, of the frames that its window counts, if it counts any.
    """
    late, is_mixed = spec.latency_s or 0.0, spec.is_interpolated
    count = spec.grid_steps
    if count is None or spec.rate_hz is None:
        steps = _counted(spec, fps)
        seconds = np.full(steps.num_steps, late, dtype=np.float64)
        return Moments(steps.offsets, seconds, steps.has_time_axis, steps.is_horizon, is_mixed)
    is_horizon = spec.horizon_s is not None
    seconds = _grid_times(spec, count) + late
    frames = np.zeros(count, dtype=np.int64)
    return Moments(frames, seconds, is_horizon or count > 1, is_horizon, is_mixed)


def step_times(spec: KeySpec, fps: float) -> FloatArray:
    """Return when the steps of a window are meant to be, in seconds from now: (n,).

    A latency is no part of it: what is read later is of that time.
    """
    if spec.grid_steps is not None:
        return _grid_times(spec, spec.grid_steps)
    return np.asarray(_counted(spec, fps).offsets / fps)


def _grid_times(spec: KeySpec, count: int) -> FloatArray:
    first = 0 if spec.horizon_s is not None else 1 - count
    return np.asarray(np.arange(first, first + count) / np.float64(spec.rate_hz or 1.0))


def _timed_steps(moments: Moments, fps: float) -> Steps:
    """Express a window in frames that is read by time."""
    found = np.clip(moments.frames + moments.seconds * fps, -_FAR, _FAR)
    # Snapped, so that what floats make of a time decides neither a tie nor whether it is padded.
    halves = np.round(found * 2) / 2
    found = np.where(np.abs(found - halves) <= _ROUNDING, halves, found)
    low, high = np.floor(found), np.ceil(found)
    between = Between(low.astype(np.int64), high.astype(np.int64), found - low)
    offsets = np.ceil(found - 0.5).astype(np.int64)
    is_mixed = moments.is_interpolated and bool(between.weights.any())
    if is_mixed:
        offsets = np.concatenate([between.low, between.high])
    return Steps(offsets, 1, moments.has_time_axis, moments.is_horizon, between, is_mixed)


def _counted(spec: KeySpec, fps: float) -> Steps:
    """Express a window in frames whose steps are whole frames."""
    if spec.horizon is not None:
        return Steps(np.arange(spec.horizon, dtype=np.int64), 1, True, True)
    if spec.history is not None:
        stride = 1 if spec.stride_s is None else max(1, _in_frames(spec.stride_s, fps))
        offsets = np.arange(-(spec.history - 1), 1, dtype=np.int64) * stride
        return Steps(offsets, stride, spec.history > 1, False)
    if spec.lag_s is not None:
        lag = max(1, _in_frames(spec.lag_s, fps))
        return Steps(np.array([-lag], dtype=np.int64), 1, False, False)
    if spec.offsets is not None:
        return Steps(np.array(spec.offsets, dtype=np.int64), 1, True, False)
    if spec.offsets_s is not None:
        frames = [_in_frames(offset, fps) for offset in spec.offsets_s]
        return Steps(np.array(frames, dtype=np.int64), 1, True, False)
    return current_frame()


def _in_frames(seconds: float, fps: float) -> int:
    return max(-_FAR, min(_FAR, round(seconds * fps)))


def current_frame() -> Steps:
    """Return the window of the current frame alone, without a time axis."""
    return Steps(np.zeros(1, dtype=np.int64), 1, False, False)


def cut_ends(
    spans: Iterable[tuple[str, int, int]], frames: IntArray, total_frames: int
) -> IntArray:
    """Return where windows that annotations cut off end: (B,) int64, one past the last row.

    Args:
        spans: annotation spans (text, start, end), half-open in frames.
        frames: (B,) int64 frame indices.
        total_frames: the episode's real frames, where no span holds the frame or ends before.
    """
    ends = np.full_like(frames, total_frames)
    for _, start, end in spans:
        held = (start <= frames) & (frames < end)
        # Clamped first: a span may name any number, beyond all that int64 holds.
        ends[held] = np.minimum(ends[held], max(0, min(end, total_frames)))
    return ends


def entry_rows(steps: Steps, frames: IntArray, ends: IntArray) -> IntArray:
    """Resolve a window at each of B frames.

    Args:
        steps: the window.
        frames: (B,) int64 frame indices, each within [0, end).
        ends: (B,) int64, one past the last real row for each frame: `total_frames`, or the end of
            the annotation span that cuts the window off.

    Returns:
        Rows of the episode, clamped or padded: (B, n) int64, (B,) without a time axis; (B, 2n) of
        an interpolated window.
    """
    rows = frames[:, None] + steps.offsets
    oldest = (frames % steps.stride)[:, None]
    rows = np.where(rows < 0, oldest, np.minimum(rows, (ends - 1)[:, None]))
    return rows if _keeps_axis(steps) else rows[:, 0]


def _keeps_axis(steps: Steps) -> bool:
    return steps.has_time_axis or steps.is_interpolated


def inside_rows(steps: Steps, frames: IntArray) -> IntArray:
    """Resolve a window whose steps all lie in the episode: `entry_rows` with nothing to clamp."""
    return frames[:, None] + steps.offsets if _keeps_axis(steps) else frames + steps.offsets


def entry_pads(steps: Steps, frames: IntArray, ends: IntArray) -> npt.NDArray[np.bool_]:
    """Return which steps are clamped or padded: (B, n) bool, (B,) without a time axis."""
    low, high = steps.bounds
    is_pad = (frames[:, None] + low < 0) | (frames[:, None] + high >= ends[:, None])
    return is_pad if steps.has_time_axis else is_pad[:, 0]


def entry_runs(steps: Steps, frames: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """Return the rows of `entry_rows` as half-open runs, which may overlap.

    Returns:
        Starts and stops, (B, r) int64 each.
    """
    starts, stops = inside_runs(steps, frames)
    # Steps before the episode repeat this one; it is a row of its own at most.
    oldest = (frames % steps.stride)[:, None]
    is_before = stops <= 0
    starts = np.where(starts >= 0, starts, np.where(is_before, oldest, 0))
    starts = np.minimum(starts, ends[:, None] - 1)
    stops = np.where(is_before, oldest + 1, stops)
    return starts, np.minimum(np.maximum(stops, starts + 1), ends[:, None])


def inside_runs(steps: Steps, frames: IntArray) -> tuple[IntArray, IntArray]:
    """Return `entry_runs` of a window whose steps all lie in the episode."""
    return frames[:, None] + steps.starts, frames[:, None] + steps.stops


def consecutive_runs(rows: IntArray) -> list[Run]:
    """Return the runs of consecutive numbers among `rows` (any shape, order, repeats), sorted."""
    distinct = np.unique(rows)
    breaks = np.flatnonzero(np.diff(distinct) > 1) + 1
    bounds = [0, *breaks.tolist(), distinct.size]
    return [
        (int(distinct[a]), int(distinct[b - 1]) + 1) for a, b in itertools.pairwise(bounds) if b > a
    ]
