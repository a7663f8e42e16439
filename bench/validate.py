"""What does looking at every frame take, beside decoding them?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import shutil
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import zarr

from bench.machine import describe_machine
from bench.pairing import Contender, Timings, WrongAnswerError, measure
from bench.recordings import ARRAYS, CAMERA, Recording, make_jpegs
from bench.result import CountRow, Result, Target, time_rows
from egoloader import EpisodeWriter
from egoloader.validate import Depth, validate_paths

__all__ = ["Settings", "add_options", "measure_validate", "run"]

_QUESTION = """What does looking at every frame take, beside decoding them?

`egoloader validate` looks at a folder of good episodes: one camera, and five arrays of numbers.

- *decoding* is `simplejpeg.decode_jpeg` with its default flags on the same JPEGs, which lie in
  memory, into one buffer that is used again.
- *a plain script* opens every episode with zarr-python, reads its numbers and its JPEGs, and
  decodes these likewise. It checks nothing else.
- *validate* is a whole run, its level full unless named: of one episode a round in one process, of
  all of them in two. With two processes their start is in it, once a run: it is nearly all that
  *metadata, 2 processes* takes.

Every run must find nothing. Before the timing, one JPEG of a copy is cut short and one number made
NaN, and validate must find these two at their frames, and nothing else."""
_LIBRARIES = ("egoloader", "zarr", "numcodecs", "numpy", "simplejpeg")
_DECODING, _SCRIPT = "decoding", "a plain script"
_ONE, _TWO = "validate, 1 process", "validate, 2 processes"
_SAMPLED, _METADATA = "sampled, 1 process", "metadata, 1 process"
_START = "metadata, 2 processes"
_CACHE = "page cache warm"
_BOUND = 1.5

#: What a look finds: (check, key, first frame, one past the last).
Found = set[tuple[str, str | None, int | None, int | None]]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        episodes: how many there are.
        total_frames: of each.
        rounds: times that one of them is looked at, in one process.
        whole_rounds: times that all of them are, in two.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        seed: of the episodes and of the faults.
    """

    episodes: int = 6
    total_frames: int = 300
    rounds: int = 60
    whole_rounds: int = 8
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    seed: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="episodes looked at")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_validate(settings)


