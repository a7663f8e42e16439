"""Map-style datasets: `ZarrDataset` over one episode, `MultiDataset` over a folder of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.assembly import make_batch
from egoloader.badframes import BadFramePolicy, OnBadFrame
from egoloader.batch import Allocate, Batch
from egoloader.cache import CACHE_BYTES, ByteCache
from egoloader.catalog import Split
from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeFormatError, SettingsError, near_miss
from egoloader.framedata import FrameDataset
from egoloader.frameindex import Marks, check_indices
from egoloader.gathering import (
    Choice,
    EpisodeRecord,
    check_keymap,
    gather,
    spared_of_one,
    warn_of_assumed_fps,
)
from egoloader.guard import MissingChunks
from egoloader.handles import OpenEpisodes
from egoloader.keymap import KeyMap
from egoloader.peers import Peers
from egoloader.sample import ImageDtype, MixedSizes, SampleMaker, SampleSettings, Steps
from egoloader.transformation import ShapeCheck

__all__ = ["MultiDataset", "ZarrDataset"]

IntArray = npt.NDArray[np.int64]
Transforms = Steps | Mapping[str, Steps]

#: Episodes that a MultiDataset keeps open at once, in each process.
MAX_OPEN_EPISODES = 64


class ZarrDataset(FrameDataset):
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

    Attributes:
        spared: the frames that a quarantine leaves, by the episode's name; empty where all are.

    Args:
        path: the episode's folder.
        keymap: what a sample holds.
        image_dtype: `uint8` in 0…255, `float32` in 0…1, or `jpeg`, the encoded bytes.
        annotation_cutoff: end action horizons with the annotation span that holds the frame.
        transforms: callables from sample to sample, applied in order; or such a list for each
            embodiment. Where all are of `egoloader.transforms`, they are checked against what
            samples hold, and called once a batch.
        missing_chunks: `error`, or `fill` to serve fill values where another writer left a chunk
            out.
        mixed_sizes: `error`, or `list` to get the images of a batch as a list of B tensors.
        cache_bytes: decoded chunks of numbers that each process keeps, in bytes; 0 keeps none.
        seed: of `sample_seed`, and of what comes in the place of bad frames.
        quarantine: a file of frames that are not to be served; indices pass over them.
        on_bad_frame: what becomes of frames that can't be read or decoded: `raise`, or `skip`,
            which serves a frame drawn from all others in the place of each: those that the
            `EpisodePoolSampler` draws, or of the `Subset` that an `EpisodeLoader` reads, where
            there is one. Any other loader's `Subset` is not known here. Samples then have
            `is_replaced` (bool); a warning comes once an episode, and `bad_frames` counts.
        max_bad_fraction: share of the frames that may be skipped; with more, an error comes.
        bad_frames_file: a quarantine file to which those that are met are added.

    Raises:
        EpisodeNotFoundError, EpisodeFormatError: the path holds no whole episode.
        MissingKeyError, KeyMapError: the keymap does not fit the episode.
        SettingsError: an option that can't be meant, transforms that don't fit the samples, or all
            of the episode is in quarantine.
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
        quarantine: str | os.PathLike[str] | None = None,
        on_bad_frame: OnBadFrame = "raise",
        max_bad_fraction: float = 0.01,
        bad_frames_file: str | os.PathLike[str] | None = None,
    ) -> None:
        check_keymap(keymap)
        policy = BadFramePolicy(on_bad_frame, max_bad_fraction, bad_frames_file)
        settings = SampleSettings(
            image_dtype, annotation_cutoff, transforms, mixed_sizes, seed, policy.skips
        )
        cache = ByteCache(cache_bytes)
        self.episode = ZarrEpisode(path, missing_chunks=missing_chunks, cache=cache)
        self._maker = SampleMaker(self.episode, keymap, settings)
        ShapeCheck().check(self._maker)
        spared = {} if quarantine is None else spared_of_one(self._maker, quarantine)
        super().__init__(spared, policy, seed)
        self._frames = self.spared.get(self.episode.name)
        warn_of_assumed_fps([self.episode.name] if self.episode.fps_assumed else [])

    @property
    def keymap(self) -> KeyMap:
        """What a sample holds."""
        return self._maker.keymap

    @property
    def settings(self) -> SampleSettings:
        """How samples are made."""
        return self._maker.settings

    @property
    def seed(self) -> int:
        """What `sample_seed` goes by."""
        return self._maker.settings.seed

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episode's name, and how many frames of it are served."""
        frames = self.episode.total_frames if self._frames is None else len(self._frames)
        return [(self.episode.name, frames)]

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Yield the episode."""
        yield self.episode

    def _serve(self, at: IntArray, marks: Marks, allocate: Allocate) -> Batch:
        frames = at if self._frames is None else self._frames[at]
        return make_batch([self._maker], np.zeros(len(at), np.int64), frames, marks, allocate)

    def _where(self, index: int) -> tuple[str, int]:
        return self.episode.name, index if self._frames is None else int(self._frames[index])

    def _peers(self, _index: int) -> Peers:
        return Peers(self.episode.embodiment, np.zeros(1, np.int64), np.array([len(self)]))


class MultiDataset(FrameDataset):
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
        spared: per episode of which not all frames are served, those that are, ascending.
        policy: what becomes of frames that can't be read or decoded.
    """

    def __init__(
        self,
        folder: Path,
        episodes: Sequence[EpisodeRecord],
        keymaps: Mapping[str, KeyMap],
        settings: SampleSettings,
        missing_chunks: MissingChunks = "error",
        cache: ByteCache | None = None,
        spared: Mapping[str, IntArray] | None = None,
        policy: BadFramePolicy | None = None,
    ) -> None:
        super().__init__(spared or {}, policy or BadFramePolicy(), settings.seed)
        self.folder, self.episodes = folder.absolute(), tuple(episodes)
        self.keymaps, self.settings = dict(keymaps), settings
        self._missing_chunks = missing_chunks
        self._cache = ByteCache() if cache is None else cache
        lengths = np.array([frames for _, frames in self.frames_by_episode()], dtype=np.int64)
        self._bounds = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        self._peers_of: dict[str, Peers] = {}
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
        quarantine: str | os.PathLike[str] | None = None,
        on_bad_frame: OnBadFrame = "raise",
        max_bad_fraction: float = 0.01,
        bad_frames_file: str | os.PathLike[str] | None = None,
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
            quarantine: a file of episodes, or of frames of them, that are not to be served; like a
                filter, it moves no episode from a split to another.
            on_bad_frame: see `ZarrDataset`; the frame in the place of another is one of the same
                embodiment.
            max_bad_fraction: of the frames of an embodiment.
            bad_frames_file: see `ZarrDataset`.

        Raises:
            EpisodeNotFoundError: no folder, or no episodes in it.
            EpisodeFormatError, MissingKeyError, KeyMapError: an episode is broken, or does not fit
                its keymap.
            SettingsError: an option that can't be meant, transforms that don't fit the samples, or
                nothing is left after filtering.
        """
        policy = BadFramePolicy(on_bad_frame, max_bad_fraction, bad_frames_file)
        settings = SampleSettings(
            image_dtype, annotation_cutoff, transforms, mixed_sizes, seed, policy.skips
        )
        choice = Choice(filters, split, valid_ratio, percent, seed, quarantine)
        found = gather(folder, keymap, choice, settings, missing_chunks)
        return cls(
            found.folder,
            found.episodes,
            found.keymaps,
            settings,
            missing_chunks,
            ByteCache(cache_bytes),
            found.spared,
            policy,
        )

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
        spared = {one.name: self.spared[one.name] for one in kept if one.name in self.spared}
        return MultiDataset(
            self.folder,
            kept,
            keymaps,
            self.settings,
            self._missing_chunks,
            self._cache,
            spared,
            self._policy,
        )

    @property
    def seed(self) -> int:
        """What `sample_seed` goes by."""
        return self.settings.seed

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episodes' names and served frames, in the order of the indices."""
        return [
            (one.name, len(self.spared[one.name]) if one.name in self.spared else one.total_frames)
            for one in self.episodes
        ]

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
        at = int(check_indices([index], len(self))[0])
        number = int(np.searchsorted(self._bounds, at, side="right")) - 1
        record, frame = self.episodes[number], at - int(self._bounds[number])
        spared = self.spared.get(record.name)
        return record, frame if spared is None else int(spared[frame])

    def __len__(self) -> int:
        return int(self._bounds[-1])

    def _serve(self, at: IntArray, marks: Marks, allocate: Allocate) -> Batch:
        episodes = self._bounds.searchsorted(at, side="right") - 1
        frames = at - self._bounds.take(episodes)
        found, numbers = np.unique(episodes, return_inverse=True)
        makers = [self._maker(number) for number in found.tolist()]
        for place, maker in enumerate(makers if self.spared else ()):
            if maker.name in self.spared:
                is_its = numbers == place
                frames[is_its] = self.spared[maker.name][frames[is_its]]
        return make_batch(makers, numbers, frames, marks, allocate)

    def _where(self, index: int) -> tuple[str, int]:
        record, frame = self.locate(index)
        return record.name, frame

    def _peers(self, index: int) -> Peers:
        embodiment = self.locate(index)[0].embodiment
        if embodiment not in self._peers_of:
            numbers = [n for n, one in enumerate(self.episodes) if one.embodiment == embodiment]
            starts, stops = self._bounds[numbers], self._bounds[np.array(numbers) + 1]
            self._peers_of[embodiment] = Peers(embodiment, starts, np.cumsum(stops - starts))
        return self._peers_of[embodiment]

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
