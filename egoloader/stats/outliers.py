"""Frames whose numbers lie outside named quantiles, as a frame filter."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError, SettingsError, StatisticsWarning, near_miss
from egoloader.stats.keystats import KeyStats
from egoloader.stats.outside import Bounds, Outliers
from egoloader.stats.quantiles import QUANTILES
from egoloader.stats.skipping import skipped

__all__ = [
    "EpisodeOutliers",
    "OutlierFilter",
    "bounds_of",
    "check_bounds",
    "check_shares",
    "episode_outliers",
]

#: Of an embodiment's frames: a larger share of outliers is seldom meant.
_LARGE_SHARE = 0.05
_WIDEST = (min(QUANTILES, key=QUANTILES.__getitem__), max(QUANTILES, key=QUANTILES.__getitem__))


@dataclass(frozen=True, slots=True)
class EpisodeOutliers:
    """What a filter knows of an episode.

    Attributes:
        embodiment: of the episode.
        total_frames: of the episode.
        counted: frames that were looked at, those that statistics were made of.
        left_out: half-open runs of frames that are not kept, ascending: outliers, and frames of
            which no statistics were made.
        outliers: frames that are outliers.
        by_key: frames by the key that lies outside; a frame may be among those of several.
    """

    embodiment: str
    total_frames: int
    counted: int
    left_out: tuple[tuple[int, int], ...]
    outliers: int
    by_key: Mapping[str, int]


@dataclass(frozen=True, slots=True, repr=False)
class OutlierFilter:
    """Keeps frames whose samples' numbers lie within quantiles; a `frame_filter` for samplers.

    It holds the frames themselves, so that it costs nothing, and pickles. An episode that it does
    not know is an error, as nothing is known of its frames.

    Attributes:
        quantiles: names of the least and the greatest that is kept; both are.
        episodes: by name.
    """

    quantiles: tuple[str, str]
    episodes: Mapping[str, EpisodeOutliers]

    def __repr__(self) -> str:
        return f"OutlierFilter({self.quantiles[0]}…{self.quantiles[1]})"

    def __call__(self, episode: ZarrEpisode) -> npt.NDArray[np.bool_]:
        """Return which frames of an episode are kept: (total_frames,).

        Raises:
            EpisodeFormatError: the episode is another than the statistics were made of.
        """
        known = self.episodes.get(episode.name)
        if known is None or known.total_frames != episode.total_frames:
            had = "was not there" if known is None else f"had {known.total_frames} frames"
            raise EpisodeFormatError(
                f"it {had} when outliers were looked for; compute the statistics again",
                episode=episode.name,
            )
        is_kept = np.ones(known.total_frames, dtype=np.bool_)
        for start, stop in known.left_out:
            is_kept[start:stop] = False
        return is_kept

    @property
    def num_outliers(self) -> int:
        """Frames that are outliers."""
        return sum(one.outliers for one in self.episodes.values())

    @property
    def by_key(self) -> dict[str, int]:
        """Frames by the key that lies outside, most first; a frame may be among several."""
        return _by_key(self.episodes.values())

    @property
    def by_embodiment(self) -> dict[str, tuple[int, int]]:
        """How many frames of each embodiment are outliers, and of how many that were looked at."""
        found: dict[str, tuple[int, int]] = {}
        for one in self.episodes.values():
            outliers, counted = found.get(one.embodiment, (0, 0))
            found[one.embodiment] = outliers + one.outliers, counted + one.counted
        return found

    @property
    def by_episode(self) -> dict[str, int]:
        """Outlier frames of the episodes that have any, most first."""
        counts = Counter({name: one.outliers for name, one in self.episodes.items()})
        return {name: count for name, count in counts.most_common() if count}

    def to_plain(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "quantiles": list(self.quantiles),
            "episodes": {
                name: {
                    "embodiment": one.embodiment,
                    "total_frames": one.total_frames,
                    "counted": one.counted,
                    "left_out": [list(span) for span in one.left_out],
                    "outliers": one.outliers,
                    "by_key": dict(one.by_key),
                }
                for name, one in self.episodes.items()
            },
        }

    @classmethod
    def from_plain(cls, plain: Any, where: str) -> OutlierFilter:
        """Return what `to_plain` made plain.

        Raises:
            SettingsError: it is no such filter.
        """
        try:
            low, high = check_bounds(plain["quantiles"])
            episodes = {
                str(name): EpisodeOutliers(
                    str(one["embodiment"]),
                    int(one["total_frames"]),
                    int(one["counted"]),
                    tuple((int(start), int(stop)) for start, stop in one["left_out"]),
                    int(one["outliers"]),
                    {str(key): int(count) for key, count in one["by_key"].items()},
                )
                for name, one in plain["episodes"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise SettingsError(f"{where}: it is no filter of outliers: {error!r}") from error
        for name, known in episodes.items():
            for start, stop in known.left_out:
                if not 0 <= start < stop <= known.total_frames:
                    raise SettingsError(
                        f"{where}: frames {start} to {stop} that are left out are none of the "
                        f"{known.total_frames} of episode {name!r}"
                    )
        return cls((low, high), episodes)


def check_bounds(quantiles: Any) -> tuple[str, str]:
    """Return the names of two quantiles, the lesser first.

    Raises:
        SettingsError: they can't be meant.
    """
    is_pair = isinstance(quantiles, Sequence) and not isinstance(quantiles, str)
    if not is_pair or len(quantiles) != 2:
        raise SettingsError(f"outliers are two quantiles, as in [q0.01, q99.99]; got {quantiles!r}")
    for name in quantiles:
        if name not in QUANTILES:
            raise SettingsError(
                f"outliers: there is no quantile {name!r}; {near_miss(str(name), QUANTILES)}"
            )
    low, high = quantiles
    if not QUANTILES[low] < QUANTILES[high]:
        raise SettingsError(f"outliers: {low} must lie below {high}")
    return low, high


def bounds_of(
    stats: Mapping[str, KeyStats],
    quantiles: tuple[str, str],
    skip: Mapping[str, tuple[int, ...] | None],
) -> Bounds:
    """Return the bounds of an embodiment's numbers; infinite where they are left out."""
    bounds = {}
    for key, one in stats.items():
        is_free = skipped(skip, key, one.shape)
        low, high = (one.quantile(name) for name in quantiles)
        bounds[key] = np.where(is_free, -np.inf, low), np.where(is_free, np.inf, high)
    return bounds


