"""When frames were recorded, of episodes that are uneven in time: pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.windows import Between, Moments

__all__ = ["Located", "Timeline", "locate", "tolerance"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

#: Seconds by which a time may miss a frame, and meet it all the same.
_ROUNDING_S = 1e-6


def tolerance(times: npt.NDArray[np.generic]) -> float:
    """Return by how many seconds two times may differ and be one: what the stored dtype rounds."""
    if times.dtype.kind != "f":
        return _ROUNDING_S
    peak = np.abs(times).max()
    return max(_ROUNDING_S, 2 * float(np.spacing(peak)))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """The times of an episode's frames.

    Attributes:
        times: (T,) float64, in seconds, ascending, none twice; not to be written to.
        fps: in Hz, that of frames before the first and behind the last.
        tolerance: in seconds, by how much a time may miss a frame and meet it all the same.
    """

    times: FloatArray
    fps: float
    tolerance: float

    @property
    def is_even(self) -> bool:
        """Whether frames are as far apart as the frame rate says."""
        even = np.arange(len(self.times)) / self.fps
        missed = np.abs(self.times - self.times[0] - even).max()
        return bool(missed <= self.tolerance)

    def at(self, frames: IntArray) -> FloatArray:
        """Return the times of frames, in seconds; there may be none of them in the episode."""
        last = len(self.times) - 1
        inside = np.clip(frames, 0, last)
        return np.asarray(self.times[inside] + (frames - inside) / self.fps)

    def find(self, times: FloatArray) -> Between:
        """Return where times, (…, n), lie among the frames; outside them at frame -1 or T."""
        last = len(self.times) - 1
        high = np.searchsorted(self.times, times, side="left")
        low = np.searchsorted(self.times, times, side="right") - 1
        before = np.where(low < 0, np.inf, times - self.times[np.maximum(low, 0)])
        behind = np.where(high > last, np.inf, self.times[np.minimum(high, last)] - times)
        is_low = (before <= self.tolerance) & (before <= behind)
        is_high = (behind <= self.tolerance) & ~is_low
        low, high = np.where(is_high, high, low), np.where(is_low, low, high)
        is_apart = (low < high) & np.isfinite(before) & np.isfinite(behind)
        gap = np.where(is_apart, before + behind, 1.0)
        return Between(low, high, np.where(is_apart, before, 0.0) / gap)

    def nearest(self, times: FloatArray, steps: Between) -> IntArray:
        """Return the nearer of the two frames around each time, the earlier of two as near."""
        before, behind = times - self.at(steps.low), self.at(steps.high) - times
        return np.where(before <= behind + self.tolerance, steps.low, steps.high)


class Located(NamedTuple):
    """A window of B frames that is read by time.

    Attributes:
        rows: that are read, clamped or padded: (B, n) int64, (B,) without a time axis; of an
            interpolated window those before the steps, then those behind them: (B, 2n).
        weights: (B, n) float64, of the rows behind.
        is_pad: which steps are clamped or padded: (B, n) bool, (B,) without a time axis.
    """

    rows: IntArray
    weights: FloatArray
    is_pad: BoolArray


def locate(
    moments: Moments,
    frames: IntArray,
    ends: IntArray,
    numbers: IntArray,
    timelines: Sequence[Timeline],
) -> Located:
    """Resolve a window that is read by time at each of B frames of E episodes.

    Args:
        moments: the window.
        frames: (B,) int64, each within [0, end).
        ends: (B,) int64, one past the last real row for each frame.
        numbers: (B,) int64, the number of each frame's episode.
        timelines: of the E episodes.
    """
    asked = frames[:, None] + moments.frames
    rows = np.empty((len(frames), moments.num_steps * (1 + moments.is_interpolated)), np.int64)
    weights = np.empty(asked.shape)
    is_pad = np.empty(asked.shape, dtype=np.bool_)
    for number, timeline in enumerate(timelines):
        its = slice(None) if len(timelines) == 1 else (numbers == number).nonzero()[0]
        times = timeline.at(asked[its]) + moments.seconds
        low, high, weights[its] = steps = timeline.find(times)
        is_pad[its] = (low < 0) | (high >= ends[its, None])
        if moments.is_interpolated:
            rows[its] = np.concatenate([low, high], axis=1)
        else:
            rows[its] = timeline.nearest(times, steps)
    rows = np.clip(rows, 0, (ends - 1)[:, None])
    if moments.has_time_axis:
        return Located(rows, weights, is_pad)
    return Located(rows if moments.is_interpolated else rows[:, 0], weights, is_pad[:, 0])
