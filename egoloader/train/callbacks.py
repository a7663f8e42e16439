"""Callbacks of the recipe."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning

__all__ = ["ConfigRecord", "SamplesPerSecond"]


class ConfigRecord(lightning.Callback):
    """Writes the config into the run's folder when training starts; what is refused leaves none.

    Args:
        path: the file.
        text: the config, as YAML.
    """

    def __init__(self, path: Path, text: str) -> None:
        self._path, self._text = path, text

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Write the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(self._text, encoding="utf-8")


class SamplesPerSecond(lightning.Callback):
    """Logs `samples/s`, frames trained on a second, to the logger and the progress bar.

    The rate is over the running epoch. Its first step is left out, in which workers start, and the
    clock stands still during validation, whether between two steps or behind the last.
    """

    def __init__(self) -> None:
        self._frames = 0
        self._since: float | None = None
        self._stopped: float | None = None

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Start counting anew."""
        self._frames, self._since, self._stopped = 0, None, None

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Stop the clock."""
        self._stopped = time.perf_counter()

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Let the clock go on from where it stopped."""
        if self._since is not None and self._stopped is not None:
            self._since += time.perf_counter() - self._stopped
        self._stopped = None

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
        if self._since is None:
            self._since = now
            return
        self._frames += sum(len(frames["frame_index"]) for frames in batch.values())
        rate = self._frames / max(now - self._since, 1e-9)
        pl_module.log("samples/s", rate, prog_bar=True, on_step=True, batch_size=1)
