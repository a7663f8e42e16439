"""Does a sample cost more where the episode, or the gap between its frames, is longer?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.answers import Sample, difference_in_a_row, in_a_row
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, WrongAnswerError, measure
from bench.recordings import Recording, make_jpegs, write_recording
from bench.result import FigureRow, Result, Target, time_rows
from bench.zarr_samples import HeldArrays, ZarrSamples, decode, per_key
from egoloader import KeyMap, ZarrDataset, human_keymap

__all__ = ["Settings", "add_options", "measure_lengths", "run"]

_QUESTION = """Does a sample cost more where the episode, or the gap between its frames, is longer?

All contenders are egoloader: episodes of several lengths, or image histories with several gaps. In
a round all are asked for frames at the same shares of the episode, which show the same pictures;
each makes its samples one after the other. They are checked against zarr-python's between the
rounds, outside the times."""
_CACHE = "page cache warm, no decoded chunk kept"
_LIBRARIES = ("zarr", "numcodecs", "numpy", "simplejpeg", "torch")
_FORMS = {"numbers and JPEG bytes": "jpeg", "decoded sample": "uint8"}
_DECODED = "decoded sample"
#: How often the slowest length's time the fastest's may be held, by form; and for the gaps.
_LENGTH_BOUNDS = {"numbers and JPEG bytes": 2.5, "decoded sample": 1.25}
_GAP_BOUND = 1.15


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        total_frames: lengths of the episodes, at least two.
        gaps_s: gaps of the image history in seconds, at least two.
        gap_frames: length of the episode that they are measured on, one of `total_frames`.
        rounds: timed per contender.
        in_a_row: samples that a contender makes in its turn.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episodes and of the frames asked for.
    """

    total_frames: tuple[int, ...] = (300, 3000, 12000, 30000)
    gaps_s: tuple[float, ...] = (0.1, 0.5, 2.0)
    gap_frames: int = 3000
    rounds: int = 40
    in_a_row: int = 10
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.total_frames) < 2 or len(self.gaps_s) < 2:
            raise ValueError(f"at least two lengths and two gaps are compared, got {self}")
        if self.gap_frames not in self.total_frames:
            raise ValueError(f"gaps are measured on one of the lengths, got {self}")


@dataclass(frozen=True, slots=True)
class Place:
    """A frame in an episode of any length.

    Attributes:
        share: of the episode before it, in [0, 1).
        picture: the number of the JPEG that it shows.
    """

    share: float
    picture: int

    def frame(self, recording: Recording) -> int:
        """Return the frame index in an episode."""
        (jpegs,) = recording.jpegs.values()
        repeats = max(1, recording.total_frames // len(jpegs))
        return min(
            int(self.share * repeats) * len(jpegs) + self.picture, recording.total_frames - 1
        )


@dataclass(frozen=True, slots=True)
class Case:
    """What one contender is asked for samples of."""

    recording: Recording
    keymap: KeyMap


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument(
        "--total-frames", type=int, nargs="+", metavar="T", help="lengths of the episodes"
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="rounds timed per contender")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.total_frames is not None:
        lengths = tuple(options.total_frames)
        gap_frames = sorted(lengths)[:2][-1]
        settings = dataclasses.replace(settings, total_frames=lengths, gap_frames=gap_frames)
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_lengths(settings)


def measure_lengths(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and time samples of them.

    Raises:
        WrongAnswerError: a sample differs from zarr-python's.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(_LIBRARIES)
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    keymap = functools.partial(
        human_keymap,
        "keypoints",
        horizon=settings.horizon,
        proprio_history=settings.proprio_history,
    )
    figures: list[FigureRow] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as folder:
        recordings = {
            total: write_recording(Path(folder) / f"{total}.zarr", total, jpegs, settings.seed)
            for total in sorted(settings.total_frames)
        }
        lengths = {f"T = {total:,}": Case(it, keymap()) for total, it in recordings.items()}
        for form, bound in _LENGTH_BOUNDS.items():
            timings = _time(lengths, form, settings)
            figures += time_rows(form, _CACHE, timings)
            targets.append(_target(f"{form}, lengths", timings, bound))
        gaps = {
            f"gap {gap} s": Case(recordings[settings.gap_frames], keymap(image_history_gap_s=gap))
            for gap in settings.gaps_s
        }
        timings = _time(gaps, _DECODED, settings)
        figures += time_rows(f"{_DECODED} with image history", _CACHE, timings)
        targets.append(_target(f"{_DECODED}, gaps of the image history", timings, _GAP_BOUND))
    chosen = dataclasses.asdict(settings)
    return Result("lengths", _QUESTION, machine, chosen, tuple(targets), (), tuple(figures))


def _target(what: str, timings: Timings, bound: float) -> Target:
    figure = timings.slowest_over_fastest()
    return Target(f"{what}: slowest ÷ fastest", figure, "at most", bound)


def _time(cases: Mapping[str, Case], form: str, settings: Settings) -> Timings:
    rng = np.random.default_rng(settings.seed)
    contenders, oracles = [], {}
    for name, case in cases.items():
        path = case.recording.path
        dataset = ZarrDataset(path, case.keymap, image_dtype=_FORMS[form], cache_bytes=0)
        sample = functools.partial(_sample, dataset, case.recording)
        contenders.append(Contender(name, in_a_row(sample)))
        finish = decode if form == _DECODED else bytes
        oracles[name] = ZarrSamples(
            dataset.episode, case.keymap, per_key, HeldArrays(path).fetch, finish
        )
    (jpegs,) = next(iter(cases.values())).recording.jpegs.values()
    shares = rng.random((settings.rounds, settings.in_a_row))
    pictures = rng.integers(len(jpegs), size=shares.shape)
    rounds = [
        [Place(*place) for place in zip(*of_round, strict=True)]
        for of_round in zip(shares.tolist(), pictures.tolist(), strict=True)
    ]

    def check(
        contenders: Sequence[Contender[list[Place], list[Sample]]],
        places: list[Place],
        answers: Sequence[list[Sample]],
    ) -> None:
        for contender, answer in zip(contenders, answers, strict=True):
            case, oracle = cases[contender.name], oracles[contender.name]
            wanted = [oracle.sample(place.frame(case.recording)) for place in places]
            differing = difference_in_a_row(case.keymap, wanted, answer)
            if differing is not None:
                raise WrongAnswerError(f"{contender.name!r}, one of {places}: {differing}")

    ends = [Place(0.0, 0), Place(0.5, 0), Place(1 - 1e-9, len(jpegs) - 1)]
    timings = measure(contenders, rounds, check, rehearsal=[ends])
    return timings.shared_by(settings.in_a_row)


def _sample(dataset: ZarrDataset, recording: Recording, place: Place) -> Sample:
    return dataset[place.frame(recording)]
