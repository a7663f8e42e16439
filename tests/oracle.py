"""The slow truth: DESIGN section 4 in plain loops, one entry of one sample at a time.

Shares no code with the package: rows are reckoned here, arrays are read whole by zarr-python.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import zarr

from egoloader.keymap import KeyMap, KeySpec

__all__ = ["Oracle", "slow_rows"]


def slow_rows(
    spec: KeySpec, fps: float, total: int, i: int, cut_end: int | None = None
) -> tuple[list[int], list[bool]]:
    """Return the rows of an entry at frame `i`, and which of them are padded.

    `cut_end` is the end of the annotation span that clamps action horizons, if any does.
    """
    rows: list[int] = []
    pads: list[bool] = []
    if spec.horizon is not None:
        end = total
        if cut_end is not None and spec.key_type == "action_keys":
            end = min(end, cut_end)
        for step in range(spec.horizon):
            pads.append(i + step >= end)
            rows.append(end - 1 if pads[-1] else i + step)
    elif spec.history is not None:
        stride = 1 if spec.stride_s is None else max(1, round(spec.stride_s * fps))
        wanted = [i - stride * back for back in range(spec.history)][::-1]
        oldest_real = min(step for step in wanted if step >= 0)
        for step in wanted:
            pads.append(step < 0)
            rows.append(oldest_real if step < 0 else step)
    elif spec.lag_s is not None:
        step = i - max(1, round(spec.lag_s * fps))
        pads.append(step < 0)
        rows.append(max(0, step))
    elif spec.offsets is not None or spec.offsets_s is not None:
        offsets: Sequence[int] = spec.offsets or [round(o * fps) for o in spec.offsets_s or ()]
        for offset in offsets:
            pads.append(not 0 <= i + offset < total)
            rows.append(min(max(i + offset, 0), total - 1))
    else:
        rows.append(i)
        pads.append(False)
    return rows, pads


def keeps_time_axis(spec: KeySpec) -> bool:
    """Return whether an entry's value has an axis of steps."""
    if spec.history is not None:
        return spec.history > 1
    return any(w is not None for w in (spec.horizon, spec.offsets, spec.offsets_s))


class Oracle:
    """Samples of one episode, made slowly.

    Args:
        path: the episode.
        annotation_cutoff: whether spans end action horizons.

    """

    def __init__(self, path: Path, *, annotation_cutoff: bool = False) -> None:
        self._group = zarr.open_group(path, mode="r")
        self._total: int = self._group.attrs["total_frames"]
        self._fps = float(self._group.attrs["fps"])
        self._annotation_cutoff = annotation_cutoff
        self._arrays: dict[str, npt.NDArray[Any]] = {}

    def sample(self, keymap: KeyMap, i: int) -> dict[str, Any]:
        """Return what the keymap's entries give at frame `i`."""
        sample: dict[str, Any] = {}
        for key, spec in keymap.items():
            if spec.is_annotation:
                texts = [text for text, start, end in self._spans() if start <= i < end]
                sample[key] = "; ".join(texts)
                continue
            rows, pads = slow_rows(spec, self._fps, self._total, i, self._cut_end(i))
            steps = [self._row(spec, row) for row in rows]
            is_pad = torch.tensor(pads)
            windowed = keeps_time_axis(spec)
            sample[key] = torch.stack(steps) if windowed else steps[0]
            if spec.mask:
                sample[f"{key}_is_pad"] = is_pad if windowed else is_pad[0]
        return sample

    def _row(self, spec: KeySpec, row: int) -> torch.Tensor:
        stored = self._array(spec.zarr_key)[row]
        if spec.is_camera:
            return torch.from_numpy(simplejpeg.decode_jpeg(stored)).permute(2, 0, 1)
        return torch.tensor(stored.astype(np.float32))

    def _array(self, key: str) -> npt.NDArray[Any]:
        if key not in self._arrays:
            array = self._group[key]
            assert isinstance(array, zarr.Array)
            self._arrays[key] = np.asarray(array[...])
        return self._arrays[key]

    def _spans(self) -> list[tuple[str, int, int]]:
        if "annotations" not in self._group:
            return []
        rows = [json.loads(row) for row in self._array("annotations")]
        return [(row["text"], row["start_idx"], row["end_idx"]) for row in rows]

    def _cut_end(self, i: int) -> int | None:
        ends = [min(end, self._total) for _, start, end in self._spans() if start <= i < end]
        return min(ends) if ends and self._annotation_cutoff else None
