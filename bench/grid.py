"""What does a time grid cost?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from bench.grid_truth import Truth
from bench.machine import describe_machine
from bench.pairing import Contender, WrongAnswerError, measure
from bench.recordings import ARRAYS, CAMERA, Recording, draw_poses, draw_walk, make_jpegs
from bench.result import CountRow, FigureRow, Result, time_rows
from egoloader import EpisodeWriter, KeyMap, MultiDataset, ZarrDataset, collate, human_keymap

__all__ = ["Settings", "add_options", "measure_grid", "run"]

_QUESTION = """What does a time grid cost?

Episodes of a person at 30 Hz, and the keypoint keymap with masks: chunks of 30 actions, histories
of 4 states. Steps are counted in frames, or as many lie 25 a second, most of them between frames.

- *frames* counts frames: `horizon` and `history`.
- *nearest*, *linear* and *slerp* are on the grid: `rate_hz`, by that interpolation. Of linear, all
  numbers are; of slerp, wrist poses turn, and keypoints are linear.
- *uneven* are the same on episodes whose array `timestamp` has each frame up to 5 ms off. Every
  sample holds its time, so that these read one array more.

A sample is `dataset[i]`, of several made one after the other; a batch is collated, from random
frames of all episodes. Every number and mask is compared to what NumPy and SciPy make of the arrays
that zarr-python reads whole, and of each answer its last picture to simplejpeg's. Counts are of
numbers, once handles are open, without chunks that are kept; reads, rows, chunks and requests are
compared to those that the same arrays ask for."""
_LIBRARIES = ("egoloader", "zarr", "numcodecs", "numpy", "scipy", "simplejpeg", "torch")
_CACHE = "page cache warm, decoded numbers kept (default budget)"
_IMAGE = "observations.images.front_img_1"
_FPS = 30.0
#: Prefixes of the contenders' names, by folder, and by how many seconds frames are off at most.
_CLOCKS = {"even": ("", 0.0), "uneven": ("uneven, ", 0.005)}
_FRAMES, _GRIDS = "frames", ("nearest", "linear", "slerp")
#: Numbers are float32, the largest about 1.
_TOLERANCE = 1e-5

DictBatch = dict[str, Any]
Indices = list[int]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        episodes: how many there are of each clock.
        total_frames: of each.
        rate_hz: of the grid.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        batch_size: frames of a batch.
        in_a_row: samples that a contender makes in its turn.
        rounds: timed, of numbers alone.
        image_rounds: timed, with pictures.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        seed: of the episodes and of the frames asked for.
    """

    episodes: int = 8
    total_frames: int = 400
    rate_hz: float = 25.0
    horizon: int = 30
    proprio_history: int = 4
    batch_size: int = 64
    in_a_row: int = 10
    rounds: int = 96
    image_rounds: int = 32
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Case:
    """One form of samples.

    Attributes:
        name: of the case.
        norm_mode: whether cameras are left out.
        rounds: timed.
        size: indices of a question.
        answer: from a dataset and indices to samples or a batch.
        shared_by: by how many the times are divided.
    """

    name: str
    norm_mode: bool
    rounds: int
    size: int
    answer: Callable[[MultiDataset, Indices], Any]
    shared_by: int


@dataclass(frozen=True, slots=True)
class _Episode:
    """One episode, and what is true of it."""

    recording: Recording
    truth: Truth


