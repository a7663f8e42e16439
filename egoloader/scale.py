"""What a key's numbers are normalised by: where they lie, and how far they are spread."""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.errors import StatisticsWarning
from egoloader.stats import KeyStats

__all__ = ["Mode", "Scale", "scale_of"]

Mode = Literal["zscore", "minmax", "quantile"]
FloatArray = npt.NDArray[np.float64]

#: The least spread that numbers are divided by, in their own units.
_FLOOR = 1e-6
#: The least one relative to where they lie: float32 tells no smaller differences.
_RESOLUTION = 2.0**-23


class Scale(NamedTuple):
    """A key's numbers become (x - shift) / spread, each array of the key's shape, in float64."""

    shift: FloatArray
    spread: FloatArray


def scale_of(stats: KeyStats, mode: Mode, is_left: npt.NDArray[np.bool_], where: str) -> Scale:
    """Return the scale of a key's numbers, those that stay as they are among them.

    Args:
        stats: of the key.
        mode: see `NormalizerSettings`.
        is_left: of the key's shape, which stay as they are.
        where: how warnings call it.
    """
    if mode == "zscore":
        shift, width = stats.mean, stats.std
    else:
        low, high = stats.min, stats.max
        if mode == "quantile":
            low, high = _bulk(stats, is_left, where)
        shift, width = low + (high - low) / 2, high - low
    floor = _floor(shift)
    _warn(where, ~is_left & (width < floor), _FLAT)
    spread = np.maximum(width, floor) / (1 if mode == "zscore" else 2)
    return Scale(np.where(is_left, 0.0, shift), np.where(is_left, 1.0, spread))


def _bulk(
    stats: KeyStats, is_left: npt.NDArray[np.bool_], where: str
) -> tuple[FloatArray, FloatArray]:
    """Return the 1st and the 99th percentile, or the range where nearly all numbers are one."""
    low, high = stats.quantile("q1"), stats.quantile("q99")
    is_rare = (high - low < _floor(low)) & (stats.max - stats.min >= _floor(low))
    _warn(where, ~is_left & is_rare, _RARE)
    return np.where(is_rare, stats.min, low), np.where(is_rare, stats.max, high)


def _floor(place: FloatArray) -> FloatArray:
    """Return the least spread of numbers that lie at some place."""
    return np.asarray(np.maximum(_FLOOR, np.abs(place) * _RESOLUTION))


#: What is said of dimensions of no spread, and of those that only rare numbers spread.
_FLAT = (
    "constant, or nearly: the spread is taken for a floor, so that small changes become large. "
    "skip leaves numbers as they are"
)
_RARE = (
    "nearly always the same, so that the 1st and the 99th percentile are one, or nearly: the least "
    "to the greatest becomes -1 to 1 in their place. skip leaves numbers as they are"
)


def _warn(where: str, is_meant: npt.NDArray[np.bool_], what: str) -> None:
    """Warn of dimensions, by their places."""
    if is_meant.any():
        places = np.argwhere(is_meant)
        named = [place[0] if len(place) == 1 else place for place in places[:12].tolist()]
        more = ", …" if len(places) > 12 else ""
        listed = f"dimensions {', '.join(map(str, named))}{more} are"
        warnings.warn(
            f"{where}: {listed if places.shape[1] else 'its only number is'} {what}",
            StatisticsWarning,
            stacklevel=5,
        )
