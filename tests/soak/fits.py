"""Going on from every position of a Lightning run, and from there once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from egoloader import EpisodeDataModule
from tests.soak.positions import Tally
from tests.soak.recordings import Shown
from tests.soak.training import EverySave, Recorder, fit

__all__ = ["Log", "Step", "Training", "checkpoints", "position", "resume_fits"]


class Step(NamedTuple):
    """What a trainer was shown in one step, and what it took the step for.

    Attributes:
        shown: the batch.
        epoch: the trainer's.
        batch: its number in the epoch.
        size: batches of the epoch.
    """

    shown: Shown
    epoch: int
    batch: int
    size: float


class Log(NamedTuple):
    """What a run was shown.

    Attributes:
        steps: in training.
        validated: batches, in validation.
    """

    steps: list[Step]
    validated: list[Shown]


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

    def run(self, saves: Path, resume: Path | None = None) -> Log:
        """Train, and save at every position.

        Args:
            saves: folder for the checkpoints; see `EverySave`.
            resume: a checkpoint of another run.
        """
        saves.mkdir(exist_ok=True)
        recorder = self.recorder()
        save = EverySave(saves, 0 if resume is None else position(resume))
        fit(saves, self.data(), recorder, resume=resume, callbacks=[save], **self.options)
        columns = (recorder.seen, recorder.places, recorder.sizes)
        steps = [Step(one, *place, size) for one, place, size in zip(*columns, strict=True)]
        return Log(steps, recorder.validated)


def position(checkpoint: Path) -> int:
    """Return how many batches had been handed out when a checkpoint was saved."""
    return int(checkpoint.stem.partition("-")[0])


def resume_fits(root: Path, training: Training, stride: int) -> Tally:
    """Go on from every checkpoint of a run, and from every `stride`-th of those runs' own."""
    whole = training.run(root / "whole").steps
    tally = Tally.of(training.run(root / "again").steps, whole, resumes=0)
    for first in checkpoints(root / "whole"):
        saves = root / f"from-{first.stem}"
        tally += Tally.of(training.run(saves, first).steps, whole[position(first) :])
        for second in checkpoints(saves)[::stride]:
            later = root / f"from-{first.stem}-and-{second.stem}"
            tally += Tally.of(training.run(later, second).steps, whole[position(second) :])
    return tally


def checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints of a run, in the order in which they were saved."""
    return sorted(folder.glob("*.ckpt"), key=_moment)


def _moment(checkpoint: Path) -> tuple[int, int]:
    return position(checkpoint), ("", "val", "end").index(checkpoint.stem.partition("-")[2])
