"""Unit quaternions, (…, 4), in whichever order their numbers are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["slerp", "unit"]

FloatArray = npt.NDArray[np.float64]


def unit(quaternions: FloatArray) -> FloatArray:
    """Return quaternions of norm 1; zeros for zeros, and NaN where a number is NaN or inf."""
    peaks = np.abs(quaternions).max(axis=-1, keepdims=True)  # squares of any number would not do
    with np.errstate(invalid="ignore"):
        scaled = quaternions / np.where(peaks == 0, 1.0, peaks)
        return np.asarray(scaled / np.where(peaks == 0, 1.0, _norms(scaled)[..., None]))


def slerp(left: FloatArray, right: FloatArray, weights: FloatArray) -> FloatArray:
    """Return what lies between two rotations, on the shorter way; of the left one's sign.

    Args:
        left: (…, 4), of norm 1.
        right: (…, 4), of norm 1.
        weights: of the right one, 0 to 1, (…,); broadcasts.
    """
    is_far = _sums(left * right) < 0  # q and -q are one rotation
    right = np.where(is_far[..., None], -right, right)
    # By both norms, as the product alone is imprecise where the two are close.
    angles = 2 * np.arctan2(_norms(left - right), _norms(left + right))
    whole = np.sinc(angles / np.pi)
    rest = 1 - weights
    shares = rest * np.sinc(rest * angles / np.pi), weights * np.sinc(weights * angles / np.pi)
    return np.asarray(
        left * (shares[0] / whole)[..., None] + right * (shares[1] / whole)[..., None]
    )


def _norms(quaternions: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(_sums(quaternions * quaternions)))


def _sums(numbers: FloatArray) -> FloatArray:
    # Written out, as sums that NumPy orders by the arrays' shapes differ in their last bits.
    a, b, c, d = np.moveaxis(numbers, -1, 0)
    return np.asarray(a + b + c + d)
