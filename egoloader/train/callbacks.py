"""Callbacks of the recipe."""

from __future__ import annotations

from pathlib import Path

import lightning

__all__ = ["ConfigRecord"]


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
        """Write the file, in the first process only."""
        if not trainer.is_global_zero:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(self._text, encoding="utf-8")
