"""What is right: samples cut slowly, out of rows as recorded or as zarr-python reads them.

Shares no code with the package; see `tests.oracle`.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import zarr

from egoloader.keymap import KeySpec
from tests.fuzz.bases import ANNOTATIONS, TIMES, Base
from tests.oracle import keeps_time_axis, slow_rows

__all__ = ["Rows", "StoreRows", "difference", "slow_sample"]


class Rows(Protocol):
    """Rows of arrays, whoever has them; see `Recording`."""

    @property
    def total(self) -> int: ...
    @property
    def fps(self) -> float: ...
    @property
    def embodiment(self) -> str: ...
    def has(self, key: str) -> bool: ...
    def count(self, key: str) -> int: ...
    def row(self, key: str, number: int) -> Any: ...


class StoreRows:
    """Rows of an episode on disk, each asked of zarr-python by itself.

    What zarr-python raises goes through.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, dict[tuple[str, int], Any]()
        self._arrays: dict[str, zarr.Array[Any]] = {}
        attrs = _quietly(
            lambda: dict(zarr.open_group(path, mode="r", use_consolidated=False).attrs)
        )
        self.total: int = attrs["total_frames"]
        self.fps = float(attrs.get("fps", 30))
        self.embodiment: str = attrs["embodiment"]

    def has(self, key: str) -> bool:
        """Return whether there is an array of that name, broken or not; a group is none."""
        if not any((self._path / key / name).is_file() for name in ("zarr.json", ".zarray")):
            return False
        try:
            _quietly(lambda: zarr.open_group(self._path / key, mode="r", use_consolidated=False))
        except Exception:  # whatever zarr-python raises where there is no whole group
            return True
        return False

    def count(self, key: str) -> int:
        """Return how many rows an array has."""
        return int(self._array(key).shape[0])

    def row(self, key: str, number: int) -> Any:
        """Return one row."""
        if (key, number) not in self._rows:
            array = self._array(key)
            self._rows[key, number] = _quietly(lambda: np.asarray(array[number : number + 1])[0])
        return self._rows[key, number]

    def _array(self, key: str) -> zarr.Array[Any]:
        if key not in self._arrays:
            self._arrays[key] = _quietly(lambda: zarr.open_array(self._path / key, mode="r"))
        return self._arrays[key]


def _quietly(read: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of codecs and data types that v3 has not settled on
        return read()


def slow_sample(rows: Rows, base: Base, frame: int) -> dict[str, Any]:
    """Return what a base's keymap gives at a frame, and what every sample carries."""
    spans = _spans(rows)
    ends = [min(end, rows.total) for _, start, end in spans if start <= frame < end]
    cut_end = min(ends) if ends and base.has_cutoff else None
    sample: dict[str, Any] = {}
    for key, spec in base.keymap.items():
        if spec.is_annotation:
            sample[key] = "; ".join(text for text, start, end in spans if start <= frame < end)
            continue
        places, pads = slow_rows(spec, rows.fps, rows.total, frame, cut_end)
        has = rows.has(spec.zarr_key)
        steps = [
            _value(rows, spec, place) if has else np.zeros(spec.shape or ()) for place in places
        ]
        is_pad = np.array(pads if has else [True] * len(pads))
        windowed = keeps_time_axis(spec)
        sample[key] = steps if windowed else steps[0]
        if spec.emits_mask:
            sample[f"{key}_is_pad"] = is_pad if windowed else is_pad[0]
    time = float(rows.row(TIMES, frame)) if rows.has(TIMES) else frame / rows.fps
    context = {"fps": np.float32(rows.fps), "embodiment": rows.embodiment, "frame_index": frame}
    return {**sample, **context, "timestamp": time}


def _value(rows: Rows, spec: KeySpec, number: int) -> Any:
    """Return what one row becomes."""
    row = rows.row(spec.zarr_key, number)
    if spec.is_camera:
        return _pixels(bytes(row))
    if isinstance(row, bytes):
        return json.loads(row)
    return np.asarray(row).astype(spec.dtype or np.float32)


@functools.lru_cache(maxsize=64)
def _pixels(jpeg: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(simplejpeg.decode_jpeg(jpeg, strict=True)).transpose(2, 0, 1)


def _spans(rows: Rows) -> list[tuple[str, int, int]]:
    if not rows.has(ANNOTATIONS):
        return []
    found = [json.loads(rows.row(ANNOTATIONS, n)) for n in range(rows.count(ANNOTATIONS))]
    return [(row["text"], row["start_idx"], row["end_idx"]) for row in found]


def difference(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Return the key in which a sample is not what it is to be, and how; empty where there is none.

    Numbers must have the same dtype and shape, and be equal, NaN to NaN.
    """
    for key, value in wanted.items():
        if key not in found:
            return f"{key} is not there"
        told = _compare(found[key], value)
        if told:
            return f"{key}: {told}"
    return ""


def _compare(found: Any, wanted: Any) -> str:
    if not isinstance(found, torch.Tensor):
        return "" if repr(found) == repr(wanted) else f"{found!r:.80}, not {wanted!r:.80}"
    numbers, right = found.numpy(), np.asarray(wanted)
    # A number that Python holds has no width.
    if isinstance(wanted, np.ndarray | np.generic) and numbers.dtype != right.dtype:
        return f"{numbers.dtype}, not {right.dtype}"
    if numbers.shape != right.shape:
        return f"rows of {numbers.shape}, not {right.shape}"
    if np.array_equal(numbers, right, equal_nan=numbers.dtype.kind == "f"):
        return ""
    place = tuple(np.argwhere((numbers != right) & ~((numbers != numbers) & (right != right)))[0])
    return f"{numbers[place]} at {place}, not {right[place]}"
