"""Samples made with zarr-python alone, the way loaders are written without a planner.

Rows, cuts and padding are reckoned here, not taken from egoloader's samples, so that equal answers
mean something. Nothing is counted or verified on the way.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import zarr

from egoloader import KeyMap, ZarrEpisode
from egoloader.plan import ReadPlan, plan_rows
from egoloader.windows import entry_steps

__all__ = [
    "HeldArrays",
    "Planner",
    "ZarrSamples",
    "decode",
    "per_entry",
    "per_key",
    "rewrite_numbers",
    "union_span",
]

Array = npt.NDArray[Any]
IntArray = npt.NDArray[np.int64]
Fetch = Callable[[str, ReadPlan], Array]
Finish = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class Entry:
    """One keymap entry, resolved for one episode.

    Attributes:
        zarr_key: the array.
        chunk_rows: rows of one of its chunks.
        offsets: (n,) steps of the window in frames.
        has_time_axis: whether the sample keeps the axis of n.
        is_camera: whether the rows are JPEGs.
    """

    zarr_key: str
    chunk_rows: int
    offsets: IntArray
    has_time_axis: bool
    is_camera: bool


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """One access to one array, and the sample keys that are cut from it."""

    zarr_key: str
    plan: ReadPlan
    sample_keys: tuple[str, ...]


Rows = Mapping[str, IntArray]
Planner = Callable[[Mapping[str, Entry], Rows], Iterator[PlannedRead]]


def per_entry(entries: Mapping[str, Entry], rows: Rows) -> Iterator[PlannedRead]:
    """Read every entry's window on its own, two of one array too."""
    for key, entry in entries.items():
        yield PlannedRead(entry.zarr_key, _span(rows[key]), (key,))


def union_span(entries: Mapping[str, Entry], rows: Rows) -> Iterator[PlannedRead]:
    """Read every array once, all from the first to the last row that any entry needs."""
    for array, keys in _by_array(entries).items():
        yield PlannedRead(array, _span(np.concatenate([rows[key] for key in keys])), keys)


def per_key(entries: Mapping[str, Entry], rows: Rows) -> Iterator[PlannedRead]:
    """Read every array once, and of the rows only those that egoloader's planner groups."""
    for array, keys in _by_array(entries).items():
        plan = plan_rows([rows[key] for key in keys], entries[keys[0]].chunk_rows)
        yield PlannedRead(array, plan, keys)


class HeldArrays:
    """The arrays of an episode, opened once by zarr-python and kept."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def fetch(self, key: str, plan: ReadPlan) -> Array:
        """Read the plan's groups with one access: a slice, or an orthogonal index."""
        if key not in self._arrays:
            self._arrays[key] = zarr.open_array(self._path / key, mode="r")
        array = self._arrays[key]
        if len(plan.groups) == 1:
            return np.asarray(array[slice(*plan.groups[0])])
        return np.asarray(array.oindex[(plan.rows, *[slice(None)] * (array.ndim - 1))])


class ZarrSamples:
    """Makes samples of an episode with a given way of reading.

    Args:
        episode: the episode; only its metadata is asked for.
        keymap: what a sample holds.
        planner: decides what is read for a frame.
        fetch: reads it.
        finish: from a camera's row to what the sample holds: `bytes` keeps it, `decode` decodes it.
    """

    def __init__(
        self, episode: ZarrEpisode, keymap: KeyMap, planner: Planner, fetch: Fetch, finish: Finish
    ) -> None:
        self._last = episode.total_frames - 1
        self._entries: dict[str, Entry] = {}
        for key, spec in keymap.items():
            steps = entry_steps(spec, episode.fps)
            chunk_rows = episode.layout(spec.zarr_key).chunk_rows
            self._entries[key] = Entry(
                spec.zarr_key, chunk_rows, steps.offsets, steps.has_time_axis, spec.is_camera
            )
        self._planner, self._fetch, self._finish = planner, fetch, finish

    def sample(self, frame: int) -> dict[str, Any]:
        """Return the keymap's entries at a frame: float32 tensors, and what `finish` makes."""
        rows = {
            key: np.clip(frame + entry.offsets, 0, self._last)
            for key, entry in self._entries.items()
        }
        sample: dict[str, Any] = {}
        for read in self._planner(self._entries, rows):
            stored = self._fetch(read.zarr_key, read.plan)
            for key in read.sample_keys:
                cut = stored[_places(read.plan, rows[key])]
                sample[key] = self._present(self._entries[key], cut)
        return sample

    def _present(self, entry: Entry, cut: Array) -> Any:
        if entry.is_camera:
            images = [self._finish(row) for row in cut]
            if not entry.has_time_axis:
                return images[0]
            return torch.stack(images) if isinstance(images[0], torch.Tensor) else images
        numbers = torch.from_numpy(cut.astype(np.float32, copy=False))
        return numbers if entry.has_time_axis else numbers[0]


def decode(jpeg: bytes) -> torch.Tensor:
    """Decode a JPEG to (3, H, W) uint8, a view of channels-last memory."""
    return torch.from_numpy(simplejpeg.decode_jpeg(jpeg)).permute(2, 0, 1)


def rewrite_numbers(source: Path, target: Path, compressor: Any) -> None:
    """Copy an episode, its numbers compressed anew, in chunks and shards as they are."""
    shutil.copytree(source, target, copy_function=os.link)
    for path in source.glob("*/zarr.json"):
        key = path.parent.name
        stored: Any = zarr.open_array(source / key, mode="r")
        if not np.issubdtype(stored.dtype, np.number):
            continue
        shutil.rmtree(target / key)
        copied = zarr.create_array(
            target / key,
            shape=stored.shape,
            chunks=stored.chunks,
            shards=stored.shards,
            dtype=stored.dtype,
            compressors=compressor,
        )
        copied[:] = stored[:]


def _by_array(entries: Mapping[str, Entry]) -> dict[str, tuple[str, ...]]:
    keys: dict[str, tuple[str, ...]] = {}
    for key, entry in entries.items():
        keys[entry.zarr_key] = (*keys.get(entry.zarr_key, ()), key)
    return keys


def _span(rows: IntArray) -> ReadPlan:
    return ReadPlan(((int(rows.min()), int(rows.max()) + 1),))


def _places(plan: ReadPlan, rows: IntArray) -> IntArray:
    """Return where rows stand in what a read returned; a slice needs no search for them."""
    return rows - plan.groups[0][0] if len(plan.groups) == 1 else plan.locate(rows)
