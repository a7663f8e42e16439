"""Does memory grow with the number of episodes visited?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.recordings import ARRAYS, make_jpegs, write_recording
from bench.result import CountRow, FigureRow, Result, Target

__all__ = ["Settings", "add_options", "measure_memory", "run"]

_QUESTION = """Does memory grow with the number of episodes visited?

`EpisodeLoader` with two threads visits one episode after the other, one batch of each. Each round
is a process of its own, which is asked for its memory when the first few episodes are done, by when
the budget for decoded chunks is full, and when all are. *Peak* is the most that was ever resident
(`VmHWM` of the process), *resident* what is at that moment (`VmRSS`). Python and PyTorch are in
both, so growth is also given per episode."""
_LIBRARIES = ("zarr", "numcodecs", "numpy", "simplejpeg", "torch")
_CACHE = "budget for decoded chunks full"
_BOUND = 1.05


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        few: episodes after which memory is looked at first.
        many: episodes after which it is looked at again.
        rounds: processes.
        total_frames: of each episode.
        batch_size: frames of its batch.
        cache_bytes: budget for decoded chunks; less than the few episodes fill.
        num_threads: of the loader.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        seed: of the episode and of the frames asked for.
    """

    few: int = 10
    many: int = 500
    rounds: int = 3
    total_frames: int = 300
    batch_size: int = 16
    cache_bytes: int = 3 * 2**18
    num_threads: int = 2
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.few < self.many:
            raise ValueError(f"few episodes are at least one and less than many, got {self}")
        stored = 4 * self.total_frames * sum(ARRAYS.values())
        if self.cache_bytes > self.few * stored / 2:
            raise ValueError(f"the budget must be full after the few episodes, got {self}")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--many", type=int, metavar="N", help="episodes visited")
    parser.add_argument("--rounds", type=int, metavar="N", help="processes")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.many is not None:
        settings = dataclasses.replace(settings, many=options.many)
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_memory(settings)


def measure_memory(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and visit them in fresh processes.

    Raises:
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(_LIBRARIES)
    with tempfile.TemporaryDirectory() as folder:
        _write_links(Path(folder), settings)
        rounds = [_visit(Path(folder), settings) for _ in range(settings.rounds)]
    names = [f"after {number} episodes" for number in (settings.few, settings.many)]
    peak, resident = (_values(rounds, what) for what in ("peak_kib", "resident_kib"))
    figures = [
        *_rows("peak memory", "MiB", names, peak / 1024),
        *_rows("resident memory", "MiB", names, resident / 1024),
        *_rows(
            "growth of the peak from then on", "KiB an episode", names[1:], _growth(peak, settings)
        ),
    ]
    target = Target(
        f"peak memory {names[1]} ÷ {names[0]}",
        Spread.of(peak[:, 1] / peak[:, 0]),
        "at most",
        _BOUND,
    )
    counts = [
        CountRow(name, "EpisodeLoader", _counts(rounds, place), {})
        for place, name in enumerate(names)
    ]
    chosen = dataclasses.asdict(settings)
    return Result("memory", _QUESTION, machine, chosen, (target,), tuple(counts), tuple(figures))


def _write_links(folder: Path, settings: Settings) -> None:
    """Write one episode, and link its files into as many folders as are visited."""
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    first = folder / "episode_0000.zarr"
    write_recording(first, settings.total_frames, jpegs, settings.seed)
    for number in range(1, settings.many):
        shutil.copytree(first, folder / f"episode_{number:04d}.zarr", copy_function=os.link)


def _visit(folder: Path, settings: Settings) -> list[dict[str, int]]:
    """Visit the episodes in a process of its own; return what it said, twice."""
    wanted = {
        "folder": str(folder),
        "few": settings.few,
        "batch_size": settings.batch_size,
        "cache_bytes": settings.cache_bytes,
        "num_threads": settings.num_threads,
        "seed": settings.seed,
    }
    command = [sys.executable, "-m", "bench.memory_visit", json.dumps(wanted)]
    root = Path(__file__).parents[1]
    said = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in said.stdout.splitlines()]
    if [line["episodes"] for line in lines] != [settings.few, settings.many]:
        raise RuntimeError(f"the visit is to speak up twice, and said {lines}")
    return lines


def _values(rounds: list[list[dict[str, int]]], name: str) -> npt.NDArray[np.float64]:
    """Return (rounds, 2) values of one name."""
    return np.array([[line[name] for line in lines] for lines in rounds], dtype=np.float64)


def _growth(peak: npt.NDArray[np.float64], settings: Settings) -> npt.NDArray[np.float64]:
    return (peak[:, 1:] - peak[:, :1]) / (settings.many - settings.few)


def _rows(
    case: str, unit: str, names: list[str], values: npt.NDArray[np.float64]
) -> list[FigureRow]:
    rows = []
    for name, value in zip(names, values.T, strict=True):
        ratio = Spread.of(value / values[:, 0]) if rows else Spread(1, 1, 1)
        rows.append(FigureRow(case, _CACHE, name, len(value), unit, Spread.of(value), ratio))
    return rows


def _counts(rounds: list[list[dict[str, int]]], place: int) -> dict[str, int]:
    """Return the most that any round counted."""
    names: dict[str, Any] = {"open files": "open_files", "threads": "threads"}
    return {title: max(lines[place][name] for lines in rounds) for title, name in names.items()}
