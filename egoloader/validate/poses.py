"""What is wrong with poses: xyz in metres, then a unit quaternion, wxyz, in 7 numbers a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.runs import runs
from egoloader.validate.finding import Finding, Harm
from egoloader.validate.stored import Numbers, each_run

__all__ = ["check_poses", "is_pose"]

FloatArray = npt.NDArray[np.float64]

#: How far from 1 a quaternion's norm may be.
NORM_SLACK = 0.01
#: Share of the rows above which norms other than 1 are no fault of rows, but of the whole array.
MOST_OFF = 0.5
#: A step from one frame to the next is a jump where it is faster than this, in m/s and rad/s, and
#: so many times as long as the episode's 95th percentile, or its third longest. No turn is longer
#: than half of one, so below 9.5 Hz none is a jump.
MAX_SPEED, MAX_TURN, MANY_TIMES = 10.0, 30.0, 10.0
#: Steps that tell how far one goes: with fewer, as between waypoints, rests count as steps, too.
FEW_STEPS = 10


def is_pose(key: str, numbers: Numbers) -> bool:
    """Return whether an array is taken for poses: by its name and its width."""
    rows = numbers.rows
    return rows.dtype.kind == "f" and rows.ndim == 2 and rows.shape[1] == 7 and "pose" in key


def check_poses(episode: ZarrEpisode, key: str, numbers: Numbers) -> Iterator[Finding]:
    """Find quaternions that are no rotations or never turn, and jumps."""
    is_known = numbers.is_finite.copy()
    rows = numbers.rows.astype(np.float64)
    norms = np.linalg.norm(rows[:, 3:], axis=1)
    is_off = is_known & ~(np.abs(norms - 1) <= NORM_SLACK)
    if is_off.sum() > MOST_OFF * is_known.sum():
        message = f"of {is_off.sum()} quaternions the norm is not 1; are rows xyz, then wxyz?"
        yield Finding(episode.name, "quaternion", message, key, harm="content")
        return
    message = "the quaternion's norm is not 1"
    yield from each_run(episode, "quaternion", message, key, is_off)
    is_known &= ~is_off
    if is_known.sum() > 1 and (rows[is_known][:, 3:] == (1, 0, 0, 0)).all():
        message = "every quaternion is the identity"
        yield Finding(episode.name, "quaternion", message, key, harm="content")
    yield from _check_jumps(episode, key, rows, is_known)


def _check_jumps(
    episode: ZarrEpisode, key: str, rows: FloatArray, is_known: npt.NDArray[np.bool_]
) -> Iterator[Finding]:
    if len(rows) < 3:
        return
    pairs = is_known[1:] & is_known[:-1]
    moved = np.linalg.norm(np.diff(rows[:, :3], axis=0), axis=1)
    cosine = np.abs((rows[1:, 3:] * rows[:-1, 3:]).sum(axis=1)).clip(0, 1)
    turned = 2 * np.arccos(cosine)
    is_jump = np.zeros(len(rows), dtype=np.bool_)
    harm: Harm = "content"
    for steps, limit in ((moved, MAX_SPEED), (turned, MAX_TURN)):
        usual = _usual(steps[pairs])
        is_long = pairs & (steps > max(limit / episode.fps, MANY_TIMES * usual))
        is_jump[1:] |= is_long
        if is_long.any() and usual > 0:
            harm = "frames"  # else it hardly ever moves, and may be set from place to place
    for start, stop in runs(is_jump):
        # Away and back again: the rows in between are elsewhere, the last one is not. Right behind
        # the first row it is that one, which begins elsewhere.
        first = start - 1 if stop == 2 else start
        end = stop - 1 if stop - first > 1 else stop
        at = f"{moved[start - 1]:.3g} m and {turned[start - 1]:.3g} rad between two rows"
        yield Finding(episode.name, "jump", at, key, first, end, harm)


def _usual(steps: FloatArray) -> float:
    """Return how long steps are where nothing jumps: 0 for what rests."""
    moving = steps[steps > 0]
    # A target that is held for some frames rests most of the time.
    ordered = np.sort(moving if len(moving) >= FEW_STEPS else steps)
    # There and back are two steps, which are more than 5 % of a short episode.
    place = min(int(0.95 * len(ordered)), len(ordered) - 3)
    return float(ordered[place]) if place >= 0 else 0.0