@dataclass(frozen=True, slots=True)
class _Way:
    """Windows of one kind on episodes of one clock.

    Attributes:
        name: of the contender.
        folder: of the episodes.
        episodes: in the order of their names.
        windows: the builder's options for them.
    """

    name: str
    folder: Path
    episodes: Sequence[_Episode]
    windows: Mapping[str, Any]

    def keymap(self, norm_mode: bool) -> KeyMap:
        """Return the keymap; `norm_mode` leaves the camera out."""
        made = human_keymap("keypoints", masks=True, norm_mode=norm_mode, **self.windows)
        if self.windows.get("interpolation") != "linear":
            return made
        # Whole keymaps have poses turn all the same.
        return KeyMap(
            {
                key: dataclasses.replace(spec, interpolation="linear")
                if spec.interpolation == "slerp"
                else spec
                for key, spec in made.items()
            }
        )

    def check(self, keymap: KeyMap, indices: Indices, batch: DictBatch) -> None:
        """Check the samples of some indices.

        Raises:
            WrongAnswerError: one is wrong.
        """
        numbers, frames = np.divmod(indices, self.episodes[0].recording.total_frames)
        self._compare("frame_index", batch, frames)
        masked = [key for key, spec in keymap.items() if spec.emits_mask]
        for number in np.unique(numbers):
            (its,) = np.nonzero(numbers == number)
            for key in masked:
                wanted = self.episodes[number].truth.window(keymap[key], frames[its])
                self._compare(key, batch, wanted.values, its)
                self._compare(f"{key}_is_pad", batch, wanted.is_pad, its)
        if _IMAGE in keymap:
            jpeg = self.episodes[numbers[-1]].recording.jpeg(CAMERA, int(frames[-1]))
            picture = simplejpeg.decode_jpeg(jpeg).transpose(2, 0, 1)
            self._compare(_IMAGE, batch, picture[None], np.array([-1]))

    def _compare(
        self,
        key: str,
        batch: DictBatch,
        wanted: npt.NDArray[Any],
        its: npt.NDArray[np.int64] | slice = slice(None),
    ) -> None:
        found = batch[key].numpy()[its]
        if found.shape != wanted.shape or not np.allclose(found, wanted, rtol=0, atol=_TOLERANCE):
            raise WrongAnswerError(f"{self.name!r} holds something else in {key!r}")

    def count(self, frames: Indices) -> dict[str, dict[str, int]]:
        """Return what each array of the first episode costs at some frames, without cameras.

        Raises:
            WrongAnswerError: a count is another one than the rows ask for.
        """
        keymap, (first, *_) = self.keymap(norm_mode=True), self.episodes
        dataset = ZarrDataset(first.recording.path, keymap, cache_bytes=0)
        dataset.__getitems__(frames)  # the first one reads what is kept from then on
        dataset.episode.counts.reset()
        dataset.__getitems__(frames)
        counts = {key: dataclasses.asdict(one) for key, one in dataset.episode.counts.items()}
        wanted = {key: one._asdict() for key, one in first.truth.costs(keymap, frames).items()}
        found = {key: {name: one[name] for name in wanted[key]} for key, one in counts.items()}
        if found != wanted:
            raise WrongAnswerError(f"{self.name!r} costs {found}, where {wanted} is asked for")
        return {key: counts[key] for key in sorted(counts)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds timed per case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        rounds = options.rounds
        settings = dataclasses.replace(settings, rounds=rounds, image_rounds=rounds)
    return measure_grid(settings)


def measure_grid(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, count and time every case.

    Raises:
        WrongAnswerError: an answer or a count is wrong.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(_LIBRARIES)
    with tempfile.TemporaryDirectory() as name:
        ways = list(_ways(Path(name), settings))
        counts = _count(ways, settings)
        figures = [row for case in _cases(settings) for row in _time(case, ways, settings)]
    chosen = dataclasses.asdict(settings)
    return Result("grid", _QUESTION, machine, chosen, (), tuple(counts), tuple(figures))


def _ways(root: Path, settings: Settings) -> Iterator[_Way]:
    """Write the episodes; yield the contenders, the first of which counts frames evenly."""
    rate = settings.rate_hz
    counted = {"horizon": settings.horizon, "proprio_history": settings.proprio_history}
    grid = {
        "rate_hz": rate,
        "horizon_s": settings.horizon / rate,
        "proprio_history_s": settings.proprio_history / rate,
    }
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    for clock, (prefix, off_s) in _CLOCKS.items():
        folder = root / clock
        episodes = [
            _write(folder / f"episode_{number:03d}.zarr", number, jpegs, off_s, settings)
            for number in range(settings.episodes)
        ]
        yield _Way(prefix + _FRAMES, folder, episodes, counted)
        for between in _GRIDS:
            yield _Way(prefix + between, folder, episodes, {**grid, "interpolation": between})


def _write(
    path: Path, number: int, jpegs: Sequence[bytes], off_s: float, settings: Settings
) -> _Episode:
    """Write an episode whose frames are up to some seconds off; without any, it tells no times."""
    total, at = settings.total_frames, number % len(jpegs)
    rng = np.random.default_rng((settings.seed, number))
    recording = Recording(path, total, {CAMERA: [*jpegs[at:], *jpegs[:at]]})
    numeric: dict[str, npt.NDArray[Any]] = {
        key: draw_poses(total, rng) if width == 7 else draw_walk(total, width, rng)
        for key, width in ARRAYS.items()
    }
    if off_s:
        numeric["timestamp"] = np.arange(total) / _FPS + rng.uniform(-off_s, off_s, total)
    EpisodeWriter.write(
        path,
        numeric=numeric,
        images={CAMERA: [recording.jpeg(CAMERA, t) for t in range(total)]},
        fps=_FPS,
        embodiment="human",
    )
    os.sync()  # so that the disk is not busy with it while something is timed
    return _Episode(recording, Truth(path, _FPS))


def _cases(settings: Settings) -> Iterator[_Case]:
    row, batch = settings.in_a_row, settings.batch_size
    for what, norm_mode, rounds in (
        ("numbers", True, settings.rounds),
        ("numbers and a picture", False, settings.image_rounds),
    ):
        yield _Case(f"a sample of {what}", norm_mode, rounds, row, _one_by_one, row)
        yield _Case(f"a batch of {batch}, {what}", norm_mode, rounds, batch, _together, 1)


def _one_by_one(dataset: MultiDataset, indices: Indices) -> list[DictBatch]:
    return [dataset[index] for index in indices]


def _together(dataset: MultiDataset, indices: Indices) -> DictBatch:
    return collate(dataset.__getitems__(indices))


def _time(case: _Case, ways: Sequence[_Way], settings: Settings) -> list[FigureRow]:
    keymaps = [way.keymap(case.norm_mode) for way in ways]
    contenders = [
        Contender(
            way.name,
            functools.partial(case.answer, MultiDataset.from_folder(way.folder, keymap)),
        )
        for way, keymap in zip(ways, keymaps, strict=True)
    ]

    def check(_: object, question: Indices, answers: Sequence[Any]) -> None:
        for way, keymap, answer in zip(ways, keymaps, answers, strict=True):
            way.check(keymap, question, answer if isinstance(answer, dict) else collate(answer))

    total = settings.episodes * settings.total_frames
    rng = np.random.default_rng(settings.seed)
    questions = rng.integers(total, size=(case.rounds, case.size)).tolist()
    ends = [0, total - 1, *range(0, total, settings.total_frames // 8)]
    timings = measure(contenders, questions, check, rehearsal=[ends])
    return time_rows(case.name, _CACHE, timings.shared_by(case.shared_by))


def _count(ways: Sequence[_Way], settings: Settings) -> list[CountRow]:
    total = settings.total_frames
    rng = np.random.default_rng(settings.seed)
    asked = {
        "the frame in the middle": [total // 2],
        f"{settings.batch_size} frames of one episode": rng.integers(
            total, size=settings.batch_size
        ).tolist(),
    }
    rows = []
    for case, frames in asked.items():
        for way in ways:
            arrays = way.count(frames)
            columns = next(iter(arrays.values()))
            total_of = {name: sum(one[name] for one in arrays.values()) for name in columns}
            rows.append(CountRow(case, way.name, total_of, arrays))
    return rows
