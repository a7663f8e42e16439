"""Rotations as numbers: five forms of them, and one that all are reckoned in.

Reckoned in are unit quaternions, (…, 4) float64, x y z w. Two of them that are none are handed on
through all functions: NaN, where a number is NaN or inf, and zeros, where numbers are no rotation.

    quaternion_wxyz, quaternion_xyzw
        4 numbers of any norm above 0. q and -q are one rotation: what is encoded has w > 0, or
        w = 0 and the first of x, y, z that is not 0 above 0.
    rotation_6d
        The first two *columns* of the matrix, one behind the other: r00 r10 r20 r01 r11 r21.
        Decoded by Gram-Schmidt from any two that are not parallel. Zhou et al., "On the Continuity
        of Rotation Representations in Neural Networks", CVPR 2019.
    yaw_pitch_roll
        Radians, intrinsic z-y'-x'' (extrinsic x-y-z): R = Rz(yaw) Ry(pitch) Rx(roll). Encoded are
        yaw and roll in -π…π and pitch in -π/2…π/2. At gimbal lock many pairs of yaw and roll are
        the same rotation; which of them comes out is down to rounding.
    matrix
        3 x 3, row-major: r00 r01 r02 r10 …. Decoded as the nearest rotation, of a determinant
        above 0.

R takes the coordinates of a point in the rotated frame to those in the frame that it is rotated in.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.spatial.transform import Rotation

from egoloader.quaternions import slerp as slerp_units
from egoloader.row import FORMS

__all__ = [
    "compose",
    "decode",
    "encode",
    "invert",
    "is_none",
    "reordered",
    "rotate",
    "slerp",
    "with_sign_of",
]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_IDENTITY = np.array([0.0, 0.0, 0.0, 1.0])
#: Columns are parallel, or a matrix flat, where what is left of 1 is rounding of float32.
_FLAT = 1e-6


def decode(numbers: FloatArray, form: str) -> FloatArray:
    """Return the quaternions, (…, 4), of rotations in a form, (…, k)."""
    flat = numbers.reshape(-1, FORMS[form])
    is_finite = np.isfinite(flat).all(axis=1, keepdims=True)
    found = _DECODERS[form](np.where(is_finite, flat, 0.0))
    return np.where(is_finite, found, np.nan).reshape(*numbers.shape[:-1], 4)


def encode(quaternions: FloatArray, form: str) -> FloatArray:
    """Return rotations in a form, (…, k); zeros for what is none, NaN for NaN."""
    found = _ENCODERS[form](_rotations(quaternions))
    return _restored(found.reshape(*quaternions.shape[:-1], FORMS[form]), quaternions)


def reordered(quaternions: FloatArray, target: str) -> FloatArray:
    """Return quaternions of the other order, (…, 4), as `target`: numbers, norm and sign stay."""
    return np.roll(quaternions, -1 if target == "quaternion_xyzw" else 1, axis=-1)


def is_none(quaternions: FloatArray) -> BoolArray:
    """Return which are no rotation: (…,); NaN is not among them."""
    return np.asarray(~quaternions.any(axis=-1))


def invert(quaternions: FloatArray) -> FloatArray:
    """Return the inverse rotations."""
    return np.asarray(quaternions * (-1.0, -1.0, -1.0, 1.0))


def compose(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return left right, (…, 4): the right one first. Leading axes broadcast."""
    left, right = np.broadcast_arrays(left, right)
    product = (_rotations(left) * _rotations(right)).as_quat().reshape(left.shape)
    return _restored(product, left, right)


def rotate(quaternions: FloatArray, points: FloatArray) -> FloatArray:
    """Return points, (…, 3), rotated; NaN where one is not finite. Leading axes broadcast."""
    r = _rotations(quaternions).as_matrix().reshape(*quaternions.shape[:-1], 3, 3)
    is_finite = np.isfinite(points).all(axis=-1, keepdims=True)
    x, y, z = np.moveaxis(np.where(is_finite, points, np.nan), -1, 0)
    # Written out, as sums that NumPy orders by the arrays' shapes differ in their last bits.
    rows = [r[..., i, 0] * x + r[..., i, 1] * y + r[..., i, 2] * z for i in range(3)]
    return _restored(np.stack(rows, axis=-1), quaternions)


def slerp(left: FloatArray, right: FloatArray, weights: FloatArray) -> FloatArray:
    """Return what lies between, on the shorter way: (…, 4).

    Args:
        left: (…, 4).
        right: (…, 4).
        weights: of the right one, 0 to 1, (…,); broadcasts.
    """
    left, right = np.broadcast_arrays(left, right)
    return _restored(slerp_units(left, right, weights), left, right)


