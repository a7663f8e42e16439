"""What a transform is: a step from samples to samples that takes batches as well."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from egoloader.batch import Sample
from egoloader.errors import SettingsError, TransformError, near_miss
from egoloader.keymap import other_span_key
from egoloader.row import POSE, Part, Parts, Row, check_parts, row_of
from egoloader.transforms.rotations import decode, is_none

__all__ = [
    "KeysTransform",
    "NumbersTransform",
    "RowsTransform",
    "Shape",
    "Transform",
    "Value",
    "companions",
    "dim_mask_key",
    "mask_key",
    "origin_key",
    "put",
    "shapes_of",
    "step_masks",
]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
#: Of a tensor; None for texts and other objects.
Shape = tuple[int, ...] | None
Value = TypeVar("Value")


def mask_key(key: str) -> str:
    """Return the key of the mask of an entry's padded steps: bool, (…) or (…, n)."""
    return f"{key}_is_pad"


def dim_mask_key(key: str) -> str:
    """Return the key of the mask of padded dimensions: bool, of the shape of the value."""
    return f"{key}_dim_is_pad"


def origin_key(key: str) -> str:
    """Return the key of the first step that a window is relative to: (…, D)."""
    return f"{key}_origin"


def step_masks(key: str) -> tuple[str, ...]:
    """Return the keys of an entry's masks of steps: bool, (…) or (…, n).

    Of padded steps, and of those that lie in another annotation span.
    """
    return mask_key(key), other_span_key(key)


def companions(key: str) -> tuple[str, ...]:
    """Return the keys of what goes along with a key, where it is there."""
    return *step_masks(key), dim_mask_key(key), origin_key(key)


def shapes_of(sample: Sample) -> dict[str, Shape]:
    """Return the shapes of a sample's tensors, or of a batch's; None for what is no tensor."""
    return {
        key: tuple(value.shape) if isinstance(value, torch.Tensor) else None
        for key, value in sample.items()
    }


def put(
    mapping: Mapping[str, Value], gone: Sequence[str], values: Mapping[str, Value]
) -> dict[str, Value]:
    """Return a mapping with others where the first of some keys stood, and without those.

    The order of the rest stays.
    """
    made: dict[str, Value] = {}
    for key, value in mapping.items():
        if key == gone[0]:
            made.update(values)
        elif key not in gone:
            made[key] = value
    return made


