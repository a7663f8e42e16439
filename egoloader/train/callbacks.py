"""Callbacks of the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import lightning

__all__ = ["FileRecord"]


class FileRecord(lightning.Callback):
    """Writes files into the run's folder when training starts; what is refused leaves none.

    Args:
        folder: of the run.
        files: texts, by the name of the file.
    """

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._folder, self._files = folder, dict(files)

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Write the files, in the first process only."""
        if not trainer.is_global_zero:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, text in self._files.items():
            (self._folder / name).write_text(text, encoding="utf-8")
