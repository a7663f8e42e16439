"""How statistics are computed: which episodes, in which order, and what is put together."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from egoloader.columns import Column, drawable_frames, kept_frames
from egoloader.dataset import MultiDataset, ZarrDataset
from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError, SettingsError, StatisticsWarning, check_whole
from egoloader.gathering import EpisodeRecord
from egoloader.keymap import KeyMap
from egoloader.stats.blocks import Numbers, numbers_of
from egoloader.stats.job import EpisodeJob, summarise
from egoloader.stats.keystats import KeyStats
from egoloader.stats.outliers import (
    OutlierFilter,
    bounds_of,
    check_bounds,
    check_shares,
    episode_outliers,
)
from egoloader.stats.outside import Bounds, Outliers, find_outliers
from egoloader.stats.processes import EpisodeWorkers, check_sendable
from egoloader.stats.skipping import Skip, check_skip, check_skipped_keys, skipped
from egoloader.stats.summary import KeySummary, Merger
from egoloader.stats.summarycache import SummaryCache, cache_at
from egoloader.stats.view import View, view_of

__all__ = ["Computation", "ComputationSettings"]

IntArray = npt.NDArray[np.int64]
Result = TypeVar("Result")
Stats = dict[str, dict[str, KeyStats]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputationSettings:
    """The options of `NormStats.compute`.

    Raises:
        SettingsError: one can't be meant.
    """

    keys: Sequence[str] | None
    per_step: Sequence[str]
    frame_filter: Column | None
    frame_weights: Column | None
    outliers: Sequence[str] | None
    skip: Skip
    workers: int
    cache: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        check_whole("workers", self.workers, 1)
        check_skip(self.skip)
        if self.outliers is not None:
            check_bounds(self.outliers)
        for name in ("keys", "per_step"):
            value = getattr(self, name)
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            if not (is_list and all(isinstance(one, str) for one in value)):
                if name == "keys" and value is None:
                    continue
                raise SettingsError(f"{name} must list sample keys, got {value!r}")
        if self.keys is not None:
            if not self.keys:
                raise SettingsError("keys is empty; name one at least, or leave it out for all")
            check_skipped_keys("per_step", self.per_step, self.keys)


class Computation:
    """Looks at all episodes of a dataset, in the order of their names.

    Args:
        data: the frames.
        settings: what is asked for.
        workers: that look at them.
        on_progress: told how many episodes are done, and how many there are.

    Raises:
        SettingsError, EpisodeError: see `NormStats.compute`.
    """

    def __init__(
        self,
        data: MultiDataset | ZarrDataset,
        settings: ComputationSettings,
        workers: EpisodeWorkers,
        on_progress: Callable[[int, int], None] | None,
    ) -> None:
        if not isinstance(data, MultiDataset | ZarrDataset):
            raise SettingsError(
                f"statistics are of a MultiDataset or a ZarrDataset, got {type(data).__name__}"
            )
        self._data, self._settings, self._workers = data, settings, workers
        self._on_progress = on_progress
        self._skip = check_skip(settings.skip)
        self._records = _records(data)
        self._frames = _counted(data, settings)
        if not sum(self._served().values()):
            raise SettingsError("there are no frames to make statistics of")
        self._views = self._made_views()
        check_sendable(list(self._views.values()), settings.workers)
        steps = [data.settings.transforms_of(name) for name in self._views]
        self._cache = cache_at(settings.cache, itertools.chain.from_iterable(steps))
        passes = 1 if settings.outliers is None else 2
        self._done, self._total = 0, passes * len(self._records)

    def stats(self) -> Stats:
        """Return the statistics by embodiment and key."""
        mergers: dict[str, dict[str, Merger]] = {name: {} for name in sorted(self._views)}
        for job, summaries in self._in_order(functools.partial(_summaries, self._cache)):
            its = mergers[job.episode.embodiment]
            for key, summary in summaries.items():
                _merge(its, key, summary, job.episode)
        stats = {name: self._stats_of(name, its) for name, its in mergers.items()}
        for name, its_stats in stats.items():
            self._check_counted(name, its_stats)
        return stats

    def outliers(self, stats: Stats) -> OutlierFilter | None:
        """Return the filter of frames with numbers outside quantiles, where it is asked for."""
        if self._settings.outliers is None:
            return None
        quantiles = check_bounds(self._settings.outliers)
        bounds = {
            name: bounds_of(its, quantiles, self._skip.of(name)) for name, its in stats.items()
        }
        episodes = {}
        for job, found in self._in_order(functools.partial(_outliers, bounds)):
            episodes[job.episode.name] = episode_outliers(job.episode, job.counted, found)
        made = OutlierFilter(quantiles, episodes)
        check_shares(made, stats)
        return made

    def _stats_of(self, embodiment: str, mergers: Mapping[str, Merger]) -> dict[str, KeyStats]:
        view = self._views[embodiment]
        optional = frozenset[str]() if view is None else view.optional
        return {
            key: dataclasses.replace(merger.stats(), is_optional=key in optional)
            for key, merger in mergers.items()
        }

    def _check_counted(self, embodiment: str, stats: Mapping[str, KeyStats]) -> None:
        """Refuse actions of which no number is counted; warn of keys that others make up for."""
        view = self._views[embodiment]
        actions = frozenset[str]() if view is None else view.actions
        has_any = any(one.count for key, one in stats.items() if key in actions)
        for key in (key for key, one in stats.items() if not one.count):
            what = (
                f"embodiment {embodiment!r}, key {key!r}: not one number of it counts, as each is "
                "padded, or stands in for an array that no episode has"
            )
            if key in actions and not (has_any and stats[key].is_optional):
                raise SettingsError(
                    f"{what}; nothing can be learned of such an action: leave it out of this "
                    "embodiment's keymap, or out of what a transform joins it to"
                )
            warnings.warn(f"{what}; it is not normalised", StatisticsWarning, stacklevel=4)

    def _in_order(
        self, function: Callable[[EpisodeJob], Result]
    ) -> Iterator[tuple[EpisodeJob, Result]]:
        """Yield the jobs, and what a function finds, in the order of the episodes' names."""
        order = sorted(record.name for record in self._records)[::-1]
        jobs, found = dict[str, EpisodeJob](), dict[str, Result]()
        for name, result in self._workers.run(function, self._jobs(jobs)):
            found[name] = result
            self._done += 1
            if self._on_progress is not None:
                self._on_progress(self._done, self._total)
            while order and order[-1] in found:
                name = order.pop()
                yield jobs.pop(name), found.pop(name)

    def _jobs(self, taken: dict[str, EpisodeJob]) -> Iterator[tuple[str, EpisodeJob]]:
        for episode in self._data.open_each():
            view, frames = self._views[episode.embodiment], self._frames.get(episode.name)
            taken[episode.name] = EpisodeJob(episode, view, frames)
            yield episode.name, taken[episode.name]

    def _served(self) -> dict[str, int]:
        """Return how many frames of each embodiment count."""
        served: dict[str, int] = {}
        for one in self._records:
            frames = self._frames.get(one.name)
            count = one.total_frames if frames is None else len(frames)
            served[one.embodiment] = served.get(one.embodiment, 0) + count
        return served

    def _made_views(self) -> dict[str, View | None]:
        """Return how each embodiment is looked at, by the first of its episodes with frames."""
        served, views = self._served(), dict[str, View | None]()
        wanted, names = self._settings.keys, _Names()
        for episode in self._data.open_each():
            frames = self._frames.get(episode.name, np.arange(min(episode.total_frames, 1)))
            name = episode.embodiment
            if name in views or not len(frames):
                continue
            views[name] = view_of(
                episode,
                _keymap(self._data, name),
                self._data.settings,
                served[name],
                self._settings.per_step,
                wanted,
            )
            names.add(EpisodeJob(episode, views[name], frames[:1]))
            if len(views) == len(served):
                break
        names.check(self._settings)
        return {name: views.get(name) for name in served}


