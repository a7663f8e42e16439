"""Which keys a sample has, and under which names."""

from __future__ import annotations

import abc
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from egoloader.batch import Sample
from egoloader.errors import check_whole, near_miss
from egoloader.keymap import RESERVED_NAMES
from egoloader.transforms.transform import (
    Shape,
    Transform,
    Value,
    companions,
    dim_mask_key,
    mask_key,
    put,
    step_masks,
    without,
)

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
    optional: tuple[str, ...] = ()

    def _check(self) -> None:
        self._names("whole", [self.whole])
        if isinstance(self.sizes, str) or not isinstance(self.sizes, Sequence):
            self._refuse(f"sizes must list how long the rows of keys are, got {self.sizes!r}")
        for size in self.sizes:
            check_whole(f"{type(self).__name__}: sizes", size, 1)
        if len(self.sizes) != len(self.keys):
            self._refuse(f"there are {len(self.keys)} keys and {len(self.sizes)} sizes")
        object.__setattr__(self, "sizes", tuple(self.sizes))
        if isinstance(self.optional, str) or not isinstance(self.optional, Sequence):
            self._refuse(f"optional must list some of keys, got {self.optional!r}")
        self._check_once("optional", self.optional)
        for key in self.optional:
            if key not in self.keys:
                self._refuse(f"optional lists {key!r}; {near_miss(str(key), self.keys)}")
        object.__setattr__(self, "optional", tuple(self.optional))

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return self.keys

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1 or (axes > 1 and not self.optional)

    @property
    def _gone(self) -> tuple[str, ...]:
        return (*self.keys, *(mask for key in self.keys for mask in step_masks(key)))

    @property
    def _masks(self) -> list[tuple[str, list[str]]]:
        """The masks of the whole, and those of the parts that each is joined of."""
        parts = zip(*map(step_masks, self.keys), strict=True)
        return [(name, list(its)) for name, its in zip(step_masks(self.whole), parts, strict=True)]

    @property
    def _places(self) -> dict[str, slice]:
        """Where in a row of the whole the numbers of each part are."""
        ends = itertools.accumulate(self.sizes)
        places = [slice(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        return dict(zip(self.keys, places, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Concatenate(_Parts):
    """Joins the rows of several keys: (…, D_1), (…, D_2), … become (…, D), D the sum of the sizes.

    The new key stands where the first of them stood. A step of it is padded, or in another span,
    where it is in any of them that has such a mask.

    A part that an episode may lack would so pad all of the rest: list it as `optional`. Then its
    own dimensions are padded where it is, in `<whole>_dim_is_pad`, bool, of the shape of the whole,
    and a step only where a part that is always there is, or, without any such, all are. A dataset
    refuses to join entries that are `optional` in the keymap and are not listed.

        _target_: egoloader.transforms.Concatenate
        keys: [left.action_ee_pose, right.action_ee_pose]
        sizes: [9, 9]
        whole: action

    Args:
        keys: the parts, in order; of the same dtype, and of the same leading axes.
        sizes: D_i, how many numbers a row of each has.
        whole: the key that they are joined to.
        optional: those of the parts that an episode may lack; each has a mask of padded steps.
    """

    @property
    def origins(self) -> Mapping[str, tuple[str, ...]]:
        """The parts, of the whole."""
        return {self.whole: self.keys}

    def inverse(self) -> Split:
        """Return `Split`, which gives every part the masks of the whole."""
        return Split(keys=self.keys, sizes=self.sizes, whole=self.whole, optional=self.optional)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = [self._rows_shape(given, key) for key in self.keys]
        for key, shape, size in zip(self.keys, shapes, self.sizes, strict=True):
            if shape != (*shapes[0][:-1], size):
                self._refuse(
                    f"key {key!r} has the shape {list(shape)}, and must have "
                    f"{[*shapes[0][:-1], size]}: its size, and the steps of {self.keys[0]!r}"
                )
        whole: dict[str, Shape] = {self.whole: (*shapes[0][:-1], sum(self.sizes))}
        if self.optional:
            self._check_masks(given)
            whole[dim_mask_key(self.whole)] = whole[self.whole]
        for name, parts in self._masks:
            masks = [given[part] for part in parts if part in given]
            if any(mask != masks[0] for mask in masks):
                self._refuse(f"the masks of {list(self.keys)} have several shapes: {masks}")
            if masks:
                whole[name] = masks[0]
        self._check_new(given, self._gone, [*whole, *step_masks(self.whole)])
        return put(given, self._gone, whole)

    @property
    def _required(self) -> list[str]:
        return [key for key in self.keys if key not in self.optional]

    def _check_masks(self, given: Mapping[str, Shape]) -> None:
        """Refuse parts of which it isn't known where they are padded, if some may be absent."""
        for key in self.optional:
            if mask_key(key) not in given:
                self._refuse(f"optional lists {key!r}, and there is no {mask_key(key)!r}")
        if self._required and not any(mask_key(key) in given for key in self._required):
            self._refuse(
                f"no mask tells which steps of {self._required} are padded; set mask: true in the "
                "entry of one of them, as steps aren't told by a part that may be absent"
            )

    def _apply(self, sample: Sample) -> Sample:
        values = [sample[key] for key in self.keys]
        dtypes = {value.dtype for value in values}
        if len(dtypes) > 1:
            self._fail(f"{list(self.keys)} have several dtypes: {sorted(map(str, dtypes))}")
        whole = {self.whole: torch.cat(values, dim=-1)}
        if self.optional:
            whole[dim_mask_key(self.whole)] = self._dim_mask(sample, whole[self.whole])
        for name, parts in self._masks:
            masks = [sample[part] for part in parts if part in sample]
            if masks:
                whole[name] = torch.stack(masks).any(dim=0)
        if self.optional:
            whole[mask_key(self.whole)] = self._step_mask(sample)
        return put(sample, self._gone, whole)

    def _dim_mask(self, sample: Sample, whole: torch.Tensor) -> torch.Tensor:
        """Return which dimensions are of a part that may be absent and is padded there."""
        mask = torch.zeros(whole.shape, dtype=torch.bool, device=whole.device)
        for key in self.optional:
            mask[..., self._places[key]] = sample[mask_key(key)][..., None]
        return mask

    def _step_mask(self, sample: Sample) -> torch.Tensor:
        """Return which steps are padded, whatever parts are absent."""
        masks = [sample[mask_key(key)] for key in self._required if mask_key(key) in sample]
        if masks:
            return torch.stack(masks).any(dim=0)
        return torch.stack([sample[mask_key(key)] for key in self.optional]).all(dim=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(_Parts):
    """Takes the rows of a key apart, the inverse of `Concatenate`; all parts get its masks.

    An `optional` part is padded where its dimensions are, if `<whole>_dim_is_pad` is there.

    Args:
        keys: the parts, in order; they stand where the whole stood.
        sizes: D_i, how many numbers a row of each has.
        whole: the key that is taken apart: (…, D), D the sum of the sizes.
        optional: those of the parts that an episode may lack.
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
        return Concatenate(
            keys=self.keys, sizes=self.sizes, whole=self.whole, optional=self.optional
        )

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        known = without(given, [dim_mask_key(self.whole)]) if self.optional else given
        shape = self._rows_shape(known, self.whole)
        if shape[-1] != sum(self.sizes):
            self._refuse(
                f"key {self.whole!r} has rows of {shape[-1]} numbers, and {list(self.sizes)} "
                f"add up to {sum(self.sizes)}"
            )
        self._check_new(known, [self.whole, *step_masks(self.whole)], self._gone)
        sized = [(*shape[:-1], size) for size in self.sizes]
        masks = dict.fromkeys(self._told_apart(given), shape[:-1])
        return self._put(given, dict(zip(self.keys, sized, strict=True)), masks)

    def _apply(self, sample: Sample) -> Sample:
        values = torch.split(sample[self.whole], list(self.sizes), dim=-1)
        parts = [value.clone(memory_format=torch.contiguous_format) for value in values]
        masks = {
            name: sample[dim_mask_key(self.whole)][..., self._places[key]].all(dim=-1)
            for name, key in self._told_apart(sample).items()
        }
        made = self._put(sample, dict(zip(self.keys, parts, strict=True)), masks)
        for mask in (mask for key in self.keys for mask in step_masks(key)):
            if mask in made:
                made[mask] = made[mask].clone()
        return made

    def _told_apart(self, given: Iterable[str]) -> dict[str, str]:
        """Return the masks, by key of their parts, that the mask of dimensions tells."""
        is_told = dim_mask_key(self.whole) in given
        return {mask_key(key): key for key in self.optional} if is_told else {}

    def _put(
        self, mapping: Mapping[str, Value], parts: Mapping[str, Value], masks: Mapping[str, Value]
    ) -> dict[str, Value]:
        """Return a mapping with parts, and masks of their own or of the whole, in its place."""
        its, made = step_masks(self.whole), dict[str, Value]()
        for key, value in parts.items():
            made[key] = value
            for old, new in zip(its, step_masks(key), strict=True):
                if new in masks:
                    made[new] = masks[new]
                elif old in mapping:
                    made[new] = mapping[old]
        return put(mapping, [self.whole, dim_mask_key(self.whole), *its], made)


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
        moved = self.moved
        old = [key for key in given if key in moved]
        self._check_new(given, old, [moved[key] for key in old])
        return {moved.get(key, key): shape for key, shape in given.items()}

    def _apply(self, sample: Sample) -> Sample:
        moved = self.moved
        return {moved.get(key, key): value for key, value in sample.items()}

    @property
    def moved(self) -> dict[str, str]:
        """The new names of the keys and of what goes along with them."""
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
