"""The parts of the long form: what is gone on from, and from where."""

from __future__ import annotations

import functools
import itertools
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egoloader import EpisodeLoader, EpisodePool, EpisodePoolSampler, MultiDataset
from tests.soak.fits import Training, resume_fits
from tests.soak.kills import KillReport, kill_and_resume
from tests.soak.positions import Run, Tally, resume_everywhere
from tests.soak.ranks import LoaderJob, TrainingJob, Tree
from tests.soak.recordings import KEYMAP, write_recordings
from tests.soak.runs import DataLoaderRun, LoaderRun, MixtureRun, PoolRun, SamplerRun
from tests.soak.tails import check_shape, shapes
from tests.soak.training import OneCycle, recorded

__all__ = ["KILLS", "PARTS", "Outcome", "run_part"]

#: How often the run is killed, and the seed of the moments.
KILLS, _SEED = 10, 2
_LENGTHS = (5, 3, 7, 2, 6, 1)
_BOTH = {"arm": (5, 3, 7, 6), "human": (9, 4, 8, 6)}
#: Batches of two epochs of `_LENGTHS`, 2 frames each.
_TWO_EPOCHS = 24


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one case.

    Attributes:
        who: what was gone on from.
        case: what it was, beside that.
        tally: of all its positions.
        kills: what is known of the killed run, where it is one.
    """

    who: str
    case: str
    tally: Tally
    kills: KillReport | None = None


def planner(root: Path) -> Iterator[Outcome]:
    """Every draw of an epoch, and every pair of draws."""
    pairs = [(f"e{n}", frames) for n, frames in enumerate((9, 1, 14, 0, 6, 11, 3, 16))]
    sizes = [100 + 7 * frames for _, frames in pairs]
    for case, budget in (("no budget", None), ("a byte budget", 420)):
        tally = Tally()
        for pool_size, seed in itertools.product((1, 3, 8), (0, 1)):
            begin = functools.partial(_pool, pairs, pool_size, seed, sizes, budget)
            tally += resume_everywhere(begin, [begin], sum(n for _, n in pairs), 1)
        yield Outcome("EpisodePool", f"pools of 1, 3 and 8, {case}", tally)


def _pool(pairs: Any, pool_size: int, seed: int, sizes: Any, budget: int | None) -> Run:
    return PoolRun(EpisodePool(pairs, pool_size, seed, 2, sizes, budget))


def samplers(root: Path) -> Iterator[Outcome]:
    """Every position of two epochs, and every pair of them."""
    data = _data(root)
    for tail in ("spread", "drop", "repeat"):
        tally = Tally()
        for batch_size, pool_size in itertools.product((2, 5), (1, 3, 8)):
            options = {"tail": tail, "batch_size": batch_size, "pool_size": pool_size}
            begin = functools.partial(_sampler_run, data, options)
            length = 2 * len(_sampler(data, options))
            tally += resume_everywhere(begin, [begin], length, 1)
        yield Outcome("EpisodePoolSampler", f"tail: {tail}", tally)


def loaders(root: Path) -> Iterator[Outcome]:
    """Every position of two epochs and every pair of them, with other threads and workers."""
    data = _data(root)
    orders: dict[str, Callable[[], dict[str, Any]]] = {
        "in order": lambda: {"batch_size": 2},
        "shuffled": lambda: {"batch_size": 2, "shuffle": True},
        "a pool of 3": lambda: {"batch_sampler": _sampler(data, {})},
        "weighted frames": lambda: {"batch_sampler": _sampler(data, {"weights": _weights})},
    }
    for case, options in orders.items():
        begin, *others = (
            functools.partial(_loader, data, options, threads, ahead)
            for threads, ahead in ((2, None), (1, 1), (3, None), (2, 9))
        )
        tally = resume_everywhere(begin, others, _TWO_EPOCHS, 1)
        yield Outcome("EpisodeLoader", f"{case}, 1 to 3 threads", tally)
    for num_workers in (0, 1, 3):
        begin = functools.partial(_dataloader, data, num_workers)
        tally = resume_everywhere(begin, [begin], _TWO_EPOCHS, 1 if not num_workers else 5)
        yield Outcome("DataLoader", f"{num_workers} workers", tally)
    for combine, at_end in itertools.product(("all", "weighted"), ("cycle", "ends")):
        mixed = {"combine": combine, "at_end": at_end}
        begin, *others = (functools.partial(_mixture, root, mixed, n) for n in (2, 1, 3))
        tally = resume_everywhere(begin, others, _TWO_EPOCHS, 1)
        yield Outcome("EpisodeDataModule", f"combine: {combine}, at_end: {at_end}", tally)


def trainings(root: Path) -> Iterator[Outcome]:
    """Every checkpoint of two epochs, and every checkpoint of the runs that went on from one."""
    one, both = _folder(root), _both(root)
    half: dict[str, Any] = {"max_epochs": 2, "val_check_interval": 0.5}
    two: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": 2}
    cases = {
        "plain": Training(functools.partial(_threads, one, {}, itertools.cycle((1, 3, 2)))),
        "2 batches a step": Training(lambda: recorded(one, batch_size=5), two),
        "OneCycleLR, 2 batches a step": Training(lambda: recorded(one), two, OneCycle),
        "validation in the middle": Training(
            lambda: recorded(one, valid_ratio=0.34, batch_size=2), half
        ),
        "tail: repeat": Training(lambda: recorded(one, batch_size=5, tail="repeat")),
        "tail: drop": Training(lambda: recorded(one, batch_size=5, tail="drop")),
        "limit_train_batches": Training(
            lambda: recorded(one), {"max_epochs": 3, "limit_train_batches": 4}
        ),
    }
    for combine, at_end in itertools.product(("all", "weighted"), ("cycle", "ends")):
        options = {"combine": combine, "at_end": at_end, "valid_ratio": 0.25}
        make = functools.partial(_threads, both, options, itertools.cycle((1, 3, 2)))
        cases[f"combine: {combine}, at_end: {at_end}"] = Training(make, {**half, **two})
    for number, (case, training) in enumerate(cases.items()):
        saves = root / f"fits-{number}"
        saves.mkdir()
        yield Outcome("Trainer.fit", case, resume_fits(saves, training, 1))


def ranks(root: Path) -> Iterator[Outcome]:
    """Every position of an epoch, then every position of the job of other ranks, and so on."""
    folder = _folder(root)
    frames = [(f"arm_{n}.zarr", i) for n, total in enumerate(_LENGTHS) for i in range(total)]
    for tail in ("spread", "repeat"):
        options = {"batch_size": 2, "pool_size": 3, "seed": 4, "tail": tail}
        tree = Tree(LoaderJob(folder, options).run, sorted(frames), 2, (1, 2, 3, 2, 1), 1, tail)
        case = f"tail: {tail}, 1, 2, 3, 2, 1 ranks"
        yield Outcome("EpisodeLoader", case, tree.grow())
    for tail in ("spread", "repeat"):
        saves = root / f"saves-{tail}"
        saves.mkdir()
        options = {"batch_size": 2, "pool_size": 3, "seed": 4, "tail": tail}
        job = TrainingJob(folder, saves, options)
        tree = Tree(job.run, sorted(frames), 2, (1, 2, 3, 1), 1, tail)
        yield Outcome("Trainer.fit", f"tail: {tail}, 1, 2, 3, 1 ranks", tree.grow())


def tails(root: Path) -> Iterator[Outcome]:
    """Epochs of 1 to 24 frames, in batches of 1 to 4, on 1 to 3 ranks."""
    tally = sum(map(check_shape, shapes(24, 0)), Tally())
    case = "1 to 24 frames by 1 to 4, every tail, 1 to 3 ranks"
    yield Outcome("EpisodePoolSampler", case, tally)


def kills(root: Path) -> Iterator[Outcome]:
    """A run that is killed at random moments."""
    report = kill_and_resume(root / "killed", KILLS, _SEED)
    tally = Tally(len(report.kills), report.batches, report.wrong + report.not_once)
    yield Outcome("Trainer.fit", f"SIGKILL at {KILLS} random moments", tally, report)


PARTS: Mapping[str, Callable[[Path], Iterator[Outcome]]] = {
    "planner": planner,
    "samplers": samplers,
    "loaders": loaders,
    "trainings": trainings,
    "ranks": ranks,
    "tails": tails,
    "kills": kills,
}


def run_part(name: str) -> list[Outcome]:
    """Run one part in this process."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as root:
        return list(PARTS[name](Path(root)))


