"""One episode's share of the work, which any process can do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError
from egoloader.stats.blocks import Numbers, numbers_of
from egoloader.stats.quantiles import Digests
from egoloader.stats.summary import Collector, KeySummary
from egoloader.stats.view import View

__all__ = ["EpisodeJob", "summarise"]


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
