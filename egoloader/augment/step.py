"""What a step of augmentation is, and what is checked of its options."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn, TypeGuard

import torch

from egoloader.errors import SettingsError

__all__ = ["FrameStep", "Range", "Step", "between", "is_number", "is_pair"]

#: The least and the largest of what is drawn; as an option, one number may stand for both.
Range = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(abc.ABC):
    """A random change of images, drawn for each sample.

    Args:
        p: the probability that a sample is changed, in [0, 1]; the others stay as they are.

    Raises:
        SettingsError: an option outside its range.
    """

    p: float = 1.0
    #: Random numbers that a sample needs, whatever the options.
    num_draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if not is_number(self.p) or not 0 <= self.p <= 1:
            self._refuse(f"p must be a probability, in [0, 1], got {self.p!r}")
        self._check()

    @abc.abstractmethod
    def _check(self) -> None:
        """Refuse options that can't be meant, and make ranges of numbers."""

    def _refuse(self, message: str) -> NoReturn:
        raise SettingsError(f"{type(self).__name__}: {message}")

    def _number(self, name: str, least: float, most: float) -> None:
        """Check that an option is a number of [least, most]."""
        value = getattr(self, name)
        if not is_number(value) or not least <= value <= most:
            self._refuse(f"{name} must be a number from {least:g} to {most:g}, got {value!r}")

    def _pair(self, name: str, least: float, most: float) -> None:
        """Check that an option is two ascending numbers of [least, most], and make a tuple of it.

        The least is left out where it is 0: of sizes, nothing would be left.
        """
        value = getattr(self, name)
        if not is_pair(value):
            self._refuse(f"{name} must be two numbers, [least, most], got {value!r}")
        low, high = value
        if not (least <= low <= high <= most) or (least == 0 and low == 0):
            span = f"above 0 and at most {most:g}" if least == 0 else f"from {least:g} to {most:g}"
            self._refuse(f"{name} must ascend, {span}, got {value!r}")
        object.__setattr__(self, name, (float(low), float(high)))

    def _range(self, name: str, centre: float, least: float, most: float) -> None:
        """Make a range of an option: a number n is [centre - n, centre + n], cut at least and most.

        As kornia's and torchvision's jitters take them: the cut is at the lower end alone, at the
        upper one n is refused.
        """
        value = getattr(self, name)
        if is_number(value):
            if value < 0 or centre + value > most:
                span = "from 0 on" if math.isinf(most) else f"from 0 to {most - centre:g}"
                self._refuse(f"{name} must be a number {span}, or [least, most], got {value!r}")
            object.__setattr__(self, name, (max(least, centre - value), centre + float(value)))
            return
        if not is_pair(value):
            self._refuse(f"{name} must be a number, or two, [least, most], got {value!r}")
        low, high = value
        if not least <= low <= high <= most:
            self._refuse(f"{name} must ascend, within [{least:g}, {most:g}], got {value!r}")
        object.__setattr__(self, name, (float(low), float(high)))


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameStep(Step):
    """A step that changes the pixels of frames in their places."""

    @abc.abstractmethod
    def apply(self, frames: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return frames changed, each as its own draws say.

        Args:
            frames: (N, 3, H, W) float32 in 0…1, in memory that may be written into.
            draws: (N, num_draws) float32 in [0, 1).

        Returns:
            The same shape, in 0…1; frames that are all zero stay so.
        """


def between(draws: torch.Tensor, span: Range) -> torch.Tensor:
    """Spread numbers of [0, 1) over a range."""
    low, high = span
    return draws * (high - low) + low


def is_number(value: object) -> TypeGuard[float]:
    """Return whether an option is a finite number, and no flag."""
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def is_pair(value: object) -> TypeGuard[Range]:
    """Return whether an option lists two finite numbers."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return False
    return len(value) == 2 and all(map(is_number, value))
