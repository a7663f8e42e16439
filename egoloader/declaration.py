"""What an episode that is being written declares of itself: attributes, array names, annotations.

Checked ahead, so that a recording isn't lost at its end for what was wrong at its start. Pure.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from egoloader.arrayfile import AnnotationSpan
from egoloader.episode import ANNOTATIONS
from egoloader.errors import WriterError
from egoloader.header import STAMP, parse_header
from egoloader.keymap import RESERVED_NAMES
from egoloader.store import MAX_METADATA_BYTES

__all__ = [
    "check_annotation",
    "check_attrs",
    "check_header",
    "check_json",
    "check_names",
    "group_json",
]

_OWN_ATTRS = frozenset(
    {"total_frames", "fps", "embodiment", "task_name", "task_description", "features", STAMP}
)
# Every sample carries these; of them only `timestamp` may be recorded.
_TAKEN_NAMES = RESERVED_NAMES - {"timestamp"}
_MAX_NAME_BYTES = 255


def check_header(attrs: Mapping[str, Any], episode: str) -> None:
    """Hold an episode that is to be written to what the reader demands of its attributes.

    Raises:
        WriterError: the reader would refuse it, or a text is no string.
    """
    for name in ("task_name", "task_description"):
        if not isinstance(attrs[name], str):
            raise WriterError(f"episode {episode!r}: {name} must be a string, got {attrs[name]!r}")
    try:
        parse_header({**attrs, "total_frames": 1}, episode=episode)
    except ValueError as error:
        raise WriterError(str(error)) from error


def check_attrs(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the caller's own attributes as JSON gives them back.

    Raises:
        WriterError: JSON can't hold one, or the writer sets it.
    """
    checked = check_json(attrs, "attrs")
    taken = sorted(_OWN_ATTRS & checked.keys())
    if taken:
        raise WriterError(f"attrs may not set {taken[0]!r}: the writer does, or an argument")
    return checked


def check_json(values: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy as JSON gives it back, which nothing can change until it is written.

    Raises:
        WriterError: JSON can't hold a value: NaN, an array, a key that is no string.
    """
    copy = {}
    for name, value in values.items():
        try:
            text = json.dumps(value, allow_nan=False)
            _refuse_odd_keys({name: value})
        except (TypeError, ValueError, RecursionError) as error:
            raise WriterError(
                f"{what}[{name!r}] must be what JSON can hold: {error}; arrays become lists "
                "by .tolist()"
            ) from error
        copy[name] = json.loads(text)
    return copy


def _refuse_odd_keys(value: Any) -> None:
    """Refuse keys that `json` would turn into strings, so that two of them may become one."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is no string")
            _refuse_odd_keys(item)
    elif isinstance(value, list | tuple):
        for item in value:
            _refuse_odd_keys(item)


def check_annotation(span: AnnotationSpan) -> AnnotationSpan:
    """Return a span (text, start, end) with plain integers.

    Raises:
        WriterError: it is no such triple, or holds no frame.
    """
    try:
        text, start, end = span
        first, stop = operator.index(start), operator.index(end)
    except (TypeError, ValueError):
        text, start, end, first, stop = None, True, True, 0, 0
    if not isinstance(text, str) or isinstance(start, bool) or isinstance(end, bool):
        raise WriterError(f"annotations are (text, start, end) in whole frames, got {span!r}")
    if not 0 <= first < stop:
        raise WriterError(f"annotations need 0 <= start < end, got {span!r}")
    return text, first, stop


def check_names(numeric: Sequence[str], cameras: Sequence[str], where: str) -> None:
    """Check the array names of an episode.

    Raises:
        WriterError: there are none, or one is no path inside the episode, is taken, is given
            twice, or would lie inside another array.
    """
    if not numeric and not cameras:
        raise WriterError(f"{where}: a frame needs numbers or images, got neither")
    for key in (*numeric, *cameras):
        _check_name(key, where)
    both = sorted(set(numeric) & set(cameras))
    if both:
        raise WriterError(f"{where}: key {both[0]!r} is both numeric and an image")
    keys = [*numeric, *cameras, ANNOTATIONS]
    for key in keys:
        for other in keys:
            # Its files would meet the chunks of the one around it.
            if other.startswith(f"{key}/"):
                raise WriterError(f"{where}: array {other!r} would lie inside array {key!r}")


def _check_name(key: str, where: str) -> None:
    parts = key.split("/") if isinstance(key, str) else [""]
    if not all(_is_file_name(part) for part in parts):
        raise WriterError(f"{where}: array name {key!r} can't be a path inside the episode")
    if key == ANNOTATIONS:
        raise WriterError(f"{where}: array name {key!r} is taken; pass spans as `annotations`")
    if key in _TAKEN_NAMES:
        raise WriterError(f"{where}: array name {key!r} is taken: every sample carries it already")


def _is_file_name(part: str) -> bool:
    """Return whether every file system takes a name, and Zarr keeps it free for nodes."""
    return (
        part not in ("", "zarr.json")
        and not part.startswith(("__", "."))
        and "\\" not in part
        and part.isprintable()
        and len(part.encode()) <= _MAX_NAME_BYTES
    )


def group_json(attrs: Mapping[str, Any], where: str) -> str:
    """Return the `zarr.json` of a group.

    Raises:
        WriterError: it is too large to be read again.
    """
    group = {"zarr_format": 3, "node_type": "group", "attributes": attrs}
    text = json.dumps(group, indent=1)
    if len(text) > MAX_METADATA_BYTES:
        raise WriterError(
            f"{where}: its attributes take {len(text)} bytes, the limit is {MAX_METADATA_BYTES}; "
            "keep large tables as arrays"
        )
    return text
