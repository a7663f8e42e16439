"""Samples of one episode: what they hold, what is read for them, and filling them in."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import torch

from egoloader.arena import Arena
from egoloader.batch import Column, Field, Sample
from egoloader.binding import bind
from egoloader.cast import cast_rows, output_dtype
from egoloader.chunkcodec import ChunkRows
from egoloader.decode import check_size, jpeg_size
from egoloader.episode import TIMESTAMP, ZarrEpisode
from egoloader.errors import (
    EgoloaderError,
    EpisodeError,
    EpisodeFormatError,
    SampleError,
    SettingsError,
    check_whole,
    near_miss,
)
from egoloader.frameindex import Marks
from egoloader.frames import FrameDecoder
from egoloader.keymap import KeyMap, KeySpec
from egoloader.plan import BatchPlan, plan_batch
from egoloader.seeding import sample_seeds, stream_key
from egoloader.windows import cut_ends

__all__ = ["Fetched", "ImageDtype", "MixedSizes", "Sample", "SampleMaker", "SampleSettings"]

ImageDtype = Literal["uint8", "float32", "jpeg"]
MixedSizes = Literal["error", "list"]
Transform = Callable[[Sample], Sample]
IntArray = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSettings:
    """How samples are made.

    Args:
        image_dtype: `uint8` in 0…255, `float32` in 0…1 (the same values / 255), or `jpeg`, the
            encoded bytes as they are stored: of them only the head is checked, and an entry's
            `size` is left to whoever decodes them.
        annotation_cutoff: end every `action_keys` horizon with the annotation span that holds the
            frame; the steps past it are padded.
        transforms: callables from sample to sample, applied in order.
        mixed_sizes: what becomes of a batch of images of several sizes: `error`, or `list`, which
            hands every batch's images out as a list of B.
        seed: of what is random about a sample; see `sample_seed` in `ZarrDataset`.

    Raises:
        SettingsError: an option that can't be meant, or a transform that can't be called.
    """

    image_dtype: ImageDtype = "uint8"
    annotation_cutoff: bool = False
    transforms: Sequence[Transform] = ()
    mixed_sizes: MixedSizes = "error"
    seed: int = 0

    def __post_init__(self) -> None:
        check_whole("seed", self.seed, 0)
        for name, options in (("image_dtype", ImageDtype), ("mixed_sizes", MixedSizes)):
            value = getattr(self, name)
            if value not in get_args(options):
                hint = near_miss(str(value), get_args(options))
                raise SettingsError(f"{name} is {value!r}; {hint}")
        if not isinstance(self.annotation_cutoff, bool):
            raise SettingsError(f"annotation_cutoff is true or false: {self.annotation_cutoff!r}")
        if not isinstance(self.transforms, Sequence):
            raise SettingsError(f"transforms is a list of callables, got {self.transforms!r}")
        object.__setattr__(self, "transforms", tuple(self.transforms))
        for transform in self.transforms:
            if not callable(transform):
                raise SettingsError(f"transforms are callables, got {transform!r}")


class Fetched(NamedTuple):
    """What was read for B frames of one episode, not cut and not decoded yet.

    Attributes:
        frames: (B,) int64.
        plan: what was read.
        stored: per array, what its one read returned.
        fields: of the samples.
        decoder: decodes the frames, each once.
    """

    frames: IntArray
    plan: BatchPlan
    stored: Mapping[str, ChunkRows]
    fields: tuple[Field, ...]
    decoder: FrameDecoder


class _Entry(NamedTuple):
    """One entry of the keymap as one episode has it.

    Attributes:
        key: the sample's key.
        spec: the entry.
        is_present: whether the episode has the array.
        is_image: whether it is decoded into the memory of a batch.
        dtype: what its numbers leave as; None for rows of JSON.
        cut: cuts it out of what was read, where it is no such image.
        mask: the sample's key of its mask, if it emits one.
    """

    key: str
    spec: KeySpec
    is_present: bool
    is_image: bool
    dtype: np.dtype[Any] | None
    cut: Callable[[SampleMaker, _Entry, Fetched], Column]
    mask: str | None


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
        self._entries = [self._entry(key, spec) for key, spec in keymap.items()]
        self._sizes: dict[str, tuple[int, int]] = {}  # of cameras, once known
        self._fields: tuple[Field, ...] | None = None  # once all sizes are known
        self._seed_keys = (-1, 0)  # an epoch and its key

    def __reduce__(self) -> tuple[object, ...]:
        return SampleMaker, (self.episode, self.keymap, self.settings)

    def step_times(self, key: str) -> npt.NDArray[np.float64]:
        """Return the steps of an entry's window in seconds relative to the current frame: (n,)."""
        return np.asarray(self._binding.steps[key].offsets / self.episode.fps)

    def plan(self, frames: IntArray) -> BatchPlan:
        """Plan the reads of B frames, (B,) int64, each in [0, total_frames)."""
        total = self.episode.total_frames
        is_cut = self.settings.annotation_cutoff
        ends = cut_ends(self.episode.annotations(), frames, total) if is_cut else None
        return plan_batch(self._binding.outline, frames, total, ends)

    def fetch(self, frames: IntArray, arena: Arena) -> Fetched:
        """Plan B frames and read each array once.

        Args:
            frames: (B,) int64, each in [0, total_frames).
            arena: where stored bytes go; what is returned is good until it is cleared.

        Raises:
            EpisodeError: a read failed; names episode and key.
        """
        try:
            plan = self.plan(frames)
            stored = self.episode.fetch_all(plan.reads, arena)
            fields = self._fields or self._learn_fields(plan, stored)
        except (EgoloaderError, Warning):
            raise
        except Exception as error:
            raise self._failure(frames, error) from error
        return Fetched(frames, plan, stored, fields, FrameDecoder(self.episode.name))

    def cut(self, fetched: Fetched, marks: Marks) -> dict[str, Column]:
        """Cut, cast and pad all that needs no memory of a batch: everything but pixels.

        Args:
            fetched: of B frames.
            marks: what the sampler knows of them.

        Returns:
            Per field that is no image, (B, …) memory of its own or a list of B.

        Raises:
            EpisodeError: a row can't be cast or parsed; names episode, key and frame.
        """
        try:
            columns: dict[str, Column] = {}
            for entry in self._entries:
                if not entry.is_image:
                    columns[entry.key] = entry.cut(self, entry, fetched)
                if entry.mask is not None:
                    columns[entry.mask] = self._mask(entry, fetched)
            self._cut_context(fetched, marks, columns)
        except (EgoloaderError, Warning):
            raise
        except Exception as error:
            raise self._failure(fetched.frames, error) from error
        return columns

    def decode(self, fetched: Fetched, images: Mapping[str, Column], places: Sequence[int]) -> None:
        """Decode frames into a batch's memory, each distinct one once.

        Args:
            fetched: of B frames.
            images: per image, memory of the batch.
            places: (B,), where the samples stand in it.

        Raises:
            FrameError: a frame can't be decoded; names episode, key and frame.
        """
        for key, column in images.items():
            if key not in self._binding.outline.entries:
                for place in places:
                    column[place][...] = 0
                continue
            zarr_key = self.keymap[key].zarr_key
            stored, size = fetched.stored[zarr_key], self._sizes[zarr_key]
            rows, cuts = fetched.plan.rows(key), fetched.plan.places(key)
            # Frames of a window, or the one frame of an entry without a time axis.
            windows = zip(_lists(rows), _lists(cuts), places, strict=True)
            for frames, at, place in windows:
                out = column[place] if rows.ndim == 2 else column[place][None]
                for image, row, cut in zip(out, frames, at, strict=True):
                    fetched.decoder.decode(
                        stored[cut], image, key=zarr_key, row=row, stored_size=size
                    )

    def transform(self, sample: Sample) -> Sample:
        """Apply the transforms to one sample.

        Raises:
            SampleError: one failed; names it, the episode and the frame.
        """
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

    # What a sample holds

    def _entry(self, key: str, spec: KeySpec) -> _Entry:
        is_present = key in self._binding.outline.entries
        is_loose = self.settings.image_dtype == "jpeg" or self.settings.mixed_sizes == "list"
        dtype: np.dtype[Any] | None = np.dtype(spec.dtype or np.float32)
        if is_present and not spec.is_camera:
            stored = self.episode.layout(spec.zarr_key).dtype
            dtype = None if stored is None else output_dtype(spec, stored)
        elif spec.shape is None:
            dtype = None
        mask = f"{key}_is_pad" if spec.emits_mask else None
        is_image = spec.is_camera and not is_loose
        cut = _cut_of(spec, is_present)
        return _Entry(key, spec, is_present, is_image, dtype, cut, mask)

    def _learn_fields(self, plan: BatchPlan, stored: Mapping[str, ChunkRows]) -> tuple[Field, ...]:
        """Return the fields; where nothing declares a camera's size, its first frame sets it."""
        for entry in self._entries:
            zarr_key = entry.spec.zarr_key
            if entry.spec.is_camera and entry.is_present and zarr_key not in self._sizes:
                place = int(plan.places(entry.key).flat[0])
                row = int(plan.rows(entry.key).flat[0])
                size = self._stored_size(entry.spec, row, bytes(stored[zarr_key][place]))
                self._sizes.setdefault(zarr_key, size)
        fields: list[Field] = []
        for entry in self._entries:
            fields.append(self._field(entry))
            if entry.mask is not None:
                fields.append(Field(entry.mask, self._steps(entry.key), np.dtype(bool)))
        # Makers of one kind of sample share the object, so that comparing them costs nothing.
        kind = (*fields, *_CONTEXT)
        self._fields = _KINDS.setdefault(kind, kind)
        return self._fields

    def _field(self, entry: _Entry) -> Field:
        key, spec = entry.key, entry.spec
        if entry.is_image:
            return self._image(entry)
        if spec.is_camera:
            return Field(key, is_image=self.settings.image_dtype != "jpeg")
        if spec.is_annotation or entry.dtype is None:
            return Field(key)
        layout = self.episode.layout(spec.zarr_key) if entry.is_present else None
        row_shape = (spec.shape or ()) if layout is None else layout.row_shape
        return Field(key, (*self._steps(key), *row_shape), entry.dtype)

    def _image(self, entry: _Entry) -> Field:
        spec = entry.spec
        size = spec.size or self._sizes.get(spec.zarr_key) or (spec.shape or ())[:2]
        dtype = np.dtype(self.settings.image_dtype)
        return Field(entry.key, (*self._steps(entry.key), *size, 3), dtype, is_image=True)

    def _steps(self, key: str) -> tuple[int, ...]:
        """Return the axis of steps that a sample keeps: (n,) or ()."""
        steps = self._binding.steps[key]
        return (len(steps.offsets),) if steps.has_time_axis else ()

    def _stored_size(self, spec: KeySpec, frame: int, data: bytes) -> tuple[int, int]:
        """Return the (height, width) that a camera's frames must have."""
        feature = (self.episode.header.features or {}).get(spec.zarr_key)
        if feature is not None and len(feature.shape) == 3:
            return feature.shape[0], feature.shape[1]
        if spec.shape is not None:
            return spec.shape[0], spec.shape[1]
        return jpeg_size(data, episode=self.episode.name, key=spec.zarr_key, frame=frame)

    # Cutting it out of what was read

    def _cut_rows(self, entry: _Entry, fetched: Fetched) -> Column:
        key, spec = entry.key, entry.spec
        stored, places = fetched.stored[spec.zarr_key], fetched.plan.places(key)
        if not isinstance(stored, np.ndarray):
            rows = fetched.plan.rows(key)
            return _nested(places, rows, lambda place, row: self._parse(spec, stored[place], row))
        cut = stored.take(places, axis=0)
        if cut.dtype == entry.dtype:
            return cut
        return cast_rows(spec, cut, fetched.plan.rows(key), episode=self.episode.name)

    def _absent_rows(self, entry: _Entry, fetched: Fetched) -> Column:
        """Return what stands for an optional array of rows that the episode lacks."""
        steps, size = self._steps(entry.key), len(fetched.frames)
        if entry.dtype is None:
            return [[None] * steps[0] if steps else None for _ in range(size)]
        return np.zeros((size, *steps, *(entry.spec.shape or ())), dtype=entry.dtype)

    def _loose_images(self, entry: _Entry, fetched: Fetched) -> list[Any]:
        """Return the images of a list: encoded ones, or pixels with memory of their own."""
        if self.settings.image_dtype != "jpeg":
            field = self._image(entry)
            pixels: list[Any] = [np.empty(field.shape or (), field.dtype) for _ in fetched.frames]
            self.decode(fetched, {entry.key: pixels}, range(len(pixels)))
            return [torch.from_numpy(one).movedim(-1, -3) for one in pixels]
        if not entry.is_present:
            steps = self._steps(entry.key)
            return [[b""] * steps[0] if steps else b"" for _ in fetched.frames]
        key, plan = entry.spec.zarr_key, fetched.plan
        stored, size = fetched.stored[key], self._sizes[key]

        def passed_on(place: int, row: int) -> bytes:
            data = bytes(stored[place])
            check_size(data, size, episode=self.episode.name, key=key, frame=row)
            return data

        return _nested(plan.places(entry.key), plan.rows(entry.key), passed_on)

    def _mask(self, entry: _Entry, fetched: Fetched) -> npt.NDArray[np.bool_]:
        if entry.is_present:
            return fetched.plan.is_pad(entry.key)
        return np.ones((len(fetched.frames), *self._steps(entry.key)), dtype=np.bool_)

    def _cut_context(self, fetched: Fetched, marks: Marks, columns: dict[str, Column]) -> None:
        """Add what every sample carries besides the keymap's entries."""
        size = len(fetched.frames)
        columns["fps"] = np.full(size, self.episode.fps, dtype=np.float32)
        columns["embodiment"] = [self.episode.embodiment] * size
        columns["episode"] = [self.episode.name] * size
        columns["frame_index"] = fetched.frames.copy()
        times: Any = fetched.frames / self.episode.fps
        if TIMESTAMP in fetched.plan.reads:
            where = fetched.plan.reads[TIMESTAMP].locate(fetched.frames)
            times = np.asarray(fetched.stored[TIMESTAMP])[where].reshape(size)
        columns["timestamp"] = times.astype(np.float64, copy=False)
        keys = [self._seed_key(epoch) for epoch in marks.epochs]
        columns["sample_seed"] = sample_seeds(keys, fetched.frames.tolist())
        columns["is_repeat"] = marks.is_repeat

    def _seed_key(self, epoch: int) -> int:
        """Return the key of the random numbers of this episode in an epoch."""
        known, key = self._seed_keys
        if known != epoch:
            key = stream_key("sample", self.settings.seed, epoch, self.episode.name)
            self._seed_keys = (epoch, key)
        return key

    def _texts(self, entry: _Entry, fetched: Fetched) -> Column:
        """Return the texts of the annotation spans that hold each frame."""
        spans = self.episode.annotations(entry.spec.zarr_key)
        return [
            "; ".join(text for text, start, end in spans if start <= frame < end)
            for frame in fetched.frames.tolist()
        ]

    def _parse(self, spec: KeySpec, stored: bytes | memoryview, row: int) -> Any:
        try:
            return json.loads(bytes(stored))
        except ValueError as error:
            raise EpisodeFormatError(
                f"row {row} is no JSON: {bytes(stored)!r:.60}",
                episode=self.episode.name,
                key=spec.zarr_key,
            ) from error

    def _failure(self, frames: IntArray, error: Exception) -> SampleError:
        return SampleError(
            f"making samples of frames {frames.tolist()[:8]} failed: {error!r}",
            episode=self.episode.name,
        )


