"""Keymaps: which arrays a sample holds, and which window around a frame each is cut with.

A keymap says nothing about an episode's length or layout; `windows` turns its entries into rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from egoloader.errors import KeyMapError, near_miss
from egoloader.keyspec import Interpolation, KeySpec, KeyType, TextSource, other_span_key

__all__ = [
    "RESERVED_NAMES",
    "Interpolation",
    "KeyMap",
    "KeySpec",
    "KeyType",
    "TextSource",
    "other_span_key",
]

#: Names that every sample carries, or may carry, besides the keymap's own.
RESERVED_NAMES = frozenset(
    {
        "fps",
        "embodiment",
        "episode",
        "frame_index",
        "timestamp",
        "sample_seed",
        "is_replaced",
        "is_repeat",
    }
)


class KeyMap(Mapping[str, KeySpec]):
    """An ordered, immutable mapping from a sample's key to the entry that makes it.

    Raises:
        KeyMapError: an empty keymap, a value that is no `KeySpec`, or names that clash with each
            other, with a mask, or with the names that every sample carries.
    """

    def __init__(self, entries: Mapping[str, KeySpec]) -> None:
        if not isinstance(entries, Mapping):
            raise KeyMapError(f"a keymap is a mapping of KeySpecs, got {type(entries).__name__}")
        self._entries = dict(entries)
        if not self._entries:
            raise KeyMapError("a keymap needs at least one entry")
        for key, spec in self._entries.items():
            _check_entry(key, spec)
        for key, spec in self._entries.items():
            for mask in _masks(key, spec):
                if mask in self._entries:
                    raise KeyMapError(f"entry {mask!r} clashes with the mask of entry {key!r}")
        _check_one_kind_per_array(self._entries)

    @classmethod
    def from_config(cls, entries: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> KeyMap:
        """Make a keymap from plain or Hydra containers.

        Args:
            entries: `{sample key: {field: value}}`, or a list of `{"key": sample key, field:
                value}`, which suits sample keys that a config tool can't take as keys.

        Raises:
            KeyMapError: as for `KeyMap`, or an unknown field, or a key listed twice.
        """
        specs: dict[str, KeySpec] = {}
        for key, fields in _named_entries(entries):
            if key in specs:
                raise KeyMapError(f"entry {key!r} is listed twice")
            specs[key] = fields if isinstance(fields, KeySpec) else _spec_from_fields(key, fields)
        return cls(specs)

    def __getitem__(self, key: str) -> KeySpec:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KeyMap):
            return NotImplemented
        return list(self._entries.items()) == list(other._entries.items())

    def __hash__(self) -> int:
        return hash(tuple(self._entries.items()))

    def __repr__(self) -> str:
        return f"KeyMap({self._entries!r})"

    @property
    def zarr_keys(self) -> tuple[str, ...]:
        """The arrays that the entries read, each once, in the keymap's order."""
        read = (spec.zarr_key for spec in self._entries.values() if not spec.is_task)
        return tuple(dict.fromkeys(read))

    @property
    def is_timed(self) -> bool:
        """Whether rows of any entry are found by time, not by counting frames."""
        return any(spec.is_timed for spec in self._entries.values())

    @property
    def sample_keys(self) -> tuple[str, ...]:
        """Every key that the entries put into a sample, masks among them, in order."""
        keys: list[str] = []
        for key, spec in self._entries.items():
            keys += [key, *_masks(key, spec)]
        return tuple(keys)


def _masks(key: str, spec: KeySpec) -> list[str]:
    """Return the keys of the masks that an entry emits."""
    masks = [f"{key}_is_pad"] if spec.emits_mask else []
    return [*masks, other_span_key(key)] if spec.span_mask else masks


def _check_entry(key: object, spec: object) -> None:
    if not isinstance(key, str) or not key:
        raise KeyMapError(f"sample keys are non-empty strings, got {key!r}")
    if not isinstance(spec, KeySpec):
        raise KeyMapError(
            f"entry {key!r} must be a KeySpec, got {type(spec).__name__}; "
            "KeyMap.from_config takes plain mappings"
        )
    if {key, *_masks(key, spec)} & RESERVED_NAMES:
        raise KeyMapError(f"entry {key!r} takes a name that every sample carries; rename it")


def _check_one_kind_per_array(entries: Mapping[str, KeySpec]) -> None:
    """Refuse an array that one entry calls a camera and another numbers."""
    kinds: dict[str, tuple[str, str]] = {}
    for key, spec in entries.items():
        if spec.is_task:
            continue
        kind = "camera" if spec.is_camera else "text" if spec.is_annotation else "numbers"
        first, seen = kinds.setdefault(spec.zarr_key, (key, kind))
        if kind != seen:
            raise KeyMapError(
                f"entries {first!r} and {key!r} read {spec.zarr_key!r} as {seen} and as {kind}"
            )


def _named_entries(entries: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(entries, Mapping):
        yield from entries.items()
        return
    if isinstance(entries, str) or not isinstance(entries, Sequence):
        raise KeyMapError(f"entries are a mapping or a list, got {type(entries).__name__}")
    for place, fields in enumerate(entries):
        if not isinstance(fields, Mapping) or "key" not in fields:
            raise KeyMapError(f"entry {place} of the list has no 'key' field: {fields!r}")
        yield fields["key"], {name: fields[name] for name in fields if name != "key"}


def _spec_from_fields(key: Any, fields: Any) -> KeySpec:
    if not isinstance(fields, Mapping):
        raise KeyMapError(f"entry {key!r} must hold fields, got {fields!r}")
    known = [field.name for field in dataclasses.fields(KeySpec)]
    for name in fields:
        if name not in known:
            raise KeyMapError(
                f"entry {key!r} has no field {name!r}; {near_miss(str(name), known)} "
                "(where the sample key itself holds a dot, quote it or use the list form)"
            )
    for name in ("zarr_key", "key_type"):
        if name not in fields:
            raise KeyMapError(f"entry {key!r} lacks {name!r}")
    try:
        return KeySpec(**{name: _plain(value) for name, value in fields.items()})
    except KeyMapError as error:
        raise KeyMapError(f"entry {key!r}: {error}") from None


def _plain(value: Any) -> Any:
    """Turn any list-like container into a tuple; leave the rest as it is."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(value)
    return value
