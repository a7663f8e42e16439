"""From keymap entries to rows: pure arithmetic on frame indices, vectorised over a batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.keymap import KeySpec

__all__ = ["Rows", "Steps", "current_frame", "cut_ends", "entry_rows", "entry_steps"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Steps:
    """An entry's window in frames, for one frame rate.

    Attributes:
        offsets: (n,) int64, the steps relative to the current frame, as the sample orders them.
        stride: frames between the steps of a history; steps before the episode repeat frame
            `i % stride`, the oldest one that the stride reaches (frame 0 for stride 1).
        has_time_axis: whether the sample keeps the axis of n.
        is_horizon: whether the window is a forward chunk, which an annotation may cut off.
    """

    offsets: IntArray
    stride: int
    has_time_axis: bool
    is_horizon: bool


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one entry for B frames.

    Attributes:
        rows: (B, n) int64, each within the episode.
        is_pad: (B, n) bool, true where the step was clamped or padded.
    """

    rows: IntArray
    is_pad: npt.NDArray[np.bool_]


def entry_steps(spec: KeySpec, fps: float) -> Steps:
    """Express an entry's window in frames of an episode recorded at `fps` (Hz)."""
    if spec.horizon is not None:
        return Steps(np.arange(spec.horizon, dtype=np.int64), 1, True, True)
    if spec.history is not None:
        stride = 1 if spec.stride_s is None else max(1, round(spec.stride_s * fps))
        offsets = np.arange(-(spec.history - 1), 1, dtype=np.int64) * stride
        return Steps(offsets, stride, spec.history > 1, False)
    if spec.lag_s is not None:
        lag = max(1, round(spec.lag_s * fps))
        return Steps(np.array([-lag], dtype=np.int64), 1, False, False)
    if spec.offsets is not None:
        return Steps(np.array(spec.offsets, dtype=np.int64), 1, True, False)
    if spec.offsets_s is not None:
        frames = [round(offset * fps) for offset in spec.offsets_s]
        return Steps(np.array(frames, dtype=np.int64), 1, True, False)
    return current_frame()


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
        ends[held] = np.minimum(ends[held], end)
    return ends


def entry_rows(steps: Steps, frames: IntArray, ends: IntArray) -> Rows:
    """Resolve a window at each of B frames.

    Args:
        steps: the window.
        frames: (B,) int64 frame indices, each within [0, end).
        ends: (B,) int64, one past the last real row for each frame: `total_frames`, or the end of
            the annotation span that cuts the window off.
    """
    rows = frames[:, None] + steps.offsets
    last = (ends - 1)[:, None]
    is_early = rows < 0
    is_pad = is_early | (rows > last)
    oldest = (frames % steps.stride)[:, None]
    return Rows(np.where(is_early, oldest, np.minimum(rows, last)), is_pad)
