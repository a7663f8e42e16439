"""Transforms as plain values, as a checkpoint keeps them, and back.

Only the package's own classes are made of what a file holds, whatever it names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

from egoloader.errors import SettingsError, near_miss
from egoloader.transforms.actions import (
    AbsoluteActions,
    AccumulatedActions,
    DeltaActions,
    RelativeActions,
)
from egoloader.transforms.chain import Chain
from egoloader.transforms.chunks import Resample, Stride
from egoloader.transforms.coordinates import (
    FixedFrame,
    FromFirst,
    IntoFrame,
    OutOfFrame,
    RelativeToFirst,
)
from egoloader.transforms.dimensions import CutDimensions, PadDimensions, SelectDimensions
from egoloader.transforms.fields import Concatenate, Drop, Rename, Split
from egoloader.transforms.grippers import InvertGripper
from egoloader.transforms.poses import CanonicalQuaternion, PoseRotation
from egoloader.transforms.rows import FlattenRows, UnflattenRows
from egoloader.transforms.transform import Transform

__all__ = ["from_plain", "to_plain"]

_PREFIX = "egoloader.transforms."
_CLASSES: tuple[type[Any], ...] = (
    AbsoluteActions,
    AccumulatedActions,
    CanonicalQuaternion,
    Chain,
    Concatenate,
    CutDimensions,
    DeltaActions,
    Drop,
    FixedFrame,
    FlattenRows,
    FromFirst,
    IntoFrame,
    InvertGripper,
    OutOfFrame,
    PadDimensions,
    PoseRotation,
    RelativeActions,
    RelativeToFirst,
    Rename,
    Resample,
    SelectDimensions,
    Split,
    Stride,
    UnflattenRows,
)
_BY_TARGET = {f"{_PREFIX}{one.__name__}": one for one in _CLASSES}


def to_plain(transforms: Sequence[object]) -> list[dict[str, Any]]:
    """Return transforms as a recipe lists them: `{"_target_": …, option: value, …}` each.

    All values are texts, numbers, booleans, None, lists and dicts, for JSON, YAML, and checkpoints
    that are loaded without executing anything.

    Raises:
        SettingsError: one is none of this package, so that it couldn't be made again.
    """
    return [_to_plain(f"transforms[{place}]", one) for place, one in enumerate(transforms)]


def from_plain(plain: Sequence[Mapping[str, Any]]) -> tuple[Transform, ...]:
    """Return the transforms that `to_plain` was given.

    Raises:
        SettingsError: something else, or options that can't be meant; names the place in the list.
    """
    if isinstance(plain, str) or not isinstance(plain, Sequence):
        raise SettingsError(f"transforms must be a list, got {type(plain).__name__}")
    return tuple(_from_plain(f"transforms[{place}]", one) for place, one in enumerate(plain))


def _to_plain(where: str, transform: object) -> dict[str, Any]:
    if type(transform) not in _CLASSES:
        raise SettingsError(
            f"{where}, {transform!r}, is none of egoloader.transforms, and can't be made again "
            "from a checkpoint"
        )
    options: Any = transform
    made: dict[str, Any] = {"_target_": f"{_PREFIX}{type(transform).__name__}"}
    for field in fields(options):
        name = f"{where}.{field.name}"
        made[field.name] = _plain_value(name, getattr(options, field.name))
    return made


def _plain_value(where: str, value: object) -> object:
    if isinstance(value, Transform):
        return _to_plain(where, value)
    if isinstance(value, tuple):
        return [_plain_value(f"{where}[{place}]", one) for place, one in enumerate(value)]
    for kind in (str, bool, int, float):
        if isinstance(value, kind):
            return kind(value)  # of a subclass, as NumPy's numbers are
    assert value is None, f"{where}: {value!r}"
    return None


def _from_plain(where: str, plain: object) -> Transform:
    if not isinstance(plain, Mapping) or "_target_" not in plain:
        raise SettingsError(f"{where} must be {{_target_: {_PREFIX}…, …}}, got {plain!r}")
    options = {name: value for name, value in plain.items() if name != "_target_"}
    made = _class_of(where, plain["_target_"])
    known = {field.name: field for field in fields(made)}
    for name in options:
        if name not in known:
            raise SettingsError(
                f"{where}, {made.__name__}, has no option {name!r}; {near_miss(str(name), known)}"
            )
    for name, field in known.items():
        if name not in options and field.default is MISSING:
            raise SettingsError(f"{where}, {made.__name__}, lacks {name!r}")
    if made is Chain:
        return Chain(from_plain(options["transforms"]))
    try:
        transform: Transform = made(**options)
    except SettingsError as error:
        raise SettingsError(f"{where}, {error}") from error
    return transform


def _class_of(where: str, target: object) -> type[Any]:
    if not isinstance(target, str) or target not in _BY_TARGET:
        raise SettingsError(
            f"{where} names {target!r}, which is no transform; {near_miss(str(target), _BY_TARGET)}"
        )
    return _BY_TARGET[target]
