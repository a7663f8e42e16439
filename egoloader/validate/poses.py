"""What is wrong with poses: xyz in metres, then a unit quaternion, wxyz, in 7 numbers a row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.validate.finding import Finding, runs
from egoloader.validate.stored import Numbers, each_run

__all__ = ["check_poses", "is_pose"]

FloatArray = npt.NDArray[np.float64]

#: How far from 1 a quaternion's norm may be.
NORM_SLACK = 0.01
#: A step from one frame to the next is a jump where it is faster than this, in m/s and rad/s, and
#: so many times as long as the episode's 95th percentile.
MAX_SPEED, MAX_TURN, MANY_TIMES = 10.0, 30.0, 10.0


def is_pose(key: str, numbers: Numbers) -> bool:
    """Return whether an array is taken for poses: by its name, its width, and its quaternions."""
    rows = numbers.rows
    if rows.dtype.kind != "f" or rows.ndim != 2 or rows.shape[1] != 7 or "pose" not in key:
        return False
    norms = np.linalg.norm(rows[numbers.is_read][:, 3:], axis=1)
    return bool(len(norms) and (np.abs(norms - 1) < 5 * NORM_SLACK).mean() > 0.5)


def check_poses(episode: ZarrEpisode, key: str, numbers: Numbers) -> Iterator[Finding]:
    """Find quaternions that are no rotations or never turn, and jumps."""
    rows = numbers.rows.astype(np.float64)
    is_known = numbers.is_read & np.isfinite(rows).all(axis=1)
    norms = np.linalg.norm(rows[:, 3:], axis=1)
    is_off = is_known & ~(np.abs(norms - 1) <= NORM_SLACK)
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
    is_jump[1:] = _is_long(moved, pairs, MAX_SPEED / episode.fps)
    is_jump[1:] |= _is_long(turned, pairs, MAX_TURN / episode.fps)
    for start, stop in runs(is_jump):
        # Away and back again: the rows in between are elsewhere, the last one is not.
        end = stop - 1 if stop - start > 1 else stop
        at = f"{moved[start - 1]:.3g} m and {turned[start - 1]:.3g} rad from the row before"
        yield Finding(episode.name, "jump", at, key, start, end)


def _is_long(
    steps: FloatArray, pairs: npt.NDArray[np.bool_], limit: float
) -> npt.NDArray[np.bool_]:
    usual = float(np.quantile(steps[pairs], 0.95)) if pairs.any() else 0.0
    return np.asarray(pairs & (steps > max(limit, MANY_TIMES * usual)))
