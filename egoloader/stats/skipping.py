"""Numbers that are left out: rotations, flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.errors import SettingsError, check_whole, near_miss
from egoloader.stats.keyoptions import KeyOptions, key_options

__all__ = ["Skip", "check_skip", "check_skipped_keys", "plain_places", "skipped"]

#: Of a key the places in a row that are left out, along its last axis, or `all`.
Places = Sequence[int] | str
#: Those of keys; of keys by embodiment, which goes ahead; or keys alone, all of which are left out.
Skip = Mapping[str, Places | Mapping[str, Places]] | Sequence[str]


def check_skip(skip: Any) -> KeyOptions[tuple[int, ...] | None]:
    """Return what is left out, by key; None for all of a key.

    Raises:
        SettingsError: it can't be meant.
    """
    if isinstance(skip, str) or not isinstance(skip, Mapping | Sequence):
        raise SettingsError(f"skip maps keys to dimensions, or lists keys; got {skip!r}")
    given = skip if isinstance(skip, Mapping) else dict.fromkeys(skip, "all")
    _check_unmapped_keys(given)
    return key_options("skip", given, _check_places)


def _check_unmapped_keys(given: Mapping[Any, Any]) -> None:
    """Refuse texts where dimensions are meant: an embodiment's keys must be mapped."""
    for name, places in given.items():
        if places is None or places == "all" or isinstance(places, Mapping):
            continue
        listed = [places] if isinstance(places, str) else places
        if isinstance(listed, Sequence) and any(isinstance(one, str) for one in listed):
            raise SettingsError(
                f"skip: {name!r} is 'all' or a list of dimensions, got {places!r}; where {name!r} "
                f"is an embodiment, give {{{name!r}: {{key: …}}}}"
            )


def _check_places(option: str, key: str, places: Any) -> tuple[int, ...] | None:
    if places is None or places == "all":
        return None
    if isinstance(places, str) or not isinstance(places, Sequence):
        raise SettingsError(f"{option}: {key!r} is 'all' or a list of dimensions, got {places!r}")
    for place in places:
        check_whole(f"{option}: a dimension of {key!r}", place, 0)
    return tuple(places)


def plain_places(places: tuple[int, ...] | None) -> list[int] | str:
    """Return what `check_skip` found of a key as it is given."""
    return "all" if places is None else list(places)


def check_skipped_keys(option: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse keys that there are no numbers of.

    Raises:
        SettingsError: there is one; says the near miss.
    """
    keys = set(known)
    for name in names:
        if name not in keys:
            raise SettingsError(
                f"{option}: there are no statistics of {name!r}; {near_miss(name, keys)}"
            )


def skipped(
    skip: Mapping[str, tuple[int, ...] | None], key: str, shape: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    """Return which numbers of a key are left out: of its shape.

    Raises:
        SettingsError: a dimension that its rows don't have.
    """
    if key not in skip:
        return np.zeros(shape, dtype=np.bool_)
    places = skip[key]
    if places is None:
        return np.ones(shape, dtype=np.bool_)
    size = shape[-1] if shape else 0
    if places and max(places) >= size:
        raise SettingsError(f"skip: rows of {key!r} have {size} dimensions, and no {max(places)}")
    is_skipped = np.zeros(shape, dtype=np.bool_)
    is_skipped[..., list(places)] = True
    return is_skipped
