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

    def find(self, times: FloatArray) -> Between:
        """Return where times, (…, n), lie among the frames; outside them at frame -1 or T."""
        return _Around.of(times, *self.look_up(times)).between(self.tolerance)

    def nearest(self, times: FloatArray) -> IntArray:
        """Return the nearer of the two frames around each time, the earlier of two as near."""
        return _Around.of(times, *self.look_up(times)).nearest(self.tolerance)

    def look_up(self, times: FloatArray) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return the first frame at or behind each time, and when it is and the one before it.

        Outside the episode these are the first frame and the last one, on the wrong side.

        Returns:
            Of the times' shape: frames, T behind the last, and seconds of the one before and of it.
        """
        high = self.times.searchsorted(times)
        before = self.times.take(high - 1, mode="clip")
        return high, before, self.times.take(high, mode="clip")


class _Around(NamedTuple):
    """What is around times, (…, n) each.

    Attributes:
        high: the first frame at or behind each; T where there is none.
        before: seconds since the frame ahead of that one; inf where there is none.
        behind: seconds until that frame; inf where there is none.
    """

    high: IntArray
    before: FloatArray
    behind: FloatArray

    @classmethod
    def of(
        cls, times: FloatArray, high: IntArray, low_s: FloatArray, high_s: FloatArray
    ) -> _Around:
        """Return what is around times, of what was looked up."""
        before, behind = times - low_s, high_s - times
        before[before <= 0], behind[behind < 0] = np.inf, np.inf
        return cls(high, before, behind)

    def between(self, tolerance: FloatArray | float) -> Between:
        """Return where the times lie; those that miss a frame by less, at that frame."""
        is_low = (self.before <= tolerance) & (self.before <= self.behind)
        is_high = (self.behind <= tolerance) & ~is_low
        gap = self.before + self.behind
        is_apart = np.isfinite(gap) & ~(is_low | is_high)
        weights = np.divide(self.before, gap, out=np.zeros_like(gap), where=is_apart)
        return Between(self.high - 1 + is_high, self.high - is_low, weights)

    def nearest(self, tolerance: FloatArray | float) -> IntArray:
        """Return the nearer frame of each, the earlier of two as near."""
        return self.high - (self.before <= self.behind + tolerance)


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
    around = _around(moments, frames[:, None] + moments.frames, numbers, timelines)
    tolerances = np.array([one.tolerance for one in timelines]).take(numbers)[:, None]
    low, high, weights = around.between(tolerances)
    ends = ends[:, None]
    is_pad = (low < 0) | (high >= ends)
    if moments.is_interpolated:
        rows = np.concatenate([low, high], axis=1)
    else:
        rows = around.nearest(tolerances)
    rows = np.minimum(np.maximum(rows, 0), ends - 1)
    if moments.has_time_axis:
        return Located(rows, weights, is_pad)
    return Located(rows if moments.is_interpolated else rows[:, 0], weights, is_pad[:, 0])


def _around(
    moments: Moments, asked: IntArray, numbers: IntArray, timelines: Sequence[Timeline]
) -> _Around:
    """Return what is around the steps of a window that counts from frames `asked`, (B, n)."""
    lasts = np.array([len(one.times) - 1 for one in timelines]).take(numbers)[:, None]
    rates = np.array([one.fps for one in timelines]).take(numbers)[:, None]
    inside = np.minimum(np.maximum(asked, 0), lasts)
    times = (asked - inside) / rates + moments.seconds
    high, low_s, high_s = np.empty_like(asked), np.empty_like(times), np.empty_like(times)
    # Only what each episode's own times are needed for; all else is reckoned for all at once.
    for number, timeline in enumerate(timelines):
        its = slice(None) if len(timelines) == 1 else (numbers == number).nonzero()[0]
        times[its] += timeline.times.take(inside[its])
        high[its], low_s[its], high_s[its] = timeline.look_up(times[its])
    return _Around.of(times, high, low_s, high_s)
