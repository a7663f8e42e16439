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
#: How many times wider than the 1st to the 99th percentile the range may be, unremarked.
_WIDEST = 1000


class Scale(NamedTuple):
    """A key's numbers become (x - shift) / spread, each array of the key's shape, in float64."""

    shift: FloatArray
    spread: FloatArray


def scale_of(stats: KeyStats, mode: Mode, is_left: npt.NDArray[np.bool_], where: str) -> Scale:
    """Return the scale of a key's numbers, those that stay as they are among them.

    By `quantile`, the range takes the percentiles' place only where these are nearly one number.
    Where the range is over 1,000 times as wide as they lie apart, they stay the scale, so that one
    broken number squashes no others. Rare numbers that are real, such as short moves of a joint
    that only trembles else, become as large then. Statistics don't tell the two apart, and so a
    `StatisticsWarning` names the dimensions, and what to do about each.

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
    width, whole, floor = high - low, stats.max - stats.min, _floor(low)
    is_rare = (width < floor) & (whole >= floor)
    _warn(where, ~is_left & is_rare, _RARE)
    is_far = ~is_left & (width >= floor) & (whole / _WIDEST > width)
    if is_far.any():
        _warn(where, is_far, _FAR.format(np.max(whole[is_far] / width[is_far])))
    return np.where(is_rare, stats.min, low), np.where(is_rare, stats.max, high)


def _floor(place: FloatArray) -> FloatArray:
    """Return the least spread of numbers that lie at some place."""
    return np.asarray(np.maximum(_FLOOR, np.abs(place) * _RESOLUTION))


#: What is said of dimensions of no spread, of those that only rare numbers spread, and of those
#: that rare numbers spread much further.
_FLAT = (
    "constant, or nearly: the spread is taken for a floor, so that small changes become large. "
    "skip leaves numbers as they are"
)
_RARE = (
    "nearly always the same, so that the 1st and the 99th percentile are one, or nearly: the least "
    "to the greatest becomes -1 to 1 in their place. skip leaves numbers as they are"
)
_FAR = (
    "rarely far from where nearly all numbers lie: the least to the greatest is up to {:,.0f} "
    "times as wide as the 1st to the 99th percentile, which becomes -1 to 1, and rare numbers "
    "become as large. If they are real, choose minmax or zscore in modes for this key, or leave "
    "them as they are with skip; if they are broken, outliers leaves their frames out of what is "
    "drawn, but not out of the statistics, of which this is said"
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