_CONTEXT = (
    Field("fps", (), np.dtype(np.float32)),
    Field("embodiment"),
    Field("episode"),
    Field("frame_index", (), np.dtype(np.int64)),
    Field("timestamp", (), np.dtype(np.float64)),
    Field("sample_seed", (), np.dtype(np.int64)),
    Field("is_repeat", (), np.dtype(np.bool_)),
)
#: The kinds of samples that this process has met.
_KINDS: dict[tuple[Field, ...], tuple[Field, ...]] = {}


def _cut_of(spec: KeySpec, is_present: bool) -> Callable[[SampleMaker, _Entry, Fetched], Column]:
    # Functions, not bound methods: a maker that refers to itself outlives its last use.
    if spec.is_annotation:
        return SampleMaker._texts
    if spec.is_camera:
        return SampleMaker._loose_images
    return SampleMaker._cut_rows if is_present else SampleMaker._absent_rows


def _lists(numbers: IntArray) -> list[list[int]]:
    """Return (B, n) or (B,) numbers as B lists."""
    found: list[list[int]] = (numbers if numbers.ndim == 2 else numbers[:, None]).tolist()
    return found


def _nested(places: IntArray, rows: IntArray, make: Callable[[int, int], Any]) -> list[Any]:
    """Return what `make` makes of each place and row, (B,) or (B, n), in lists of that shape."""
    if places.ndim == 1:
        return [make(*pair) for pair in zip(places.tolist(), rows.tolist(), strict=True)]
    return [_nested(*pair, make) for pair in zip(places, rows, strict=True)]


def _check_sample(sample: object) -> Sample:
    if not isinstance(sample, dict):
        raise TypeError(f"it must return the sample, a dict, not {type(sample).__name__}")
    return sample
