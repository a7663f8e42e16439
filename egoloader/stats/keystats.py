"""What is known of the numbers of one key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.errors import SettingsError, near_miss
from egoloader.stats.quantiles import QUANTILES, rank_error

__all__ = ["KeyStats"]

FloatArray = npt.NDArray[np.float64]
_NUMBERS = ("mean", "std", "min", "max")
_FLAGS = ("is_exact", "is_per_step", "is_optional")


@dataclass(frozen=True, slots=True, eq=False)
class KeyStats:
    """The statistics of one key, each number of a row on its own.

    All arrays have the shape of a row, (D…), or of a window of them, (n, D…), where each step of a
    chunk has statistics of its own. Where nothing was counted (an array that every episode lacks,
    a padded dimension), all of them are 0.

    Attributes:
        counts: int64, how many numbers there are.
        mean: float64, like all that follow, in the units of the key.
        std: of the population: the squares' mean over `counts`.
        min: the least.
        max: the greatest.
        quantiles: by name: `q0.01`, `q1`, `q50`, `q99`, `q99.99`, in percent.
        is_exact: whether the quantiles are those of all numbers, interpolated linearly; else they
            come out of a sketch, and their ranks are off by `rank_errors` at most.
        is_per_step: whether each step of a chunk has statistics of its own.
        is_optional: whether an episode may lack what it is made of, so that zeros stand in for it.
    """

    counts: npt.NDArray[np.int64]
    mean: FloatArray
    std: FloatArray
    min: FloatArray
    max: FloatArray
    quantiles: Mapping[str, FloatArray]
    is_exact: bool = True
    is_per_step: bool = False
    is_optional: bool = False

    @property
    def count(self) -> int:
        """Rows that were counted: where dimensions are padded, those of the one with the most."""
        return int(self.counts.max(initial=0))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row, (D…), or of a window of rows, (n, D…)."""
        return self.mean.shape

    @property
    def rank_errors(self) -> dict[str, float]:
        """By quantile, how far its rank may be off, as a share of the rows; 0 where exact."""
        return {
            name: 0.0 if self.is_exact else rank_error(share, self.count)
            for name, share in QUANTILES.items()
        }

    @property
    def is_constant(self) -> npt.NDArray[np.bool_]:
        """Which numbers are counted and always the same."""
        return np.asarray((self.counts > 0) & (self.min == self.max))

    def quantile(self, name: str) -> FloatArray:
        """Return a quantile by its name.

        Raises:
            SettingsError: there is none of that name.
        """
        if name not in self.quantiles:
            raise SettingsError(f"there is no quantile {name!r}; {near_miss(name, self.quantiles)}")
        return self.quantiles[name]

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "counts": self.counts.tolist(),
            **{name: getattr(self, name).tolist() for name in _NUMBERS},
            "quantiles": {name: value.tolist() for name, value in self.quantiles.items()},
            **{name: getattr(self, name) for name in _FLAGS},
        }

    @classmethod
    def from_plain(cls, plain: Any, where: str) -> KeyStats:
        """Return what `to_plain` made plain.

        Args:
            plain: JSON values.
            where: how errors call it.

        Raises:
            SettingsError: it is no statistics of a key.
        """
        fields = {"counts", *_NUMBERS, "quantiles", *_FLAGS}
        _check_fields(plain, fields, where)
        _check_fields(plain["quantiles"], set(QUANTILES), f"{where}, quantiles")
        for name in _FLAGS:
            if not isinstance(plain[name], bool):
                raise SettingsError(f"{where}: {name} is true or false, got {plain[name]!r}")
        counts = _array(plain["counts"], f"{where}, counts")
        if (counts < 0).any() or (counts != np.floor(counts)).any() or (counts >= 2**63).any():
            raise SettingsError(f"{where}: counts must be whole numbers from 0 on, below 2**63")
        numbers = {name: _array(plain[name], f"{where}, {name}") for name in _NUMBERS}
        quantiles = {
            name: _array(plain["quantiles"][name], f"{where}, quantile {name}")
            for name in QUANTILES
        }
        for name, value in [*numbers.items(), *quantiles.items()]:
            if value.shape != counts.shape:
                raise SettingsError(
                    f"{where}: {name} has the shape {list(value.shape)}, and counts "
                    f"{list(counts.shape)}"
                )
        _check_order(numbers, quantiles, where)
        return cls(
            counts.astype(np.int64),
            numbers["mean"],
            numbers["std"],
            numbers["min"],
            numbers["max"],
            quantiles=quantiles,
            **{name: plain[name] for name in _FLAGS},
        )


def _check_order(
    numbers: Mapping[str, FloatArray], quantiles: Mapping[str, FloatArray], where: str
) -> None:
    low, high = numbers["min"], numbers["max"]
    if (numbers["std"] < 0).any() or (low > high).any():
        raise SettingsError(f"{where}: a std is below 0, or a min above its max")
    for name, value in {"mean": numbers["mean"], **quantiles}.items():
        if ((value < low) | (value > high)).any():
            raise SettingsError(f"{where}: {name} does not lie between min and max")


def _check_fields(plain: Any, fields: set[str], where: str) -> None:
    if not isinstance(plain, Mapping):
        raise SettingsError(f"{where}: it must be a mapping, got {type(plain).__name__}")
    for name in sorted(fields - set(plain)):
        raise SettingsError(f"{where}: it lacks {name!r}")
    for name in sorted(set(map(str, plain)) - fields):
        raise SettingsError(f"{where}: it has no field {name!r}; {near_miss(name, fields)}")


def _array(plain: Any, where: str) -> FloatArray:
    try:
        array = np.asarray(plain)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "iuf":
        raise SettingsError(f"{where}: it must be numbers in lists of equal lengths")
    array = array.astype(np.float64)
    if not np.isfinite(array).all() or not math.prod(array.shape):
        raise SettingsError(f"{where}: it must be finite numbers, and not empty")
    return array
