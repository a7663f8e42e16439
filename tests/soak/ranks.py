"""Runs that are saved, and go on with another number of ranks: real processes over gloo.

A job serves what is left of an epoch, and the next one, saving at every position. Whatever ranks
went before, every frame of the epoch must come once, every rank must have as many batches, and the
next epoch must be that of a job that was never interrupted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed

from egoloader import EpisodeLoader, EpisodePoolSampler, MultiDataset
from tests.soak.fits import Log, Step, Training, position
from tests.soak.gloo import JobError, run_job
from tests.soak.positions import Tally
from tests.soak.recordings import KEYMAP, Shown, show
from tests.soak.training import recorded

__all__ = ["LoaderJob", "Served", "TrainingJob", "Tree", "real_frames", "train"]

_DDP: dict[str, Any] = {"strategy": "ddp", "use_distributed_sampler": False}


class Served(NamedTuple):
    """What a job handed out.

    Attributes:
        first: per rank, the batches that were left of the running epoch.
        second: per rank, those of the next.
        states: behind every batch of the running epoch.
        wrong: how often lengths or states were not what they must be.
    """

    first: list[list[Shown]]
    second: list[list[Shown]]
    states: list[Any]
    wrong: int


def real_frames(batches: Iterable[Shown]) -> list[tuple[str, int]]:
    """Return the frames that batches hold, but for repeats."""
    return [one[:2] for batch in batches for one in batch if not one[3]]


def train(
    world_size: int, folder: Path, saves: Path, resume: Path | None = None, **options: Any
) -> list[Log]:
    """Train two epochs with Lightning on so many ranks; return each rank's log.

    Args:
        world_size: how many.
        folder: of the recordings.
        saves: folder for the checkpoints.
        resume: a checkpoint of another job.
        options: of the trainer, in place of those for ranks, and under `data` of the data module.
    """
    data = options.pop("data", {})
    ranked = _DDP if world_size > 1 else {}
    limits = {"max_epochs": 2, "devices": world_size, **ranked, **options}
    training = Training(lambda: recorded(folder, **data), limits)
    return run_job(world_size, lambda _rank: training.run(saves, resume))


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """Lightning, which averages gradients over ranks.

    Attributes:
        folder: of the recordings.
        saves: folder for the checkpoints of all jobs.
        data: options of the data module.
    """

    folder: Path
    saves: Path
    data: Mapping[str, Any] = field(default_factory=dict)

    def run(self, world_size: int, state: Path | None) -> Served:
        """Run one job, from a checkpoint of another if any."""
        saves = self.saves / f"{len(list(self.saves.iterdir()))}-of-{world_size}"
        logs = train(world_size, self.folder, saves, state, data=dict(self.data))
        done = 0 if state is None else position(state)
        epochs = [[[step for step in log.steps if step.epoch == n] for log in logs] for n in (0, 1)]
        wrong = sum(_is_miscounted(steps, done) for steps in epochs[0])
        wrong += sum(_is_miscounted(steps, 0) for steps in epochs[1])
        first, second = ([[step.shown for step in rank] for rank in ranks] for ranks in epochs)
        states = [saves / f"{done + n + 1}.ckpt" for n in range(len(first[0]))]
        return Served(first, second, states, wrong)


def _is_miscounted(steps: Sequence[Step], done: int) -> bool:
    """Return whether a trainer took an epoch for another than what is done and what is left."""
    size = done + len(steps)
    return [(one.batch, one.size) for one in steps] != [(n, size) for n in range(done, size)]


@dataclass(frozen=True, slots=True)
class LoaderJob:
    """`EpisodeLoader`s, in step with each other.

    Attributes:
        folder: of the recordings.
        options: of the sampler.
    """

    folder: Path
    options: Mapping[str, Any]

    def run(self, world_size: int, state: str | None) -> Served:
        """Run one job, from a state of another if any; the last rank's states are returned."""
        ranks = run_job(world_size, lambda rank: self._serve(rank, world_size, state))
        wrong = sum(one.states != ranks[0].states for one in ranks)  # any is the whole job's
        return Served(
            [one.first[0] for one in ranks],
            [one.second[0] for one in ranks],
            ranks[-1].states,
            wrong + sum(one.wrong for one in ranks),
        )

    def _serve(self, rank: int, world_size: int, state: str | None) -> Served:
        data = MultiDataset.from_folder(self.folder, KEYMAP)
        sampler = EpisodePoolSampler(data, rank=rank, world_size=world_size, **self.options)
        loader = EpisodeLoader(data, batch_sampler=sampler, num_threads=1 + rank)
        if state is not None:
            loader.load_state_dict(json.loads(state))
        first: list[Shown] = []
        states, done, size = [], sampler.done, len(loader)
        while sampler.epoch == 0:
            for batch in loader:
                torch.distributed.barrier()  # where ranks had other numbers of batches, it hung
                first.append(show(batch))
                states.append(json.dumps(loader.state_dict(), sort_keys=True))
        wrong = int(bool(first) and size != done + len(first))
        return Served([first], [[show(batch) for batch in loader]], states, wrong)


