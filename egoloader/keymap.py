"""Keymaps: which arrays a sample holds, and which window around a frame each is cut with.

A keymap says nothing about an episode's length or layout; `windows` turns its entries into rows.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from egoloader.errors import KeyMapError, near_miss

__all__ = [
    "RESERVED_NAMES",
    "KeyMap",
    "KeySpec",
    "KeyType",
    "TextSource",
    "is_array_name",
    "other_span_key",
]

KeyType = Literal["camera_keys", "proprio_keys", "action_keys", "annotation_keys", "metadata_keys"]

#: What an annotation entry yields: the texts of the spans that hold the frame, the episode's task,
#: or the latter where there is none of the former.
TextSource = Literal["annotation", "task", "annotation_or_task"]

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

#: Steps of one window at most, and how far one may reach, in frames or seconds.
MAX_STEPS = 1_000_000
MAX_REACH = 1_000_000_000

#: Of a part of an array's name, which is that of a folder.
_MAX_NAME_BYTES = 255

_WINDOW_FIELDS = ("horizon", "history", "lag_s", "offsets", "offsets_s")
_DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KeySpec:
    """One entry of a keymap: an array and the rows taken from it around frame `i`.

    At most one of `horizon`, `history`, `lag_s`, `offsets`, `offsets_s` is set; none of them means
    the current frame, without a time axis. Seconds become frames with the episode's own fps and
    Python's `round` (ties to even).

    Args:
        zarr_key: the array's name in the episode.
        key_type: what the array is; decides how its rows leave the loader.
        horizon: forward chunk of that many frames from `i` on; always a time axis.
        history: that many frames up to and with `i`; 1 means the current frame, no time axis.
        stride_s: with `history`, seconds between its steps; at least one frame.
        lag_s: one frame that many seconds back (at least one frame); no time axis.
        offsets: frames relative to `i`; keeps its time axis even for one.
        offsets_s: seconds relative to `i`; keeps its time axis even for one.
        mask: also emit `<key>_is_pad`, bool, one a step, true where the step is clamped or padded.
        dtype: the numbers' output type; float32 unless given (metadata keep their own).
        size: cameras: decode to (height, width) pixels.
        optional: an episode may lack the array; then zeros of `shape` stand in (None for rows of
            JSON), and `<key>_is_pad` (emitted for every episode of an optional entry) is all true.
        shape: with `optional`, the shape of one row: (D…) for numbers, (H, W, 3) for cameras.
        text: annotation_keys: `annotation`, the texts of the spans that hold the frame; `task`, the
            episode's `task_description`, else its `task_name`, else "" (no array is read then); or
            `annotation_or_task`, the task where no span holds the frame.
        span_mask: with a window, also emit `<key>_is_other_span`, bool, one a step, true where the
            step's row lies outside the annotation span that holds frame `i`; of several, the one
            that ends first. Where none does, and in an absent array, none is true.

    Raises:
        KeyMapError: fields that contradict each other or can't be meant.
    """

    zarr_key: str
    key_type: KeyType
    horizon: int | None = None
    history: int | None = None
    stride_s: float | None = None
    lag_s: float | None = None
    offsets: tuple[int, ...] | None = None
    offsets_s: tuple[float, ...] | None = None
    mask: bool = False
    dtype: str | None = None
    size: tuple[int, int] | None = None
    optional: bool = False
    shape: tuple[int, ...] | None = None
    text: TextSource = "annotation"
    span_mask: bool = False

    def __post_init__(self) -> None:
        for name in ("offsets", "offsets_s", "size", "shape"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, tuple):
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise KeyMapError(f"{name} must be a list, got {value!r}")
                object.__setattr__(self, name, tuple(value))
        self._check_array()
        self._check_window()
        self._check_output()
        self._check_spans()

    @property
    def is_camera(self) -> bool:
        """Whether the rows are JPEGs."""
        return self.key_type == "camera_keys"

    @property
    def is_annotation(self) -> bool:
        """Whether the entry yields the text of the annotation spans that hold the frame."""
        return self.key_type == "annotation_keys"

    @property
    def emits_mask(self) -> bool:
        """Whether the sample gets `<key>_is_pad`."""
        return (self.mask or self.optional) and not self.is_annotation

    @property
    def is_task(self) -> bool:
        """Whether the entry yields the episode's task alone, for which no array is read."""
        return self.is_annotation and self.text == "task"

    @property
    def has_window(self) -> bool:
        """Whether the entry says which rows around frame `i` it takes."""
        return any(getattr(self, name) is not None for name in _WINDOW_FIELDS)

    def _check_array(self) -> None:
        if not isinstance(self.zarr_key, str) or not self.zarr_key:
            raise KeyMapError(f"zarr_key must be the name of an array, got {self.zarr_key!r}")
        if not is_array_name(self.zarr_key):
            raise KeyMapError(f"zarr_key {self.zarr_key!r} does not stay inside the episode")
        if self.key_type not in get_args(KeyType):
            hint = near_miss(str(self.key_type), get_args(KeyType))
            raise KeyMapError(f"unknown key_type {self.key_type!r}; {hint}")
        for name in ("mask", "optional"):
            if not isinstance(getattr(self, name), bool):
                raise KeyMapError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_window(self) -> None:
        windows = [name for name in _WINDOW_FIELDS if getattr(self, name) is not None]
        if len(windows) > 1:
            raise KeyMapError(f"{' and '.join(windows)} exclude each other; keep one")
        for name in ("horizon", "history"):
            value = getattr(self, name)
            if value is not None and not (_is_int(value) and 1 <= value <= MAX_STEPS):
                raise KeyMapError(
                    f"{name} must be a whole number of at least 1, got {value!r}"
                    f" (the limit is {MAX_STEPS})"
                )
        for name in ("stride_s", "lag_s"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value <= MAX_REACH):
                raise KeyMapError(
                    f"{name} must be a number of seconds above 0, got {value!r}"
                    f" (the limit is {MAX_REACH})"
                )
        if self.stride_s is not None and self.history is None:
            raise KeyMapError("stride_s needs history: it spaces the history's steps")
        _check_steps("offsets", self.offsets, _is_int, "whole numbers of frames")
        _check_steps("offsets_s", self.offsets_s, _is_number, "finite numbers of seconds")
        if self.is_annotation and (windows or self.mask):
            raise KeyMapError("annotation_keys yield the current frame's text: no window, no mask")

    def _check_output(self) -> None:
        if self.dtype is not None and self.dtype not in _DTYPES:
            raise KeyMapError(
                f"unknown dtype {self.dtype!r}; {near_miss(str(self.dtype), _DTYPES)}"
            )
        if self.dtype is not None and (self.is_camera or self.is_annotation):
            raise KeyMapError(f"dtype is for numbers; {self.key_type} have none to set")
        if self.size is not None and not self.is_camera:
            raise KeyMapError(f"size is for camera_keys, not for {self.key_type}")
        _check_extent("size", self.size, length=2)
        _check_extent("shape", self.shape, length=3 if self.is_camera else None)
        if self.shape is not None and not self.optional:
            raise KeyMapError("shape goes with optional: true; arrays that exist have their own")
        if self.key_type == "metadata_keys":
            if self.optional and (self.shape is None) != (self.dtype is None):
                raise KeyMapError(
                    "optional metadata_keys of numbers need shape and dtype, JSON rows neither"
                )
        elif self.optional and self.shape is None and not self.is_annotation:
            raise KeyMapError("optional needs shape, the shape of one row, to make the zeros")

    def _check_spans(self) -> None:
        if self.text not in get_args(TextSource):
            hint = near_miss(str(self.text), get_args(TextSource))
            raise KeyMapError(f"unknown text {self.text!r}; {hint}")
        if self.text != "annotation" and not self.is_annotation:
            raise KeyMapError(f"text is for annotation_keys, not for {self.key_type}")
        if not isinstance(self.span_mask, bool):
            raise KeyMapError(f"span_mask must be true or false, got {self.span_mask!r}")
        if self.span_mask and not self.has_window:
            raise KeyMapError("span_mask needs a window: the current frame is always in its span")


