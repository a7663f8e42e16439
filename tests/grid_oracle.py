"""The slow truth of windows that are read by time: fractions, one step of one sample at a time.

Shares no code with the package. Numbers are taken as people write them: 29.97 is 2997/100.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader import KeySpec
from tests.oracle import slow_rows

__all__ = ["Clock", "SlowStep", "exact", "slow_steps", "slow_values"]


def exact(number: float) -> Fraction:
    """Return the fraction that a number is written as."""
    return Fraction(repr(number))


class SlowStep(NamedTuple):
    """One step: the frames around it, in the episode, and the share of the later one."""

    before: int
    behind: int
    share: Fraction
    is_pad: bool

    @property
    def nearest(self) -> int:
        """The nearer frame, the earlier of two as near."""
        return self.before if self.share <= Fraction(1, 2) else self.behind


class Clock(NamedTuple):
    """When the frames of an episode are, in seconds; `times` where fps does not say."""

    fps: Fraction
    total: int
    times: Sequence[Fraction] | None = None

    def at(self, frame: int) -> Fraction:
        """Return the time of a frame, which the episode may not have."""
        if self.times is None:
            return frame / self.fps
        inside = min(max(frame, 0), self.total - 1)
        return self.times[inside] + (frame - inside) / self.fps

    def step(self, time: Fraction, end: int) -> SlowStep:
        """Return the step at a time, of a window that has no frame from `end` on."""
        if time < self.at(0):
            return SlowStep(0, 0, Fraction(0), True)
        for frame in range(end - 1):
            if self.at(frame) <= time < self.at(frame + 1):
                share = (time - self.at(frame)) / (self.at(frame + 1) - self.at(frame))
                return SlowStep(frame, frame + 1, share, False)
        return SlowStep(end - 1, end - 1, Fraction(0), time > self.at(end - 1))


def slow_steps(spec: KeySpec, clock: Clock, i: int, cut_end: int | None = None) -> list[SlowStep]:
    """Return the steps of an entry at frame `i`; `cut_end` clamps action horizons, if given."""
    late = exact(spec.latency_s or 0)
    is_cut = spec.key_type == "action_keys" and (spec.horizon or spec.horizon_s) is not None
    end = cut_end if cut_end is not None and is_cut else clock.total
    if spec.rate_hz is None:
        # Far from both ends, so that no frame is clamped before the latency counts.
        far = 10**6
        rows, _ = slow_rows(spec, float(clock.fps), 2 * far, far)
        return [clock.step(clock.at(i + row - far) + late, end) for row in rows]
    rate = exact(spec.rate_hz)
    count = round((spec.horizon_s or spec.history_s or 0.0) * spec.rate_hz)
    first = 0 if spec.horizon_s is not None else -(count - 1)
    return [clock.step(clock.at(i) + late + (first + j) / rate, end) for j in range(count)]


def slow_values(
    spec: KeySpec, stored: npt.NDArray[Any], steps: Sequence[SlowStep]
) -> npt.NDArray[np.float64]:
    """Return what steps are of an array's rows, (n, D); with slerp, of poses of 7 numbers."""
    return np.array([_value(spec, stored.astype(np.float64), step) for step in steps])


def _value(
    spec: KeySpec, stored: npt.NDArray[np.float64], step: SlowStep
) -> npt.NDArray[np.float64]:
    if spec.interpolation == "nearest":
        return stored[step.nearest]
    before, behind, share = stored[step.before], stored[step.behind], float(step.share)
    value = np.asarray(before + (behind - before) * share)
    if spec.interpolation == "slerp" and share:
        value[3:] = slow_slerp(before[3:].tolist(), behind[3:].tolist(), share)
    return value


def slow_slerp(start: list[float], stop: list[float], share: float) -> list[float]:
    """Return the unit quaternion between two, on the shorter way, by the sines of the angles."""
    a, b = ([x / math.dist(q, [0.0] * 4) for x in q] for q in (start, stop))
    cosine = sum(x * y for x, y in zip(a, b, strict=True))
    if cosine < 0:
        b, cosine = [-x for x in b], -cosine
    angle = math.acos(min(cosine, 1.0))
    if angle < 1e-6:
        return [x + (y - x) * share for x, y in zip(a, b, strict=True)]
    sides = math.sin((1 - share) * angle), math.sin(share * angle)
    return [(x * sides[0] + y * sides[1]) / math.sin(angle) for x, y in zip(a, b, strict=True)]
