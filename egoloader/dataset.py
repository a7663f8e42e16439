"""Map-style datasets: `ZarrDataset` over one episode, `MultiDataset` over a folder of them."""

from __future__ import annotations

import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from egoloader.assembly import fresh_memory, make_batch
from egoloader.batch import Allocate, Batch
from egoloader.cache import CACHE_BYTES, ByteCache
from egoloader.catalog import Split, find_episodes, keep_share, matches, split_episodes
from egoloader.episode import ZarrEpisode
from egoloader.errors import (
    AssumedFpsWarning,
    EpisodeFormatError,
    FrameIndexError,
    SettingsError,
    near_miss,
)
from egoloader.frameindex import marks_of
from egoloader.guard import MissingChunks
from egoloader.handles import OpenEpisodes
from egoloader.keymap import KeyMap
from egoloader.sample import ImageDtype, MixedSizes, Sample, SampleMaker, SampleSettings
from egoloader.sharedmemory import check_worker

__all__ = ["EpisodeRecord", "MultiDataset", "ZarrDataset"]

IntArray = npt.NDArray[np.int64]
Transforms = Sequence[Callable[[Sample], Sample]]

#: Episodes that a MultiDataset keeps open at once, in each process.
MAX_OPEN_EPISODES = 64


class ZarrDataset(Dataset[Sample]):
    """The frames of one episode, as samples.

    A sample is a dict: the keymap's entries in its order, masks behind their entries, then `fps`
    (float32, Hz), `embodiment` (str), `episode` (str), `frame_index` (int64), `timestamp` (float64,
    s), `sample_seed` (int64) and `is_repeat` (bool). Numbers are tensors (D…) or (n, D…), images
    (3, H, W) or (n, 3, H, W), RGB. No two entries or samples share memory.

    What is random about a sample is to be drawn from its `sample_seed`, a function of seed, epoch,
    episode and frame: then it is the same for any number of workers, and after a resume. The epoch
    comes with a sampler's indices, as does `is_repeat`, whether a sample only fills a batch up; a
    plain index stands for epoch 0 and no repeat.

    Pickles as its path and settings.

    Args:
        path: the episode's folder.
        keymap: what a sample holds.
        image_dtype: `uint8` in 0…255, `float32` in 0…1, or `jpeg`, the encoded bytes.
        annotation_cutoff: end action horizons with the annotation span that holds the frame.
        transforms: callables from sample to sample, applied in order.
        missing_chunks: `error`, or `fill` to serve fill values where another writer left a chunk
            out.
        mixed_sizes: `error`, or `list` to get the images of a batch as a list of B tensors.
        cache_bytes: decoded chunks of numbers that each process keeps, in bytes; 0 keeps none.
        seed: of `sample_seed`.

    Raises:
        EpisodeNotFoundError, EpisodeFormatError: the path holds no whole episode.
        MissingKeyError, KeyMapError: the keymap does not fit the episode.
        SettingsError: an option that can't be meant.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        keymap: KeyMap,
        *,
        image_dtype: ImageDtype = "uint8",
        annotation_cutoff: bool = False,
        transforms: Transforms = (),
        missing_chunks: MissingChunks = "error",
        mixed_sizes: MixedSizes = "error",
        cache_bytes: int = CACHE_BYTES,
        seed: int = 0,
    ) -> None:
        _check_keymap(keymap)
        settings = SampleSettings(image_dtype, annotation_cutoff, transforms, mixed_sizes, seed)
        cache = ByteCache(cache_bytes)
        self.episode = ZarrEpisode(path, missing_chunks=missing_chunks, cache=cache)
        self._maker = SampleMaker(self.episode, keymap, settings)
        _warn_of_assumed_fps([self.episode.name] if self.episode.fps_assumed else [])

    @property
    def keymap(self) -> KeyMap:
        """What a sample holds."""
        return self._maker.keymap

    @property
    def seed(self) -> int:
        """What `sample_seed` goes by."""
        return self._maker.settings.seed

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episode's name and frames."""
        return [(self.episode.name, self.episode.total_frames)]

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Yield the episode."""
        yield self.episode

    def __len__(self) -> int:
        return self.episode.total_frames

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; a negative index counts from the end.

        Raises:
            FrameIndexError: the index is outside the dataset.
            EpisodeError: the sample can't be made.
        """
        return self.make_batch([index], fresh_memory)[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the samples of many indices, in their order, repeats included.

        All of them are planned together: one read per array, each JPEG decoded once.

        Raises:
            FrameIndexError: an index is outside the dataset.
            EpisodeError: a sample can't be made.
        """
        batch = self.make_batch(indices, fresh_memory)
        check_worker(batch.num_bytes)
        return batch

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        """Return `__getitems__` in memory from `allocate`."""
        frames = _check_indices(indices, len(self))
        if not len(frames):
            return Batch.of_samples([])
        marks = marks_of(indices)
        return make_batch([self._maker], np.zeros(len(frames), np.int64), frames, marks, allocate)


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What a dataset of many episodes keeps of each.

    Attributes:
        name: the episode's path below the dataset's folder.
        total_frames: its real frames.
        embodiment: the body that was recorded.
    """

    name: str
    total_frames: int
    embodiment: str


class MultiDataset(Dataset[Sample]):
    """The frames of many episodes, one after the other; made with `MultiDataset.from_folder`.

    Index memory grows with the number of episodes, not of frames; at most `MAX_OPEN_EPISODES` are
    open at once in a process. Samples are those of `ZarrDataset`, `episode` being the path below
    the folder.

    Args:
        folder: where the episodes are.
        episodes: the records of those taken.
        keymaps: per embodiment, what a sample holds.
        settings: how samples are made.
        missing_chunks: see `ZarrDataset`.
        cache: what the episodes keep of what they read; datasets may share one.
    """

    def __init__(
        self,
        folder: Path,
        episodes: Sequence[EpisodeRecord],
        keymaps: Mapping[str, KeyMap],
        settings: SampleSettings,
        missing_chunks: MissingChunks = "error",
        cache: ByteCache | None = None,
    ) -> None:
        self.folder, self.episodes = folder.absolute(), tuple(episodes)
        self.keymaps, self.settings = dict(keymaps), settings
        self._missing_chunks = missing_chunks
        self._cache = ByteCache() if cache is None else cache
        lengths = np.array([episode.total_frames for episode in self.episodes], dtype=np.int64)
        self._bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        self._handles: dict[int, OpenEpisodes] = {}
        self._warned_keys: set[str] = set()

    @classmethod
    def from_folder(
        cls,
        folder: str | os.PathLike[str],
        keymap: KeyMap | Mapping[str, KeyMap],
        *,
        filters: Mapping[str, Any] | None = None,
        split: Split = "all",
        valid_ratio: float = 0.2,
        percent: float = 100.0,
        seed: int = 0,
        image_dtype: ImageDtype = "uint8",
        annotation_cutoff: bool = False,
        transforms: Transforms = (),
        missing_chunks: MissingChunks = "error",
        mixed_sizes: MixedSizes = "error",
        cache_bytes: int = CACHE_BYTES,
    ) -> MultiDataset:
        """Find the episodes below a folder, choose among them, and check each against its keymap.

        Args:
            folder: searched at any depth.
            keymap: one for all, or one per embodiment.
            filters: episode attribute to wanted value; a list means any of its values.
            split: `train`, `valid` or `all`; made over all episodes before any filter, so that a
                filter never moves an episode from one to the other.
            valid_ratio: share of the episodes that are for validation, rounded to a whole number.
            percent: share, in percent, of what is left to keep, chosen by the seed.
            seed: of split, percent and `sample_seed`; the order of listing does not matter.
            image_dtype: see `ZarrDataset`, like all that follow.
            annotation_cutoff: see `ZarrDataset`.
            transforms: see `ZarrDataset`.
            missing_chunks: see `ZarrDataset`.
            mixed_sizes: see `ZarrDataset`.
            cache_bytes: see `ZarrDataset`; one budget for all episodes.

        Raises:
            EpisodeNotFoundError: no folder, or no episodes in it.
            EpisodeFormatError, MissingKeyError, KeyMapError: an episode is broken, or does not fit
                its keymap.
            SettingsError: an option that can't be meant, or nothing is left after filtering.
        """
        settings = SampleSettings(image_dtype, annotation_cutoff, transforms, mixed_sizes, seed)
        _check_keymaps(keymap)
        root = _check_folder(folder)
        found = find_episodes(root)
        names = split_episodes(found, split=split, valid_ratio=valid_ratio, seed=seed)
        matching = _open_matching(root, names, _check_mapping(filters), missing_chunks)
        if not matching:
            _check_filters(dict(filters or {}), root, found)
            raise SettingsError(_nothing_left(root, len(found), split, valid_ratio, filters))
        kept = keep_share(list(matching), percent=percent, seed=seed)
        episodes = [matching[name] for name in kept]
        keymaps = _keymaps_by_embodiment(keymap, [episode.embodiment for episode in episodes])
        for episode in episodes:
            SampleMaker(episode, keymaps[episode.embodiment], settings)
        _warn_of_assumed_fps([episode.name for episode in episodes if episode.fps_assumed])
        records = [EpisodeRecord(e.name, e.total_frames, e.embodiment) for e in episodes]
        cache = ByteCache(cache_bytes)
        return cls(root, records, keymaps, settings, missing_chunks, cache)

    @property
    def embodiments(self) -> tuple[str, ...]:
        """The embodiments among the episodes, sorted."""
        return tuple(sorted({episode.embodiment for episode in self.episodes}))

    def of_embodiment(self, embodiment: str) -> MultiDataset:
        """Return the dataset of one embodiment's episodes.

        Raises:
            SettingsError: there is none of that embodiment.
        """
        if embodiment not in self.embodiments:
            hint = near_miss(embodiment, self.embodiments)
            raise SettingsError(f"no episode is of embodiment {embodiment!r}; {hint}")
        kept = [episode for episode in self.episodes if episode.embodiment == embodiment]
        keymaps = {embodiment: self.keymaps[embodiment]}
        return MultiDataset(
            self.folder, kept, keymaps, self.settings, self._missing_chunks, self._cache
        )

    @property
    def seed(self) -> int:
        """What `sample_seed` goes by."""
        return self.settings.seed

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episodes' names and frames, in the order of the indices."""
        return [(episode.name, episode.total_frames) for episode in self.episodes]

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Open one episode after the other, in the same order; none is kept open."""
        for number in range(len(self.episodes)):
            yield self._open_episode(number).episode

    @property
    def bytes_read(self) -> int:
        """Bytes that this process has read of the episodes, metadata left out."""
        handles = self._handles.get(os.getpid())
        return 0 if handles is None else handles.bytes_read

    def locate(self, index: int) -> tuple[EpisodeRecord, int]:
        """Return the episode and the frame index within it that an index stands for.

        Raises:
            FrameIndexError: the index is outside the dataset.
        """
        at = int(_check_indices([index], len(self))[0])
        number = int(np.searchsorted(self._bounds, at, side="right")) - 1
        return self.episodes[number], at - int(self._bounds[number])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; a negative index counts from the end.

        Raises:
            FrameIndexError: the index is outside the dataset.
            EpisodeError: the sample can't be made.
        """
        return self.make_batch([index], fresh_memory)[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the samples of many indices, in their order, repeats included.

        The frames of one episode are planned together: one read per array, each JPEG decoded once.

        Raises:
            FrameIndexError: an index is outside the dataset.
            EpisodeError: a sample can't be made.
        """
        batch = self.make_batch(indices, fresh_memory)
        check_worker(batch.num_bytes)
        return batch

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        """Return `__getitems__` in memory from `allocate`."""
        at = _check_indices(indices, len(self))
        if not len(at):
            return Batch.of_samples([])
        episodes = self._bounds.searchsorted(at, side="right") - 1
        frames = at - self._bounds.take(episodes)
        found, numbers = np.unique(episodes, return_inverse=True)
        makers = [self._maker(number) for number in found.tolist()]
        return make_batch(makers, numbers, frames, marks_of(indices), allocate)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}, "_warned_keys": set()}

    def _maker(self, number: int) -> SampleMaker:
        """Return an episode's sample maker, opened in this process."""
        pid = os.getpid()
        handles = self._handles.get(pid)
        if handles is None:
            made = OpenEpisodes(MAX_OPEN_EPISODES, self._open_episode)
            handles = self._handles.setdefault(pid, made)
            for parent in set(self._handles) - {pid}:
                self._handles.pop(parent, None)  # a forked process has no use for its parent's
        return handles.get(number)

    def _open_episode(self, number: int) -> SampleMaker:
        record = self.episodes[number]
        episode = ZarrEpisode(
            self.folder / record.name,
            missing_chunks=self._missing_chunks,
            name=record.name,
            cache=self._cache,
            warned_keys=self._warned_keys,
        )
        if episode.total_frames != record.total_frames:
            raise EpisodeFormatError(
                f"it has {episode.total_frames} frames, and had {record.total_frames} when the "
                "dataset was made; make the dataset anew",
                episode=record.name,
            )
        return SampleMaker(episode, self.keymaps[record.embodiment], self.settings)


def _check_keymap(keymap: object) -> None:
    if not isinstance(keymap, KeyMap):
        raise SettingsError(
            f"keymap must be a KeyMap, got {type(keymap).__name__}; KeyMap.from_config makes one"
        )


def _check_keymaps(keymap: KeyMap | Mapping[str, KeyMap]) -> None:
    if isinstance(keymap, Mapping) and not isinstance(keymap, KeyMap):
        if not keymap:
            raise SettingsError("a mapping of keymaps needs at least one embodiment")
        for one in keymap.values():
            _check_keymap(one)
    else:
        _check_keymap(keymap)


def _keymaps_by_embodiment(
    keymap: KeyMap | Mapping[str, KeyMap], embodiments: Sequence[str]
) -> dict[str, KeyMap]:
    wanted = sorted(set(embodiments))
    if isinstance(keymap, KeyMap):
        return dict.fromkeys(wanted, keymap)
    for embodiment in wanted:
        if embodiment not in keymap:
            raise SettingsError(
                f"there are episodes of embodiment {embodiment!r} and no keymap for it; "
                f"{near_miss(embodiment, keymap)} (or filter the episodes)"
            )
    return {embodiment: keymap[embodiment] for embodiment in wanted}


def _check_indices(indices: Sequence[int], length: int) -> IntArray:
    if not isinstance(indices, Sized):
        raise SettingsError(f"a batch is a list of indices, got {indices!r}")
    checked = np.empty(len(indices), dtype=np.int64)
    for place, index in enumerate(indices):
        number = operator.index(index)
        if not -length <= number < length:
            raise FrameIndexError(f"index {number} is outside a dataset of {length} frames")
        checked[place] = number % length
    return checked


def _check_folder(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise SettingsError(f"folder must be the path of the episodes' folder, got {folder!r}")
    return Path(folder)


def _check_mapping(filters: object) -> Mapping[str, Any]:
    if not isinstance(filters, Mapping | None):
        raise SettingsError(f"filters must map attributes to values, got {filters!r}")
    return filters or {}


def _open_matching(
    root: Path, names: Sequence[str], filters: Mapping[str, Any], missing_chunks: MissingChunks
) -> dict[str, ZarrEpisode]:
    """Open the episodes that meet the filters, by name."""
    opened = (ZarrEpisode(root / name, missing_chunks=missing_chunks, name=name) for name in names)
    return {one.name: one for one in opened if matches(one.attrs, filters)}


def _check_filters(filters: Mapping[str, Any], root: Path, names: Sequence[str]) -> None:
    """Refuse a filter on what no episode has, in whichever split."""
    known = {attr for name in names for attr in ZarrEpisode(root / name, name=name).attrs}
    for name in filters:
        if name not in known:
            raise SettingsError(f"no episode has an attribute {name!r}; {near_miss(name, known)}")


def _nothing_left(
    root: Path, total: int, split: Split, valid_ratio: float, filters: Mapping[str, Any] | None
) -> str:
    message = f"none of the {total} episodes of {root} is left for split={split!r}"
    if filters:
        message += f" and filters={dict(filters)!r}"
    if split == "valid":
        message += (
            f": valid_ratio={valid_ratio} keeps {round(valid_ratio * total)} of {total} episodes "
            "for validation; raise it, or set valid_ratio: 0 to go without"
        )
    return message


def _warn_of_assumed_fps(names: Sequence[str]) -> None:
    if names:
        warnings.warn(
            f"{len(names)} episodes have no fps, 30 Hz is taken; the first is {names[0]!r}",
            AssumedFpsWarning,
            stacklevel=4,
        )
