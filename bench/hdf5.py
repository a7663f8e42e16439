"""What does one sample cost to read, by egoloader and by h5py?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from zarr.codecs import GzipCodec

from bench.answers import difference_in_a_row, in_a_row
from bench.hdf5_samples import HdfSamples, write_hdf5
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, agreement, measure
from bench.recordings import make_jpegs, write_recording
from bench.result import Result, Target, time_rows
from bench.zarr_samples import rewrite_numbers
from egoloader import ZarrDataset, human_keymap

__all__ = ["Settings", "add_options", "measure_hdf5", "run"]

_QUESTION = """What does one sample of the keypoint keymap cost to read, by egoloader and by h5py?

- *egoloader* reads what its writer writes: chunks of 100 rows, not compressed where rows are as
  small as here, a checksum on each.
- *h5py, gzip-1* reads an HDF5 file with the same chunks on held datasets, one slice a dataset: from
  the first row to the last that any entry needs. JPEGs lie in rows of the longest one's length, a
  row a chunk, not compressed, and only their own bytes are read; rows of variable length take four
  times as long. Their dataset has no chunk cache, as no JPEG comes back.
- *egoloader, gzip-1* reads the same numbers in a Zarr episode compressed as in the HDF5 file.

All deliver the same tensors and JPEG bytes; egoloader adds episode, time and fps, and counts. Chunk
caches are off for all, then on for all, and hold every chunk then. In its turn, a contender makes
several samples at random frames, one after the other."""
_LIBRARIES = ("h5py", "zarr", "numcodecs", "numpy", "torch")
_OURS, _THEIRS, _OURS_GZIP = "egoloader", "h5py, gzip-1", "egoloader, gzip-1"


@dataclass(frozen=True, slots=True)
class CacheState:
    """Whether decoded chunks are kept.

    Attributes:
        name: of the state.
        cache_bytes: what each contender may keep.
        bound: how often egoloader's time h5py's is to take at least.
    """

    name: str
    cache_bytes: int
    bound: float


_STATES = (
    CacheState("page cache warm, chunk caches off", 0, 1.2),
    CacheState("page cache warm, chunk caches on", 256 * 2**20, 1.5),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        total_frames: of the episode.
        rounds: timed per state of the caches.
        in_a_row: samples that a contender makes in its turn.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episode and of the frames asked for.
    """

    total_frames: int = 3000
    rounds: int = 200
    in_a_row: int = 10
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--total-frames", type=int, metavar="T", help="length of the episode")
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds timed")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.total_frames is not None:
        settings = dataclasses.replace(settings, total_frames=options.total_frames)
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_hdf5(settings)


def measure_hdf5(settings: Settings) -> Result:
    """Write the episode in three ways into a temporary folder, and time samples of it.

    Raises:
        WrongAnswerError: a contender's sample differs from egoloader's.
        JpegSizeError: the pictures don't compress to the size asked for.
        MissingExtraError: h5py is not installed.
    """
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    figures, targets = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "episode.zarr"
        recording = write_recording(path, settings.total_frames, jpegs, settings.seed)
        rewrite_numbers(path, Path(folder) / "gzip.zarr", GzipCodec(level=1))
        write_hdf5(Path(folder) / "episode.hdf5", recording)
        machine = describe_machine(_LIBRARIES)
        for state in _STATES:
            timings = _time(Path(folder), state, settings)
            figures += time_rows("numbers and JPEG bytes", state.name, timings)
            what = f"{state.name}: {_THEIRS} ÷ {_OURS}"
            targets.append(Target(what, timings.ratio(_THEIRS), "at least", state.bound))
    chosen = dataclasses.asdict(settings)
    return Result("hdf5", _QUESTION, machine, chosen, tuple(targets), (), tuple(figures))


def _time(folder: Path, state: CacheState, settings: Settings) -> Timings:
    keymap = human_keymap(
        "keypoints", horizon=settings.horizon, proprio_history=settings.proprio_history
    )
    ours, ours_gzip = (
        ZarrDataset(folder / name, keymap, image_dtype="jpeg", cache_bytes=state.cache_bytes)
        for name in ("episode.zarr", "gzip.zarr")
    )
    total = len(ours)
    rng = np.random.default_rng(settings.seed)
    with HdfSamples(folder / "episode.hdf5", keymap, state.cache_bytes) as theirs:
        contenders = [
            Contender(_OURS, in_a_row(ours.__getitem__)),
            Contender(_THEIRS, in_a_row(theirs.sample)),
            Contender(_OURS_GZIP, in_a_row(ours_gzip.__getitem__)),
        ]
        timings = measure(
            contenders,
            rng.integers(total, size=(settings.rounds, settings.in_a_row)).tolist(),
            agreement(functools.partial(difference_in_a_row, tuple(keymap))),
            rehearsal=[[*range(0, total, 25), total - 1]],  # which meets every chunk
        )
        return timings.shared_by(settings.in_a_row)
