"""Numbers between the rows of an episode: linear, and for rotations on the shorter way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.cast import cast_rows
from egoloader.errors import ValueRangeError
from egoloader.keymap import KeySpec
from egoloader.quaternions import is_zero, slerp, unit
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
    if spec.interpolation == "slerp" and share.any():
        _turn(spec, steps, _Ends(numbers, rows, share, episodes))
    return cast_rows(spec, steps, before, episodes=episodes)


def _linear(left: npt.NDArray[Any], right: npt.NDArray[Any], weights: FloatArray) -> FloatArray:
    """Return left + (right - left) * weights, and left where it is right, or has all the weight."""
    with np.errstate(invalid="ignore", over="ignore"):
        steps: FloatArray = right.astype(np.float64)
        steps -= left
        steps *= weights
        steps += left
    if np.isfinite(steps).all():
        return steps
    return np.asarray(np.where((weights == 0) | (left == right), left, steps))


class _Ends(NamedTuple):
    """What B windows of n steps lie between; the fields are those of `interpolate_rows`.

    Attributes:
        share: (B, n), the weights; 0 of steps that are a row.
    """

    numbers: npt.NDArray[Any]
    rows: IntArray
    share: FloatArray
    episodes: Sequence[str]


def _turn(spec: KeySpec, steps: FloatArray, ends: _Ends) -> None:
    """Put rotations on the shorter way into steps, (B, n, …, D)."""
    row, count = rotating_row(spec.row, steps.shape[-1]), ends.share.shape[1]
    assert row is not None
    weights = ends.share.reshape(*ends.share.shape, *(1,) * (steps.ndim - 3))
    is_between = weights[..., None] > 0
    for part in row.parts:
        if part.is_rotation:
            found = _decoded(part, _by_number(ends.numbers[..., part.place]))
            _check_rotations(spec, part, found, ends)
            # Of all steps, of which few are a row: to choose takes as long as to reckon.
            with np.errstate(invalid="ignore"):
                turned = _encoded(part, slerp(found[:, :count], found[:, count:], weights))
            np.copyto(steps[..., part.place], turned, where=is_between)


def _by_number(numbers: npt.NDArray[Any]) -> FloatArray:
    """Copy numbers, (…, k), so that those of one place lie together: NumPy reckons faster then."""
    together = np.moveaxis(numbers, -1, 0).astype(np.float64, order="C")
    return np.moveaxis(together, 0, -1)


def _decoded(part: Part, numbers: FloatArray) -> FloatArray:
    """Return the unit quaternions of one part; zeros for what is no rotation."""
    if part.kind in QUATERNIONS:
        return unit(numbers)
    # Takes as long to import as all else here together, and few keymaps need it.
    from egoloader.transforms.rotations import decode

    return decode(numbers, part.kind)


def _encoded(part: Part, turned: FloatArray) -> FloatArray:
    """Return rotations in the form of a part; a quaternion keeps its order and sign."""
    if part.kind in QUATERNIONS:
        return turned
    from egoloader.transforms.rotations import encode

    return encode(turned, part.kind)


def _check_rotations(spec: KeySpec, part: Part, found: FloatArray, ends: _Ends) -> None:
    """Refuse rows that are no rotations, where a step lies beside them."""
    is_wrong = is_zero(found)
    if not is_wrong.any():
        return
    is_beside = np.concatenate([ends.share, ends.share], axis=1) > 0
    is_wrong &= is_beside.reshape(*is_beside.shape, *(1,) * (is_wrong.ndim - 2))
    for place in np.argwhere(is_wrong)[:1].tolist():
        number = ends.numbers[(*place, part.place)]
        raise ValueRangeError(
            f"{number.tolist()} is no rotation as {part.kind}, at numbers {part.place.start} to "
            f"{part.place.stop - 1} of the row, so that no step can lie between it and the next; "
            "repair it, or take the entry's nearest frames",
            episode=ends.episodes[place[0]],
            key=spec.zarr_key,
            frame=int(ends.rows[place[0], place[1]]),
        )
