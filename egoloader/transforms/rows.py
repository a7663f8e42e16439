"""The axes of rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import torch

from egoloader.batch import Sample
from egoloader.errors import check_whole
from egoloader.transforms.transform import KeysTransform, Shape

__all__ = ["FlattenRows", "UnflattenRows"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shaped(KeysTransform):
    """Rows of a shape, (…, *shape), and the same numbers as (…, D)."""

    shape: tuple[int, ...]

    def _check(self) -> None:
        if isinstance(self.shape, str) or not isinstance(self.shape, Sequence):
            self._refuse(f"shape must list the axes of a row, got {self.shape!r}")
        for length in self.shape:
            check_whole(f"{type(self).__name__}: shape", length, 1)
        if len(self.shape) == 1:
            self._refuse(f"rows of the shape {list(self.shape)} are (D,) already")
        self._set("shape", tuple(self.shape))

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    @property
    def _size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlattenRows(_Shaped):
    """Gives rows of any axes the one that other transforms take: (…, *shape) becomes (…, D).

    A number each, as of a gripper that is stored as (T,), becomes a row of one; 21 points become a
    row of `[21 x xyz]`. The last axis runs fastest.

        _target_: egoloader.transforms.FlattenRows
        keys: [left.obs_keypoints]
        shape: [21, 3]

    Args:
        keys: of the sample; of any dtype.
        shape: of a row; [] of a number.
    """

    def inverse(self) -> UnflattenRows:
        """Return `UnflattenRows`."""
        return UnflattenRows(keys=self.keys, shape=self.shape)

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == len(self.shape)

    def _refuse_rows(self, key: str, row: tuple[int, ...]) -> NoReturn:
        self._refuse(
            f"the rows of key {key!r} are of the shape {list(row)}, and not {list(self.shape)}"
        )

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key, axes=0)
        lead = self._lead(shape)
        if shape[lead:] != self.shape:
            self._refuse(
                f"key {key!r} has the shape {list(shape)}, and no rows of {list(self.shape)}"
            )
        return (*shape[:lead], self._size)

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value: torch.Tensor = sample[key]
        flat = value.reshape((*value.shape[: self._lead(value.shape)], self._size))
        return flat.clone(memory_format=torch.contiguous_format)

    def _lead(self, shape: Sequence[int]) -> int:
        return max(0, len(shape) - len(self.shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class UnflattenRows(_Shaped):
    """Gives rows their axes back: (…, D) becomes (…, *shape); the inverse of `FlattenRows`.

    Args:
        keys: of the sample; of any dtype.
        shape: of a row, D numbers; [] of a number.
    """

    def inverse(self) -> FlattenRows:
        """Return `FlattenRows`."""
        return FlattenRows(keys=self.keys, shape=self.shape)

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key)
        if shape[-1] != self._size:
            self._refuse(
                f"key {key!r} has rows of {shape[-1]} numbers, and {list(self.shape)} has "
                f"{self._size}"
            )
        return (*shape[:-1], *self.shape)

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value: torch.Tensor = sample[key]
        shaped = value.reshape((*value.shape[:-1], *self.shape))
        return shaped.clone(memory_format=torch.contiguous_format)
