"""Which keys' rows depend on rows of their own step alone, and the transforms that make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

from egoloader.transforms import Chain, Concatenate, Drop, Rename, Split, Transform
from egoloader.transforms.reference import ReferenceTransform
from egoloader.transforms.transform import KeysTransform, companions, dim_mask_key, mask_key

__all__ = ["Remainder", "can_reduce", "roots_of", "row_transforms", "without_keys"]

_PACKAGE = "egoloader."


@dataclass(frozen=True, slots=True)
class Remainder:
    """What is left of transforms where some keys are not there.

    Attributes:
        transforms: on the other keys, in order.
        gone: the keys that are not there behind them.
    """

    transforms: tuple[Callable[..., Any], ...]
    gone: frozenset[str]


def without_keys(
    transforms: Sequence[Callable[..., Any]], gone: Iterable[str], keys: Iterable[str]
) -> Remainder:
    """Return transforms for samples that lack keys; what is made of such a key is not there, too.

    Masks of padding are not dropped, nor renamed without their keys: what is padded is known by
    them. A callable that is none of the project's transforms stays as it is.

    Args:
        transforms: of samples.
        gone: keys that samples lack.
        keys: those that are there.
    """
    left, absent, present = list[Callable[..., Any]](), set(gone), set(keys)
    for one in _flat(transforms):
        if not isinstance(one, Transform):
            left.append(one)
            continue
        if isinstance(one, Drop | Rename):
            absent |= set(one.keys) & {
                mask for key in present for mask in (mask_key(key), dim_mask_key(key))
            }
        present |= set(one.origins)
        reduced, absent = _reduced(one, absent)
        left.extend([] if reduced is None else [reduced])
    return Remainder(tuple(left), frozenset(absent))


def row_transforms(
    transforms: Sequence[Callable[..., Any]], gone: Iterable[str]
) -> Remainder | None:
    """Return the transforms of those keys whose rows depend on rows of the same step alone.

    Args:
        transforms: of samples.
        gone: keys that rows are not taken of.

    Returns:
        What is gone are these, and the keys that any step between the rows mixes. None where it
        can't be known which they are: a callable that says nothing of itself is among them.
    """
    left, mixed = list[Callable[..., Any]](), set(gone)
    for one in _flat(transforms):
        if not isinstance(one, Transform):
            return None
        if one.is_per_row:
            reduced, mixed = _reduced(one, mixed)
            left.extend([] if reduced is None else [reduced])
        elif isinstance(one, KeysTransform):
            dropped = _drop(tuple(key for key in one.keys if key not in mixed))
            left.extend([] if dropped is None else [dropped])
            mixed |= {name for key in one.keys for name in (key, *companions(key))}
        else:
            return None
    return Remainder(tuple(left), frozenset(mixed))


def roots_of(
    transforms: Sequence[Callable[..., Any]], keys: Iterable[str]
) -> dict[str, frozenset[str]]:
    """Return which of some keys each key behind transforms is made of, as far as these say."""
    roots = {key: frozenset({key}) for key in keys}
    for one in _flat(transforms):
        if isinstance(one, Transform):
            # All at once: names may be swapped.
            roots |= {
                key: frozenset[str]().union(*(roots.get(old, frozenset()) for old in olds))
                for key, olds in one.origins.items()
            }
    return roots


def can_reduce(transforms: Sequence[Callable[..., Any]]) -> bool:
    """Return whether it is known of all transforms which keys they need: those of the project."""
    return all(type(one).__module__.startswith(_PACKAGE) for one in _flat(transforms))


def _flat(transforms: Iterable[Callable[..., Any]]) -> Iterable[Callable[..., Any]]:
    for one in transforms:
        if isinstance(one, Chain):
            yield from _flat(one.transforms)
        else:
            yield one


def _reduced(one: Transform, gone: Set[str]) -> tuple[Transform | None, set[str]]:
    """Return a transform of the keys that are there, and the keys that are not behind it."""
    absent = set(gone)
    if isinstance(one, Concatenate):
        if not absent & set(one.keys):
            return one, absent
        parts = tuple(key for key in one.keys if key not in absent)
        return _drop(parts), (absent - set(one.keys)) | {one.whole}
    if isinstance(one, Split):
        if one.whole not in absent:
            return one, absent
        return None, (absent - {one.whole}) | set(one.keys)
    if isinstance(one, Rename):
        moved = dict(zip(one.keys, one.to, strict=True))
        kept = {old: new for old, new in moved.items() if old not in absent}
        beside = dict(
            zip(
                (name for old in one.keys for name in companions(old)),
                (name for new in one.to for name in companions(new)),
                strict=True,
            )
        )
        renamed = {(beside | moved).get(key, key) for key in absent}
        return Rename(keys=tuple(kept), to=tuple(kept.values())) if kept else None, renamed
    if isinstance(one, Drop):
        return _drop(tuple(k for k in one.keys if k not in absent)), absent - set(one.keys)
    if isinstance(one, ReferenceTransform) and one.reference in absent:
        return _drop(tuple(k for k in one.keys if k not in absent)), absent | set(one.keys)
    if isinstance(one, KeysTransform):
        keys = tuple(key for key in one.keys if key not in absent)
        return replace(one, keys=keys) if keys else None, absent
    return one, absent


def _drop(keys: tuple[str, ...]) -> Drop | None:
    return Drop(keys=keys) if keys else None
