"""The features of a LeRobot data set: what each is, and which of them become arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from egoloader.errors import ConversionError

__all__ = ["BOOKKEEPING", "Feature", "parse_features"]

# Columns that say where a row belongs. An episode's own place and rows say the same.
BOOKKEEPING = ("timestamp", "frame_index", "episode_index", "index", "task_index")


@dataclass(frozen=True)
class Feature:
    """One feature of the data set.

    Attributes:
        key: its name, which becomes the array's.
        kind: "video" and "image" are cameras, from a video file and from the parquet file;
            "left_out" are not converted.
        shape: of one row.
        names: of the dimensions, flattened; None where the data set gives none that fit.
        raw_names: as the data set gives them.
        reason: why it is left out; empty otherwise.
    """

    key: str
    kind: Literal["video", "image", "numeric", "bookkeeping", "left_out"]
    shape: tuple[int, ...]
    names: tuple[str, ...] | None = None
    raw_names: Any = None
    reason: str = ""


def parse_features(raw: Mapping[str, Any], root: Path) -> tuple[Feature, ...]:
    """Return the features that `meta/info.json` lists, in its order.

    Raises:
        ConversionError: an entry without a dtype or with a shape that is none.
    """
    try:
        return tuple(_feature(key, entry, root) for key, entry in raw.items())
    except RecursionError as error:
        raise ConversionError(
            f"{root}: the names of a feature in meta/info.json lie too deep in one another"
        ) from error


def _feature(key: str, raw: Any, root: Path) -> Feature:
    dtype = raw.get("dtype") if isinstance(raw, dict) else None
    if not isinstance(dtype, str):
        raise ConversionError(f"{root}: feature {key!r} in meta/info.json has no dtype")
    shape = raw.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
        raise ConversionError(
            f"{root}: feature {key!r} in meta/info.json has the shape {shape!r:.200}"
        )
    if key in BOOKKEEPING:
        return Feature(key, "bookkeeping", tuple(shape))
    if dtype == "video":
        if _is_depth(raw):
            return Feature(key, "left_out", tuple(shape), reason="a depth video, not colours")
        return Feature(key, "video", tuple(shape), raw_names=raw.get("names"))
    if dtype == "image":
        return Feature(key, "image", tuple(shape), raw_names=raw.get("names"))
    if dtype in ("string", "audio"):
        return Feature(key, "left_out", tuple(shape), reason=f"of dtype {dtype}, not numbers")
    names = _flatten(raw.get("names"))
    fits = names is not None and len(names) == _size(shape)
    return Feature(key, "numeric", tuple(shape), names if fits else None, raw.get("names"))


def _is_depth(raw: Mapping[str, Any]) -> bool:
    # v2.1 says so in `info`, v2.0 in `video_info`.
    for name in ("info", "video_info"):
        details = raw.get(name)
        if isinstance(details, dict):
            flags = (details.get("video.is_depth_map"), details.get("is_depth_map"))
            if any(flag is True for flag in flags):
                return True
    return False


def _flatten(names: Any) -> tuple[str, ...] | None:
    """Return LeRobot's names as one list: they come as lists, lists of lists, and dicts."""
    if names is None:
        return None
    if isinstance(names, dict):
        values = list(names.values())
        if values and all(isinstance(value, int) for value in values):
            return tuple(str(name) for name in sorted(names, key=lambda name: names[name]))
        names = values
    if isinstance(names, list):
        return tuple(flat for item in names for flat in _flatten(item) or ())
    return (str(names),)


def _size(shape: list[int]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size
