"""Which keys a sample has, and under which names."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from egoloader.batch import Sample
from egoloader.errors import check_whole
from egoloader.keymap import RESERVED_NAMES
from egoloader.transforms.transform import Shape, Transform, Value, companions, put, step_masks

__all__ = ["Concatenate", "Drop", "Rename", "Split"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fields(Transform):
    """Changes which keys there are, and nothing else about a row."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "keys", self._names("keys", self.keys))
        self._check()

    @abc.abstractmethod
    def _check(self) -> None:
        """Refuse options that can't be meant, and make tuples of lists."""

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def _check_new(self, given: Iterable[str], gone: Sequence[str], names: Sequence[str]) -> None:
        """Refuse new keys that others have, or that every sample carries."""
        taken = (set(given) - set(gone)) | RESERVED_NAMES
        for name in names:
            if name in taken:
                self._refuse(f"there is a key {name!r} already, or every sample carries one")

    def _check_old(self, given: Mapping[str, Shape]) -> None:
        for key in self.keys:
            self._check_key(given, key)
            if key in RESERVED_NAMES:
                self._refuse(f"every sample carries {key!r}; it stays")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts(_Fields):
    """Several keys, and the one that they are joined to."""

    sizes: tuple[int, ...]
    whole: str

    def _check(self) -> None:
        self._names("whole", [self.whole])
        if isinstance(self.sizes, str) or not isinstance(self.sizes, Sequence):
            self._refuse(f"sizes must list how long the rows of keys are, got {self.sizes!r}")
        for size in self.sizes:
            check_whole(f"{type(self).__name__}: sizes", size, 1)
        if len(self.sizes) != len(self.keys):
            self._refuse(f"there are {len(self.keys)} keys and {len(self.sizes)} sizes")
        object.__setattr__(self, "sizes", tuple(self.sizes))

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return self.keys

    @property
    def _gone(self) -> tuple[str, ...]:
        return (*self.keys, *(mask for key in self.keys for mask in step_masks(key)))

    @property
    def _masks(self) -> list[tuple[str, list[str]]]:
        """The masks of the whole, and those of the parts that each is joined of."""
        parts = zip(*map(step_masks, self.keys), strict=True)
        return [(name, list(its)) for name, its in zip(step_masks(self.whole), parts, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenate(_Parts):
    """Joins the rows of several keys: (…, D_1), (…, D_2), … become (…, D), D the sum of the sizes.

    The new key stands where the first of them stood. A step of it is padded, or in another span,
    where it is in any of them that has such a mask; so one that is absent pads all of it.

        _target_: egoloader.transforms.Concatenate
        keys: [left.action_ee_pose, right.action_ee_pose]
        sizes: [9, 9]
        whole: action

    Args:
        keys: the parts, in order; of the same dtype, and of the same leading axes.
        sizes: D_i, how many numbers a row of each has.
        whole: the key that they are joined to.
    """

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """The parts, of the whole."""
        return {self.whole: self.keys}

    def inverse(self) -> Split:
        """Return `Split`, which gives every part the masks of the whole."""
        return Split(keys=self.keys, sizes=self.sizes, whole=self.whole)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = [self._rows_shape(given, key) for key in self.keys]
        for key, shape, size in zip(self.keys, shapes, self.sizes, strict=True):
            if shape != (*shapes[0][:-1], size):
                self._refuse(
                    f"key {key!r} has the shape {list(shape)}, and must have "
                    f"{[*shapes[0][:-1], size]}: its size, and the steps of {self.keys[0]!r}"
                )
        whole: dict[str, Shape] = {self.whole: (*shapes[0][:-1], sum(self.sizes))}
        for name, parts in self._masks:
            masks = [given[part] for part in parts if part in given]
            if any(mask != masks[0] for mask in masks):
                self._refuse(f"the masks of {list(self.keys)} have several shapes: {masks}")
            if masks:
                whole[name] = masks[0]
        self._check_new(given, self._gone, [self.whole, *step_masks(self.whole)])
        return put(given, self._gone, whole)

    def _apply(self, sample: Sample) -> Sample:
        values = [sample[key] for key in self.keys]
        dtypes = {value.dtype for value in values}
        if len(dtypes) > 1:
            self._fail(f"{list(self.keys)} have several dtypes: {sorted(map(str, dtypes))}")
        whole = {self.whole: torch.cat(values, dim=-1)}
        for name, parts in self._masks:
            masks = [sample[part] for part in parts if part in sample]
            if masks:
                whole[name] = torch.stack(masks).any(dim=0)
        return put(sample, self._gone, whole)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(_Parts):
    """Takes the rows of a key apart, the inverse of `Concatenate`; all parts get its masks.

    Args:
        keys: the parts, in order; they stand where the whole stood.
        sizes: D_i, how many numbers a row of each has.
        whole: the key that is taken apart: (…, D), D the sum of the sizes.
    """

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return (self.whole,)

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """The whole, of each part."""
        return dict.fromkeys(self.keys, (self.whole,))

    def inverse(self) -> Concatenate:
        """Return `Concatenate`."""
        return Concatenate(keys=self.keys, sizes=self.sizes, whole=self.whole)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shape = self._rows_shape(given, self.whole)
        if shape[-1] != sum(self.sizes):
            self._refuse(
                f"key {self.whole!r} has rows of {shape[-1]} numbers, and {list(self.sizes)} "
                f"add up to {sum(self.sizes)}"
            )
        self._check_new(given, [self.whole, *step_masks(self.whole)], self._gone)
        sized = [(*shape[:-1], size) for size in self.sizes]
        return self._put(given, dict(zip(self.keys, sized, strict=True)))

    def _apply(self, sample: Sample) -> Sample:
        values = torch.split(sample[self.whole], list(self.sizes), dim=-1)
        parts = [value.clone(memory_format=torch.contiguous_format) for value in values]
        made = self._put(sample, dict(zip(self.keys, parts, strict=True)))
        for mask in (mask for key in self.keys for mask in step_masks(key)):
            if mask in made:
                made[mask] = made[mask].clone()
        return made

    def _put(self, mapping: Mapping[str, Value], parts: Mapping[str, Value]) -> dict[str, Value]:
        masks, made = step_masks(self.whole), dict[str, Value]()
        for key, value in parts.items():
            made[key] = value
            for mask, its in zip(masks, step_masks(key), strict=True):
                if mask in mapping:
                    made[its] = mapping[mask]
        return put(mapping, [self.whole, *masks], made)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rename(_Fields):
    """Gives keys of any kind other names, and their masks with them.

    Args:
        keys: of the sample.
        to: the new name of each.
    """

    to: tuple[str, ...]

    def _check(self) -> None:
        object.__setattr__(self, "to", self._names("to", self.to))
        if len(self.to) != len(self.keys):
            self._refuse(f"there are {len(self.keys)} keys and {len(self.to)} new names")

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """The old name of each new one."""
        return {new: (old,) for old, new in zip(self.keys, self.to, strict=True)}

    def inverse(self) -> Rename:
        """Return the way back."""
        return Rename(keys=self.to, to=self.keys)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        self._check_old(given)
        moved = self._moved()
        old = [key for key in given if key in moved]
        self._check_new(given, old, [moved[key] for key in old])
        return {moved.get(key, key): shape for key, shape in given.items()}

    def _apply(self, sample: Sample) -> Sample:
        moved = self._moved()
        return {moved.get(key, key): value for key, value in sample.items()}

    def _moved(self) -> dict[str, str]:
        """Return the new names of the keys and of what goes along with them."""
        moved: dict[str, str] = {}
        for old, new in zip(self.keys, self.to, strict=True):
            moved |= dict(zip(companions(old), companions(new), strict=True))
        return moved | dict(zip(self.keys, self.to, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop(_Fields):
    """Leaves keys of any kind out, and their masks with them.

    Args:
        keys: of the sample.
    """

    _loses = "what was left out is lost"

    def _check(self) -> None:
        pass

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        self._check_old(given)
        return self._kept(given)

    def _apply(self, sample: Sample) -> Sample:
        return self._kept(sample)

    def _kept(self, mapping: Mapping[str, Value]) -> dict[str, Value]:
        gone = {name for key in self.keys for name in (key, *companions(key))}
        return {key: value for key, value in mapping.items() if key not in gone}
