"""What an array of timestamps has to be, so that windows can be read by time.

Opening an episode under a keymap that goes by time refuses the first fault; `validate` finds all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.layout import ArrayLayout
from egoloader.runs import runs

__all__ = ["TimeFault", "layout_problem", "time_faults"]

#: By how much times may run faster or slower than the frame rate says, before they are no seconds.
MAX_PACE = 1000


class TimeFault(NamedTuple):
    """What is wrong with some of an episode's times.

    Attributes:
        problem: what it is, with the first of them.
        start: the first frame of which it is said.
        end: one past the last.
    """

    problem: str
    start: int
    end: int


def layout_problem(layout: ArrayLayout) -> str:
    """Return why an array can't be timestamps, whatever it holds; nothing where it can."""
    dtype = layout.dtype
    if dtype is None or dtype.kind == "b" or math.prod(layout.row_shape) != 1:
        return (
            f"timestamps must be one number a frame, got rows {layout.row_shape} of "
            f"{layout.type_name}"
        )
    return ""


def time_faults(
    times: npt.NDArray[np.float64], is_known: npt.NDArray[np.bool_], fps: float
) -> Iterator[TimeFault]:
    """Yield why windows can't be read by these times; nothing where they can.

    Args:
        times: (T,) float64, in seconds.
        is_known: (T,) which of them to look at; of times beside others nothing is said.
        fps: in Hz.
    """
    for start, end in runs(is_known & ~np.isfinite(times)):
        yield TimeFault(f"the time is {times[start]}, not a number of seconds", start, end)
    known = is_known & np.isfinite(times)
    pairs = known[1:] & known[:-1]
    with np.errstate(over="ignore"):  # of numbers as large as that, a gap is infinite
        gaps = np.diff(np.where(known, times, 0.0))
    is_stuck = np.concatenate([[False], pairs & (gaps <= 0)])
    for start, end in runs(is_stuck):
        problem = f"times must ascend, got {times[start]} behind {times[start - 1]}"
        yield TimeFault(problem, start, end)
    gap = float(np.median(gaps[pairs])) if pairs.any() else 1 / fps
    if not 1 / MAX_PACE <= gap * fps <= MAX_PACE:
        problem = f"frames are {gap:g} apart at {fps:g} Hz; are these seconds?"
        yield TimeFault(problem, 0, len(times))
