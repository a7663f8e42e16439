"""The dimensions of rows: which there are, and how many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from egoloader.batch import Sample
from egoloader.errors import SettingsError, check_whole
from egoloader.transforms.transform import KeysTransform, Shape, Value, dim_mask_key, put, without

__all__ = ["CutDimensions", "PadDimensions", "SelectDimensions", "check_dimensions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectDimensions(KeysTransform):
    """Keeps some dimensions of rows, in the order given: (…, D) becomes (…, len(dimensions)).

    Args:
        keys: of the sample; of any dtype.
        dimensions: their places in a row, from 0 on.
    """

    dimensions: tuple[int, ...]
    _loses = "the dimensions that are left out are lost"

    def _check(self) -> None:
        self._set("dimensions", check_dimensions(type(self).__name__, self.dimensions))

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key)
        self._check_reach(key, shape, self.dimensions)
        return (*shape[:-1], len(self.dimensions))

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value: torch.Tensor = sample[key]
        return value[..., list(self.dimensions)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Padding(KeysTransform):
    """Rows of `given` numbers, padded to `size`."""

    given: int
    size: int

    def _check(self) -> None:
        name = type(self).__name__
        check_whole(f"{name}: given", self.given, 1)
        check_whole(f"{name}: size", self.size, self.given)

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class PadDimensions(_Padding):
    """Pads rows with zeros, so that embodiments of several sizes have one: (…, d) becomes (…, D).

    `<key>_dim_is_pad`, bool, of the shape of the padded value, is true in the dimensions that are
    none; those that were padded before stay so, as those of an absent part of a `Concatenate`. It
    comes behind what changes dimensions or steps, which refuses a key that is padded.

        _target_: egoloader.transforms.PadDimensions
        keys: [action]
        given: 7
        size: 32

    Args:
        keys: of the sample; of any dtype.
        given: d.
        size: D, at least as many.
    """

    def inverse(self) -> CutDimensions:
        """Return `CutDimensions`."""
        return CutDimensions(keys=self.keys, given=self.given, size=self.size)

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(without(given, [dim_mask_key(key)]), key)
        if shape[-1] != self.given:
            self._refuse(f"key {key!r} has rows of {shape[-1]} numbers, and not of {self.given}")
        return (*shape[:-1], self.size)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = dict(given)
        for key in self.keys:
            shape = self._shape(given, key)
            shapes = put(shapes, [key, dim_mask_key(key)], {key: shape, dim_mask_key(key): shape})
        return shapes

    def _apply(self, sample: Sample) -> Sample:
        for key in self.keys:
            padded = self._outcome(sample, key)
            mask = torch.zeros(padded.shape, dtype=torch.bool, device=padded.device)
            mask[..., self.given :] = True
            if dim_mask_key(key) in sample:
                mask[..., : self.given] = sample[dim_mask_key(key)]
            masked = {key: padded, dim_mask_key(key): mask}
            sample = put(sample, list(masked), masked)
        return sample

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value = sample[key]
        padded: torch.Tensor = value.new_zeros((*value.shape[:-1], self.size))
        padded[..., : self.given] = value
        return padded


@dataclass(frozen=True, slots=True, kw_only=True)
class CutDimensions(_Padding):
    """Cuts padded dimensions off, and their mask, if there is one; the inverse of `PadDimensions`.

    A policy's outcome, which has no mask, is cut as well. Which of the dimensions that are left
    were padded before is not told behind it.
    """

    def inverse(self) -> PadDimensions:
        """Return `PadDimensions`."""
        return PadDimensions(keys=self.keys, given=self.given, size=self.size)

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(without(given, [dim_mask_key(key)]), key)
        if shape[-1] != self.size:
            self._refuse(f"key {key!r} has rows of {shape[-1]} numbers, and not of {self.size}")
        return (*shape[:-1], self.given)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        return self._without_masks(KeysTransform._shapes(self, given))

    def _apply(self, sample: Sample) -> Sample:
        return self._without_masks(KeysTransform._apply(self, sample))

    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        value: torch.Tensor = sample[key][..., : self.given]
        return value.clone(memory_format=torch.contiguous_format)

    def _without_masks(self, mapping: Mapping[str, Value]) -> dict[str, Value]:
        return without(mapping, [dim_mask_key(key) for key in self.keys])


def check_dimensions(name: str, dimensions: Sequence[int]) -> tuple[int, ...]:
    """Return the places in a row that an option lists, as a tuple.

    Raises:
        SettingsError: no list, an empty one, or one of something else.
    """
    if isinstance(dimensions, str) or not isinstance(dimensions, Sequence) or not dimensions:
        raise SettingsError(f"{name}: dimensions must list places in a row, got {dimensions!r}")
    for place in dimensions:
        check_whole(f"{name}: dimensions", place, 0)
        if list(dimensions).count(place) > 1:
            raise SettingsError(f"{name}: dimensions lists {place} twice")
    return tuple(dimensions)
