"""What does a batch of bytes and numbers cost to read, by egoloader and by Lance?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.answers import difference
from bench.lance_batches import LanceBatches, write_lance
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, agreement, measure
from bench.recordings import make_jpegs, write_folder
from bench.result import Result, Target, time_rows
from egoloader import KeyMap, MultiDataset, collate, human_keymap

__all__ = ["Settings", "add_options", "measure_lance", "run"]

_QUESTION = """What does a batch of bytes and numbers cost to read, by egoloader and by Lance?

- *egoloader* is `__getitems__` and `collate` over a folder of episodes, as its writer writes
  them: small rows of numbers are not compressed.
- *Lance* holds the frames of all episodes in one dataset, uncompressed as is its default, and takes
  one set of columns after the other: those that are needed at the frame alone, then those that
  are needed in a window around it, each row of the batch once.

Frames are random ones over all episodes. Both deliver the same tensors and JPEG bytes, nothing is
decoded; egoloader adds episode, time and fps."""
_LIBRARIES = ("pylance", "pyarrow", "zarr", "numcodecs", "numpy", "torch")
_OURS, _THEIRS = "egoloader", "Lance"
_CACHES = {
    "page cache warm, no decoded chunk kept": 0,
    "page cache warm, decoded numbers kept by egoloader (default budget)": 256 * 2**20,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        episodes: how many there are.
        total_frames: of each.
        batch_size: samples of a batch.
        rounds: batches timed per state of the caches.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episodes and of the frames asked for.
    """

    episodes: int = 8
    total_frames: int = 600
    batch_size: int = 32
    rounds: int = 300
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="batches timed")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_lance(settings)


def measure_lance(settings: Settings) -> Result:
    """Write the episodes in both ways into a temporary folder, and time batches of them.

    Raises:
        WrongAnswerError: Lance's batch differs from egoloader's.
        JpegSizeError: the pictures don't compress to the size asked for.
        MissingExtraError: pylance is not installed.
    """
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    keymap = human_keymap(
        "keypoints", horizon=settings.horizon, proprio_history=settings.proprio_history
    )
    figures, targets = [], []
    with tempfile.TemporaryDirectory() as name:
        folder, table = Path(name) / "episodes", Path(name) / "frames.lance"
        recordings = write_folder(
            folder, settings.episodes, settings.total_frames, jpegs, settings.seed
        )
        write_lance(table, recordings)
        machine = describe_machine(_LIBRARIES)
        for cache, cache_bytes in _CACHES.items():
            dataset = MultiDataset.from_folder(
                folder, keymap, image_dtype="jpeg", cache_bytes=cache_bytes
            )
            timings = _time(dataset, LanceBatches(table, keymap, recordings), keymap, settings)
            figures += time_rows(f"a batch of {settings.batch_size}", cache, timings)
            what = f"{cache}: {_THEIRS} ÷ {_OURS}"
            targets.append(Target(what, timings.ratio(_THEIRS), "at least", 1.0))
    chosen = dataclasses.asdict(settings)
    return Result("lance", _QUESTION, machine, chosen, tuple(targets), (), tuple(figures))


def _time(
    dataset: MultiDataset, theirs: LanceBatches, keymap: KeyMap, settings: Settings
) -> Timings:
    rng = np.random.default_rng(settings.seed)

    def draw(count: int) -> list[list[int]]:
        return [
            rng.choice(len(dataset), settings.batch_size, replace=False).tolist()
            for _ in range(count)
        ]

    everywhere = [len(dataset) * place // 200 for place in range(200)]  # every chunk of 100 rows
    contenders = [
        Contender(_OURS, functools.partial(_batch, dataset)),
        Contender(_THEIRS, theirs.batch),
    ]
    return measure(
        contenders,
        draw(settings.rounds),
        agreement(functools.partial(difference, tuple(keymap))),
        rehearsal=[everywhere, *draw(3)],
    )


def _batch(dataset: MultiDataset, indices: list[int]) -> Mapping[str, Any]:
    return collate(dataset.__getitems__(indices))
