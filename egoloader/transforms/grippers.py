"""How open a gripper is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from egoloader.batch import Sample
from egoloader.transforms.dimensions import check_dimensions
from egoloader.transforms.numbers import FloatArray, NumbersTransform
from egoloader.transforms.transform import Shape

__all__ = ["InvertGripper"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InvertGripper(NumbersTransform):
    """Turns open into closed: x becomes low + high - x, so that `low` and `high` change places.

    Where 1 is open for one embodiment and closed for another, both mean the same behind it. It is
    its own inverse. Numbers outside the range stay as far outside.

        _target_: egoloader.transforms.InvertGripper
        keys: [left.obs_gripper, left.cmd_gripper]
        low: 0.0
        high: 1.0

    Args:
        keys: of the sample; rows (…, D), in the unit of the range; without `dimensions`, rows of
            any shape, a number each among them.
        low: one end of the range.
        high: the other, above it.
        dimensions: places of the grippers in a row; without them, all of it.
    """

    low: float
    high: float
    dimensions: tuple[int, ...] | None = None

    def _check(self) -> None:
        for name in ("low", "high"):
            end = getattr(self, name)
            if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
                self._refuse(f"{name} must be a finite number, got {end!r}")
        if not self.low < self.high:
            self._refuse(f"low, {self.low}, must be below high, {self.high}")
        if self.dimensions is not None:
            self._set("dimensions", check_dimensions(type(self).__name__, self.dimensions))

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def inverse(self) -> InvertGripper:
        """Return the same."""
        return self

    def _takes(self, _key: str, axes: int) -> bool:
        return axes >= 1 or self.dimensions is None

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key, axes=0 if self.dimensions is None else 1)
        if self.dimensions is not None:
            self._check_reach(key, shape, self.dimensions)
        return shape

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        if self.dimensions is None:
            return np.asarray(self.low + self.high - numbers)
        changed, places = numbers.copy(), list(self.dimensions)
        changed[..., places] = self.low + self.high - numbers[..., places]
        return changed
