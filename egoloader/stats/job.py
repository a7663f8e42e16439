"""One episode's share of the work, which any process can do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError
from egoloader.stats.blocks import Numbers, numbers_of
from egoloader.stats.quantiles import Digests
from egoloader.stats.summary import Collector, KeySummary
from egoloader.stats.view import View

__all__ = ["Bounds", "EpisodeJob", "Outliers", "find_outliers", "summarise"]

FloatArray = npt.NDArray[np.float64]
#: Per key, the least and the greatest number that is none, each of the shape of the key's stats.
Bounds = Mapping[str, tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class EpisodeJob:
    """An episode, and what is looked at in it.

    Attributes:
        episode: pickles as its path.
        view: how its numbers are looked at; None where it has none.
        frames: those that count, ascending; None for all.
    """

    episode: ZarrEpisode
    view: View | None
    frames: npt.NDArray[np.int64] | None

    @property
    def counted(self) -> npt.NDArray[np.int64]:
        """The frames that count."""
        return np.arange(self.episode.total_frames) if self.frames is None else self.frames


def summarise(job: EpisodeJob) -> dict[str, KeySummary]:
    """Return what an episode says of each key.

    Raises:
        EpisodeError: its numbers can't be read or transformed, or have no statistics.
    """
    found: dict[str, Collector] = {}
    for numbers in _numbers(job):
        if numbers.key not in found:
            found[numbers.key] = _collector(numbers)
        _check_shape(job, numbers, found[numbers.key].shape)
        found[numbers.key].add(numbers.values, numbers.is_real)
    return {key: collector.summary() for key, collector in found.items()}


def _numbers(job: EpisodeJob) -> Iterator[Numbers]:
    return iter(()) if job.view is None else numbers_of(job.episode, job.view, job.counted)


def _collector(numbers: Numbers) -> Collector:
    digests = None if numbers.is_exact else Digests(math.prod(numbers.shape))
    return Collector(numbers.shape, numbers.is_per_step, digests)


def _check_shape(job: EpisodeJob, numbers: Numbers, shape: tuple[int, ...]) -> None:
    if numbers.shape != shape:
        raise EpisodeFormatError(
            f"its rows are {numbers.shape} here, and {shape} before",
            episode=job.episode.name,
            key=numbers.key,
            frame=int(numbers.frames[0]),
        )


@dataclass(frozen=True, slots=True)
class Outliers:
    """The frames of an episode whose numbers lie outside bounds.

    Attributes:
        frames: ascending.
        by_key: how many frames each key has outside; a frame may be among those of several.
    """

    frames: npt.NDArray[np.int64]
    by_key: Mapping[str, int]


def find_outliers(job: EpisodeJob, bounds: Bounds) -> Outliers:
    """Return the frames of which a real number lies outside the bounds of its key.

    Raises:
        EpisodeError: its numbers can't be read or transformed.
    """
    is_outside = np.zeros(job.episode.total_frames, dtype=np.bool_)
    by_key = dict.fromkeys(bounds, 0)
    for numbers in _numbers(job):
        if numbers.key not in bounds:
            continue
        low, high = bounds[numbers.key]
        beyond = numbers.is_real & ((numbers.values < low) | (numbers.values > high))
        is_its = beyond.reshape(len(numbers.frames), -1).any(axis=1)
        by_key[numbers.key] += int(is_its.sum())
        is_outside[numbers.frames[is_its]] = True
    return Outliers(np.flatnonzero(is_outside), {key: n for key, n in by_key.items() if n})
