"""Making samples of one episode: plan, read each array once, cut the windows, decode the frames."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt
import torch

from egoloader.binding import bind
from egoloader.cast import cast_rows
from egoloader.decode import decode_jpeg, jpeg_size
from egoloader.episode import TIMESTAMP, Annotation, ZarrEpisode
from egoloader.errors import (
    EgoloaderError,
    EpisodeError,
    EpisodeFormatError,
    SampleError,
    SettingsError,
    near_miss,
)
from egoloader.keymap import KeyMap, KeySpec
from egoloader.plan import BatchPlan, plan_batch
from egoloader.windows import cut_ends

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
        self._sizes: dict[str, tuple[int, int]] = {}  # of cameras whose size nothing declares

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
            cut_ends(self._spans(), frames, self.episode.total_frames),
        )

    def _spans(self) -> Sequence[Annotation]:
        """Return the annotation spans that cut windows off; read once, kept by the episode."""
        return self.episode.annotations() if self.settings.annotation_cutoff else ()

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
        columns |= self._context(frames, plan, stored)
        return [{key: column[b] for key, column in columns.items()} for b in range(len(frames))]

    def _transform(self, sample: Sample) -> Sample:
        frame = int(sample["frame_index"])
        for transform in self.settings.transforms:
            try:
                sample = _check_sample(transform(sample))
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
            return self._present(key, self._decode(spec, rows, cut, decoded))
        if spec.is_camera:
            return self._without_axis(key, [list(row) for row in cut])
        if cut.dtype == object:
            return self._without_axis(key, self._parse_json(spec.zarr_key, rows, cut))
        numbers = cast_rows(spec, cut, rows, episode=self.episode.name)
        return self._without_axis(key, torch.from_numpy(numbers))

    def _zeros(self, key: str, spec: KeySpec, batch: int) -> Column:
        """Return what stands in for an optional array that the episode lacks."""
        steps = len(self._binding.steps[key].offsets)
        if spec.shape is None:  # rows of JSON
            return self._without_axis(key, [[None] * steps for _ in range(batch)])
        shape: tuple[int, ...] = spec.shape
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

    def _context(
        self, frames: IntArray, plan: BatchPlan, stored: Mapping[str, npt.NDArray[Any]]
    ) -> dict[str, Column]:
        """Return what every sample carries besides the keymap's entries."""
        batch = len(frames)
        times = frames / self.episode.fps
        if TIMESTAMP in plan.reads:
            places = plan.reads[TIMESTAMP].locate(frames)
            times = stored[TIMESTAMP][places].reshape(batch).astype(np.float64)
        return {
            "fps": torch.full((batch,), self.episode.fps, dtype=torch.float32),
            "embodiment": [self.episode.embodiment] * batch,
            "episode": [self.episode.name] * batch,
            "frame_index": torch.from_numpy(frames.copy()),
            "timestamp": torch.from_numpy(times),
        }

    def _text(self, key: str, frame: int) -> str:
        spans = self.episode.annotations(key)
        return "; ".join(text for text, start, end in spans if start <= frame < end)

    def _stored_size(self, spec: KeySpec, frame: int, data: bytes) -> tuple[int, int]:
        """Return the (height, width) that a camera's frames must have.

        It is declared, by the episode or the entry; else the first frame that is read sets it.
        """
        if spec.zarr_key in self._sizes:
            return self._sizes[spec.zarr_key]
        feature = (self.episode.header.features or {}).get(spec.zarr_key)
        if feature is not None and len(feature.shape) == 3:
            return feature.shape[0], feature.shape[1]
        if spec.shape is not None:
            return spec.shape[0], spec.shape[1]
        size = jpeg_size(data, episode=self.episode.name, key=spec.zarr_key, frame=frame)
        return self._sizes.setdefault(spec.zarr_key, size)

    def _decode(
        self, spec: KeySpec, rows: IntArray, cut: npt.NDArray[Any], decoded: _DecodedFrames
    ) -> Pixels:
        """Decode (B, n) JPEGs to (B, n, H, W, 3), each distinct one once."""
        first = cast(bytes, cut[0, 0])
        stored_size = self._stored_size(spec, int(rows[0, 0]), first)
        out = np.empty((*rows.shape, *(spec.size or stored_size), 3), dtype=np.uint8)
        for at in np.ndindex(rows.shape):
            row = int(rows[at])
            if decoded.copy_to(out[at], spec.zarr_key, row):
                continue
            decode_jpeg(
                cast(bytes, cut[at]),
                out[at],
                stored_size=stored_size,
                episode=self.episode.name,
                key=spec.zarr_key,
                frame=row,
            )
            decoded.add(out[at], spec.zarr_key, row)
        return out

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


def _check_sample(sample: object) -> Sample:
    if not isinstance(sample, dict):
        raise TypeError(f"it must return the sample, a dict, not {type(sample).__name__}")
    return sample


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
