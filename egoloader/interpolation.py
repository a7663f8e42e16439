"""Numbers between the rows of an episode: linear, and for rotations on the shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.cast import cast_rows
from egoloader.errors import ValueRangeError
from egoloader.keymap import KeySpec
from egoloader.quaternions import slerp, unit
from egoloader.row import QUATERNIONS, Part, rotating_row

__all__ = ["interpolate_rows"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]


def interpolate_rows(
    spec: KeySpec,
    numbers: npt.NDArray[Any],
    rows: IntArray,
    weights: FloatArray,
    *,
    episodes: Sequence[str],
) -> npt.NDArray[Any]:
    """Make each step out of the row before it and the one behind it, in the entry's output dtype.

    A step that meets a row is that row, and so is one that is padded. A quaternion between two has
    the norm 1, and the sign that is nearer to the one before.

    Args:
        spec: the entry.
        numbers: (B, 2n, D…) of the stored dtype: the rows before the n steps, then those behind.
        rows: (B, 2n) int64, the row that each came from.
        weights: (B, n) or (1, n), of the rows behind, 0 to below 1.
        episodes: (B,) names, for errors.

    Returns:
        (B, n, D…).

    Raises:
        ValueRangeError: a number does not survive the cast, or a rotation between whose row and
            the next one a step lies is none.
    """
    if numbers.dtype.kind != "f":
        cast_rows(spec, numbers, rows, episodes=episodes)  # for what a float would not hold
    count = rows.shape[1] // 2
    left, right = numbers[:, :count], numbers[:, count:]
    before, behind = rows[:, :count], rows[:, count:]
    share = np.where(before == behind, 0.0, weights)
    steps = _linear(left, right, share.reshape(*share.shape, *(1,) * (left.ndim - 2)))
    is_mixed = share > 0
    if spec.interpolation == "slerp" and is_mixed.any():
        names = np.repeat(episodes, count).reshape(share.shape)[is_mixed]
        sides = _Side(before[is_mixed], left[is_mixed]), _Side(behind[is_mixed], right[is_mixed])
        ends = _Ends(spec.zarr_key, names, *sides, share[is_mixed])
        steps[is_mixed] = _with_turns(spec, steps[is_mixed], ends)
    return cast_rows(spec, steps, before, episodes=episodes)


def _linear(left: npt.NDArray[Any], right: npt.NDArray[Any], weights: FloatArray) -> FloatArray:
    """Return left + (right - left) * weights, and left where it is right, or has all the weight."""
    with np.errstate(invalid="ignore", over="ignore"):
        steps: FloatArray = np.subtract(right, left, dtype=np.float64)
        steps *= weights
        steps += left
    if np.isfinite(steps).all():
        return steps
    return np.asarray(np.where((weights == 0) | (left == right), left, steps))


class _Side(NamedTuple):
    """Rows (M,) that M steps lie behind, or before, and their numbers (M, …, D)."""

    rows: IntArray
    numbers: npt.NDArray[Any]


class _Ends(NamedTuple):
    """What M steps lie between, of an array and of episodes (M,), and weights (M,)."""

    key: str
    episodes: npt.NDArray[np.str_]
    left: _Side
    right: _Side
    weights: FloatArray


def _with_turns(spec: KeySpec, steps: FloatArray, ends: _Ends) -> FloatArray:
    """Return steps, (M, …, D), with their rotations on the shorter way."""
    row = rotating_row(spec.row, steps.shape[-1])
    assert row is not None
    weights = ends.weights.reshape(-1, *(1,) * (steps.ndim - 2))
    for part in row.parts:
        if part.is_rotation:
            left, right = _decoded(part, ends, ends.left), _decoded(part, ends, ends.right)
            with np.errstate(invalid="ignore"):
                steps[..., part.place] = _encoded(part, slerp(left, right, weights))
    return steps


def _encoded(part: Part, turned: FloatArray) -> FloatArray:
    """Return rotations in the form of a part; a quaternion keeps its order and sign."""
    if part.kind in QUATERNIONS:
        return turned
    # Takes as long to import as all else here together, and few keymaps need it.
    from egoloader.transforms.rotations import encode

    return encode(turned, part.kind)


def _decoded(part: Part, ends: _Ends, side: _Side) -> FloatArray:
    """Return the unit quaternions of one part on one side."""
    numbers = side.numbers[..., part.place].astype(np.float64)
    if part.kind in QUATERNIONS:
        found = unit(numbers)
    else:
        from egoloader.transforms.rotations import decode

        found = decode(numbers, part.kind)
    is_wrong = ~found.any(axis=-1)
    if is_wrong.any():
        place = tuple(np.argwhere(is_wrong)[0].tolist())
        raise ValueRangeError(
            f"{numbers[place].tolist()} is no rotation as {part.kind}, at numbers "
            f"{part.place.start} to {part.place.stop - 1} of the row, so that no step can lie "
            "between it and the next; repair it, or take the entry's nearest frames",
            episode=str(ends.episodes[place[0]]),
            key=ends.key,
            frame=int(side.rows[place[0]]),
        )
    return found
