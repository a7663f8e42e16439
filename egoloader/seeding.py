"""Random numbers that are a function of what they are for, and of nothing else.

NumPy's generators may change with NumPy; an order that a checkpoint goes on from may not. So the
numbers are SplitMix64's (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014),
one for each place in a stream, and the streams are told apart by a 64-bit key.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "exponentials",
    "permutation",
    "sample_seeds",
    "stream_key",
    "uniforms",
    "words",
]

FloatArray = npt.NDArray[np.float64]
_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_LOG_2 = 0.6931471805599453
_LOG_TERMS = [2.0 / (2 * n + 1) for n in range(11)]


def stream_key(*parts: int | str) -> int:
    """Return the 64-bit key of the stream that numbers and words name."""
    digest = hashlib.blake2b(ascii(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def words(key: int, count: int, start: int = 0) -> npt.NDArray[np.uint64]:
    """Return the numbers `start` to `start + count` of a stream: (count,) uint64."""
    word = np.arange(start + 1, start + 1 + count, dtype=np.uint64)
    word *= np.uint64(_STEP)
    word += np.uint64(key)
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        word ^= word >> np.uint64(shift)
        word *= np.uint64(factor)
    word ^= word >> np.uint64(31)
    return word


def uniforms(key: int, count: int, start: int = 0) -> FloatArray:
    """Return numbers of [0, 1), evenly spread: (count,) float64."""
    return np.asarray((words(key, count, start) >> np.uint64(11)) * 2.0**-53)


def exponentials(key: int, count: int, start: int = 0) -> FloatArray:
    """Return waiting times at rate 1: (count,) float64.

    The logarithm is made of sums, products and quotients alone, which every machine rounds alike;
    the libraries' own differ in the last bit.
    """
    mantissa, exponent = np.frexp(1.0 - uniforms(key, count, start))
    is_low = mantissa < math.sqrt(0.5)
    mantissa = np.where(is_low, 2.0 * mantissa, mantissa)
    # ln m = 2 artanh s with s = (m - 1) / (m + 1), at most 0.172 in size.
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square = ratio * ratio
    series = np.full(count, _LOG_TERMS[-1])
    for term in reversed(_LOG_TERMS[:-1]):
        series = series * square + term
    return np.asarray((is_low - exponent) * _LOG_2 - series * ratio)


def permutation(key: int, count: int) -> npt.NDArray[np.int64]:
    """Return the whole numbers below `count` in a random order: (count,) int64."""
    return np.argsort(words(key, count), kind="stable")


def sample_seeds(keys: Sequence[int], frames: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return numbers from 0 to 2**63 - 1, one for each frame index of its stream: (n,) int64."""
    pairs = zip(keys, frames, strict=True)
    return np.array([_word(key, frame) >> 1 for key, frame in pairs], dtype=np.int64)


def _word(key: int, place: int) -> int:
    """Return one number of a stream; a few of them cost less so than by `words`."""
    word = (key + (place + 1) * _STEP) & _MASK
    word = ((word ^ (word >> 30)) * _FACTORS[0]) & _MASK
    word = ((word ^ (word >> 27)) * _FACTORS[1]) & _MASK
    return word ^ (word >> 31)
