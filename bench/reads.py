"""What does one sample cost to read, by egoloader and by zarr-python?"""

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
from zarr.codecs import ZstdCodec

from bench.answers import Sample, difference_in_a_row, in_a_row
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, agreement, measure
from bench.recordings import CAMERA, make_jpegs, write_recording
from bench.result import CountRow, FigureRow, Result, Target, time_rows
from bench.zarr_samples import (
    HeldArrays,
    Planner,
    ZarrSamples,
    decode,
    per_entry,
    per_key,
    rewrite_numbers,
    union_span,
)
from egoloader import KeyMap, ZarrDataset, ZarrEpisode, human_keymap
from egoloader.counts import ReadCounts
from egoloader.reader import ReferenceReader
from egoloader.store import EpisodeFolder

__all__ = ["Settings", "add_options", "measure_reads", "run"]

_QUESTION = """What does one sample of the keypoint keymap cost to read, by egoloader and by
zarr-python?

- *egoloader* plans one read per array from all windows on it, and fetches the chunks itself. On the
  way it counts, and adds episode, time and fps to the sample; the others do none of that.
- *one read per key* is zarr-python on held arrays, reading what egoloader's planner groups.
- *one read per entry* is the same, reading every keymap entry on its own.
- *plain union span* is the same, reading each array once, from the first row to the last that any
  entry needs.

All deliver the same tensors and bytes. Counts are of one sample in the middle of the episode, once
handles are open; times are of a sample at a random frame, the same frames for all. In its turn, a
contender makes several samples, one after the other; *one a turn* is the other way, where each
sample finds the processor's caches full of what the contender before it left there. egoloader's
writer does not compress numbers in rows as small as here; *zstd* has them as zarr-python writes
them by default."""
_CACHE = "page cache warm, no decoded chunk kept"
_LIBRARIES = ("zarr", "numcodecs", "numpy", "simplejpeg", "torch")
_OURS, _PER_KEY, _PER_ENTRY = "egoloader", "one read per key", "one read per entry"
_THEIRS: dict[str, Planner] = {
    _PER_KEY: per_key,
    _PER_ENTRY: per_entry,
    "plain union span": union_span,
}
#: Whether samples hold JPEGs as bytes or as pixels; where they are bytes there are targets.
_FORMS = {"numbers and JPEG bytes": "jpeg", "decoded sample": "uint8"}
_ENCODED = "numbers and JPEG bytes"
_ONE_A_TURN = "one a turn"
_TARGETS = {_PER_ENTRY: 40.0, _PER_KEY: 20.0}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        total_frames: lengths of the episodes.
        gaps_s: gaps of the image history in seconds, measured on the second length, or the only.
        rounds: timed per case.
        in_a_row: samples that a contender makes in its turn.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episodes and of the frames asked for.
    """

    total_frames: tuple[int, ...] = (300, 3000, 12000)
    gaps_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    rounds: int = 25
    in_a_row: int = 10
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.total_frames or min(*self.total_frames, self.rounds, self.in_a_row) < 1:
            raise ValueError(f"lengths and rounds are whole numbers of at least 1, got {self}")


@dataclass(frozen=True, slots=True)
class Case:
    """One episode and one keymap."""

    name: str
    path: Path
    keymap: KeyMap
    has_targets: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument(
        "--total-frames", type=int, nargs="+", metavar="T", help="lengths of the episodes"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds timed per case")


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
    figures: list[FigureRow] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        for case in _cases(settings, Path(folder), jpegs):
            counts += _count(case)
            for form in _FORMS:
                timings = _time(case, form, settings, settings.in_a_row)
                figures += time_rows(f"{case.name}, {form}", _CACHE, timings)
                if case.has_targets and form == _ENCODED:
                    targets += _targets(f"{case.name}, {form}", timings)
                    timings = _time(case, form, settings, 1)
                    figures += time_rows(f"{case.name}, {form}, {_ONE_A_TURN}", _CACHE, timings)
                    targets += _targets(f"{case.name}, {form}, {_ONE_A_TURN}", timings)
    chosen = dataclasses.asdict(settings)
    chosen["mean_jpeg_bytes"] = round(sum(map(len, jpegs)) / len(jpegs))
    return Result(
        "reads", _QUESTION, machine, chosen, tuple(targets), tuple(counts), tuple(figures)
    )


def _cases(settings: Settings, folder: Path, jpegs: list[bytes]) -> Iterator[Case]:
    keymap = functools.partial(
        human_keymap,
        "keypoints",
        horizon=settings.horizon,
        proprio_history=settings.proprio_history,
    )
    paths = {
        total: write_recording(folder / f"{total}.zarr", total, jpegs, settings.seed).path
        for total in sorted(settings.total_frames)
    }
    for total, path in paths.items():
        yield Case(f"T = {total:,}", path, keymap(), True)
    total = list(paths)[:2][-1]
    zstd = folder / "zstd.zarr"
    rewrite_numbers(paths[total], zstd, ZstdCodec())
    yield Case(f"T = {total:,}, zstd", zstd, keymap(), False)
    for gap in settings.gaps_s:
        name = f"T = {total:,}, image history {gap} s"
        yield Case(name, paths[total], keymap(image_history_gap_s=gap), False)


def _count(case: Case) -> list[CountRow]:
    """Count one sample of every contender, where requests, chunks and rows pass."""
    dataset = ZarrDataset(case.path, case.keymap, image_dtype="jpeg", cache_bytes=0)
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
    rows = reader.read(key, episode.layout(key), plan)
    return rows if isinstance(rows, np.ndarray) else np.array(rows, dtype=object)


def _time(case: Case, form: str, settings: Settings, samples_a_turn: int) -> Timings:
    """Time one case in one form."""
    dataset = ZarrDataset(case.path, case.keymap, image_dtype=_FORMS[form], cache_bytes=0)
    finish = bytes if form == _ENCODED else decode
    contenders = [Contender(_OURS, in_a_row(dataset.__getitem__))]
    for name, planner in _THEIRS.items():
        fetch = HeldArrays(case.path).fetch
        samples = ZarrSamples(dataset.episode, case.keymap, planner, fetch, finish)
        contenders.append(Contender(name, in_a_row(samples.sample)))
    rng = np.random.default_rng(settings.seed)
    total = len(dataset)
    # As many samples, whatever the turns.
    rounds = max(1, settings.rounds * settings.in_a_row // samples_a_turn)
    timings = measure(
        contenders,
        rng.integers(total, size=(rounds, samples_a_turn)).tolist(),
        agreement(functools.partial(difference_in_a_row, tuple(case.keymap))),
        rehearsal=[[0, total // 2, total - 1]],
    )
    return timings.shared_by(samples_a_turn)


def _targets(case: str, timings: Timings) -> list[Target]:
    return [
        Target(f"{case}: {name} ÷ egoloader", timings.ratio(name), "at least", bound)
        for name, bound in _TARGETS.items()
    ]
