"""First steps that windows are relative to, as keys of samples."""

from __future__ import annotations

from collections.abc import Iterable

from egoloader.transforms.chain import Chain
from egoloader.transforms.coordinates import FromFirst, RelativeToFirst
from egoloader.transforms.fields import Rename
from egoloader.transforms.transform import origin_key

__all__ = ["kept_origins"]


def kept_origins(steps: Iterable[object]) -> frozenset[str]:
    """Return the keys of the first steps that transforms have kept, which are no data of their own.

    They stay where their window has been joined to others, so that it can be told back.

    Args:
        steps: transforms, in order, and other callables.
    """
    return frozenset(_kept(steps, set()))


def _kept(steps: Iterable[object], names: set[str]) -> set[str]:
    for one in steps:
        if isinstance(one, Chain):
            names = _kept(one.transforms, names)
        elif isinstance(one, RelativeToFirst):
            names = names | set(map(origin_key, one.keys))
        elif isinstance(one, FromFirst):
            names = names - set(map(origin_key, one.keys))
        elif isinstance(one, Rename):
            moved = one.moved
            names = {moved.get(name, name) for name in names}
    return names
