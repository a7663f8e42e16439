"""What windows on a time grid hold, and cost, by zarr-python, NumPy's interpolation and SciPy's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import zarr
from scipy.spatial.transform import Rotation, Slerp

from egoloader import KeyMap, KeySpec

__all__ = ["Cost", "Truth", "Window"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
#: Seconds by which a time may miss a frame, or the middle of two, and meet it all the same.
_ROUNDING_S = 1e-6
_TIMESTAMP = "timestamp"
#: Bytes between two ranges that one request reads through at most.
_GAP = 4096


class Window(NamedTuple):
    """What an entry holds at B frames.

    Attributes:
        values: (B, n, D).
        is_pad: (B, n), which steps are outside the episode.
    """

    values: FloatArray
    is_pad: npt.NDArray[np.bool_]


class _Places(NamedTuple):
    """Where B windows of n steps are among the frames, (B, n) each.

    Attributes:
        times: in seconds.
        low: the last frame at or before each, in the episode.
        high: the first one at or behind it, in the episode.
        is_pad: whether the time is outside the episode.
    """

    times: FloatArray
    low: IntArray
    high: IntArray
    is_pad: npt.NDArray[np.bool_]


class Cost(NamedTuple):
    """What reading an array costs."""

    reads: int
    rows: int
    chunks: int
    requests: int


class Truth:
    """One episode, read whole by zarr-python.

    Args:
        path: of an episode as the writer makes it, its numbers in chunks of `chunk_rows`.
        fps: how many frames a second there are, where no array `timestamp` says when they are.
        chunk_rows: rows of a chunk.
    """

    def __init__(self, path: Path, fps: float, chunk_rows: int = 100) -> None:
        group: Any = zarr.open_group(path, mode="r", use_consolidated=False)
        self._group, self._total = group, int(group.attrs["total_frames"])
        self._chunk_rows = chunk_rows
        self._numbers: dict[str, FloatArray] = {}
        self._slerps: dict[str, Slerp] = {}
        self._is_timed = _TIMESTAMP in self._group
        self._times = self._stored(_TIMESTAMP) if self._is_timed else np.arange(self._total) / fps

    def window(self, spec: KeySpec, frames: npt.ArrayLike) -> Window:
        """Return what an entry of numbers, with a window, holds at B frames."""
        its, stored = self._places(spec, frames), self._stored(spec.zarr_key)
        if spec.interpolation == "nearest":
            return Window(stored[self._nearest(its)], its.is_pad)
        columns = [np.interp(its.times, self._times, column) for column in stored.T]
        values = np.stack(columns, axis=-1)
        if spec.interpolation == "slerp":
            values[..., 3:] = self._turned(its, spec.zarr_key)
        return Window(values, its.is_pad)

    def costs(self, keymap: KeyMap, frames: npt.ArrayLike) -> dict[str, Cost]:
        """Return what each array of numbers costs, read once for B frames."""
        rows: dict[str, list[IntArray]] = {}
        for spec in keymap.values():
            if spec.is_camera:
                continue
            its = self._places(spec, frames)
            is_one = spec.interpolation == "nearest"
            needed = [self._nearest(its)] if is_one else [its.low, its.high]
            rows.setdefault(spec.zarr_key, []).extend(needed)
        if self._is_timed:
            rows[_TIMESTAMP] = [np.asarray(frames)]
        return {key: self._cost(key, its) for key, its in rows.items()}

    def _cost(self, key: str, rows: Sequence[IntArray]) -> Cost:
        size, array = self._chunk_rows, self._group[key]
        distinct = np.unique(np.concatenate([part.ravel() for part in rows]))
        # Rows between two that are needed are read, too, where no chunk lies between.
        steps = np.diff(distinct)
        is_near = np.diff(distinct // size) <= 1
        chunks = np.unique(distinct // size)
        # Numbers as they are, and a crc32c.
        chunk_bytes = size * math.prod(array.shape[1:]) * array.dtype.itemsize + 4
        holes = (np.diff(chunks) - 1) * chunk_bytes
        return Cost(
            reads=1,
            rows=1 + int(np.where(is_near, steps, 1).sum()),
            chunks=len(chunks),
            requests=1 + int((holes > _GAP).sum()),
        )

    def _places(self, spec: KeySpec, frames: npt.ArrayLike) -> _Places:
        at, last = np.asarray(frames)[:, None], self._total - 1
        count = spec.horizon or spec.history or 1
        if spec.rate_hz is not None:
            count = round((spec.horizon_s or spec.history_s or 0.0) * spec.rate_hz)
        is_back = spec.history is not None or spec.history_s is not None
        steps = np.arange(1 - count, 1) if is_back else np.arange(count)
        if spec.rate_hz is None:
            low, high = at + steps, at + steps
            times = self._times[np.clip(low, 0, last)]
        else:
            times = self._times[at] + steps / spec.rate_hz
            low = self._times.searchsorted(times + _ROUNDING_S, "right") - 1
            high = self._times.searchsorted(times - _ROUNDING_S, "left")
        is_pad = (low < 0) | (high > last)
        return _Places(times, np.clip(low, 0, last), np.clip(high, 0, last), is_pad)

    def _nearest(self, its: _Places) -> IntArray:
        """Return the nearest frames, (B, n), the earlier of two as near."""
        before, behind = its.times - self._times[its.low], self._times[its.high] - its.times
        return np.where(before <= behind + _ROUNDING_S, its.low, its.high)

    def _turned(self, its: _Places, key: str) -> FloatArray:
        """Return the rotations of poses, (B, n, 4) wxyz, of the sign of the row before."""
        quaternions = self._stored(key)[:, 3:]
        if key not in self._slerps:
            turns = Rotation.from_quat(quaternions, scalar_first=True)
            self._slerps[key] = Slerp(self._times, turns)
        times = np.clip(its.times, self._times[0], self._times[-1]).ravel()
        turned = self._slerps[key](times).as_quat(scalar_first=True).reshape(*its.low.shape, 4)
        is_other = (turned * quaternions[its.low]).sum(axis=-1, keepdims=True) < 0
        return np.where(is_other, -turned, turned)

    def _stored(self, key: str) -> FloatArray:
        if key not in self._numbers:
            self._numbers[key] = np.asarray(self._group[key][: self._total], np.float64)
        return self._numbers[key]
