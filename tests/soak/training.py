"""Lightning runs that write down what they were shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from egoloader import EpisodeDataModule
from tests.soak.recordings import KEYMAP, Shown, show_all

__all__ = ["QUIET", "EverySave", "OneCycle", "Recorder", "fit", "recorded", "trainer"]

#: Warnings of Lightning that these runs bring about.
QUIET = (
    "ignore:.*does not have many workers:UserWarning",
    "ignore:.*isinstance.treespec:FutureWarning",
    "ignore:.*isinstance.treespec:UserWarning",
    "ignore:Be aware that when using `ckpt_path`:UserWarning",
    "ignore:Total length of `list` across ranks is zero:UserWarning",
)


class Recorder(lightning.LightningModule):
    """Trains one number, and writes down what it was shown.

    Attributes:
        seen: of each training batch, what it showed.
        places: of each, the trainer's epoch and the batch's number in it.
        sizes: of each, how many batches the trainer takes the epoch to have.
        validated: of each validation batch, what it showed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[Shown] = []
        self.places: list[tuple[int, int]] = []
        self.sizes: list[float] = []
        self.validated: list[Shown] = []

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Write a batch down."""
        self.seen.append(show_all(batch))
        self.places.append((self.trainer.current_epoch, batch_idx))
        self.sizes.append(self.trainer.num_training_batches)
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Write a batch down."""
        self.validated.append(show_all(batch))

    def configure_optimizers(self) -> Any:
        """Return an optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


class OneCycle(Recorder):
    """Asks how many steps there will be before anything is restored.

    Attributes:
        steps: what it was told.
    """

    def configure_optimizers(self) -> Any:
        """Return an optimizer, and a schedule over all steps."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        self.steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=self.steps
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


class Asks(Recorder):
    """Asks for the steps like `OneCycle`, with a schedule that takes any number of them."""

    def configure_optimizers(self) -> Any:
        """Return an optimizer, and a schedule that does nothing."""
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
        assert self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class EverySave(lightning.Callback):
    """Saves behind every batch, at `<folder>/<batches handed out>.ckpt`, and at other moments.

    The others have a suffix: `-val` behind a validation, `-end` behind an epoch.

    Args:
        folder: where.
        start: batches that were handed out before this run.
    """

    def __init__(self, folder: Path, start: int = 0) -> None:
        self._folder, self._count = folder, start

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save."""
        self._count += 1
        trainer.save_checkpoint(self._folder / f"{self._count}.ckpt")

    def on_validation_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save."""
        trainer.save_checkpoint(self._folder / f"{self._count}-val.ckpt")

    def on_train_epoch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Save."""
        trainer.save_checkpoint(self._folder / f"{self._count}-end.ckpt")


def trainer(root: Path, **options: Any) -> lightning.Trainer:
    """Return a trainer on the CPU that says nothing; checkpoints only where callbacks make them."""
    callbacks = options.pop("callbacks", [])
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return lightning.Trainer(
        accelerator="cpu",
        default_root_dir=root,
        num_sanity_val_steps=0,
        enable_checkpointing=any(isinstance(one, ModelCheckpoint) for one in callbacks),
        callbacks=callbacks,
        **quiet,
        **options,
    )


def recorded(folder: Path, **options: Any) -> EpisodeDataModule:
    """Return a data module over recordings."""
    defaults = {"batch_size": 4, "seed": 3, "pool_size": 2, "valid_ratio": 0, "num_threads": 1}
    return EpisodeDataModule(folder, KEYMAP, **{**defaults, **options})


class OneOf(EpisodeDataModule):
    """The first of so many ranks, without the other processes."""

    world_size = 1

    def _take_ranks(self) -> None:
        if self._ranks != (0, self.world_size):
            self._ranks, self._train, self._valid = (0, self.world_size), None, None


def fit(
    root: Path,
    data: EpisodeDataModule,
    recorder: Recorder,
    *,
    resume: Path | None = None,
    **options: Any,
) -> Recorder:
    """Train, from a checkpoint on where one is given; return the recorder."""
    trainer(root, **options).fit(recorder, datamodule=data, ckpt_path=resume)
    return recorder
