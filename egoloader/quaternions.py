"""Unit quaternions, (…, 4), in whichever order their numbers are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["is_zero", "slerp", "unit"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
#: An angle that no two rotations have between them, with the sines of which one can divide.
_TINY = 1e-100


def is_zero(quaternions: FloatArray) -> BoolArray:
    """Return which are zeros, and so no rotation: (…,)."""
    return ~_largest(np.abs(quaternions)).astype(bool)


def unit(quaternions: FloatArray) -> FloatArray:
    """Return quaternions of norm 1; zeros for zeros, and NaN where a number is NaN or inf."""
    # Squares of any number would not do.
    peaks = _largest(np.abs(quaternions))
    with np.errstate(invalid="ignore"):
        scaled = quaternions / np.where(peaks == 0, 1.0, peaks)[..., None]
        # At least 1, but of zeros.
        return np.asarray(scaled / np.maximum(_norms(scaled), 1.0)[..., None])


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
    angles = np.maximum(angles, _TINY)
    whole, rest = np.sin(angles), 1 - weights
    shares = np.sin(rest * angles) / whole, np.sin(weights * angles) / whole
    return np.asarray(left * shares[0][..., None] + right * shares[1][..., None])


def _norms(quaternions: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(_sums(quaternions * quaternions)))


def _sums(numbers: FloatArray) -> FloatArray:
    # Written out, as sums that NumPy orders by the arrays' shapes differ in their last bits.
    a, b, c, d = _columns(numbers)
    return np.asarray(a + b + c + d)


def _largest(numbers: FloatArray) -> FloatArray:
    a, b, c, d = _columns(numbers)
    return np.asarray(np.maximum(np.maximum(a, b), np.maximum(c, d)))


def _columns(numbers: FloatArray) -> list[FloatArray]:
    return [numbers[..., place] for place in range(4)]
