"""What a Lightning `Trainer` counts of epochs and batches: read, and put right."""

from __future__ import annotations

from typing import Any

import lightning

from egoloader.errors import SettingsError

__all__ = ["TrainerLoops", "check_sampler_flag"]


class TrainerLoops:
    """The training loops of the trainer that a data module is with; it may be with none yet.

    Args:
        data: the data module.
    """

    def __init__(self, data: lightning.LightningDataModule) -> None:
        self._data = data

    @property
    def _trainer(self) -> lightning.Trainer | None:
        return self._data.trainer

    @property
    def have_begun(self) -> bool:
        """Whether the trainer has trained already, if only a part of an epoch."""
        if self._trainer is None:
            return False
        progress: Any = self._trainer.fit_loop.epoch_loop.batch_progress
        return bool(progress.total.ready or self.running_epoch())

    def running_epoch(self) -> int:
        """Return the epoch that the trainer is in; 0 without a trainer."""
        return 0 if self._trainer is None else self._trainer.current_epoch

    def limit(self, size: int, whole: int) -> int:
        """Return the batches of an epoch that has `size`, and `whole` if it were a whole one."""
        limit = 1.0 if self._trainer is None else self._trainer.limit_train_batches
        if isinstance(limit, float) and limit < 1.0:
            limit = max(1, int(whole * limit))
        return min(size, limit) if isinstance(limit, int) else size

    def go_on(self, trainer: lightning.Trainer, size: int, done: int) -> None:
        """Have a trainer whose loops are restored go on in an epoch of `size`, `done` of it."""
        batches: Any = trainer.fit_loop.epoch_loop.batch_progress
        if batches.is_last_batch and not done:
            # Behind an epoch's end Lightning compares its batches to those of the next one.
            counts = batches.current
            counts.ready = counts.started = counts.processed = size
            counts.completed = size - (batches.total.processed - batches.total.completed)
        self.tell(size)

    def tell(self, size: int) -> None:
        """Tell the trainer how long the epoch is that begins.

        Lightning asks once a run, and would cut epochs behind a resumed one to its length, which
        differs where other ranks share what is left of it.
        """
        if self._trainer is None:
            return
        loop = self._trainer.fit_loop
        limits = None if loop._combined_loader is None else loop._combined_loader.limits
        if not limits:
            return
        # The iterator that asked for this one holds the same list.
        loop.max_batches, limits[0] = size, size
        if isinstance(self._trainer.val_check_interval, float):
            self._trainer.val_check_batch = max(1, int(size * self._trainer.val_check_interval))

    def count_epoch(self) -> None:
        """Have the trainer count the running epoch as begun.

        Lightning does not where one follows a resume right behind an epoch's last batch, and a
        checkpoint in its middle would then be taken for one of an epoch that begins.
        """
        if self._trainer is None:
            return
        progress: Any = self._trainer.fit_loop.epoch_progress
        if progress.current.ready > progress.current.processed:
            return
        for counts in (progress.total, progress.current):
            counts.ready = counts.started = counts.processed + 1


def check_sampler_flag(trainer: lightning.Trainer) -> None:
    """Refuse a trainer of several processes that would deal the frames to them once more.

    Raises:
        SettingsError: its `use_distributed_sampler` is on.
    """
    if trainer.world_size > 1 and trainer._accelerator_connector.use_distributed_sampler:
        raise SettingsError(
            f"the trainer runs {trainer.world_size} processes, and would deal frames to them that "
            "are dealt already; make it with Trainer(use_distributed_sampler=False)"
        )
