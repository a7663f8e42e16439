"""Quantiles of columns of numbers: exact of few rows, by t-digests of many."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from datasketches import tdigest_double

__all__ = [
    "EXACT_ROWS",
    "QUANTILES",
    "Digests",
    "exact_quantiles",
    "rank_error",
]

FloatArray = npt.NDArray[np.float64]

#: The quantiles that are kept, by name, as shares of the rows.
QUANTILES = {"q0.01": 0.0001, "q1": 0.01, "q50": 0.5, "q99": 0.99, "q99.99": 0.9999}
#: Rows of a key up to which quantiles are exact.
EXACT_ROWS = 100_000
#: Of t-digests: at most about twice as many centroids, of 16 bytes, a column.
_SIZE = 4000
#: The error of a digest's ranks, as a share of q (1 - q).
_RELATIVE_ERROR = 0.02


def rank_error(quantile: float, count: int) -> float:
    """Return by how much the rank of a quantile out of a digest may be off, as a share of rows.

    0.02 q (1 - q), and one row: 0.0002 % at 0.01 % and 99.99 %, 0.02 % at 1 % and 99 %, 0.5 % at
    the median. A t-digest's centroids hold at most (4 ln(n / 4000) + 24) / 8000 times q (1 - q) of
    n rows, which is 0.9 % of it at 10⁹; the rest is for episodes that were digested on their own,
    whose centroids overlap. That share is what tests hold it to, not a theorem.

    Args:
        quantile: q, in [0, 1].
        count: n, rows.
    """
    return _RELATIVE_ERROR * quantile * (1 - quantile) + 1 / max(count, 1)


class Digests:
    """A t-digest of each of C columns, which takes in rows block by block."""

    def __init__(self, columns: int) -> None:
        self._digests = [tdigest_double(_SIZE) for _ in range(columns)]

    def add(self, rows: FloatArray) -> None:
        """Take in rows: (N, C), NaN where there is no number."""
        for digest, column in zip(self._digests, rows.T, strict=True):
            digest.update(np.ascontiguousarray(column[~np.isnan(column)]))

    def merge(self, others: Sequence[bytes]) -> None:
        """Take in the digests of the columns elsewhere; what comes out depends on the order."""
        for digest, other in zip(self._digests, others, strict=True):
            digest.merge(tdigest_double.deserialize(other))

    def to_bytes(self) -> tuple[bytes, ...]:
        """Return the digests of the columns."""
        return tuple(bytes(digest.serialize()) for digest in self._digests)

    def quantiles(self) -> FloatArray:
        """Return the quantiles of the columns: (5, C); 0 for an empty one."""
        found = np.zeros((len(QUANTILES), len(self._digests)))
        for place, digest in enumerate(self._digests):
            if not digest.is_empty():
                found[:, place] = [digest.get_quantile(share) for share in QUANTILES.values()]
        return found


def exact_quantiles(rows: FloatArray) -> FloatArray:
    """Return the quantiles of columns, interpolated linearly: (5, C); 0 for an empty column.

    Args:
        rows: (N, C); NaN where there is no number.
    """
    shares = list(QUANTILES.values())
    is_real = ~np.isnan(rows)
    if len(rows) and is_real.all():
        return np.asarray(np.quantile(rows, shares, axis=0))
    found = np.zeros((len(shares), rows.shape[1]))
    for place in range(rows.shape[1]):
        if is_real[:, place].any():
            found[:, place] = np.quantile(rows[is_real[:, place], place], shares)
    return found
