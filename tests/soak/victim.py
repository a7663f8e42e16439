"""A Lightning run that writes down every batch before it trains on it, to be killed at any moment.

`python -m tests.soak.victim FOLDER OUT LOG EPOCHS [CHECKPOINT]`: recordings, folder of the
checkpoints, file for the log, number of epochs, and what to go on from. The log is one JSON object
a line: first `{"start": steps taken before}`, then `{"epoch", "batch", "size", "shown"}` a batch.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from egoloader import EpisodeDataModule
from tests.soak.recordings import show_all
from tests.soak.training import Recorder, recorded, trainer

__all__ = ["EVERY", "main", "victims_data"]

#: Steps between checkpoints; they divide an epoch of 12, so that some are at its end.
EVERY = 4
#: Seconds that a step takes at least.
_STEP = 0.02


class Witness(Recorder):
    """Writes every batch to a file at once.

    Args:
        log: the file.
    """

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def on_train_start(self) -> None:
        """Write down where the run starts."""
        self._write({"start": self.trainer.global_step})

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Write a batch down, and take a while."""
        size, epoch = self.trainer.num_training_batches, self.trainer.current_epoch
        line = {"epoch": epoch, "batch": batch_idx, "size": size, "shown": show_all(batch)}
        self._write(line)
        time.sleep(_STEP)
        return self.weight * 1.0

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._log, json.dumps(line).encode() + b"\n")


def victims_data(folder: Path) -> EpisodeDataModule:
    """Return what the run trains on; of 8 episodes, 2 are for validation."""
    return recorded(folder, batch_size=3, valid_ratio=0.25, num_threads=2)


def main(arguments: Sequence[str]) -> None:
    """Train."""
    folder, out, log = map(Path, arguments[:3])
    resume = Path(arguments[4]) if len(arguments) > 4 else None
    keep = ModelCheckpoint(out, filename="{step}", every_n_train_steps=EVERY, save_top_k=-1)
    run = trainer(out, max_epochs=int(arguments[3]), callbacks=[keep])
    run.fit(Witness(log), datamodule=victims_data(folder), ckpt_path=resume)


if __name__ == "__main__":
    main(sys.argv[1:])
