"""Episodes for a Lightning `Trainer`."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

import lightning
from lightning.pytorch.trainer.states import TrainerFn

from egoloader.cache import CACHE_BYTES
from egoloader.dataset import MultiDataset
from egoloader.errors import SettingsError, near_miss
from egoloader.guard import MissingChunks
from egoloader.keymap import KeyMap
from egoloader.loader import default_threads
from egoloader.mixture import MixtureLoader, Position, ValidationLoader
from egoloader.sample import ImageDtype, MixedSizes, Sample

__all__ = ["EpisodeDataModule", "refuse_ranks"]

Combine = Literal["all"]


@dataclass(frozen=True, slots=True)
class _LoaderSettings:
    batch_size: int
    seed: int
    num_threads: int
    valid_ratio: float
    combine: Combine

    def __post_init__(self) -> None:
        for name, least in (("batch_size", 1), ("num_threads", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise SettingsError(f"{name} must be a whole number from {least} on, got {value!r}")
        if type(self.seed) is not int or self.seed < 0:
            raise SettingsError(f"seed must be a whole number from 0 on, got {self.seed!r}")
        if self.combine not in get_args(Combine):
            hint = near_miss(str(self.combine), get_args(Combine))
            raise SettingsError(f"combine is {self.combine!r}; {hint}")


class EpisodeDataModule(lightning.LightningDataModule):
    """Training and validation batches of a folder of episodes.

    Training batches are `{embodiment: batch}` with one batch of every embodiment a step; the epoch
    is the longest one's, the others start over. Validation batches are of the same form, with one
    embodiment each, every frame once. Its state is the position of the training order: a resumed
    `fit` goes on with the next unseen batch.

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
        transforms: callables from sample to sample.
        missing_chunks: `error` or `fill`.
        mixed_sizes: `error` or `list`.
        cache_bytes: of the training and of the validation episodes, each.
        combine: `all`, one batch of each source a step.

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
        transforms: Sequence[Callable[[Sample], Sample]] = (),
        missing_chunks: MissingChunks = "error",
        mixed_sizes: MixedSizes = "error",
        cache_bytes: int = CACHE_BYTES,
        combine: Combine = "all",
    ) -> None:
        super().__init__()
        threads = default_threads() if num_threads is None else num_threads
        self._settings = _LoaderSettings(batch_size, seed, threads, valid_ratio, combine)
        self._folder, self._keymap, self._percent = folder, keymap, percent
        self._options: dict[str, Any] = {
            "filters": filters,
            "valid_ratio": valid_ratio,
            "seed": seed,
            "image_dtype": image_dtype,
            "annotation_cutoff": annotation_cutoff,
            "transforms": transforms,
            "missing_chunks": missing_chunks,
            "mixed_sizes": mixed_sizes,
            "cache_bytes": cache_bytes,
        }
        self._train: MixtureLoader | None = None
        self._valid: ValidationLoader | None = None
        self._sources: dict[str, MultiDataset] = {}

    @property
    def sources(self) -> Mapping[str, MultiDataset]:
        """The training episodes per embodiment, once `setup` has run."""
        if not self._sources:
            raise SettingsError("the data module is not set up; call setup('fit') first")
        return self._sources

    def setup(self, stage: str) -> None:
        """Find the episodes and check them against the keymap, once; `fit` starts a new order.

        A `fit` begins with the first batch of the first epoch, unless a checkpoint's position is
        loaded behind this call, as Lightning does for `fit(ckpt_path=…)`.

        Raises:
            SettingsError: an embodiment with a keymap and no frames; several processes; or
                `overfit_batches`.
            EpisodeError, KeyMapError: see `MultiDataset.from_folder`.
        """
        if self.trainer is not None:
            refuse_ranks(self.trainer.world_size)
        if stage == "fit":
            self._setup_train()
        if stage in ("fit", "validate") and self._valid is None and self._settings.valid_ratio > 0:
            self._valid = ValidationLoader(
                self._by_embodiment("valid", percent=100.0),
                batch_size=self._settings.batch_size,
                num_threads=self._settings.num_threads,
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

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training order, and what the order depends on."""
        if self._train is None:
            return {}
        return {**asdict(self._train.position), "fingerprint": self._train.fingerprint}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved position; call it behind `setup("fit")`.

        A trainer that validates or tests loads a checkpoint's state too; it is not meant for
        training then, and passed over.

        Raises:
            SettingsError: the episodes or a setting that fixes the order are others now.
        """
        is_fit = self.trainer is None or self.trainer.state.fn == TrainerFn.FITTING
        if not state_dict or not is_fit:
            return
        loader = self.train_dataloader()
        for name, value in loader.fingerprint.items():
            saved = state_dict["fingerprint"].get(name)
            if saved != value:
                raise SettingsError(
                    f"can't resume: {name} was {saved!r} and is {value!r} now, so that the order "
                    "would be another one. Restore it, or start a new run"
                )
        loader.position = Position(state_dict["step"], state_dict["epoch"], state_dict["done"])
        # Lightning looks for the position in the loader, and this module has it.
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")

    def _setup_train(self) -> None:
        if getattr(self.trainer, "overfit_batches", 0):
            raise SettingsError(
                "overfit_batches needs an order that repeats, and this one draws every frame "
                "before any comes again; set percent or filters to train on few episodes"
            )
        if self._train is None:
            self._sources = self._by_embodiment("train", percent=self._percent)
            self._train = MixtureLoader(
                self._sources,
                batch_size=self._settings.batch_size,
                seed=self._settings.seed,
                num_threads=self._settings.num_threads,
                epoch_limit=self._epoch_limit,
                running_epoch=self._running_epoch,
            )
        self._train.position = Position()

    def _epoch_limit(self) -> float:
        """Return the batches that the trainer takes an epoch; no limit without a trainer."""
        return math.inf if self.trainer is None else self.trainer.num_training_batches

    def _running_epoch(self) -> int:
        """Return the epoch that the trainer is in; 0 without a trainer."""
        return 0 if self.trainer is None else self.trainer.current_epoch

    def _by_embodiment(
        self, split: Literal["train", "valid"], *, percent: float
    ) -> dict[str, MultiDataset]:
        data = MultiDataset.from_folder(
            self._folder, self._keymap, split=split, percent=percent, **self._options
        )
        wanted = set(data.embodiments)
        if split == "train" and not isinstance(self._keymap, KeyMap):
            wanted |= set(self._keymap)
        for name in sorted(wanted - set(data.embodiments)):
            raise SettingsError(
                f"embodiment {name!r} has a keymap and no episode to train on in {self._folder}; "
                "leave its keymap out, or check embodiment, filters and valid_ratio"
            )
        return {name: data.of_embodiment(name) for name in sorted(wanted)}


def refuse_ranks(world_size: int) -> None:
    """Refuse to feed several processes, each of which would draw every frame.

    Raises:
        SettingsError: `world_size` is above 1.
    """
    if world_size > 1:
        raise SettingsError(
            f"the trainer runs {world_size} processes, and each would draw every frame; "
            "set devices: 1 and num_nodes: 1"
        )