def _folder(root: Path) -> Path:
    folder = root / "arms"
    return folder if folder.exists() else write_recordings(folder, "arm", _LENGTHS)


def _both(root: Path) -> Path:
    folder = root / "both"
    if not folder.exists():
        for embodiment, lengths in _BOTH.items():
            write_recordings(folder, embodiment, lengths)
    return folder


def _data(root: Path) -> MultiDataset:
    return MultiDataset.from_folder(_folder(root), KEYMAP)


def _sampler(data: MultiDataset, options: Mapping[str, Any]) -> EpisodePoolSampler:
    return EpisodePoolSampler(data, **{"batch_size": 2, "pool_size": 3, "seed": 5, **options})


def _sampler_run(data: MultiDataset, options: Mapping[str, Any]) -> Run:
    return SamplerRun(_sampler(data, options))


def _weights(episode: Any) -> Any:
    return range(1, episode.total_frames + 1)


def _loader(
    data: MultiDataset, options: Callable[[], dict[str, Any]], threads: int, ahead: int | None
) -> Run:
    return LoaderRun(EpisodeLoader(data, **options(), num_threads=threads, look_ahead=ahead))


def _dataloader(data: MultiDataset, num_workers: int) -> Run:
    return DataLoaderRun(data, _sampler(data, {}), num_workers)


def _mixture(root: Path, options: Mapping[str, Any], num_threads: int) -> Run:
    return MixtureRun(recorded(_both(root), num_threads=num_threads, **options))


def _threads(folder: Path, options: Mapping[str, Any], numbers: Iterator[int]) -> Any:
    """Return a data module with another number of threads every time."""
    return recorded(folder, num_threads=next(numbers), **options)
