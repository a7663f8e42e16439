"""Batches made with Lance alone: one `take` for each set of columns that need the same rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr

from bench.recordings import ARRAYS, CAMERA, Recording
from egoloader import KeyMap
from egoloader.errors import require_extra
from egoloader.windows import entry_steps

__all__ = ["LanceBatches", "write_lance"]

IntArray = npt.NDArray[np.int64]
_FPS = 30.0


def write_lance(path: Path, recordings: Mapping[str, Recording]) -> None:
    """Write the frames of episodes, one episode after the other, as one Lance dataset.

    Raises:
        MissingExtraError: pylance is not installed.
    """
    lance = require_extra("lance", extra="bench")
    arrow = require_extra("pyarrow", extra="bench")
    batches = _record_batches(arrow, recordings)
    first = next(batches)
    lance.write_dataset(
        arrow.RecordBatchReader.from_batches(first.schema, _chain(first, batches)), str(path)
    )


def _record_batches(arrow: Any, recordings: Mapping[str, Recording]) -> Iterator[Any]:
    for recording in recordings.values():
        columns: dict[str, Any] = {}
        for key, width in ARRAYS.items():
            stored: Any = zarr.open_array(recording.path / key, mode="r")
            numbers = arrow.array(np.asarray(stored[: recording.total_frames]).ravel())
            columns[_column(key)] = arrow.FixedSizeListArray.from_arrays(numbers, width)
        jpegs = [recording.jpeg(CAMERA, t) for t in range(recording.total_frames)]
        columns[_column(CAMERA)] = arrow.array(jpegs, arrow.large_binary())
        yield arrow.RecordBatch.from_pydict(columns)


def _chain(first: Any, others: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from others


def _column(zarr_key: str) -> str:
    """Return an array's column; in Lance, a dot means a field of a struct."""
    return zarr_key.replace(".", "/")


@dataclass(frozen=True, slots=True)
class Entry:
    """One keymap entry.

    Attributes:
        key: of the sample.
        column: that it is cut from.
        begin: where its window begins in that of its column set.
        steps: of its window, which are whole.
        has_time_axis: whether the sample keeps the axis of steps.
        is_camera: whether it holds JPEGs.
    """

    key: str
    column: str
    begin: int
    steps: int
    has_time_axis: bool
    is_camera: bool


@dataclass(frozen=True, slots=True)
class ColumnSet:
    """Columns that are needed at the same rows.

    Attributes:
        offsets: (n,) the rows, in frames from the sample's own.
        columns: their names.
        entries: what is cut from them.
    """

    offsets: IntArray
    columns: tuple[str, ...]
    entries: tuple[Entry, ...]


class LanceBatches:
    """Makes batches of a dataset that `write_lance` wrote.

    Args:
        path: the dataset.
        keymap: what a sample holds; windows of whole steps.
        recordings: the episodes in it.

    Raises:
        MissingExtraError: pylance is not installed.
    """

    def __init__(self, path: Path, keymap: KeyMap, recordings: Mapping[str, Recording]) -> None:
        self._dataset: Any = require_extra("lance", extra="bench").dataset(str(path))
        lengths = [recording.total_frames for recording in recordings.values()]
        self._bounds = np.concatenate([[0], np.cumsum(lengths)])
        self._sets = list(_column_sets(keymap))

    def batch(self, indices: Sequence[int]) -> dict[str, Any]:
        """Return the batch of frames, counted over all episodes."""
        at = np.asarray(indices)
        episodes = np.searchsorted(self._bounds, at, side="right") - 1
        first, last = self._bounds[episodes], self._bounds[episodes + 1] - 1
        batch: dict[str, Any] = {}
        for columns in self._sets:
            wanted = np.clip(at[:, None] + columns.offsets, first[:, None], last[:, None])
            rows, places = np.unique(wanted, return_inverse=True)
            taken = self._dataset.take(rows.tolist(), columns=list(columns.columns))
            places = places.reshape(wanted.shape)
            for entry in columns.entries:
                window = places[:, entry.begin : entry.begin + entry.steps]
                batch[entry.key] = _cut(taken.column(entry.column), entry, window)
        return batch


def _cut(column: Any, entry: Entry, window: IntArray) -> Any:
    """Copy an entry's (B, n) rows out of a column."""
    if entry.is_camera:
        jpegs = column.to_pylist()
        return [jpegs[place] for place in window[:, 0]]
    values = column.combine_chunks()
    numbers = values.flatten().to_numpy().reshape(len(values), -1)
    return torch.from_numpy(numbers[window if entry.has_time_axis else window[:, 0]])


def _column_sets(keymap: KeyMap) -> Iterator[ColumnSet]:
    windows = {key: entry_steps(spec, _FPS) for key, spec in keymap.items()}
    spans: dict[str, tuple[int, int]] = {}
    for key, spec in keymap.items():
        offsets = windows[key].offsets
        first, last = spans.get(spec.zarr_key, (int(offsets[0]), int(offsets[-1])))
        span = min(first, int(offsets[0])), max(last, int(offsets[-1]))
        spans[spec.zarr_key] = span
    for span in dict.fromkeys(spans.values()):
        entries = tuple(
            Entry(
                key,
                _column(spec.zarr_key),
                int(windows[key].offsets[0]) - span[0],
                len(windows[key].offsets),
                windows[key].has_time_axis,
                spec.is_camera,
            )
            for key, spec in keymap.items()
            if spans[spec.zarr_key] == span
        )
        columns = tuple(dict.fromkeys(entry.column for entry in entries))
        yield ColumnSet(np.arange(span[0], span[1] + 1), columns, entries)
