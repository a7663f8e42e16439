"""Counts, means, spreads and ranges of columns of numbers, which can be merged."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Moments", "merge_moments", "moments_of"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Moments:
    """What is known of each of C columns.

    Attributes:
        counts: (C,) int64, numbers in a column.
        mean: (C,).
        squares: (C,), the sum of squared distances from the mean.
        low: (C,), inf for an empty column.
        high: (C,), -inf for an empty column.
    """

    counts: npt.NDArray[np.int64]
    mean: FloatArray
    squares: FloatArray
    low: FloatArray
    high: FloatArray

    @classmethod
    def of_nothing(cls, columns: int) -> Moments:
        """Return those of empty columns."""
        zeros = np.zeros(columns)
        return cls(zeros.astype(np.int64), zeros, zeros, zeros + np.inf, zeros - np.inf)


def moments_of(rows: FloatArray) -> Moments:
    """Return the moments of columns.

    Args:
        rows: (N, C); NaN where there is no number.
    """
    is_real = ~np.isnan(rows)
    counts = is_real.sum(axis=0, dtype=np.int64)
    low = np.where(is_real, rows, np.inf).min(axis=0, initial=np.inf)
    high = np.where(is_real, rows, -np.inf).max(axis=0, initial=-np.inf)
    # Off the lowest number, so that a constant column has no spread at all.
    base = np.where(counts > 0, low, 0.0)
    rest = np.where(is_real, rows - base, 0.0)
    rest_mean = rest.sum(axis=0) / np.maximum(counts, 1)
    squares = np.where(is_real, (rest - rest_mean) ** 2, 0.0).sum(axis=0)
    return Moments(counts, base + rest_mean, squares, low, high)


def merge_moments(one: Moments, other: Moments) -> Moments:
    """Return the moments of both together, as Chan, Golub and LeVeque do; the order matters.

    To the last bits, that is.
    """
    counts = one.counts + other.counts
    share = other.counts / np.maximum(counts, 1)
    distance = other.mean - one.mean
    return Moments(
        counts,
        one.mean + distance * share,
        one.squares + other.squares + distance**2 * share * one.counts,
        np.minimum(one.low, other.low),
        np.maximum(one.high, other.high),
    )