def with_sign_of(quaternions: FloatArray, others: FloatArray) -> FloatArray:
    """Return quaternions, of the sign that is nearer to others."""
    with np.errstate(invalid="ignore"):
        is_other = np.asarray(_dot(quaternions, others) < 0)
    return np.where(is_other[..., None], -quaternions, quaternions)


def _rotations(quaternions: FloatArray) -> Rotation:
    """Return them as one axis of rotations; what is none, or NaN, as the identity."""
    is_one = np.isfinite(quaternions).all(axis=-1) & ~is_none(quaternions)
    return Rotation.from_quat(np.where(is_one[..., None], quaternions, _IDENTITY).reshape(-1, 4))


def _restored(values: FloatArray, *quaternions: FloatArray) -> FloatArray:
    """Return values with zeros where a quaternion is none, and NaN where one is NaN."""
    for one in quaternions:
        values = np.where(is_none(one)[..., None], 0.0, values)
    for one in quaternions:
        values = np.where(np.isfinite(one).all(axis=-1, keepdims=True), values, np.nan)
    return values


def _dot(left: FloatArray, right: FloatArray) -> FloatArray:
    products = left * right
    total = products[..., 0]
    for place in range(1, products.shape[-1]):
        total = total + products[..., place]
    return np.asarray(total)


def _unit(vectors: FloatArray) -> FloatArray:
    """Return vectors of norm 1, (N, k); zeros where there is none."""
    peaks = np.abs(vectors).max(axis=1, keepdims=True)  # squares of any number would not do
    scaled = vectors / np.where(peaks > 0, peaks, 1.0)
    return np.asarray(scaled / np.maximum(np.sqrt(_dot(scaled, scaled)), 1.0)[:, None])


def _from_columns(first: FloatArray, second: FloatArray) -> FloatArray:
    a, b = _unit(first), _unit(second)
    rest = b - _dot(a, b)[:, None] * a
    is_one = a.any(axis=1) & (_dot(rest, rest) > _FLAT**2)
    b = _unit(rest)
    matrices = np.stack([a, b, np.cross(a, b)], axis=-1)
    return _from_matrices(matrices, is_one)


def _from_matrices(matrices: FloatArray, is_one: BoolArray) -> FloatArray:
    solid = np.where(is_one[:, None, None], matrices, np.eye(3))
    return np.where(is_one[:, None], Rotation.from_matrix(solid).as_quat(), 0.0)


def _from_numbers(numbers: FloatArray) -> FloatArray:
    matrices = numbers.reshape(-1, 3, 3)
    columns = [matrices[:, :, place] for place in range(3)]
    # The volume that the columns span, as a share of what they would at right angles.
    a, b, c = (_unit(column) for column in columns)
    is_one = _dot(np.cross(a, b), c) > _FLAT
    return _from_matrices(matrices, is_one)


def _to_yaw_pitch_roll(rotations: Rotation) -> FloatArray:
    # Not `as_euler`, which warns at gimbal lock, process-wide. Roll is what yaw leaves of the
    # rotation, so that the three are the rotation however uncertain yaw is.
    r = rotations.as_matrix()
    across = np.sqrt(r[:, 0, 0] ** 2 + r[:, 1, 0] ** 2)
    is_level, divisor = across > 0, np.where(across > 0, across, 1.0)
    sine, cosine = r[:, 1, 0] / divisor, np.where(is_level, r[:, 0, 0] / divisor, 1.0)
    yaw, pitch = np.arctan2(sine, cosine), np.arctan2(-r[:, 2, 0], across)
    roll = np.arctan2(
        sine * r[:, 0, 2] - cosine * r[:, 1, 2], cosine * r[:, 1, 1] - sine * r[:, 0, 1]
    )
    return np.stack([yaw, pitch, roll], axis=-1)


def _to_6d(rotations: Rotation) -> FloatArray:
    r = rotations.as_matrix()
    return np.concatenate([r[:, :, 0], r[:, :, 1]], axis=1)


_DECODERS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "quaternion_wxyz": lambda numbers: _unit(np.roll(numbers, -1, axis=1)),
    "quaternion_xyzw": _unit,
    "rotation_6d": lambda numbers: _from_columns(numbers[:, :3], numbers[:, 3:]),
    "yaw_pitch_roll": lambda numbers: np.asarray(Rotation.from_euler("ZYX", numbers).as_quat()),
    "matrix": _from_numbers,
}
_ENCODERS: dict[str, Callable[[Rotation], FloatArray]] = {
    "quaternion_wxyz": lambda found: np.roll(found.as_quat(canonical=True), 1, axis=1),
    "quaternion_xyzw": lambda found: np.asarray(found.as_quat(canonical=True)),
    "rotation_6d": _to_6d,
    "yaw_pitch_roll": _to_yaw_pitch_roll,
    "matrix": lambda found: np.asarray(found.as_matrix().reshape(-1, 9)),
}
