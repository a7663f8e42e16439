"""Callbacks of the recipe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import lightning

__all__ = ["SamplesPerSecond"]


class SamplesPerSecond(lightning.Callback):
    """Logs `samples/s`, frames trained on a second, to the logger and the progress bar.

    The rate is over the running epoch, validation and the first step left out.
    """

    def __init__(self) -> None:
        self._frames, self._since = 0, 0.0

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Start counting anew."""
        self._frames, self._since = 0, 0.0

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Mapping[str, Mapping[str, Any]],
        batch_idx: int,
    ) -> None:
        """Count the frames of a step; the clock starts behind the first one."""
        now = time.perf_counter()
        if not self._since:
            self._since = now
            return
        self._frames += sum(len(frames["frame_index"]) for frames in batch.values())
        rate = self._frames / max(now - self._since, 1e-9)
        pl_module.log("samples/s", rate, prog_bar=True, on_step=True, batch_size=1)
