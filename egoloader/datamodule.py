"""Episodes for a Lightning `Trainer`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import lightning
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from egoloader.badframes import OnBadFrame
from egoloader.cache import CACHE_BYTES
from egoloader.columns import Column, check_column
from egoloader.dataset import MultiDataset
from egoloader.deal import Tail
from egoloader.errors import SettingsError, check_whole
from egoloader.guard import MissingChunks
from egoloader.keymap import KeyMap
from egoloader.loader import check_collate, default_threads
from egoloader.mixture import DataLoad, MixtureLoader, Source, ValidationLoader
from egoloader.order import OrderSettings
from egoloader.sample import ImageDtype, MixedSizes, Steps
from egoloader.sampler import EpisodePoolSampler
from egoloader.schedule import AtEnd, Combine, Schedule
from egoloader.tokens import Collate
from egoloader.trainerloops import TrainerLoops, check_sampler_flag

__all__ = ["DataLoad", "EpisodeDataModule", "check_sampler_flag"]


@dataclass(frozen=True, slots=True)
class _LoaderSettings:
    num_threads: int
    valid_ratio: float
    order: OrderSettings
    schedule: Schedule

    def __post_init__(self) -> None:
        check_whole("num_threads", self.num_threads, 1)


class _Start(lightning.Callback):
    """Tells a data module when the trainer's loops are restored: it has no hook of its own there.

    Not earlier: schedulers that ask for the estimated steps have the batches set up before that.
    """

    def __init__(self, data: EpisodeDataModule) -> None:
        self._data = data

    def on_train_start(self, trainer: lightning.Trainer, *_: object) -> None:
        """See `EpisodeDataModule.start`."""
        self._data.start(trainer)


class EpisodeDataModule(lightning.LightningDataModule):
    """Training and validation batches of a folder of episodes.

    Training batches are `{embodiment: batch}` with one batch of every embodiment a step; the epoch
    is the longest one's, the others start over (`combine` and `at_end` have it otherwise).
    Validation batches are of the same form, with one embodiment each, every frame once; where ranks
    would have none, samples that `is_repeat` marks fill up.

    Its state is the position of the training order: a resumed `fit` goes on with the next unseen
    batch, on another number of processes, too. Gradients that were accumulated and not applied yet
    are not part of a checkpoint.

    Args:
        folder: searched for episodes at any depth.
        keymap: one keymap for all, or one per embodiment; each of those must have episodes.
        batch_size: frames of each embodiment's batch.
        num_threads: threads of the training process that make batches; see `EpisodeLoader`.
        valid_ratio: share of the episodes that are for validation; 0 turns validation off.
        filters: see `MultiDataset.from_folder`, like all that follow.
        percent: of the training episodes.
        seed: of split, percent and order.
        image_dtype: of the images.
        annotation_cutoff: end action horizons with the annotation span.
        transforms: callables from sample to sample, in a list, or in one for each embodiment.
        missing_chunks: `error` or `fill`.
        mixed_sizes: `error` or `list`.
        cache_bytes: of the training and of the validation episodes, each.
        quarantine: a file of what is not to be served.
        on_bad_frame: `raise` or `skip`.
        max_bad_fraction: of the frames of an embodiment.
        bad_frames_file: where bad frames that are met are listed.
        combine: `all`, one batch of each source a step, or `weighted`; see `Schedule`.
        at_end: `cycle` or `ends`, what becomes of a source that ends.
        weights: per embodiment, how often a step takes a batch of it.
        pool_size: see `EpisodePoolSampler`, like all that follow; of each embodiment.
        byte_budget: of each embodiment.
        tail: of the training epochs.
        frame_filter: of the training episodes.
        frame_weights: of the training episodes' frames.
        collate_fn: see `EpisodeLoader`; of each embodiment's batches.

    Raises:
        SettingsError: an option that can't be meant.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keymap: KeyMap | Mapping[str, KeyMap],
        *,
        batch_size: int = 32,
        num_threads: int | None = None,
        valid_ratio: float = 0.2,
        filters: Mapping[str, Any] | None = None,
        percent: float = 100.0,
        seed: int = 0,
        image_dtype: ImageDtype = "uint8",
        annotation_cutoff: bool = False,
        transforms: Steps | Mapping[str, Steps] | None = None,
        missing_chunks: MissingChunks = "error",
        mixed_sizes: MixedSizes = "error",
        cache_bytes: int = CACHE_BYTES,
        quarantine: str | os.PathLike[str] | None = None,
        on_bad_frame: OnBadFrame = "raise",
        max_bad_fraction: float = 0.01,
        bad_frames_file: str | os.PathLike[str] | None = None,
        combine: Combine = "all",
        at_end: AtEnd = "cycle",
        weights: Mapping[str, float] | None = None,
        pool_size: int = 32,
        byte_budget: int | None = None,
        tail: Tail = "spread",
        frame_filter: Column | None = None,
        frame_weights: Column | None = None,
        collate_fn: Collate | None = None,
    ) -> None:
        super().__init__()
        self._collate, self._loops = check_collate(collate_fn), TrainerLoops(self)
        threads = default_threads() if num_threads is None else num_threads
        order = OrderSettings(batch_size, pool_size, seed, tail, byte_budget)
        schedule = Schedule(combine, at_end, weights, seed)
        self._settings = _LoaderSettings(threads, valid_ratio, order, schedule)
        check_column("frame_filter", frame_filter)
        check_column("frame_weights", frame_weights)
        self._frame_filter, self._frame_weights = frame_filter, frame_weights
        self._folder, self._keymap, self._percent = folder, keymap, percent
        self._options: dict[str, Any] = {
            "filters": filters,
            "valid_ratio": valid_ratio,
            "seed": seed,
            "image_dtype": image_dtype,
            "annotation_cutoff": annotation_cutoff,
            "transforms": () if transforms is None else transforms,
            "missing_chunks": missing_chunks,
            "mixed_sizes": mixed_sizes,
            "cache_bytes": cache_bytes,
            "quarantine": quarantine,
            "on_bad_frame": on_bad_frame,
            "max_bad_fraction": max_bad_fraction,
            "bad_frames_file": bad_frames_file,
        }
        self._train: MixtureLoader | None = None
        self._valid: ValidationLoader | None = None
        self._found: MultiDataset | None = None
        self._sources: dict[str, MultiDataset] = {}
        self._valid_sources: dict[str, MultiDataset] = {}
        self._ranks = (0, 1)  # this process's, and how many there are
        self._is_restored = False  # since the last setup

    @property
    def sources(self) -> Mapping[str, MultiDataset]:
        """The training episodes per embodiment, once `setup` has run."""
        if not self._sources:
            raise SettingsError("the data module is not set up; call setup('fit') first")
        return self._sources

    @property
    def training_episodes(self) -> MultiDataset:
        """The training episodes of all embodiments, which are found when first asked for."""
        if self._found is None:
            self._found = self._find("train", percent=self._percent)
        return self._found

    @property
    def frame_filter(self) -> Column | None:
        """Which frames of the training episodes are drawn; can be set until `setup("fit")`."""
        return self._frame_filter

    @frame_filter.setter
    def frame_filter(self, column: Column | None) -> None:
        if self._train is not None:
            raise SettingsError("the order of frames is made; set frame_filter ahead of setup")
        self._frame_filter = column

    @property
    def frame_weights(self) -> Column | None:
        """How often frames of the training episodes are drawn."""
        return self._frame_weights

    @property
    def collate_fn(self) -> Collate:
        """What makes batches of samples."""
        return self._collate

    def setup(self, stage: str) -> None:
        """Find the episodes and check them against the keymap, once; `fit` starts a new order.

        A `fit` begins with the first batch of the first epoch, unless the trainer has trained
        already, or a checkpoint's position is loaded behind this call, as Lightning does for
        `fit(ckpt_path=…)`.

        Raises:
            SettingsError: an embodiment with a keymap and no frames; `overfit_batches`; or several
                processes and a trainer that would deal the frames to them once more.
            EpisodeError, KeyMapError: see `MultiDataset.from_folder`.
        """
        self._take_ranks()
        if stage == "fit":
            trainer: Any = self.trainer
            if trainer is not None:
                others = [one for one in trainer.callbacks if not isinstance(one, _Start)]
                trainer.callbacks[:] = [_Start(self), *others]
            self._setup_train()
        if stage in ("fit", "validate") and self._valid is None and self._settings.valid_ratio > 0:
            if not self._valid_sources:
                self._valid_sources = self._by_embodiment(self._find("valid", percent=100.0))
            rank, world_size = self._ranks
            self._valid = ValidationLoader(
                self._valid_sources,
                batch_size=self._settings.order.batch_size,
                num_threads=self._settings.num_threads,
                rank=rank,
                world_size=world_size,
                collate_fn=self._collate,
            )

    def train_dataloader(self) -> MixtureLoader:
        """Return the training batches; the same object every time, as it holds the position."""
        if self._train is None:
            self.setup("fit")
        assert self._train is not None
        return self._train

    def val_dataloader(self) -> ValidationLoader | list[Any]:
        """Return the validation batches; none where `valid_ratio` is 0."""
        return [] if self._valid is None else self._valid

    def load(self) -> DataLoad:
        """Return what the training batches have cost so far."""
        if self._train is None:
            return DataLoad(0.0, 0, 0.0)
        sources = self._train.sources.values()
        occupancy = sum(source.sampler.pool_occupancy for source in sources) / len(sources)
        read = sum(source.data.bytes_read for source in sources)
        return DataLoad(self._train.waited, read, occupancy)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training order, and what the order depends on."""
        return {} if self._train is None else self._train.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved position; call it behind `setup("fit")`.

        A trainer that validates or tests loads a checkpoint's state too; it is not meant for
        training then, and passed over.

        Raises:
            SettingsError: the episodes or a setting that fixes the order are others now.
        """
        at = None if self.trainer is None else self.trainer.state
        is_other = at is not None and at.status == TrainerStatus.RUNNING
        is_other = is_other and at is not None and at.fn != TrainerFn.FITTING
        if not state_dict or is_other:
            return
        self.train_dataloader().restore(state_dict)
        self._is_restored = True
        # Lightning looks for the position in the loader, and this module has it.
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")

    def _setup_train(self) -> None:
        if getattr(self.trainer, "overfit_batches", 0):
            raise SettingsError(
                "overfit_batches needs an order that repeats, and this one draws every frame "
                "before any comes again; set percent or filters to train on few episodes"
            )
        self._is_restored = False
        if self._train is not None:
            if not self._loops.have_begun:
                self._train.reset()
            return
        if not self._sources:
            self._sources = self._by_embodiment(self.training_episodes)
        self._train = MixtureLoader(
            {name: Source(data, self._sampler(name, data)) for name, data in self._sources.items()},
            self._settings.schedule,
            world_size=self._ranks[1],
            num_threads=self._settings.num_threads,
            epoch_limit=self._loops.limit,
            running_epoch=self._loops.running_epoch,
            on_epoch=self._loops.tell,
            on_batches=self._loops.count_epoch,
            collate_fn=self._collate,
        )

    def _sampler(self, name: str, data: MultiDataset) -> EpisodePoolSampler:
        order, (rank, world_size) = self._settings.order, self._ranks
        try:
            return EpisodePoolSampler(
                data,
                order.batch_size,
                order.pool_size,
                order.seed,
                rank,
                world_size,
                order.tail,
                order.byte_budget,
                frame_filter=self._frame_filter,
                weights=self._frame_weights,
            )
        except SettingsError as error:
            raise SettingsError(f"embodiment {name!r}: {error}") from error

    def _take_ranks(self) -> None:
        """Learn from the trainer which process this is; loaders of other ranks are let go."""
        ranks = (0, 1)
        if self.trainer is not None:
            check_sampler_flag(self.trainer)
            ranks = (self.trainer.global_rank, self.trainer.world_size)
        if ranks != self._ranks:
            self._ranks, self._train, self._valid = ranks, None, None

    def start(self, trainer: lightning.Trainer) -> None:
        """Have a trainer that is about to train, its loops restored, go on from the position.

        Raises:
            SettingsError: the trainer goes on from a checkpoint that has no position.
        """
        if self._train is None or not trainer.fit_loop.is_resuming:
            return
        if trainer.global_step and not self._is_restored:
            raise SettingsError(
                "the checkpoint holds no position of this data module, so that frames would come "
                "again; was it saved with another one? Resume with that, or load the weights only"
            )
        self._loops.go_on(trainer, self._train.running_size, self._train.position.done)

    def _find(self, split: Literal["train", "valid"], *, percent: float) -> MultiDataset:
        data = MultiDataset.from_folder(
            self._folder, self._keymap, split=split, percent=percent, **self._options
        )
        wanted = set() if split == "valid" or isinstance(self._keymap, KeyMap) else self._keymap
        for name in sorted(set(wanted) - set(data.embodiments)):
            raise SettingsError(
                f"embodiment {name!r} has a keymap and no episode to train on in {self._folder}; "
                "leave its keymap out, or check embodiment, filters and valid_ratio"
            )
        return data

    def _by_embodiment(self, data: MultiDataset) -> dict[str, MultiDataset]:
        return {name: data.of_embodiment(name) for name in sorted(data.embodiments)}
