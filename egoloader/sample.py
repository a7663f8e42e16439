"""Making samples of one episode: plan, read each array once, cut the windows, decode the frames."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch

from egoloader.binding import bind
from egoloader.cast import cast_rows
from egoloader.decode import decode_jpeg, jpeg_size
from egoloader.episode import ANNOTATIONS, TIMESTAMP, ZarrEpisode
from egoloader.errors import (
    EgoloaderError,
    EpisodeError,
    EpisodeFormatError,
    FrameError,
    ReadError,
    SampleError,
    SettingsError,
    near_miss,
)
from egoloader.keymap import KeyMap, KeySpec
from egoloader.plan import BatchPlan, ReadPlan, plan_batch

__all__ = ["ImageDtype", "Sample", "SampleMaker", "SampleSettings"]

ImageDtype = Literal["uint8", "float32", "jpeg"]
Sample = dict[str, Any]
Transform = Callable[[Sample], Sample]
IntArray = npt.NDArray[np.int64]
#: One value a frame: a tensor with a leading axis of B, or a list of B.
Column = torch.Tensor | list[Any]
Pixels = npt.NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSettings:
    """How samples are made.

    Args:
        image_dtype: `uint8` in 0…255, `float32` in 0…1 (the same values / 255), or `jpeg`, the
            encoded bytes as they are stored.
        annotation_cutoff: end every `action_keys` horizon with the annotation span that holds the
            frame; the steps past it are padded.
        transforms: callables from sample to sample, applied in order.

    Raises:
        SettingsError: an unknown image_dtype, or a transform that can't be called.
    """

    image_dtype: ImageDtype = "uint8"
    annotation_cutoff: bool = False
    transforms: tuple[Transform, ...] = ()

    def __post_init__(self) -> None:
        if self.image_dtype not in get_args(ImageDtype):
            hint = near_miss(str(self.image_dtype), get_args(ImageDtype))
            raise SettingsError(f"image_dtype is {self.image_dtype!r}; {hint}")
        if not isinstance(self.annotation_cutoff, bool):
            raise SettingsError(f"annotation_cutoff is true or false: {self.annotation_cutoff!r}")
        object.__setattr__(self, "transforms", tuple(self.transforms))
        for transform in self.transforms:
            if not callable(transform):
                raise SettingsError(f"transforms are callables, got {transform!r}")


class SampleMaker:
    """Makes samples of one episode.

    Args:
        episode: the episode.
        keymap: what a sample holds.
        settings: how it is made.

    Raises:
        MissingKeyError: an array that is not optional is missing.
        KeyMapError: an array is not what its entry takes it for.
        EpisodeFormatError: an array is shorter than the episode, or can't be understood.
    """

    def __init__(self, episode: ZarrEpisode, keymap: KeyMap, settings: SampleSettings) -> None:
        self.episode, self.keymap, self.settings = episode, keymap, settings
        self._binding = bind(episode, keymap, annotation_cutoff=settings.annotation_cutoff)
        self._sizes: dict[str, tuple[int, int]] = {}
        self._timestamps: npt.NDArray[np.float64] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return SampleMaker, (self.episode, self.keymap, self.settings)

    def step_times(self, key: str) -> npt.NDArray[np.float64]:
        """Return the steps of an entry's window in seconds relative to the current frame: (n,)."""
        return np.asarray(self._binding.steps[key].offsets / self.episode.fps)

    def plan(self, frames: IntArray) -> BatchPlan:
        """Plan the reads of B frames, (B,) int64, each in [0, total_frames)."""
        return plan_batch(
            self._binding.entries,
            self._binding.chunk_rows,
            frames,
            self.episode.total_frames,
            self._cut_ends(frames),
        )

    def make(self, frames: IntArray) -> list[Sample]:
        """Make the samples of B frames, in the order asked for.

        Raises:
            EpisodeError: a read, a decode or a transform failed; names episode, key and frame.
        """
        if len(frames) == 0:
            return []
        try:
            samples = self._make(frames)
        except EgoloaderError:
            raise
        except Exception as error:
            raise SampleError(
                f"making samples of frames {frames.tolist()[:8]} failed: {error!r}",
                episode=self.episode.name,
            ) from error
        return [self._transform(sample) for sample in samples]

    def _make(self, frames: IntArray) -> list[Sample]:
        plan = self.plan(frames)
        stored = {key: self.episode.fetch(key, read) for key, read in plan.reads.items()}
        columns: dict[str, Column] = {}
        decoded = _DecodedFrames()
        for key, spec in self.keymap.items():
            if spec.is_annotation:
                columns[key] = [self._text(spec.zarr_key, int(frame)) for frame in frames]
            elif key in plan.rows:
                columns[key] = self._cut(key, spec, plan, stored[spec.zarr_key], decoded)
            else:
                columns[key] = self._zeros(key, spec, len(frames))
            if spec.emits_mask:
                columns[f"{key}_is_pad"] = self._mask(key, plan, len(frames))
        columns |= self._context(frames)
        return [{key: column[b] for key, column in columns.items()} for b in range(len(frames))]

    def _transform(self, sample: Sample) -> Sample:
        frame = int(sample["frame_index"])
        for transform in self.settings.transforms:
            try:
                sample = transform(sample)
            except EpisodeError:
                raise
            except Exception as error:
                name = getattr(transform, "__name__", type(transform).__name__)
                raise SampleError(
                    f"transform {name} failed: {error!r}", episode=self.episode.name, frame=frame
                ) from error
        return sample

    def _cut(
        self,
        key: str,
        spec: KeySpec,
        plan: BatchPlan,
        stored: npt.NDArray[Any],
        decoded: _DecodedFrames,
    ) -> Column:
        """Cut an entry's windows out of what its array's read returned: the copy that pads."""
        rows = plan.rows[key].rows
        cut = stored[plan.reads[spec.zarr_key].locate(rows)]
        if spec.is_camera and self.settings.image_dtype != "jpeg":
            size = spec.size or self._stored_size(spec.zarr_key)
            out = np.empty((*rows.shape, *size, 3), dtype=np.uint8)
            for at in np.ndindex(rows.shape):
                row = int(rows[at])
                if not decoded.copy_to(out[at], spec.zarr_key, row):
                    self._decode(spec.zarr_key, row, cast(bytes, cut[at]), out[at])
                    decoded.add(out[at], spec.zarr_key, row)
            return self._present(key, out)
        if spec.is_camera:
            return self._without_axis(key, [list(row) for row in cut])
        if cut.dtype == object:
            return self._without_axis(key, self._parse_json(spec.zarr_key, rows, cut))
        numbers = cast_rows(spec, cut, rows, episode=self.episode.name)
        return self._without_axis(key, torch.from_numpy(numbers))

    def _zeros(self, key: str, spec: KeySpec, batch: int) -> Column:
        """Return what stands in for an optional array that the episode lacks."""
        shape: tuple[int, ...] = spec.shape or ()
        steps = len(self._binding.steps[key].offsets)
        if spec.is_camera and self.settings.image_dtype == "jpeg":
            return self._without_axis(key, [[b""] * steps for _ in range(batch)])
        if spec.is_camera:
            shape = (*(spec.size or shape[:2]), 3)
            return self._present(key, np.zeros((batch, steps, *shape), dtype=np.uint8))
        zeros = np.zeros((batch, steps, *shape), dtype=np.dtype(spec.dtype or np.float32))
        return self._without_axis(key, torch.from_numpy(zeros))

    def _mask(self, key: str, plan: BatchPlan, batch: int) -> torch.Tensor:
        if key in plan.rows:
            is_pad = torch.from_numpy(plan.rows[key].is_pad)
        else:
            is_pad = torch.ones(batch, len(self._binding.steps[key].offsets), dtype=torch.bool)
        return is_pad if self._binding.steps[key].has_time_axis else is_pad[:, 0]

    def _context(self, frames: IntArray) -> dict[str, Column]:
        """Return what every sample carries besides the keymap's entries."""
        batch = len(frames)
        return {
            "fps": torch.full((batch,), self.episode.fps, dtype=torch.float32),
            "embodiment": [self.episode.embodiment] * batch,
            "episode": [self.episode.name] * batch,
            "frame_index": torch.from_numpy(frames.copy()),
            "timestamp": torch.from_numpy(self._times()[frames]),
        }

    def _times(self) -> npt.NDArray[np.float64]:
        """Return each frame's time in seconds: (total_frames,), read once where it is stored."""
        if self._timestamps is None:
            total = self.episode.total_frames
            self._timestamps = np.arange(total, dtype=np.float64) / self.episode.fps
            if total and self.episode.has(TIMESTAMP):
                stored = self.episode.fetch(TIMESTAMP, ReadPlan(((0, total),)))
                self._timestamps = stored.astype(np.float64).reshape(total)
        return self._timestamps

    def _cut_ends(self, frames: IntArray) -> IntArray:
        """Return where cut windows end: the earliest end of the spans that hold each frame."""
        ends = np.full_like(frames, self.episode.total_frames)
        if self.settings.annotation_cutoff:
            for _, start, end in self.episode.annotations(ANNOTATIONS):
                held = (start <= frames) & (frames < end)
                ends[held] = np.minimum(ends[held], end)
        return ends

    def _text(self, key: str, frame: int) -> str:
        spans = self.episode.annotations(key)
        return "; ".join(text for text, start, end in spans if start <= frame < end)

    def _stored_size(self, key: str) -> tuple[int, int]:
        """Return the (height, width) of a camera's frames: as declared, else as frames say."""
        if key not in self._sizes:
            feature = (self.episode.header.features or {}).get(key)
            if feature is not None and len(feature.shape) == 3:
                self._sizes[key] = feature.shape[0], feature.shape[1]
            else:
                self._sizes[key] = self._probe_size(key)
        return self._sizes[key]

    def _probe_size(self, key: str) -> tuple[int, int]:
        """Return frame 0's (height, width); another frame's where frame 0 is broken."""
        last = self.episode.total_frames - 1
        for frame in (0, last // 2):
            with contextlib.suppress(ReadError, FrameError):
                return self._size_of(key, frame)
        return self._size_of(key, last)

    def _size_of(self, key: str, frame: int) -> tuple[int, int]:
        data = self.episode.fetch(key, ReadPlan(((frame, frame + 1),)))[0]
        return jpeg_size(data, episode=self.episode.name, key=key, frame=frame)

    def _decode(self, key: str, frame: int, data: bytes, out: Pixels) -> None:
        decode_jpeg(
            data,
            out,
            stored_size=self._stored_size(key),
            episode=self.episode.name,
            key=key,
            frame=frame,
        )

    def _present(self, key: str, pixels: Pixels) -> torch.Tensor:
        """Turn (B, n, H, W, 3) uint8 into (B[, n], 3, H, W) of the output dtype, same memory."""
        images = torch.from_numpy(pixels).movedim(-1, -3)
        if self.settings.image_dtype == "float32":
            images = images / 255
        return images if self._binding.steps[key].has_time_axis else images[:, 0]

    def _without_axis(self, key: str, column: Column) -> Column:
        """Drop the axis of steps where the entry has no time axis."""
        if self._binding.steps[key].has_time_axis:
            return column
        return column[:, 0] if isinstance(column, torch.Tensor) else [row[0] for row in column]

    def _parse_json(self, key: str, rows: IntArray, stored: npt.NDArray[Any]) -> list[list[Any]]:
        parsed: list[list[Any]] = [[] for _ in range(len(stored))]
        for (b, n), row in np.ndenumerate(stored):
            try:
                parsed[b].append(json.loads(row))
            except (TypeError, ValueError) as error:
                raise EpisodeFormatError(
                    f"row {rows[b, n]} is no JSON: {row!r:.60}", episode=self.episode.name, key=key
                ) from error
        return parsed


class _DecodedFrames:
    """Where each JPEG of a batch was decoded to, so that a second use copies the pixels."""

    def __init__(self) -> None:
        self._pixels: dict[tuple[str, int, tuple[int, ...]], Pixels] = {}

    def add(self, pixels: Pixels, key: str, row: int) -> None:
        self._pixels[key, row, pixels.shape] = pixels

    def copy_to(self, out: Pixels, key: str, row: int) -> bool:
        source = self._pixels.get((key, row, out.shape))
        if source is None:
            return False
        np.copyto(out, source)
        return True
