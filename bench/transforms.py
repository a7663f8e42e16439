"""What does calling transforms once a batch save?"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.machine import describe_machine
from bench.pairing import Contender, Timings, WrongAnswerError, measure
from bench.recordings import draw_poses
from bench.result import Result, time_rows
from egoloader import EpisodeWriter, MultiDataset, collate, human_keymap
from egoloader.transforms import IntoFrame, PoseRotation, RelativeActions

__all__ = ["Settings", "add_options", "measure_transforms", "run"]

_QUESTION = """What does calling transforms once a batch save?

A round is one batch of random frames of all episodes, from indices to a dict of tensors, with the
numbers of the cartesian keymap of a person (horizon 30, history 4, masks) and no camera: those are
left alone by transforms. The transforms move both hands' states and actions into the head's frame,
take the state off the actions, and write all rotations as six numbers.

- *once a batch* gives the dataset these transforms.
- *once a sample* gives it the same ones as plain functions, which it calls sample by sample.
- *none* is the dataset without any.

The batches of the first two must be the same to the last bit."""
_LIBRARIES = ("egoloader", "numpy", "scipy", "torch")
_BATCH, _SAMPLE, _NONE = "once a batch", "once a sample", "none"
_STATES = ("left.obs_ee_pose", "right.obs_ee_pose")
_ACTIONS = ("left.action_ee_pose", "right.action_ee_pose")
_HEAD = "obs_head_pose"

DictBatch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        episodes: how many there are.
        total_frames: of each.
        batch_size: frames of a batch.
        rounds: batches that are timed.
        seed: of the episodes and of the frames.
    """

    episodes: int = 8
    total_frames: int = 600
    batch_size: int = 32
    rounds: int = 60
    seed: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="batches timed")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_transforms(settings)


def measure_transforms(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and time batches of them.

    Raises:
        WrongAnswerError: the two ways to call transforms differ.
    """
    machine = describe_machine(_LIBRARIES)
    with tempfile.TemporaryDirectory() as name:
        rng = np.random.default_rng(settings.seed)
        for number in range(settings.episodes):
            _write(Path(name) / f"episode_{number:03d}.zarr", settings.total_frames, rng)
        timings = _time(Path(name), settings, rng)
    return Result(
        name="transforms",
        question=_QUESTION,
        machine=machine,
        settings=dataclasses.asdict(settings),
        targets=(),
        counts=(),
        figures=tuple(time_rows(f"a batch of {settings.batch_size}", "page cache warm", timings)),
    )


def _write(path: Path, total: int, rng: np.random.Generator) -> None:
    EpisodeWriter.write(
        path,
        numeric={key: draw_poses(total, rng) for key in (*_STATES, _HEAD)},
        images={},
        fps=30,
        embodiment="human",
    )


def _time(folder: Path, settings: Settings, rng: np.random.Generator) -> Timings:
    hands = [*_STATES, *_ACTIONS]
    steps: list[Callable[[DictBatch], DictBatch]] = [
        IntoFrame(keys=hands, reference=_HEAD),
        *(
            RelativeActions(keys=[action], reference=state, step=-1)
            for action, state in zip(_ACTIONS, _STATES, strict=True)
        ),
        PoseRotation(keys=hands, target=["xyz", "rotation_6d"]),
    ]
    contenders = [
        _contender(_BATCH, folder, steps),
        _contender(_SAMPLE, folder, [functools.partial(_call, step) for step in steps]),
        _contender(_NONE, folder, []),
    ]
    total = settings.episodes * settings.total_frames
    questions = rng.integers(total, size=(settings.rounds + 1, settings.batch_size)).tolist()
    return measure(contenders, questions[1:], _check, rehearsal=questions[:1])


def _contender(
    name: str, folder: Path, steps: Sequence[Callable[[DictBatch], DictBatch]]
) -> Contender[list[int], DictBatch]:
    keymap = human_keymap("cartesian", proprio_history=4, masks=True, norm_mode=True)
    data = MultiDataset.from_folder(folder, keymap, transforms=steps)
    return Contender(name, lambda indices: collate(data.__getitems__(indices)))


def _call(step: Callable[[DictBatch], DictBatch], sample: DictBatch) -> DictBatch:
    return step(sample)


def _check(
    contenders: Sequence[Contender[Any, DictBatch]], question: object, answers: Sequence[DictBatch]
) -> None:
    """Check that both ways give the same, and that all are of the frames asked for."""
    batch, sample, none = answers
    for key in none:
        if not _same(batch[key], sample[key]):
            raise WrongAnswerError(f"{key!r} of {question} differs by the way it is transformed")
    if not _same(batch["frame_index"], none["frame_index"]):
        raise WrongAnswerError(f"{contenders[2].name!r} has other frames than {question}")
    if list(batch) != list(sample) or _same(batch[_ACTIONS[0]], none[_ACTIONS[0]]):
        raise WrongAnswerError(f"transforms leave {question} as it is, or change its keys")


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.shape == right.shape and left.numpy().tobytes() == right.numpy().tobytes()
    return bool(left == right)
