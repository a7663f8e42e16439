"""Epoch after epoch over the sample episodes: all frames come each time, and nothing grows."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import numpy.typing as npt
import simplejpeg
import zarr
from torch.utils.data import DataLoader

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.result import CountRow, FigureRow, Result, Target
from egoloader import (
    EpisodeDataModule,
    EpisodeLoader,
    EpisodePoolSampler,
    KeyMap,
    MultiDataset,
    collate,
)
from egoloader.train.config import sample_folder
from tests.soak.footprint import Footprint, settled
from tests.soak.training import QUIET, Recorder, trainer

__all__ = ["EPOCHS", "WAYS", "Epoch", "Log", "endurance_report", "run_way", "summarise", "unsteady"]

EPOCHS = 50
_QUESTION = """Does anything grow while the same episodes are served epoch after epoch?

The sample episodes are served whole, two pictures a frame. Every picture and every row of joints is
compared to what zarr-python and simplejpeg read of its frame; wrong are frames that did not come
exactly once an epoch, or otherwise than they are stored.

Behind each epoch, when nothing is asked for, the system's lists of open files, threads, child
processes and segments of shared memory (mapped or open) are counted, of this process and of every
worker. Each must be as it was behind the second epoch, by when all episodes are open everywhere.
Memory is what is resident of this process (RSS), and what it and its workers have together: pages
that are no file's, each counted once (of PSS, those that are anonymous or shared memory). Each way
runs in a process of its own."""
_LIBRARIES = ("egoloader", "numpy", "torch", "lightning", "simplejpeg")
_CAMERAS, _STATE = {"front": "images.front_1", "wrist": "images.wrist"}, "obs_joints"
_BATCH_SIZE, _POOL_SIZE, _NUM_THREADS, _NUM_WORKERS = 16, 3, 2, 2
_KEYMAP = KeyMap.from_config(
    {
        **{
            key: {"zarr_key": zarr_key, "key_type": "camera_keys"}
            for key, zarr_key in _CAMERAS.items()
        },
        "joints": {"zarr_key": _STATE, "key_type": "proprio_keys"},
        "action": {"zarr_key": "cmd_ee_delta", "key_type": "action_keys", "horizon": 16},
    }
)
#: Epochs at either end whose memory is compared, and MiB that their median may grow by: a batch
#: whose pictures are not let go in each epoch would be ten times as much.
_AT_ENDS, _GROWTH = 5, 8
#: The epoch that the counts of all later ones are compared with: by then every process has opened
#: what it needs.
_FROM = 2
#: Episode and frame index, and checksums of what the frame shows.
Place = tuple[str, int]
Shown = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What came of one epoch.

    Attributes:
        served: frames.
        wrong: of the episodes' frames, those that did not come exactly once as they are stored.
        footprint: behind it.
    """

    served: int
    wrong: int
    footprint: Footprint


class Log:
    """Holds what is served against what is stored, and what is held behind each epoch.

    Args:
        stored: what each frame shows.

    Attributes:
        epochs: those that are over.
    """

    def __init__(self, stored: Mapping[Place, Shown]) -> None:
        self._stored, self._served = stored, Counter[tuple[Place, Shown]]()
        self.epochs: list[Epoch] = []

    def see(self, batch: Mapping[str, Any]) -> None:
        """Take down what a batch shows."""
        places = zip(batch["episode"], batch["frame_index"].tolist(), strict=True)
        pictures = [batch[key].permute(0, 2, 3, 1).contiguous().numpy() for key in _CAMERAS]
        rows = zip(*pictures, batch["joints"].numpy(), strict=True)
        self._served.update(zip(places, (tuple(map(zlib.crc32, row)) for row in rows), strict=True))

    def see_all(self, batches: Iterable[Mapping[str, Any]]) -> None:
        """Take down what batches show, and hold none of them."""
        for batch in batches:
            self.see(batch)

    def end_epoch(self) -> None:
        """Take down what is held."""
        wanted = Counter(self._stored.items())
        wrong = {place for place, _ in (wanted - self._served) + (self._served - wanted)}
        self.epochs.append(Epoch(self._served.total(), len(wrong), settled()))
        self._served.clear()


def by_threads(epochs: int, log: Log, **options: Any) -> None:
    """Serve with an `EpisodeLoader`; options are the episodes'."""
    data = _data(**options)
    loader = EpisodeLoader(data, batch_sampler=_sampler(data), num_threads=_NUM_THREADS)
    for _ in range(epochs):
        log.see_all(loader)
        log.end_epoch()


def by_workers(epochs: int, log: Log, **options: Any) -> None:
    """Serve with a `DataLoader` whose workers stay; options are the episodes'."""
    data = _data(**options)
    loader: Any = DataLoader(
        data,
        batch_sampler=_sampler(data),
        num_workers=_NUM_WORKERS,
        persistent_workers=True,
        collate_fn=collate,
        multiprocessing_context="fork",
        timeout=60,
    )
    for _ in range(epochs):
        log.see_all(loader)
        log.end_epoch()
    loader._iterator._shutdown_workers()  # now, not when it is collected


def by_a_trainer(epochs: int, log: Log, **options: Any) -> None:
    """Serve with a data module to a trainer that validates behind every epoch."""
    data = EpisodeDataModule(
        sample_folder(),
        _KEYMAP,
        batch_size=_BATCH_SIZE,
        pool_size=_POOL_SIZE,
        num_threads=_NUM_THREADS,
        valid_ratio=1 / 3,
        **options,
    )
    run = trainer(Path(), max_epochs=epochs, callbacks=[_Epochs(log)])
    with warnings.catch_warnings():
        for rule in QUIET:
            _, message, category = rule.split(":")
            kind = FutureWarning if category == "FutureWarning" else UserWarning
            warnings.filterwarnings("ignore", message, kind)
        run.fit(_Shows(log), datamodule=data)


