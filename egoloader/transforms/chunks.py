"""The steps of a chunk."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from egoloader.batch import Sample
from egoloader.errors import check_whole
from egoloader.row import QUATERNIONS, Parts, check_parts, row_of
from egoloader.transforms.numbers import FloatArray, NumbersTransform
from egoloader.transforms.rotations import encode, slerp, with_sign_of
from egoloader.transforms.transform import KeysTransform, Shape, step_masks

__all__ = ["Resample", "Stride"]


class _Between:
    """Where the steps of a chunk of n lie among those of another, which has as many ends.

    Attributes:
        left: (m,) the step at or before each.
        right: (m,) the one behind it, at most the last.
        weights: (m,) of the right one, 0 to below 1; 0 exactly where a step is met.
    """

    def __init__(self, given: int, wanted: int) -> None:
        gaps = max(wanted - 1, 1)
        reached = np.arange(wanted) * (given - 1)
        self.left: npt.NDArray[np.int64] = reached // gaps
        self.right = np.minimum(self.left + 1, given - 1)
        self.weights: FloatArray = reached % gaps / gaps


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepsTransform(KeysTransform):
    """Changes which steps chunks, (…, n, D), and their masks, (…, n), have."""

    @abc.abstractmethod
    def _count(self, given: int) -> int:
        """Return how many steps a chunk of so many becomes."""

    @abc.abstractmethod
    def _masked(self, mask: torch.Tensor) -> torch.Tensor:
        """Return which steps are masked, of a mask in new memory."""

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key, axes=2)
        if any(given.get(mask, shape[:-1]) != shape[:-1] for mask in step_masks(key)):
            self._refuse(f"key {key!r}, {list(shape)}, must be (n, D), and its mask says otherwise")
        count = self._count(shape[-2])
        if not count:
            self._refuse(f"key {key!r} has {shape[-2]} steps, and none is left")
        return (*shape[:-2], count, shape[-1])

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = KeysTransform._shapes(self, given)
        for key in self.keys:
            kept = self._shape(given, key)[:-1]
            shapes |= {mask: kept for mask in step_masks(key) if mask in given}
        return shapes

    def _apply(self, sample: Sample) -> Sample:
        made = KeysTransform._apply(self, sample)
        for mask in (mask for key in self.keys for mask in step_masks(key)):
            if mask in sample:
                made[mask] = self._masked(sample[mask])
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Resample(_StepsTransform, NumbersTransform):
    """Gives chunks another number of steps, evenly from their first to their last.

    Step j of m lies at j (n - 1) / (m - 1) of the n that there are (one step is the first).
    Numbers between two steps are interpolated linearly, rotations on the shorter way (slerp), with
    a quaternion's sign that of the step before. A step that is met is taken as it is. A step is
    padded, or in another span, where one that it is made of is.

        _target_: egoloader.transforms.Resample
        keys: [action]
        steps: 16
        row: [xyz, quaternion_wxyz, 1]

    Args:
        keys: of the sample; chunks (…, n, D), of floating point numbers, become (…, m, D).
        steps: m.
        row: the parts of a row, where some are rotations; else all is interpolated linearly.
    """

    steps: int
    row: Parts | None = None
    _loses = "steps that are not met are lost"

    def _check(self) -> None:
        check_whole(f"{type(self).__name__}: steps", self.steps, 1)
        if self.row is not None:
            self._set("row", check_parts(f"{type(self).__name__}: row", self.row))

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = _StepsTransform._shape(self, given, key)
        if self.row is not None:
            self._check_width(key, shape, row_of(self.row))
        return shape

    def _count(self, given: int) -> int:
        return len(_Between(given, self.steps).left)

    def _masked(self, mask: torch.Tensor) -> torch.Tensor:
        between = _Between(mask.shape[-1], self.steps)
        known = mask.cpu().numpy()
        is_mixed = known[..., between.right] & (between.weights > 0)
        return torch.from_numpy(known[..., between.left] | is_mixed).to(mask.device)

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        between = _Between(numbers.shape[-2], self.steps)
        left, right = numbers[..., between.left, :], numbers[..., between.right, :]
        weights = between.weights[:, None]
        with np.errstate(invalid="ignore"):
            changed = left * (1 - weights) + right * weights
        for part in row_of(self.row).parts if self.row is not None else ():
            if part.is_rotation:
                padded = self._padded(sample, key, numbers.shape[:-1])
                known = self._rotations(key, numbers, part, padded)
                ends = known[..., between.left, :], known[..., between.right, :]
                found = encode(slerp(*ends, between.weights), part.kind)
                if part.kind in QUATERNIONS:
                    found = with_sign_of(found, left[..., part.place])
                changed[..., part.place] = found
        return np.where(weights == 0, left, changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stride(_StepsTransform):
    """Takes every so many-th step of chunks, and of their masks; values of any dtype.

    Args:
        keys: of the sample; chunks (…, n, D).
        every: 1 or more steps; every: 2 takes the steps 0, 2, 4, ….
        start: the first step that is taken.
    """

    every: int
    start: int = 0
    _loses = "the steps that are left out are lost"

    def _check(self) -> None:
        check_whole(f"{type(self).__name__}: every", self.every, 1)
        check_whole(f"{type(self).__name__}: start", self.start, 0)

    def _count(self, given: int) -> int:
        return len(range(self.start, given, self.every))

    def _masked(self, mask: torch.Tensor) -> torch.Tensor:
        return mask[..., self.start :: self.every].clone(memory_format=torch.contiguous_format)

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value: torch.Tensor = sample[key]
        return value[..., self.start :: self.every, :].clone(memory_format=torch.contiguous_format)
