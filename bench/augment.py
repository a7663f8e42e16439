"""What does augmenting a batch take, beside doing it image by image?"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from bench.machine import describe_machine
from bench.pairing import Contender, Timings, WrongAnswerError, measure
from bench.result import FigureRow, Result, Target, time_rows
from bench.singly import CAMERA, kornia_operation, kornia_parameters
from egoloader import augment

__all__ = ["Settings", "add_options", "measure_augment", "run"]

_QUESTION = """What does augmenting a batch take, beside doing it image by image?

A batch of float32 images on the CPU, each changed with draws of its own.

- *egoloader* is `ImageAugment` with one step, the draws from `sample_seed` included.
- *kornia at batch 1* is kornia's operation of the same settings, one image after the other, with
  draws of its own: `ColorJitter`, `RandomAffine`, `RandomResizedCrop`. No gradient is recorded.
- *the same draws* is handed egoloader's draws, made beforehand, and draws nothing.
- *kornia batched* is one call of kornia's operation; its colours have one order a batch.

What egoloader answers is compared with *the same draws*; of the others, that it is as many images
with numbers of 0 to 1, and changed."""
_LIBRARIES = ("egoloader", "kornia", "torch")
_OURS, _SINGLY = "egoloader", "kornia at batch 1"
_SAME, _BATCHED = "the same draws", "kornia batched"
_CACHE = "none"
#: Twice what 32 bits leave of a place among 224 pixels, on images that differ from pixel to pixel.
_TOLERANCE = 2e-4

_COLOURS = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4}
#: Per case, the step, and how many times as long kornia at batch 1 is to take, where that is set.
_CASES: dict[str, tuple[Any, float | None]] = {
    "colour jitter": (augment.ColorJitter(**_COLOURS, hue=0.1), 1.2),
    "colour jitter without hue": (augment.ColorJitter(**_COLOURS), 1.8),
    "rotation, shift and scale": (
        augment.Affine(degrees=15, translate=0.1, scale=[0.9, 1.1]),  # type: ignore[arg-type]
        3.0,
    ),
    "resized crop": (augment.ResizedCrop(scale=[0.3, 1.0]), None),  # type: ignore[arg-type]
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        batch_size: images of a batch.
        size: (height, width) of the images in pixels.
        rounds: batches of each case.
        seed: of the images and of the draws.
    """

    batch_size: int = 64
    size: tuple[int, int] = (224, 224)
    rounds: int = 15
    seed: int = 0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="batches of each case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        settings = dataclasses.replace(settings, rounds=options.rounds)
    return measure_augment(settings)


def measure_augment(settings: Settings) -> Result:
    """Time every case.

    Raises:
        WrongAnswerError: an answer is wrong.
    """
    machine = describe_machine(_LIBRARIES)
    generator = torch.Generator().manual_seed(settings.seed)
    images = torch.rand(settings.batch_size, 3, *settings.size, generator=generator)
    targets: list[Target] = []
    figures: list[FigureRow] = []
    for case, (step, bound) in _CASES.items():
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            timings = _time(step, images, settings)
        figures += time_rows(case, _CACHE, timings)
        if bound is not None:
            what = f"{case}: {_SINGLY} ÷ {_OURS}"
            targets.append(Target(what, timings.ratio(_SINGLY), "at least", bound))
    chosen = {**dataclasses.asdict(settings), "threads": torch.get_num_threads()}
    return Result("augment", _QUESTION, machine, chosen, tuple(targets), (), tuple(figures))


def _time(step: Any, images: torch.Tensor, settings: Settings) -> Timings:
    ours, kornia = augment.ImageAugment([step]), kornia_operation(step, settings.size)
    questions = list(range(settings.rounds + 1))
    generator = torch.Generator().manual_seed(settings.seed)
    seeds = torch.randint(0, 2**63 - 1, (len(questions), len(images)), generator=generator)
    handed = [kornia_parameters(step, row, settings.size) for row in seeds]

    def singly(_: int) -> torch.Tensor:
        return torch.cat([kornia(image) for image in images.split(1)])

    def with_same_draws(question: int) -> torch.Tensor:
        pairs = zip(images.split(1), handed[question], strict=True)
        return torch.cat([kornia(image, params=dict(one)) for image, one in pairs])

    def check(contenders: Sequence[Any], question: int, answers: Sequence[torch.Tensor]) -> None:
        _check([one.name for one in contenders], images, question, answers)

    contenders = [
        Contender(_OURS, lambda question: ours({CAMERA: images}, seeds[question])[CAMERA]),
        Contender(_SINGLY, singly),
        Contender(_SAME, with_same_draws),
        Contender(_BATCHED, lambda _: kornia(images)),
    ]
    return measure(contenders, questions[1:], check, rehearsal=questions[:1])


def _check(
    names: Sequence[str], images: torch.Tensor, question: int, answers: Sequence[torch.Tensor]
) -> None:
    for name, made in zip(names, answers, strict=True):
        is_image = made.shape == images.shape and 0 <= made.min() <= made.max() <= 1
        if not is_image or torch.equal(made, images):
            raise WrongAnswerError(f"{name!r} answers question {question!r} with no changed images")
    given = dict(zip(names, answers, strict=True))
    error = float((given[_OURS] - given[_SAME]).abs().max())
    if error > _TOLERANCE:
        raise WrongAnswerError(
            f"{_OURS!r} answers question {question!r} otherwise than kornia, by {error:.2g}"
        )