def other_span_key(key: str) -> str:
    """Return the key of the mask of an entry's steps that lie in another annotation span."""
    return f"{key}_is_other_span"


def is_array_name(name: str) -> bool:
    """Return whether a name, which may hold slashes, is a path that stays inside the episode."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        return False
    # No system takes the others in a path; nor a lone half of a surrogate pair.
    if "\\" in name or "\0" in name or re.search(r"[\ud800-\udfff]", name):
        return False
    return all(len(part.encode()) <= _MAX_NAME_BYTES for part in name.split("/"))


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
    def sample_keys(self) -> tuple[str, ...]:
        """Every key that the entries put into a sample, masks among them, in order."""
        keys: list[str] = []
        for key, spec in self._entries.items():
            keys += [key, *_masks(key, spec)]
        return tuple(keys)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _check_steps(name: str, steps: tuple[float, ...] | None, is_step: Any, wanted: str) -> None:
    if steps is None:
        return
    if not steps:
        raise KeyMapError(f"{name} is empty; give at least one step, or leave it out")
    for step in steps:
        if not is_step(step) or abs(step) > MAX_REACH:
            raise KeyMapError(
                f"{name} must be {wanted} up to {MAX_REACH}, got {step!r} among {list(steps)}"
            )


def _check_extent(name: str, extent: tuple[int, ...] | None, length: int | None) -> None:
    if extent is None:
        return
    if length is not None and len(extent) != length:
        what = "[height, width]" if length == 2 else "[height, width, 3]"
        raise KeyMapError(f"{name} must be {what}, got {list(extent)}")
    for side in extent:
        if not _is_int(side) or side < 1:
            raise KeyMapError(f"{name} must be whole numbers of at least 1, got {list(extent)}")
    if length == 3 and extent[2] != 3:
        raise KeyMapError(f"{name} of a camera must end with 3 channels, got {list(extent)}")


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
        raise KeyMapError(f"a keymap is a mapping or a list, got {type(entries).__name__}")
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
