"""What is kept of the numbers of one key in one episode, and how such summaries are merged."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.stats.keystats import KeyStats
from egoloader.stats.moments import Moments, merge_moments, moments_of
from egoloader.stats.quantiles import QUANTILES, Digests, exact_quantiles

__all__ = ["Collector", "KeySummary", "Merger"]

FloatArray = npt.NDArray[np.float64]
_MOMENTS = ("counts", "mean", "squares", "low", "high")


@dataclass(frozen=True, slots=True)
class KeySummary:
    """One key of one episode.

    Attributes:
        shape: of a row, or of a window of rows where each step is on its own.
        is_per_step: whether it is.
        moments: of the C numbers in that shape.
        rows: (N, C), NaN where there is no number; None where digests are kept.
        digests: of each number; None where the rows are.
    """

    shape: tuple[int, ...]
    is_per_step: bool
    moments: Moments
    rows: FloatArray | None
    digests: tuple[bytes, ...] | None

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return it as arrays by name."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "shape": np.array(self.shape, dtype=np.int64),
            "is_per_step": np.array(self.is_per_step),
            **{name: getattr(self.moments, name) for name in _MOMENTS},
        }
        if self.rows is not None:
            return {**arrays, "rows": self.rows}
        assert self.digests is not None
        lengths = np.array([len(one) for one in self.digests], dtype=np.int64)
        joined = np.frombuffer(b"".join(self.digests), dtype=np.uint8)
        return {**arrays, "digests": joined, "digest_lengths": lengths}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, npt.NDArray[Any]]) -> KeySummary:
        """Return what `to_arrays` took apart."""
        digests = None
        if "digests" in arrays:
            ends = np.cumsum(arrays["digest_lengths"]).tolist()
            joined = arrays["digests"].tobytes()
            digests = tuple(joined[a:b] for a, b in zip([0, *ends], ends, strict=False))
        return cls(
            tuple(arrays["shape"].tolist()),
            bool(arrays["is_per_step"]),
            Moments(*(arrays[name] for name in _MOMENTS)),
            arrays.get("rows"),
            digests,
        )


class Collector:
    """Takes in one key's rows of an episode, block by block.

    Args:
        shape: of a row, or of a window of them where each step is on its own.
        is_per_step: whether it is.
        digests: what is kept in the place of the rows; None keeps them.
    """

    def __init__(self, shape: tuple[int, ...], is_per_step: bool, digests: Digests | None) -> None:
        self.shape, self._is_per_step, self._digests = shape, is_per_step, digests
        self._columns = math.prod(shape)
        self._moments = Moments.of_nothing(self._columns)
        self._blocks: list[FloatArray] = []

    def add(self, values: FloatArray, is_real: npt.NDArray[np.bool_]) -> None:
        """Take in rows.

        Args:
            values: (…, *shape).
            is_real: of the same shape; other numbers are not counted.
        """
        rows = np.where(is_real, values, np.nan).reshape(-1, self._columns)
        self._moments = merge_moments(self._moments, moments_of(rows))
        if self._digests is None:
            self._blocks.append(rows[~np.isnan(rows).all(axis=1)])
        else:
            self._digests.add(rows)

    def summary(self) -> KeySummary:
        """Return what was taken in."""
        rows = digests = None
        if self._digests is None:
            rows = np.concatenate([np.empty((0, self._columns)), *self._blocks])
        else:
            digests = self._digests.to_bytes()
        return KeySummary(self.shape, self._is_per_step, self._moments, rows, digests)


class Merger:
    """Takes in one key's summaries, episode by episode.

    The last bits of moments, and the quantiles out of digests, depend on the order, which must not
    be that in which workers are done.

    Args:
        first: the first episode's.
    """

    def __init__(self, first: KeySummary) -> None:
        self.shape, self._is_per_step = first.shape, first.is_per_step
        columns = math.prod(first.shape)
        self._moments = Moments.of_nothing(columns)
        self._rows: list[FloatArray] = []
        self._digests = None if first.digests is None else Digests(columns)
        self.add(first)

    def add(self, summary: KeySummary) -> None:
        """Take in another, of the same shape."""
        self._moments = merge_moments(self._moments, summary.moments)
        if self._digests is None:
            assert summary.rows is not None
            self._rows.append(summary.rows)
        else:
            assert summary.digests is not None
            self._digests.merge(summary.digests)

    def stats(self) -> KeyStats:
        """Return the statistics of all that was taken in."""
        is_exact, moments = self._digests is None, self._moments
        if self._digests is None:
            quantiles = exact_quantiles(np.concatenate(self._rows))
        else:
            quantiles = self._digests.quantiles()
        is_any = moments.counts > 0
        low, high = (np.where(is_any, one, 0.0) for one in (moments.low, moments.high))
        std = np.sqrt(moments.squares / np.maximum(moments.counts, 1))
        return KeyStats(
            moments.counts.reshape(self.shape),
            np.where(is_any, np.clip(moments.mean, low, high), 0.0).reshape(self.shape),
            np.where(low == high, 0.0, std).reshape(self.shape),
            low.reshape(self.shape),
            high.reshape(self.shape),
            {
                name: np.clip(value, low, high).reshape(self.shape)
                for name, value in zip(QUANTILES, quantiles, strict=True)
            },
            is_exact=is_exact,
            is_per_step=self._is_per_step,
        )