class Transform(abc.ABC):
    """A step from samples to samples, which is made of plain settings and never changes.

    It acts on the last axes of tensors: rows (…, D), chunks (…, n, D). So one call takes a sample,
    or a batch of them as `collate` stacks it, and a batch comes out as its samples do, bit for bit.
    What it is handed is not written into; values that it leaves alone are passed on, values that it
    changes are new, of the same dtype and on the same device. Rotations are reckoned in float64, on
    the CPU. Gradients do not pass.

    `<key>_is_pad`, the mask of padded steps, goes along, and so does `<key>_is_other_span`: what
    drops, moves or joins rows does so with their masks. NaN and inf make NaN of the rotations and
    of the moved positions that depend on them, and touch no other row. A rotation whose numbers are
    none (all zero, say) is a `TransformError`, unless they are zero and their row is padded: such
    rows stand in for an optional array that is absent, and their poses stay zero. Where zeros are
    numbers like others, as in points, joints and yaw-pitch-roll, they are treated as such: under
    the mask, they mean nothing.
    """

    __slots__ = ()
    #: Why there is no inverse, where there is none.
    _loses: ClassVar[str] = ""

    def __call__(self, sample: Sample) -> Sample:
        """Return the sample, or batch, transformed.

        Args:
            sample: tensors with any number of leading axes, the same for all; and other values.

        Raises:
            SettingsError: a key is missing, or a shape doesn't fit.
            TransformError: numbers can't be changed; names the transform, the key and the row.
        """
        self._shapes(shapes_of(sample))
        return self._apply(sample)

    def shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of what comes out, in order.

        Args:
            given: shapes of what goes in, without axes of a batch; None for what is no tensor.

        Raises:
            SettingsError: a key is missing, or a shape doesn't fit; names the transform.
        """
        return self._shapes(given)

    @property
    def is_per_row(self) -> bool:
        """Whether what becomes of a row depends on rows of the same step alone, in any window."""
        return False

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """Which keys each key that it makes is made of; the others stay what they are."""
        return {}

    def inverse(self) -> Transform:
        """Return what undoes it.

        Raises:
            SettingsError: nothing does; says why.
        """
        self._refuse(f"there is no inverse: {self._loses}")

    @abc.abstractmethod
    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes that come out of such shapes, with any leading axes."""

    @abc.abstractmethod
    def _apply(self, sample: Sample) -> Sample:
        """Return what comes out of a sample whose shapes fit."""

    def _refuse(self, message: str) -> NoReturn:
        raise SettingsError(f"{type(self).__name__}: {message}")

    def _fail(self, message: str) -> NoReturn:
        raise TransformError(f"{type(self).__name__}: {message}")

    def _check_key(self, given: Mapping[str, Shape], key: str) -> None:
        if key not in given:
            self._refuse(f"there is no key {key!r}; {near_miss(key, given)}")

    def _rows_shape(self, given: Mapping[str, Shape], key: str, axes: int = 1) -> tuple[int, ...]:
        """Return the shape of a key whose rows are changed, which has that many axes at least."""
        self._check_key(given, key)
        shape = given[key]
        if shape is None:
            self._refuse(f"key {key!r} is no tensor")
        if len(shape) < axes:
            wanted = "a chunk, (n, D)" if axes == 2 else "a row, (D,)"
            self._refuse(f"key {key!r} must be {wanted}, and has the shape {list(shape)}")
        for name in step_masks(key):
            mask = given.get(name)
            if mask is not None and mask != shape[: len(mask)]:
                self._refuse(f"key {key!r}, {list(shape)}, has a mask of the shape {list(mask)}")
        if dim_mask_key(key) in given:
            self._refuse(f"the dimensions of key {key!r} are padded; pad them behind it")
        return shape

    def _names(self, name: str, values: Sequence[str]) -> tuple[str, ...]:
        """Return the keys that an option lists, as a tuple."""
        is_list = isinstance(values, Sequence) and not isinstance(values, str)
        if not is_list or not values or not all(isinstance(one, str) and one for one in values):
            self._refuse(f"{name} must list sample keys, got {values!r}")
        self._check_once(name, values)
        return tuple(values)

    def _check_once(self, name: str, values: Sequence[Any]) -> None:
        for value in values:
            if values.count(value) > 1:
                self._refuse(f"{name} lists {value!r} twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysTransform(Transform):
    """A transform that changes the rows of some keys, each on its own, in the same way.

    Args:
        keys: of the sample.
    """

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self._names("keys", self.keys))
        self._check()

    @abc.abstractmethod
    def _check(self) -> None:
        """Refuse options that can't be meant, and make tuples of lists."""

    @abc.abstractmethod
    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        """Return the shape of a key's values that come out."""

    @abc.abstractmethod
    def _outcome(self, sample: Sample, key: str) -> torch.Tensor:
        """Return a key's values that come out, in new memory."""

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        return {**given, **{key: self._shape(given, key) for key in self.keys}}

    def _apply(self, sample: Sample) -> Sample:
        return {**sample, **{key: self._outcome(sample, key) for key in self.keys}}

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_reach(self, key: str, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> None:
        if max(dimensions) >= shape[-1]:
            self._refuse(f"key {key!r} has rows of {shape[-1]} numbers, and no {max(dimensions)}")

    def _check_width(self, key: str, shape: tuple[int, ...], row: Row) -> None:
        if shape[-1] != row.size:
            self._refuse(f"key {key!r} has rows of {shape[-1]} numbers, and {row} has {row.size}")


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
