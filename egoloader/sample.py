"""Samples of one episode: what they hold, and what is read for them."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.batch import Field, Sample
from egoloader.batchplan import BatchPlan, plan_batch
from egoloader.binding import bind
from egoloader.cast import output_dtype
from egoloader.chunkcodec import ChunkRows
from egoloader.decode import MAX_PIXELS, decode_jpeg, jpeg_size
from egoloader.episode import ANNOTATIONS, TIMESTAMP, ZarrEpisode
from egoloader.errors import (
    EpisodeError,
    EpisodeFormatError,
    SampleError,
)
from egoloader.frames import Camera
from egoloader.keymap import KeyMap, KeySpec, TextSource, other_span_key
from egoloader.kind import Entry, Kind, Source
from egoloader.making import ImageDtype, MixedSizes, SampleSettings, Steps
from egoloader.seeding import stream_key
from egoloader.task import task_text
from egoloader.timeline import Timeline, locate
from egoloader.windows import Moments, cut_ends, entry_rows, step_times

__all__ = [
    "ImageDtype",
    "MixedSizes",
    "Sample",
    "SampleMaker",
    "SampleSettings",
    "Steps",
    "check_sample",
    "reads_spans",
]

IntArray = npt.NDArray[np.int64]


#: Frames that are looked at for the size of a camera that nothing declares.
_SIZED_ROWS = 64

#: The kinds that this process holds, by what makes them differ.
_KINDS: weakref.WeakValueDictionary[Hashable, Kind] = weakref.WeakValueDictionary()


class SampleMaker:
    """Makes samples of one episode.

    Args:
        episode: the episode.
        keymap: what a sample holds.
        settings: how it is made.

    Attributes:
        task: the text of the episode's task, where the keymap asks for it.
        transforms: of its samples, in order.
        cameras: those whose frames' size is known.
        timeline: when the episode's frames were recorded, where plans depend on it.
        kind: of its samples; one of its own until the sizes of all cameras are known.

    Raises:
        MissingKeyError: an array that is not optional is missing.
        KeyMapError: an array is not what its entry takes it for.
        EpisodeFormatError: an array is shorter than the episode, or can't be understood.
        SettingsError: transforms are listed by embodiment, and there are none for this one.
    """

    def __init__(self, episode: ZarrEpisode, keymap: KeyMap, settings: SampleSettings) -> None:
        self.episode, self.keymap, self.settings = episode, keymap, settings
        self.total_frames, self.fps = episode.total_frames, episode.fps
        self.name, self.embodiment = episode.name, episode.embodiment
        has_task = any(spec.text != "annotation" for spec in keymap.values())
        self.task = task_text(episode) if has_task else ""
        self.transforms = settings.transforms_of(episode.embodiment)
        self._binding = bind(episode, keymap, annotation_cutoff=settings.annotation_cutoff)
        self.timeline = self._binding.timeline
        self._entries = tuple(self._entry(key, spec) for key, spec in keymap.items())
        self.cameras: dict[str, Camera] = {}
        self.kind = self._unlearned()
        self._seed_key = (-1, 0)  # an epoch and its key

    def _unlearned(self) -> Kind:
        outline, images = self._binding.outline, [e for e in self._entries if e.spec.is_camera]
        cameras = {entry.zarr_key for entry in images}
        alike: dict[int, list[str]] = {}
        for key, read in outline.arrays.items():
            if key not in cameras:
                alike.setdefault(read, []).append(key)
        return Kind(
            outline,
            tuple((read, tuple(keys)) for read, keys in alike.items()),
            tuple((key, read) for key, read in outline.arrays.items() if key in cameras),
            tuple(entry for entry in self._entries if not entry.spec.is_camera),
            tuple(images),
            tuple(entry for entry in self._entries if entry.mask is not None),
            tuple(entry for entry in self._entries if entry.span_mask is not None),
            self.settings.image_dtype == "jpeg",
        )

    def __reduce__(self) -> tuple[object, ...]:
        return SampleMaker, (self.episode, self.keymap, self.settings)

    def step_times(self, key: str) -> npt.NDArray[np.float64]:
        """Return the steps of an entry's window in seconds relative to the current frame: (n,)."""
        return step_times(self.keymap[key], self.episode.fps)

    def plan(self, frames: IntArray) -> BatchPlan:
        """Plan the reads of B frames, (B,) int64, each in [0, total_frames)."""
        totals, numbers = np.array([self.total_frames]), np.zeros(len(frames), np.int64)
        ends = self.cut_ends(frames) if self.settings.annotation_cutoff else None
        return plan_batch(self._binding.outline, frames, numbers, totals, ends, self._timelines)

    @property
    def _timelines(self) -> list[Timeline]:
        return [] if self.timeline is None else [self.timeline]

    def cut_ends(self, frames: IntArray) -> IntArray:
        """Return where annotations cut windows off at B frames: (B,) int64."""
        return cut_ends(self.episode.annotations(), frames, self.total_frames)

    def learn(self, plan: BatchPlan, stored: Mapping[str, ChunkRows]) -> Kind:
        """Return what the samples are; where nothing declares a camera's size, its frame sets it.

        Args:
            plan: of any frames.
            stored: per camera, what its read returned.
        """
        for entry in self.kind.images:
            zarr_key = entry.zarr_key
            if entry.source == "camera" and zarr_key not in self.cameras:
                place, row = int(plan.places(entry.key).flat[0]), int(plan.rows(entry.key).flat[0])
                size = self._stored_size(entry.spec, row, bytes(stored[zarr_key][place]))
                self.cameras[zarr_key] = Camera(self.name, zarr_key, size)
        fields = self.fields()
        pixels = tuple(field for field in fields if field.has_pixels)
        made = dataclasses.replace(self.kind, fields=fields, pixels=pixels)
        arrays = [key for _, keys in made.arrays for key in keys]
        layouts = [self.episode.layout(key) for key in arrays]
        identity = (
            made.outline.identity,
            tuple(arrays),
            tuple((layout.dtype, layout.row_shape) for layout in layouts),
            self._entries,
            made.has_jpegs,
            made.fields,
            id(self.transforms),  # which this one keeps alive
        )
        self.kind = _KINDS.setdefault(identity, made)
        return self.kind

    def reads(self, zarr_key: str, is_row: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which frames' samples read any of some rows of an array: (total_frames,).

        Args:
            zarr_key: the array; of annotations, which have no row a frame, frames are meant.
            is_row: (total_frames,) which rows.
        """
        frames = np.arange(self.total_frames)
        ends = np.full_like(frames, self.total_frames)
        found = np.zeros_like(is_row)
        is_text = any(
            one.source in ("texts", "texts_or_task") and one.zarr_key == zarr_key
            for one in self._entries
        )
        cuts = zarr_key == ANNOTATIONS and reads_spans(self.keymap, self.settings)
        if zarr_key == TIMESTAMP or is_text or cuts:
            found |= is_row
        if zarr_key == TIMESTAMP and self.keymap.is_timed:
            found |= is_row.any()
        for entry in self._entries:
            if entry.zarr_key != zarr_key or entry.number < 0:
                continue
            steps, is_cut = self._binding.steps[entry.key], entry.spec.key_type == "action_keys"
            is_cut = is_cut and self.settings.annotation_cutoff and steps.is_horizon
            its_ends = self.cut_ends(frames) if is_cut else ends
            if isinstance(steps, Moments):
                numbers = np.zeros_like(frames)
                rows = locate(steps, frames, its_ends, numbers, self._timelines).rows
            else:
                rows = entry_rows(steps, frames, its_ends)
            found |= is_row[rows.reshape(self.total_frames, -1)].any(axis=1)
        return found

    def transform(self, sample: Sample) -> Sample:
        """Apply the transforms to one sample.

        Raises:
            SampleError: one failed; names it, the episode and the frame.
        """
        frame = int(sample["frame_index"])
        for transform in self.transforms:
            try:
                sample = check_sample(transform(sample))
            except EpisodeError:
                raise
            except Exception as error:
                name = getattr(transform, "__name__", type(transform).__name__)
                raise SampleError(
                    f"transform {name} failed: {error!r}", episode=self.episode.name, frame=frame
                ) from error
        return sample

    def seed_key(self, epoch: int) -> int:
        """Return the key of the random numbers of this episode in an epoch."""
        known, key = self._seed_key
        if known != epoch:
            key = stream_key("sample", self.settings.seed, epoch, self.name)
            self._seed_key = (epoch, key)
        return key

    def _entry(self, key: str, spec: KeySpec) -> Entry:
        dtype, source = self._source(key, spec)
        is_loose = self.settings.image_dtype == "jpeg" or self.settings.mixed_sizes == "list"
        window = self._binding.steps.get(key)
        return Entry(
            key,
            spec,
            spec.zarr_key,
            source,
            self._binding.outline.entries.get(key, -1),
            spec.is_camera and not is_loose,
            dtype,
            (window.num_steps,) if window is not None and window.has_time_axis else (),
            f"{key}_is_pad" if spec.emits_mask else None,
            other_span_key(key) if spec.span_mask else None,
        )

    def _source(self, key: str, spec: KeySpec) -> tuple[np.dtype[Any] | None, Source]:
        """Return what an entry leaves as, and what it is cut out of."""
        is_present = key in self._binding.outline.entries
        if spec.is_annotation:
            return None, _TEXTS[spec.text]
        if spec.is_camera:
            is_float = self.settings.image_dtype == "float32"
            return np.dtype(
                np.float32 if is_float else np.uint8
            ), "camera" if is_present else "absent"
        if not is_present:
            return None if spec.shape is None else np.dtype(spec.dtype or np.float32), "absent"
        stored = self.episode.layout(spec.zarr_key).dtype
        if stored is None:
            return None, "json"
        dtype = output_dtype(spec, stored)
        if self._binding.steps[key].is_interpolated:
            return dtype, "between"
        return dtype, "numbers" if dtype == stored else "cast"

    def fields(self) -> tuple[Field, ...]:
        """Return what samples hold; an image whose size is not known has no shape."""
        fields: list[Field] = []
        for entry in self._entries:
            fields.append(self._field(entry))
            if entry.mask is not None:
                fields.append(Field(entry.mask, entry.steps, np.dtype(bool)))
            if entry.span_mask is not None:
                fields.append(Field(entry.span_mask, entry.steps, np.dtype(bool)))
        return (*fields, *_CONTEXT, *(_MARKS if self.settings.marks_replaced else ()))

    def _field(self, entry: Entry) -> Field:
        key, spec = entry.key, entry.spec
        if entry.is_image:
            shape = self.image_shape(entry)
            return Field(key, shape, None if shape is None else entry.dtype, is_image=True)
        if spec.is_camera:
            return Field(key, is_image=self.settings.image_dtype != "jpeg")
        if spec.is_annotation or entry.dtype is None:
            return Field(key)
        is_absent = entry.source == "absent"
        row_shape = spec.shape if is_absent else self.episode.layout(spec.zarr_key).row_shape
        return Field(key, (*entry.steps, *(row_shape or ())), entry.dtype)

    def image_shape(self, entry: Entry) -> tuple[int, ...] | None:
        """Return the shape of a camera entry's images in a sample: (H, W, 3) or (n, H, W, 3).

        None as long as their size is not known.
        """
        spec, camera = entry.spec, self.cameras.get(entry.spec.zarr_key)
        size = spec.size or (camera.size if camera else self._declared_size(spec))
        return None if size is None else (*entry.steps, *size, 3)

    def _declared_size(self, spec: KeySpec) -> tuple[int, int] | None:
        """Return the (height, width) that a camera's frames are said to have, if they are."""
        feature = (self.episode.header.features or {}).get(spec.zarr_key)
        is_there = self.episode.has(spec.zarr_key)
        if is_there and feature is not None and len(feature.shape) == 3:
            return feature.shape[0], feature.shape[1]
        return None if spec.shape is None else (spec.shape[0], spec.shape[1])

    def _stored_size(self, spec: KeySpec, frame: int, data: bytes) -> tuple[int, int]:
        """Return the (height, width) that a camera's frames must have."""
        declared = self._declared_size(spec)
        if declared is not None:
            height, width = declared
            if height * width > MAX_PIXELS:
                raise EpisodeFormatError(
                    f"features says {height} x {width} pixels, the limit is {MAX_PIXELS}",
                    episode=self.episode.name,
                    key=spec.zarr_key,
                )
            return declared
        if self.settings.marks_replaced:
            # Others come in the place of bad frames: which ones are may not depend on the order.
            return self._first_size(spec.zarr_key)
        return self._size_of(spec.zarr_key, frame, data)

    def _size_of(self, key: str, row: int, data: bytes) -> tuple[int, int]:
        """Return the (height, width) of a frame, which is whole where frames are decoded.

        By a head that lies, all others would be refused.
        """
        where: dict[str, Any] = {"episode": self.name, "key": key, "frame": row}
        size = jpeg_size(data, **where)
        if self.settings.image_dtype != "jpeg":
            decode_jpeg(data, np.empty((*size, 3), np.uint8), stored_size=size, **where)
        return size

    def _first_size(self, key: str) -> tuple[int, int]:
        """Return the (height, width) of a camera's first frame that can be read.

        Raises:
            EpisodeError: it is not among the first ones.
        """
        last: EpisodeError | None = None
        for row in range(min(self.total_frames, _SIZED_ROWS)):
            try:
                ((data,),) = self.episode.read({key: [(row, row + 1)]})[key]
                return self._size_of(key, row, bytes(data))
            except EpisodeError as error:
                last = error
        assert last is not None
        raise last


def reads_spans(keymap: KeyMap, settings: SampleSettings) -> bool:
    """Return whether samples depend on annotation spans beside their texts."""
    return settings.annotation_cutoff or any(spec.span_mask for spec in keymap.values())


_TEXTS: dict[TextSource, Source] = {
    "annotation": "texts",
    "task": "task",
    "annotation_or_task": "texts_or_task",
}

_CONTEXT = (
    Field("fps", (), np.dtype(np.float32)),
    Field("embodiment"),
    Field("episode"),
    Field("frame_index", (), np.dtype(np.int64)),
    Field("timestamp", (), np.dtype(np.float64)),
    Field("sample_seed", (), np.dtype(np.int64)),
    Field("is_repeat", (), np.dtype(np.bool_)),
)
_MARKS = (Field("is_replaced", (), np.dtype(np.bool_)),)


def check_sample(sample: object) -> Sample:
    """Return what a transform made, if it is a dict.

    Raises:
        TypeError: it is none.
    """
    if not isinstance(sample, dict):
        raise TypeError(f"it must return the sample, a dict, not {type(sample).__name__}")
    return sample