@dataclass(frozen=True, slots=True)
class Tree:
    """Jobs that go on from every position of another, and others from theirs.

    Attributes:
        run: runs a job of so many ranks, from a state of another if any.
        frames: of an epoch, sorted.
        batch_size: of a full batch.
        worlds: numbers of ranks, one behind the other.
        stride: the next number goes on from every `stride`-th position, and from the last.
        tail: of the epochs; where `spread` has too few frames left, it must say so.
    """

    run: Callable[[int, Any], Served]
    frames: Sequence[tuple[str, int]]
    batch_size: int
    worlds: Sequence[int]
    stride: int
    tail: str = "spread"

    def grow(self) -> Tally:
        """Run all jobs; count those that went on, batches, and those of them that are wrong."""
        whole = {world: self.run(world, None) for world in sorted(set(self.worlds))}
        return self._grow(0, None, [], whole)

    def _grow(
        self, depth: int, state: Any, before: list[tuple[str, int]], whole: Mapping[int, Served]
    ) -> Tally:
        world = self.worlds[depth]
        if not self._is_servable(len(self.frames) - len(before), world):
            return self._refused(world, state)
        served = self.run(world, state)
        tally = Tally(int(depth > 0)) + self._check(served, before, whole[world])
        if depth + 1 == len(self.worlds):
            return tally
        count = len(served.states)
        for done in sorted({*range(1, count + 1, self.stride), count} - {0}):
            drawn = real_frames(itertools.chain(*(first[:done] for first in served.first)))
            tally += self._grow(depth + 1, served.states[done - 1], before + drawn, whole)
        return tally

    def _is_servable(self, left: int, world: int) -> bool:
        """Return whether every rank has a frame for each of its batches."""
        most = -(-left // world)
        return not left or self.tail == "repeat" or left // world >= -(-most // self.batch_size)

    def _refused(self, world: int, state: Any) -> Tally:
        try:
            self.run(world, state)
        except JobError as error:
            return Tally(1, 0, int("tail: spread can't give every rank" not in str(error)))
        return Tally(1, 0, 1)

    def _check(self, served: Served, before: list[tuple[str, int]], whole: Served) -> Tally:
        """Count a job's batches, and those that are too many, too few, or of the wrong frames."""
        counts = [len(first) for first in served.first]
        found = sorted(before + real_frames(itertools.chain(*served.first)))
        wrong = served.wrong + int(found != self.frames) + sum(n != counts[0] for n in counts)
        tally = Tally(0, sum(counts), wrong)
        for second, wanted in zip(served.second, whole.second, strict=True):
            tally += Tally.of(second, wanted, resumes=0)
        return tally