#: In words, how frames are served, and what does it.
WAYS: Mapping[str, Callable[..., None]] = {
    f"EpisodeLoader, {_NUM_THREADS} threads": by_threads,
    f"DataLoader, {_NUM_WORKERS} persistent workers": by_workers,
    f"Trainer.fit, {_NUM_THREADS} threads, with validation": by_a_trainer,
}


class _Shows(Recorder):
    """Trains one number, and shows every batch to a log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self._log.see_all(batch.values())
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._log.see_all(batch.values())


class _Epochs(lightning.Callback):
    """Tells a log that an epoch is over, its validation too."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def on_train_epoch_end(self, *_: Any) -> None:
        self._log.end_epoch()


def run_way(name: str, epochs: int, **options: Any) -> list[Epoch]:
    """Serve so many epochs in one of the ways; options are the episodes'."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    log = Log(_stored())
    WAYS[name](epochs, log, **options)
    return log.epochs


def unsteady(epochs: list[Epoch]) -> list[str]:
    """Return in words where more or fewer files, threads and the like are held than early on."""
    first, *later = (one.footprint for one in epochs[_FROM - 1 :])
    return [
        f"epoch {number}: {difference}"
        for number, one in enumerate(later, start=_FROM + 1)
        for difference in first.differences(one)
    ]


def _data(**options: Any) -> MultiDataset:
    return MultiDataset.from_folder(sample_folder(), _KEYMAP, **options)


def _sampler(data: MultiDataset) -> EpisodePoolSampler:
    return EpisodePoolSampler(data, batch_size=_BATCH_SIZE, pool_size=_POOL_SIZE)


@functools.cache
def _stored() -> Mapping[Place, Shown]:
    """Return what every frame shows, as zarr-python and simplejpeg read it."""
    found = {}
    for path in sorted(Path(sample_folder()).glob("*.zarr")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # rows of bytes are not in the v3 specification yet
            group: Any = zarr.open_group(path, mode="r")
            *cameras, states = (group[key][:] for key in (*_CAMERAS.values(), _STATE))
        for frame in range(group.attrs["total_frames"]):
            pictures = [simplejpeg.decode_jpeg(bytes(rows[frame])) for rows in cameras]
            state = np.ascontiguousarray(states[frame], np.float32)
            found[path.name, frame] = tuple(map(zlib.crc32, (*pictures, state)))
    return found


def endurance_report(root: Path) -> Result:
    """Serve many epochs in every way, each in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as process:
        return summarise({way: process.submit(run_way, way, EPOCHS).result() for way in WAYS})


def summarise(epochs: Mapping[str, list[Epoch]]) -> Result:
    """Return what came of the ways as a result of the benches."""
    settings = {
        "epochs": EPOCHS,
        "batch_size": _BATCH_SIZE,
        "pool_size": _POOL_SIZE,
        "counts_that_differ": [f"{w}: {one}" for w, its in epochs.items() for one in unsteady(its)]
        or "none",
    }
    return Result(
        name="endurance",
        question=_QUESTION,
        machine=describe_machine(_LIBRARIES),
        settings=settings,
        targets=tuple(target for way, its in epochs.items() for target in _targets(way, its)),
        counts=tuple(
            _counted(way, number, its[number - 1])
            for way, its in epochs.items()
            for number in (_FROM, len(its))
        ),
        figures=tuple(row for way, its in epochs.items() for row in _memory_rows(way, its)),
    )


def _targets(way: str, epochs: list[Epoch]) -> Iterator[Target]:
    wrong, others = float(sum(one.wrong for one in epochs)), float(len(unsteady(epochs)))
    yield Target(f"{way}: wrong frames", Spread(wrong, wrong, wrong), "at most", 0)
    what = f"{way}: counts that are others than behind epoch {_FROM}"
    yield Target(what, Spread(others, others, others), "at most", 0)
    first, last = _at_ends([one.footprint.proportional for one in epochs])
    growth = Spread.of(last - np.median(first))
    what = f"{way}: growth of memory, first {_AT_ENDS} to last {_AT_ENDS} epochs, MiB"
    yield Target(what, growth, "at most", _GROWTH)


def _counted(way: str, number: int, epoch: Epoch) -> CountRow:
    own, *workers = epoch.footprint.counts.values()
    counts = {
        "frames": epoch.served,
        "open files": own.files,
        "threads": own.threads,
        "shared segments": own.segments,
        "child processes": len(workers),
        "their open files": sum(one.files for one in workers),
        "their threads": sum(one.threads for one in workers),
        "their shared segments": sum(one.segments for one in workers),
    }
    return CountRow(way, f"behind epoch {number}", counts, {})


def _memory_rows(way: str, epochs: list[Epoch]) -> Iterator[FigureRow]:
    kinds = {
        "resident": [one.footprint.resident for one in epochs],
        "with workers, without files": [one.footprint.proportional for one in epochs],
    }
    for kind, values in kinds.items():
        first, last = _at_ends(values)
        for name, its in ((f"first {_AT_ENDS} epochs", first), (f"last {_AT_ENDS}", last)):
            ratio = Spread.of(its / np.median(first)) if its is last else Spread(1, 1, 1)
            case, cache = f"{way}: {kind}", "default budgets"
            yield FigureRow(case, cache, name, len(its), "MiB", Spread.of(its), ratio)


def _at_ends(values: Sequence[int]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the first and the last of values in bytes, as MiB."""
    mib = np.array(values) / 2**20
    return mib[:_AT_ENDS], mib[-_AT_ENDS:]
