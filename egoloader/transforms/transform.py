"""What a transform is: a step from samples to samples that takes batches as well."""

from __future__ import annotations

import abc
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

import torch

from egoloader.batch import Sample
from egoloader.errors import SettingsError, TransformError, near_miss
from egoloader.keymap import other_span_key
from egoloader.row import Row

__all__ = [
    "KeysTransform",
    "Leads",
    "Shape",
    "Transform",
    "Value",
    "companions",
    "dim_mask_key",
    "leads_of",
    "mask_key",
    "origin_key",
    "put",
    "shapes_of",
    "step_masks",
    "without",
]

#: Of a tensor; None for texts and other objects.
Shape = tuple[int, ...] | None
Value = TypeVar("Value")
#: Of every sample, a number each: in a batch, their axes are those of the batch.
_SCALARS = ("frame_index", "fps")


class Leads(NamedTuple):
    """How many axes stand ahead of rows: those of a batch, and of steps.

    Attributes:
        of: each key's rows, where that is known.
        batch: of samples, where that is known; 0 of one.
    """

    of: Mapping[str, int]
    batch: int | None


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


def leads_of(given: Mapping[str, Shape]) -> dict[str, int]:
    """Return how many axes lead the rows of each key: those that its masks of steps have.

    Without such a mask, a value alone doesn't tell its steps from the axes of its rows.
    """
    leads: dict[str, int] = {}
    for key, shape in given.items():
        for mask in map(given.get, step_masks(key)):
            if shape is not None and mask is not None and mask == shape[: len(mask)]:
                leads.setdefault(key, len(mask))
    return leads


def without(mapping: Mapping[str, Value], gone: Collection[str]) -> dict[str, Value]:
    """Return a mapping without some keys."""
    return {key: value for key, value in mapping.items() if key not in gone}


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
    Rows of other axes, a number each or points as (…, 21, 3), are refused where steps would be
    taken for dimensions, or dimensions for steps; `FlattenRows` ahead makes rows (…, D) of them.
    Which axes are steps is known by the mask of padded steps, and to a dataset without one, too.
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
        given = shapes_of(sample)
        batch = next((given[key] for key in _SCALARS if given.get(key) is not None), None)
        self._traced(given, Leads(leads_of(given), None if batch is None else len(batch)))
        return self._apply(sample)

    def shapes(
        self, given: Mapping[str, Shape], leads: Mapping[str, int] | None = None
    ) -> dict[str, Shape]:
        """Return the shapes of what comes out, in order.

        Args:
            given: shapes of what goes in, without axes of a batch; None for what is no tensor.
            leads: per key, how many axes lead its rows: 1 in a window, else 0. Of other keys, it is
                known by their masks alone.

        Raises:
            SettingsError: a key is missing, or a shape doesn't fit; names the transform.
        """
        return self._traced(given, Leads({**leads_of(given), **(leads or {})}, 0))[0]

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

    @property
    def _row_keys(self) -> tuple[str, ...]:
        """The keys whose rows it changes, or takes apart."""
        return ()

    def _takes(self, _key: str, axes: int) -> bool:
        """Return whether it takes rows of so many axes of such a key."""
        return axes >= 1

    def _traced(self, given: Mapping[str, Shape], leads: Leads) -> tuple[dict[str, Shape], Leads]:
        """Return the shapes that come out, and how many axes lead rows, where that is known.

        Args:
            given: shapes of what goes in.
            leads: of that.

        Raises:
            SettingsError: it doesn't take rows of that many axes, or a shape doesn't fit.
        """
        self._check_axes(given, leads)
        made = self._shapes(given)
        found = {key: lead for key, lead in leads.of.items() if key not in self.origins}
        for key, olds in self.origins.items():
            known = [leads.of[old] for old in olds if old in leads.of]
            if known:
                found[key] = known[0]
        return made, leads._replace(of={key: lead for key, lead in found.items() if key in made})

    def _check_axes(self, given: Mapping[str, Shape], leads: Leads) -> None:
        """Refuse rows of axes that it doesn't take, where it is known which axes are theirs."""
        for key in self._row_keys:
            shape = given.get(key)
            if shape is not None and key in leads.of:
                row = shape[leads.of[key] :]
                if not self._takes(key, len(row)):
                    self._refuse_rows(key, row)

    def _refuse_rows(self, key: str, row: tuple[int, ...]) -> NoReturn:
        are = f"of the shape {list(row)}" if row else "a number each, without an axis"
        self._refuse(
            f"the rows of key {key!r} are {are}, and must be (D,); put "
            f"FlattenRows(keys=[{key!r}], shape={list(row)}) ahead of it, which makes them "
            f"({math.prod(row)},)"
        )

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
            wanted = "a row, (D,)" if axes == 1 else "a chunk, (n, D)"
            self._refuse(f"key {key!r} must be {wanted}, and has the shape {list(shape)}")
        for name in step_masks(key):
            mask = given.get(name)
            if mask is not None and mask != shape[: len(mask)]:
                self._refuse(f"key {key!r}, {list(shape)}, has a mask of the shape {list(mask)}")
        if dim_mask_key(key) in given:
            self._refuse(
                f"the dimensions of key {key!r} are padded; pad them behind it: PadDimensions does "
                "so, and Concatenate of optional parts"
            )
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

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return self.keys

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
