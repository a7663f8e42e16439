"""What is right: samples cut slowly, out of rows as recorded or as zarr-python reads them.

Shares no code with the package; see `tests.oracle`.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
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

__all__ = ["Rows", "StoreRows", "differences", "slow_sample"]

Span = tuple[str, int, int]


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


def slow_sample(
    rows: Rows, base: Base, frame: int, keys: Collection[str] | None = None
) -> dict[str, Any]:
    """Return what a base's keymap gives at a frame, and what every sample carries.

    Args:
        rows: of the episode.
        base: whose keymap is meant.
        frame: which sample.
        keys: of the sample that are asked for, where it is not all; the others need not be there.
    """
    spans = functools.cache(functools.partial(_spans, rows))
    makers: dict[str, Callable[[], Any]] = {
        "fps": lambda: np.float32(rows.fps),
        "embodiment": lambda: rows.embodiment,
        "frame_index": lambda: frame,
        "timestamp": lambda: _time(rows, frame),
    }
    for key, spec in base.keymap.items():
        if spec.is_annotation:
            makers[key] = lambda: _text(spans(), frame)
            continue
        is_cut = base.has_cutoff and spec.key_type == "action_keys"
        entry = functools.cache(functools.partial(_entry, rows, spec, frame, spans, is_cut))
        makers[key] = functools.partial(_part, entry, 0)
        if spec.emits_mask:
            makers[f"{key}_is_pad"] = functools.partial(_part, entry, 1)
    return {key: make() for key, make in makers.items() if keys is None or key in keys}


def _part(entry: Callable[[], tuple[Any, Any]], number: int) -> Any:
    return entry()[number]


def _entry(
    rows: Rows, spec: KeySpec, frame: int, spans: Callable[[], list[Span]], is_cut: bool
) -> tuple[Any, Any]:
    """Return the value of an entry and its mask."""
    ends = [min(end, rows.total) for _, a, end in spans() if a <= frame < end] if is_cut else []
    cut_end = min(ends) if ends else None
    places, pads = slow_rows(spec, rows.fps, rows.total, frame, cut_end)
    has = rows.has(spec.zarr_key)
    zeros = np.zeros(spec.shape or (), np.float32)
    steps = [_value(rows, spec, place) if has else zeros for place in places]
    is_pad = np.array(pads if has else [True] * len(pads))
    windowed = keeps_time_axis(spec)
    if not windowed:
        return steps[0], is_pad[0]
    return np.stack(steps) if isinstance(steps[0], np.ndarray | np.generic) else steps, is_pad


def _text(spans: Iterable[Span], frame: int) -> str:
    return "; ".join(text for text, start, end in spans if start <= frame < end)


def _time(rows: Rows, frame: int) -> float:
    return float(rows.row(TIMES, frame)) if rows.has(TIMES) else frame / rows.fps


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


def _spans(rows: Rows) -> list[Span]:
    if not rows.has(ANNOTATIONS):
        return []
    found = [json.loads(rows.row(ANNOTATIONS, n)) for n in range(rows.count(ANNOTATIONS))]
    return [(row["text"], row["start_idx"], row["end_idx"]) for row in found]


def differences(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys in which a sample is not what it is to be, and how it differs.

    Numbers must have the same dtype and shape, and be equal, NaN to NaN.
    """
    told = {
        key: _compare(found[key], value) if key in found else "not there"
        for key, value in wanted.items()
    }
    return {key: how for key, how in told.items() if how}


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
