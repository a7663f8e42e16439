"""From keymap entries to rows: pure arithmetic on frame indices, vectorised over a batch."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from egoloader.keymap import KeySpec

__all__ = [
    "Run",
    "Steps",
    "consecutive_runs",
    "current_frame",
    "cut_ends",
    "entry_pads",
    "entry_rows",
    "entry_runs",
    "entry_steps",
    "inside_rows",
    "inside_runs",
]

IntArray = npt.NDArray[np.int64]
#: Half-open (start, stop).
Run = tuple[int, int]
#: Frames from which on a distance is as good as any: longer than every episode, and short enough
#: to count a million of them.
_FAR = 2**40


@dataclass(frozen=True, slots=True)
class Steps:
    """An entry's window in frames, for one frame rate.

    Attributes:
        offsets: (n,) int64, the steps relative to the current frame, as the sample orders them.
        stride: frames between the steps of a history; steps before the episode repeat frame
            `i % stride`, the oldest one that the stride reaches (frame 0 for stride 1).
        has_time_axis: whether the sample keeps the axis of n.
        is_horizon: whether the window is a forward chunk, which an annotation may cut off.
        runs: the offsets as half-open runs of consecutive frames, sorted.
        starts: (r,) int64, where the runs start.
        stops: (r,) int64, where they stop.
        identity: equal for equal windows.
    """

    offsets: IntArray
    stride: int
    has_time_axis: bool
    is_horizon: bool
    runs: tuple[Run, ...] = field(init=False)
    starts: IntArray = field(init=False)
    stops: IntArray = field(init=False)
    identity: Hashable = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(consecutive_runs(self.offsets)))
        starts, stops = np.array(self.runs, dtype=np.int64).reshape(-1, 2).T
        object.__setattr__(self, "starts", starts)
        object.__setattr__(self, "stops", stops)
        identity = (tuple(self.offsets.tolist()), self.stride, self.has_time_axis)
        object.__setattr__(self, "identity", identity)

    def is_inside(self, first: int, left: int) -> bool:
        """Return whether no step leaves the episode.

        Args:
            first: the least of some frames.
            left: the least of their distances from the end: `total_frames` - frame.
        """
        return first + self.runs[0][0] >= 0 and self.runs[-1][1] <= left


def entry_steps(spec: KeySpec, fps: float) -> Steps:
    """Express an entry's window in frames of an episode recorded at `fps` (Hz)."""
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
        Rows of the episode, clamped or padded: (B, n) int64, (B,) without a time axis.
    """
    rows = frames[:, None] + steps.offsets
    oldest = (frames % steps.stride)[:, None]
    rows = np.where(rows < 0, oldest, np.minimum(rows, (ends - 1)[:, None]))
    return rows if steps.has_time_axis else rows[:, 0]


def inside_rows(steps: Steps, frames: IntArray) -> IntArray:
    """Resolve a window whose steps all lie in the episode: `entry_rows` with nothing to clamp."""
    return frames[:, None] + steps.offsets if steps.has_time_axis else frames + steps.offsets


def entry_pads(steps: Steps, frames: IntArray, ends: IntArray) -> npt.NDArray[np.bool_]:
    """Return which of the rows of `entry_rows` are clamped or padded, bool of the same shape."""
    rows = frames[:, None] + steps.offsets
    is_pad = (rows < 0) | (rows >= ends[:, None])
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
