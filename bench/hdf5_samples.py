"""Samples made with h5py alone, on held datasets, as tersely as it can be done."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import zarr

from bench.recordings import ARRAYS, CAMERA, Recording
from egoloader import KeyMap
from egoloader.errors import require_extra
from egoloader.windows import entry_steps

__all__ = ["HdfSamples", "write_hdf5"]

_CHUNK_ROWS = 100
_FPS = 30.0
#: Prime and far above the number of chunks, so that no two share a slot of the cache.
_SLOTS = 10_007


def write_hdf5(path: Path, recording: Recording) -> None:
    """Write a recording as HDF5: numbers in gzip-1, chunks of 100 rows; a JPEG a row and chunk.

    Raises:
        MissingExtraError: h5py is not installed.
    """
    h5py = require_extra("h5py", extra="bench")
    total = recording.total_frames
    jpegs = [recording.jpeg(CAMERA, t) for t in range(total)]
    with h5py.File(path, "w") as file:
        file.attrs["total_frames"] = total
        for key in ARRAYS:
            stored: Any = zarr.open_array(recording.path / key, mode="r")
            rows = np.asarray(stored[:total])
            chunks = (min(_CHUNK_ROWS, total), rows.shape[1])
            file.create_dataset(
                key, data=rows, chunks=chunks, compression="gzip", compression_opts=1
            )
        file.create_dataset("lengths", data=[len(jpeg) for jpeg in jpegs])
        width = max(map(len, jpegs))
        images = file.create_dataset(CAMERA, (total, width), np.uint8, chunks=(1, width))
        for t, jpeg in enumerate(jpegs):
            images[t, : len(jpeg)] = np.frombuffer(jpeg, dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Entry:
    """One keymap entry on an array.

    Attributes:
        key: of the sample.
        offsets: (n,) steps of the window in frames.
        first: the first of them.
        stop: one more than the last of them; the steps between are whole.
        has_time_axis: whether the sample keeps the axis of n.
    """

    key: str
    offsets: npt.NDArray[np.int64]
    first: int
    stop: int
    has_time_axis: bool


@dataclass(frozen=True, slots=True)
class Source:
    """One array, and all that is cut from it."""

    dataset: Any
    entries: tuple[Entry, ...]
    first: int
    stop: int


class HdfSamples:
    """Makes samples of a file that `write_hdf5` wrote, with one slice a dataset.

    Args:
        path: the file.
        keymap: what a sample holds; windows of whole steps, cameras at the current frame.
        cache_bytes: chunk cache of each dataset of numbers.

    Raises:
        MissingExtraError: h5py is not installed.
    """

    def __init__(self, path: Path, keymap: KeyMap, cache_bytes: int) -> None:
        h5py = require_extra("h5py", extra="bench")
        self._file = h5py.File(path, "r", rdcc_nbytes=cache_bytes, rdcc_nslots=_SLOTS)
        self._total = int(self._file.attrs["total_frames"])
        self._lengths: list[int] = self._file["lengths"][:].tolist()
        uncached = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        uncached.set_chunk_cache(_SLOTS, 0, 1.0)
        self._images = h5py.Dataset(h5py.h5d.open(self._file.id, CAMERA.encode(), uncached))
        (self._image_key,) = (key for key, spec in keymap.items() if spec.is_camera)
        self._sources = self._bind(keymap)

    def _bind(self, keymap: KeyMap) -> list[Source]:
        entries: dict[str, list[Entry]] = {}
        for key, spec in keymap.items():
            if not spec.is_camera:
                steps = entry_steps(spec, _FPS)
                first, last = int(steps.offsets[0]), int(steps.offsets[-1])
                entry = Entry(key, steps.offsets, first, last + 1, steps.has_time_axis)
                entries.setdefault(spec.zarr_key, []).append(entry)
        return [
            Source(
                self._file[key],
                tuple(cuts),
                min(entry.first for entry in cuts),
                max(entry.stop for entry in cuts),
            )
            for key, cuts in entries.items()
        ]

    def sample(self, frame: int) -> dict[str, Any]:
        """Return the keymap's entries at a frame: float32 tensors, and the JPEG's bytes."""
        sample: dict[str, Any] = {}
        for source in self._sources:
            start, stop = max(0, frame + source.first), min(self._total, frame + source.stop)
            rows = source.dataset[start:stop]
            for entry in source.entries:
                sample[entry.key] = self._cut(entry, rows, frame, start)
        jpeg = self._images[frame, : self._lengths[frame]]
        sample[self._image_key] = jpeg.tobytes()
        return sample

    def _cut(
        self, entry: Entry, rows: npt.NDArray[np.float32], frame: int, start: int
    ) -> torch.Tensor:
        """Copy an entry's window out of the rows from `start` on."""
        first, stop = frame + entry.first, frame + entry.stop
        if not entry.has_time_axis:
            return torch.from_numpy(rows[first - start].copy())
        if first >= 0 and stop <= self._total:
            return torch.from_numpy(rows[first - start : stop - start].copy())
        places = np.clip(frame + entry.offsets, 0, self._total - 1) - start
        return torch.from_numpy(rows[places])

    def __enter__(self) -> HdfSamples:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Else the next one to open the file would be handed this one's caches.
        self._images.id.close()
        self._file.close()
