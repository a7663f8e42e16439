"""Which samples a plan is shown for: that of one frame, or those of a batch of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.cache import ByteCache
from egoloader.catalog import find_episodes, is_group
from egoloader.dataset import MultiDataset
from egoloader.deal import Tail
from egoloader.episode import ZarrEpisode
from egoloader.errors import FrameIndexError, SettingsError
from egoloader.gathering import EpisodeRecord
from egoloader.guard import MissingChunks
from egoloader.keymap import KeyMap
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.sampler import EpisodePoolSampler

__all__ = ["Selected", "SelectionSettings", "select_batch", "select_frame"]


@dataclass(frozen=True, slots=True)
class SelectionSettings:
    """How a training run would choose episodes, and how they are opened.

    Args:
        annotation_cutoff: end action horizons with the annotation span that holds the frame.
        missing_chunks: `error`, or `fill` where another writer left chunks out.
        filters: episode attribute to wanted value.
        valid_ratio: share of the episodes that are kept for validation.
        percent: share, in percent, of the others that are taken.
        seed: of split, percent and order.

    Raises:
        SettingsError: the seed is no whole number from 0 on.
    """

    annotation_cutoff: bool = False
    missing_chunks: MissingChunks = "error"
    filters: Mapping[str, Any] | None = None
    valid_ratio: float = 0.2
    percent: float = 100.0
    seed: int = 0
    quarantine: str | None = None
    pool_size: int = 32
    byte_budget: int | None = None
    tail: Tail = "spread"
    frame_filter: str | None = None
    frame_weights: str | None = None

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed < 0:
            raise SettingsError(f"seed must be a whole number from 0 on, got {self.seed!r}")

    @property
    def samples(self) -> SampleSettings:
        """How samples are made."""
        return SampleSettings(annotation_cutoff=self.annotation_cutoff)


class Selected(NamedTuple):
    """Samples of one episode.

    Attributes:
        maker: makes them.
        frames: (b,) int64, in the order in which they are drawn.
    """

    maker: SampleMaker
    frames: npt.NDArray[np.int64]


def select_frame(
    path: Path, keymap: KeyMap, settings: SelectionSettings, frame: int | None
) -> Selected:
    """Return the sample of one frame.

    Args:
        path: an episode, or a folder of episodes, of which the first is taken.
        keymap: what a sample holds.
        settings: how the episode is opened.
        frame: the frame index; the middle one for None.

    Raises:
        FrameIndexError: the frame is outside the episode.
        EpisodeError, KeyMapError: the episode is broken, or does not fit the keymap.
    """
    if not is_group(path):
        path = path / find_episodes(path)[0]
    episode = ZarrEpisode(path, missing_chunks=settings.missing_chunks)
    index = episode.total_frames // 2 if frame is None else frame
    if not 0 <= index < episode.total_frames:
        raise FrameIndexError(
            f"frame {index} is outside episode {episode.name!r} of {episode.total_frames} frames"
        )
    maker = SampleMaker(episode, keymap, settings.samples)
    return Selected(maker, np.array([index], dtype=np.int64))


def select_batch(
    path: Path, keymap: KeyMap, settings: SelectionSettings, batch_size: int
) -> list[Selected]:
    """Return the samples of the first step of a training run, episode by episode as drawn.

    A step takes one batch of every embodiment.

    Args:
        path: an episode, or a folder of which training would take the episodes that the settings
            leave it.
        keymap: what a sample holds.
        settings: how episodes are chosen and opened.
        batch_size: samples of each embodiment; fewer where there are not as many frames.

    Raises:
        SettingsError: a batch size below 1, or no episode is left.
        EpisodeError, KeyMapError: an episode is broken, or does not fit the keymap.
    """
    found = []
    for source in _sources(path, keymap, settings).values():
        sampler = EpisodePoolSampler(
            source,
            batch_size,
            settings.pool_size,
            settings.seed,
            tail=settings.tail,
            byte_budget=settings.byte_budget,
            frame_filter=settings.frame_filter,
            weights=settings.frame_weights,
        )
        found.extend(_open(source, next(iter(sampler)), settings.missing_chunks))
    return found


def _sources(path: Path, keymap: KeyMap, settings: SelectionSettings) -> dict[str, MultiDataset]:
    """Return the frames of each embodiment."""
    if is_group(path):
        episode = ZarrEpisode(path, missing_chunks=settings.missing_chunks)
        name = episode.embodiment
        record = EpisodeRecord(episode.name, episode.total_frames, name)
        folder = episode.path.parent
        return {name: MultiDataset(folder, [record], {name: keymap}, settings.samples)}
    whole = MultiDataset.from_folder(
        path,
        keymap,
        split="train",
        filters=settings.filters,
        valid_ratio=settings.valid_ratio,
        percent=settings.percent,
        seed=settings.seed,
        annotation_cutoff=settings.annotation_cutoff,
        missing_chunks=settings.missing_chunks,
        quarantine=settings.quarantine,
    )
    return {name: whole.of_embodiment(name) for name in whole.embodiments}


def _open(
    source: MultiDataset, indices: Sequence[int], missing_chunks: MissingChunks
) -> list[Selected]:
    """Open the episodes that indices of a dataset lie in."""
    frames: dict[EpisodeRecord, list[int]] = {}
    for record, frame in map(source.locate, indices):
        frames.setdefault(record, []).append(frame)
    cache, found = ByteCache(0), []
    for record, wanted in frames.items():
        path = source.folder / record.name
        episode = ZarrEpisode(path, name=record.name, missing_chunks=missing_chunks, cache=cache)
        maker = SampleMaker(episode, source.keymaps[record.embodiment], source.settings)
        found.append(Selected(maker, np.array(wanted, dtype=np.int64)))
    return found
