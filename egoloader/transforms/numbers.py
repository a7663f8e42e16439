"""Transforms that reckon with the numbers of rows."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from egoloader.batch import Sample
from egoloader.row import POSE, Part, Parts, Row, check_parts, row_of
from egoloader.transforms.rotations import decode, is_none
from egoloader.transforms.transform import KeysTransform, Shape, mask_key

__all__ = ["BoolArray", "FloatArray", "NumbersTransform", "RowsTransform"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class NumbersTransform(KeysTransform):
    """A transform that reckons with the numbers of rows, in float64."""

    @abc.abstractmethod
    def _changed(self, sample: Sample, key: str) -> FloatArray:
        """Return a key's numbers that come out, in new memory."""

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value = sample[key]
        changed = self._changed(sample, key)
        changed[np.isnan(changed)] = np.nan  # whose sign is as it happens
        return torch.from_numpy(changed).to(value.device, value.dtype)

    def _numbers(self, sample: Sample, key: str) -> FloatArray:
        """Return a key's values to reckon with; not to be written into."""
        value = sample[key]
        if not value.is_floating_point():
            self._fail(f"key {key!r} must hold floating point numbers, and is {value.dtype}")
        return np.asarray(value.detach().to("cpu", torch.float64).numpy())

    def _padded(self, sample: Sample, key: str, lead: tuple[int, ...]) -> BoolArray:
        """Return which rows of a key, (*lead,), its mask says are padded; none without a mask."""
        mask = sample.get(mask_key(key))
        if mask is None:
            return np.zeros(lead, dtype=np.bool_)
        known = np.asarray(mask.cpu().numpy())
        return np.broadcast_to(known.reshape((*known.shape, *[1] * (len(lead) - known.ndim))), lead)

    def _rotations(
        self, key: str, numbers: FloatArray, part: Part, padded: BoolArray
    ) -> FloatArray:
        """Return the quaternions of one part of a key's rows, (…, 4); zeros in padded rows only."""
        found = decode(numbers[..., part.place], part.kind)
        is_absent = padded & ~numbers[..., part.place].any(axis=-1)
        is_wrong = is_none(found) & ~is_absent
        if is_wrong.any():
            place = tuple(np.argwhere(is_wrong)[0].tolist())
            self._fail(
                f"{numbers[(*place, part.place)].tolist()} is no rotation as {part.kind}, in "
                f"{_row_name(key, place)}, dims {part.place.start} to {part.place.stop - 1}; zeros "
                "are taken in padded rows alone, which stand in for an absent array"
            )
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsTransform(NumbersTransform):
    """A transform that has to know what the numbers of a row are.

    Args:
        keys: of the sample; rows, (…, D), of the size that `row` adds up to.
        row: the parts of a row, see `egoloader.row`.
    """

    row: Parts = POSE

    def _check(self) -> None:
        self._set("row", check_parts(f"{type(self).__name__}: row", self.row))
        self._check_row()

    @property
    def _row(self) -> Row:
        return row_of(self.row)

    @abc.abstractmethod
    def _check_row(self) -> None:
        """Refuse a row that has nothing to change, and other options that can't be meant."""

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key)
        self._check_width(key, shape, self._row)
        return shape


def _row_name(key: str, place: tuple[int, ...]) -> str:
    return f"key {key!r}, row {list(place)}" if place else f"key {key!r}"
