"""Going on from every position of a Lightning run, and from there once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from egoloader import EpisodeDataModule
from tests.soak.positions import Tally
from tests.soak.training import EverySave, Recorder, fit

__all__ = ["Training", "resume_fits"]


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained on, and how.

    Attributes:
        data: makes the data module of one run; it may have other threads every time.
        options: of the trainer.
        recorder: makes the module of one run.
    """

    data: Callable[[], EpisodeDataModule]
    options: Mapping[str, Any] = field(default_factory=lambda: {"max_epochs": 2})
    recorder: Callable[[], Recorder] = Recorder

    def run(self, root: Path, saves: Path, resume: Path | None = None) -> list[Any]:
        """Train, saving at every position; return what was shown, where, and in what epochs.

        Args:
            root: for the trainer.
            saves: folder for the checkpoints; see `EverySave`.
            resume: a checkpoint of another run.
        """
        saves.mkdir()
        recorder = self.recorder()
        save = EverySave(saves, 0 if resume is None else position(resume))
        fit(root, self.data(), recorder, resume=resume, callbacks=[save], **self.options)
        return list(zip(recorder.seen, recorder.places, recorder.sizes, strict=True))


def position(checkpoint: Path) -> int:
    """Return how many batches had been handed out when a checkpoint was saved."""
    return int(checkpoint.stem.partition("-")[0])


def resume_fits(root: Path, training: Training, stride: int) -> Tally:
    """Go on from every checkpoint of a run, and from every `stride`-th of those runs' own."""
    whole = training.run(root, root / "whole")
    tally = Tally.of(training.run(root, root / "again"), whole)
    for first in _checkpoints(root / "whole"):
        saves = root / f"from-{first.stem}"
        tally += Tally.of(training.run(root, saves, first), whole[position(first) :])
        for second in _checkpoints(saves)[::stride]:
            later = root / f"from-{first.stem}-and-{second.stem}"
            tally += Tally.of(training.run(root, later, second), whole[position(second) :])
    return tally


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.ckpt"), key=lambda path: (position(path), path.stem))