def check_shares(found: OutlierFilter, stats: Mapping[str, Mapping[str, KeyStats]]) -> None:
    """Warn of embodiments that lose many frames, by a `StatisticsWarning`.

    Args:
        found: the outliers.
        stats: whose quantiles they lie outside of.

    Raises:
        SettingsError: no frame of an embodiment would be left; says by which keys.
    """
    for name, (outliers, counted) in found.by_embodiment.items():
        if outliers <= _LARGE_SHARE * counted:
            continue
        by_key = _by_key(one for one in found.episodes.values() if one.embodiment == name)
        counts = ", ".join(f"{key!r} {count}" for key, count in by_key.items())
        rows = stats[name][next(iter(by_key))].count
        low, high = found.quantiles
        text = (
            f"embodiment {name!r}: {outliers} of {counted} frames ({outliers / counted:.1%}) hold "
            f"numbers outside {low} to {high} and are left out, by key {counts}; the quantiles of "
            f"{next(iter(by_key))!r} are of {rows} rows"
        )
        if 1 / max(rows, 1) > QUANTILES[low] or 1 / max(rows, 1) > 1 - QUANTILES[high]:
            text += ", of which they leave out the least and the greatest of every dimension"
        wider = (
            "" if found.quantiles == _WIDEST else f"take wider quantiles ({', '.join(_WIDEST)}), "
        )
        remedy = f"{wider}leave numbers out with skip, or go without outliers"
        if outliers == counted:
            raise SettingsError(f"{text}, so that none would be left: {remedy}")
        warnings.warn(f"{text}: {remedy}", StatisticsWarning, stacklevel=4)


def _by_key(episodes: Iterable[EpisodeOutliers]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for one in episodes:
        counts.update(one.by_key)
    return dict(counts.most_common())


def episode_outliers(
    episode: ZarrEpisode, counted: npt.NDArray[np.int64], found: Outliers
) -> EpisodeOutliers:
    """Return what a filter keeps of an episode's outliers.

    Args:
        episode: the episode.
        counted: frames that were looked at; others are left out.
        found: in them.
    """
    is_out = np.ones(episode.total_frames + 2, dtype=np.int8)
    is_out[[0, -1]] = 0
    is_out[counted + 1] = 0
    is_out[found.frames + 1] = 1
    edges = np.flatnonzero(np.diff(is_out)).reshape(-1, 2)
    return EpisodeOutliers(
        episode.embodiment,
        episode.total_frames,
        len(counted),
        tuple((int(start), int(stop)) for start, stop in edges),
        len(found.frames),
        dict(found.by_key),
    )
