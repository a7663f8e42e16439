"""What does one sample cost to read: planned, one read per entry, or one plain span per array?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.machine import describe_machine
from bench.pairing import Contender, measure
from bench.recordings import CAMERA, make_jpegs, write_recording
from bench.result import CountRow, Result, TimeRow, time_rows
from bench.zarr_samples import (
    HeldArrays,
    Planner,
    ZarrSamples,
    decode,
    per_entry,
    per_key,
    union_span,
)
from egoloader import KeyMap, ZarrDataset, ZarrEpisode, human_keymap
from egoloader.counts import ReadCounts
from egoloader.reader import ReferenceReader
from egoloader.store import EpisodeFolder

__all__ = ["Settings", "add_options", "difference", "measure_reads", "run"]

Sample = dict[str, Any]

_QUESTION = """What does one sample of the keypoint keymap cost to read, with and without a plan?

- *egoloader* plans one read per array from all windows on it. On the way it checks that the chunks
  are stored, counts, and adds episode, time and fps to the sample; the others do none of that.
- *one read per key* is zarr-python on held arrays, reading what egoloader's planner groups.
- *one read per entry* is the same, reading every keymap entry on its own.
- *plain union span* is the same, reading each array once, from the first row to the last that any
  entry needs.

All of them, egoloader too, read through zarr-python, and deliver the same tensors and bytes. Counts
are of one sample in the middle of the episode, once handles are open; times are over random frames,
the same ones for all."""
_CACHE = "page cache warm, no decoded chunk kept"
_LIBRARIES = ("zarr", "numcodecs", "numpy", "simplejpeg", "torch")
_OURS = "egoloader"
_THEIRS: dict[str, Planner] = {
    "one read per key": per_key,
    "one read per entry": per_entry,
    "plain union span": union_span,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        total_frames: lengths of the episodes; image history is measured on the longest.
        gaps_s: gaps of the image history in seconds.
        rounds: samples timed per case.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episodes and of the frames asked for.
    """

    total_frames: tuple[int, ...] = (300, 3000)
    gaps_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    rounds: int = 100
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.total_frames or min(self.total_frames) < 1 or self.rounds < 1:
            raise ValueError(f"lengths and rounds are whole numbers of at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class Case:
    """One episode and one keymap."""

    name: str
    path: Path
    keymap: KeyMap


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument(
        "--total-frames", type=int, nargs="+", metavar="T", help="lengths of the episodes"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="samples timed per case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.total_frames is not None:
        settings = dataclasses.replace(settings, total_frames=tuple(options.total_frames))
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_reads(settings)


def measure_reads(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, count and time every case.

    Raises:
        WrongAnswerError: a contender's sample differs from egoloader's.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(_LIBRARIES)
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    counts: list[CountRow] = []
    times: list[TimeRow] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(settings, Path(folder), jpegs):
            counts += _count(case)
            times += _time(case, "encoded", settings)
            times += _time(case, "decoded", settings)
    chosen = dataclasses.asdict(settings)
    chosen["mean_jpeg_bytes"] = round(sum(map(len, jpegs)) / len(jpegs))
    return Result("reads", _QUESTION, machine, chosen, tuple(counts), tuple(times))


def difference(keys: tuple[str, ...], reference: Sample, sample: Sample) -> str | None:
    """Return what differs between two samples in the entries `keys`; None where nothing does."""
    for key in keys:
        if key not in sample:
            return f"no {key!r}"
        wanted, got = reference[key], sample[key]
        if type(wanted) is not type(got):
            return f"{key!r} is a {type(got).__name__}, not a {type(wanted).__name__}"
        if not isinstance(wanted, torch.Tensor):
            if wanted != got:
                return f"{key!r} holds other bytes"
        elif wanted.shape != got.shape or wanted.dtype != got.dtype:
            return f"{key!r} is {got.dtype} {tuple(got.shape)}"
        elif not torch.equal(wanted, got):
            return f"{key!r} holds other numbers"
    return None


def _cases(settings: Settings, folder: Path, jpegs: list[bytes]) -> Iterator[Case]:
    keymap = functools.partial(
        human_keymap,
        "keypoints",
        horizon=settings.horizon,
        proprio_history=settings.proprio_history,
    )
    paths = {
        total: write_recording(folder / f"{total}.zarr", total, jpegs, settings.seed)
        for total in sorted(settings.total_frames)
    }
    for total, path in paths.items():
        yield Case(f"T = {total:,}", path, keymap())
    longest = max(paths)
    for gap in settings.gaps_s:
        name = f"T = {longest:,}, image history {gap} s"
        yield Case(name, paths[longest], keymap(image_history_gap_s=gap))


def _count(case: Case) -> list[CountRow]:
    """Count one sample of every contender, where requests, chunks and rows pass."""
    dataset = ZarrDataset(case.path, case.keymap, image_dtype="jpeg")
    frame = len(dataset) // 2
    rows = [_count_calls(case.name, _OURS, dataset.episode.counts, lambda: dataset[frame])]
    for name, planner in _THEIRS.items():
        counts = ReadCounts()
        folder = EpisodeFolder(case.path, dataset.episode.name, counts)
        reader = ReferenceReader(folder, counts, _refuse_hole)
        samples = ZarrSamples(
            dataset.episode,
            case.keymap,
            planner,
            functools.partial(_fetch, reader, dataset.episode),
            bytes,
        )
        rows.append(_count_calls(case.name, name, counts, functools.partial(samples.sample, frame)))
    return rows


def _refuse_hole(key: str, path: str) -> None:
    raise AssertionError(f"{path} of array {key!r} is not stored")


def _count_calls(
    case: str, contender: str, counts: ReadCounts, make_sample: Callable[[], Sample]
) -> CountRow:
    make_sample()  # the first one reads what is kept from then on
    counts.reset()
    make_sample()
    arrays = {key: dataclasses.asdict(counts[key]) for key in sorted(counts)}
    total = dataclasses.asdict(counts.total)
    columns = {
        "reads": total["reads"],
        "rows": total["rows"],
        "of them JPEGs": counts[CAMERA].rows,
        "chunks": total["chunks"],
        "requests": total["requests"],
        "bytes": total["bytes"],
    }
    return CountRow(case, contender, columns, arrays)


def _fetch(reader: ReferenceReader, episode: ZarrEpisode, key: str, plan: Any) -> Any:
    return reader.read(key, episode.layout(key), plan)


def _time(case: Case, form: str, settings: Settings) -> list[TimeRow]:
    """Time one case; `form` says whether samples hold JPEGs as bytes or as pixels."""
    dataset = ZarrDataset(
        case.path, case.keymap, image_dtype="uint8" if form == "decoded" else "jpeg"
    )
    finish = decode if form == "decoded" else bytes
    contenders = [Contender(_OURS, dataset.__getitem__)]
    for name, planner in _THEIRS.items():
        fetch = HeldArrays(case.path).fetch
        samples = ZarrSamples(dataset.episode, case.keymap, planner, fetch, finish)
        contenders.append(Contender(name, samples.sample))
    rng = np.random.default_rng(settings.seed)
    total = len(dataset)
    timings = measure(
        contenders,
        rng.integers(total, size=settings.rounds).tolist(),
        functools.partial(difference, tuple(case.keymap)),
        rehearsal=[0, total // 2, total - 1],
    )
    what = "decoded sample" if form == "decoded" else "numbers and JPEG bytes"
    return time_rows(f"{case.name}, {what}", _CACHE, timings)