class _Names:
    """Which keys there are, found at one frame of each embodiment."""

    def __init__(self) -> None:
        self._shapes: dict[str, dict[str, Numbers]] = {}

    def add(self, job: EpisodeJob) -> None:
        """Look at an embodiment: at what is wanted, and at what else might be meant."""
        if job.view is None:
            return
        its = self._shapes.setdefault(job.episode.embodiment, {})
        for view in (dataclasses.replace(job.view, wanted=None), job.view):
            its |= {one.key: one for one in numbers_of(job.episode, view, job.counted)}

    def check(self, settings: ComputationSettings) -> None:
        """Refuse options that name other keys, or none of which are as they say.

        Raises:
            SettingsError: there is one; says the near miss.
        """
        known = {key for its in self._shapes.values() for key in its}
        if not known:
            raise SettingsError(
                "there are no numbers in the samples that statistics could be made of; "
                "cameras and texts have none"
            )
        check_skipped_keys("keys", settings.keys or (), known)
        check_skipped_keys("per_step", settings.per_step, known)
        for key in settings.per_step:
            found = [its[key] for its in self._shapes.values() if key in its]
            if not any(one.is_per_step for one in found):
                raise SettingsError(f"per_step: {key!r} has no steps, {found[0].shape}")
        skip = check_skip(settings.skip)
        skip.check_known("skip", self._shapes)
        for name, its in self._shapes.items():
            for key, one in its.items():
                skipped(skip.of(name), key, one.shape)


def _summaries(cache: SummaryCache | None, job: EpisodeJob) -> dict[str, KeySummary]:
    if cache is None or job.view is None:
        return summarise(job)
    found = cache.load(job)
    if found is None:
        found = summarise(job)
        cache.store(job, found)
    return found


def _outliers(bounds: Mapping[str, Bounds], job: EpisodeJob) -> Outliers:
    return find_outliers(job, bounds[job.episode.embodiment])


def _merge(its: dict[str, Merger], key: str, summary: KeySummary, episode: ZarrEpisode) -> None:
    if key not in its:
        its[key] = Merger(summary)
        return
    if summary.shape != its[key].shape:
        raise EpisodeFormatError(
            f"its rows are {list(summary.shape)}, and {list(its[key].shape)} in other episodes of "
            f"embodiment {episode.embodiment!r}",
            episode=episode.name,
            key=key,
        )
    its[key].add(summary)


def _records(data: MultiDataset | ZarrDataset) -> list[EpisodeRecord]:
    if isinstance(data, MultiDataset):
        return list(data.episodes)
    one = data.episode
    return [EpisodeRecord(one.name, one.total_frames, one.embodiment)]


def _keymap(data: MultiDataset | ZarrDataset, embodiment: str) -> KeyMap:
    return data.keymaps[embodiment] if isinstance(data, MultiDataset) else data.keymap


def _counted(
    data: MultiDataset | ZarrDataset, settings: ComputationSettings
) -> dict[str, IntArray]:
    """Return the frames that count of those episodes of which not all do, ascending."""
    column, weights = settings.frame_filter, settings.frame_weights
    kept = {} if column is None else kept_frames(data, column)
    if weights is not None:
        kept = drawable_frames(data, weights, kept)
    counted = dict(data.spared)
    for name, its in kept.items():
        counted[name] = counted[name][its] if name in counted else its
    return counted