def measure_validate(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and time looks at them.

    Raises:
        WrongAnswerError: validate finds something in good episodes, or not the seeded faults.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(_LIBRARIES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "good"
        recordings = _write(folder, settings)
        for workers in (1, 2):
            _check_faults(recordings, Path(name) / f"bad_{workers}", workers, settings.seed)
        each = _time_each(recordings, settings).shared_by(settings.total_frames)
        frames = settings.episodes * settings.total_frames
        whole = _time_whole(folder, recordings, settings).shared_by(frames)
    case = f"a frame of {settings.size[0]} x {settings.size[1]} pixels and its numbers, of"
    counts = {"episodes": settings.episodes, "frames": frames, "JPEGs decoded": frames}
    return Result(
        name="validate",
        question=_QUESTION,
        machine=machine,
        settings=dataclasses.asdict(settings),
        targets=(Target(f"{_ONE} ÷ {_DECODING}", each.ratio(_ONE), "at most", _BOUND),),
        counts=(CountRow("all episodes", _ONE, counts, {}),),
        figures=(
            *time_rows(f"{case} one episode", _CACHE, each),
            *time_rows(f"{case} {settings.episodes} episodes", _CACHE, whole),
        ),
    )


def _write(folder: Path, settings: Settings) -> list[Recording]:
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    return [
        _write_episode(folder / f"episode_{number:03d}.zarr", settings, jpegs, number)
        for number in range(settings.episodes)
    ]


def _write_episode(
    path: Path, settings: Settings, jpegs: Sequence[bytes], number: int
) -> Recording:
    """Write an episode of numbers in which there is nothing to find."""
    rng = np.random.default_rng((settings.seed, number))
    total, at = settings.total_frames, number % len(jpegs)
    recording = Recording(path, total, {CAMERA: [*jpegs[at:], *jpegs[:at]]})
    EpisodeWriter.write(
        path,
        numeric={
            key: _poses(total, rng) if width == 7 else _walk(total, width, rng)
            for key, width in ARRAYS.items()
        },
        images={CAMERA: [recording.jpeg(CAMERA, t) for t in range(total)]},
        fps=30,
        embodiment="human",
    )
    return recording


def _walk(total: int, width: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return np.cumsum(rng.normal(0, 0.01, size=(total, width)), axis=0).astype(np.float32)


def _poses(total: int, rng: np.random.Generator) -> npt.NDArray[np.float32]:
    """Return (total, 7): xyz in metres, and unit wxyz quaternions that turn about one axis."""
    half = _walk(total, 1, rng)
    axis = np.array([1, 2, 2]) / 3
    turns = np.concatenate([np.cos(half), np.sin(half) * axis], axis=1)
    return np.concatenate([_walk(total, 3, rng), turns], axis=1).astype(np.float32)


def _time_each(recordings: Sequence[Recording], settings: Settings) -> Timings:
    """Time looks at one episode after the other, over and over."""
    buffer = np.empty((*settings.size, 3), dtype=np.uint8)
    contenders: list[Contender[Recording, Found]] = [
        Contender(_DECODING, lambda recording: _decode([recording], buffer)),
        Contender(_SCRIPT, lambda recording: _read_and_decode(recording, buffer)),
        Contender(_ONE, lambda recording: _look(recording.path)),
        Contender(_SAMPLED, lambda recording: _look(recording.path, depth="sampled")),
        Contender(_METADATA, lambda recording: _look(recording.path, depth="metadata")),
    ]
    questions = [recordings[number % len(recordings)] for number in range(settings.rounds)]
    return measure(contenders, questions, _check_answers, rehearsal=recordings)


def _time_whole(folder: Path, recordings: Sequence[Recording], settings: Settings) -> Timings:
    """Time looks at all episodes in two processes."""
    buffer = np.empty((*settings.size, 3), dtype=np.uint8)
    contenders: list[Contender[Path, Found]] = [
        Contender(_DECODING, lambda _: _decode(recordings, buffer)),
        Contender(_TWO, functools.partial(_look, workers=2)),
        Contender(_START, functools.partial(_look, workers=2, depth="metadata")),
    ]
    return measure(contenders, [folder] * settings.whole_rounds, _check_answers, rehearsal=[folder])


def _decode(recordings: Sequence[Recording], buffer: npt.NDArray[np.uint8]) -> Found:
    for recording in recordings:
        for t in range(recording.total_frames):
            simplejpeg.decode_jpeg(recording.jpeg(CAMERA, t), buffer=buffer)
    return set()


def _read_and_decode(recording: Recording, buffer: npt.NDArray[np.uint8]) -> Found:
    arrays: Mapping[str, Any] = dict(_open(recording.path).arrays())
    for key in ARRAYS:
        arrays[key][:]
    for jpeg in arrays[CAMERA][: recording.total_frames]:
        simplejpeg.decode_jpeg(jpeg, buffer=buffer)
    return set()


def _look(path: Path, workers: int = 1, depth: Depth = "full") -> Found:
    findings = validate_paths([path], depth=depth, workers=workers).findings
    return {(one.check, one.key, one.start, one.end) for one in findings}


def _open(path: Path, mode: Any = "r") -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of bytes are not in the v3 specification yet
        return zarr.open_group(path, mode=mode, use_consolidated=False)


def _check_answers(
    contenders: Sequence[Contender[Any, Found]], _: object, answers: Sequence[Found]
) -> None:
    for contender, answer in zip(contenders, answers, strict=True):
        if answer:
            raise WrongAnswerError(f"{contender.name!r} finds {answer} in good episodes")


def _check_faults(recordings: Sequence[Recording], folder: Path, workers: int, seed: int) -> None:
    """Seed faults in copies of two episodes, and see that exactly they are found.

    Raises:
        WrongAnswerError: they are not.
    """
    rng = np.random.default_rng(seed)
    first, last = recordings[0], recordings[-1]
    frame, row = (int(rng.integers(one.total_frames)) for one in (last, first))
    key = sorted(ARRAYS)[0]
    for recording in (first, last):
        shutil.copytree(recording.path, folder / recording.path.name)
    jpeg = last.jpeg(CAMERA, frame)
    _open(folder / last.path.name, "r+")[CAMERA][frame : frame + 1] = np.array(
        [jpeg[: len(jpeg) // 2]], dtype=object
    )
    _open(folder / first.path.name, "r+")[key][row, 0] = np.nan
    found = _look(folder, workers)
    wanted = {("camera frame", CAMERA, frame, frame + 1), ("not finite", key, row, row + 1)}
    if found != wanted:
        raise WrongAnswerError(f"validate finds {found} where {wanted} was seeded")
