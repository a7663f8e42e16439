"""Putting a batch together: plan all, fetch once, then fill the batch's own memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.arena import lent_arena
from egoloader.batch import Allocate, Batch, Column, Field, Sample, allocate_column
from egoloader.frameindex import Marks, marks_of
from egoloader.sample import Fetched, SampleMaker

__all__ = ["Part", "fresh_memory", "make_batch", "make_sample"]

IntArray = npt.NDArray[np.int64]


class Part(NamedTuple):
    """What a batch takes from one episode.

    Attributes:
        maker: of the episode's samples.
        frames: (b,) int64 frame indices; repeats are allowed.
        places: (b,), where their samples stand in the batch.
        marks: what the sampler knows of them.
    """

    maker: SampleMaker
    frames: IntArray
    places: Sequence[int]
    marks: Marks


def fresh_memory(_key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return new memory."""
    return np.empty(shape, dtype=dtype)


def make_batch(parts: Sequence[Part], size: int, allocate: Allocate = fresh_memory) -> Batch:
    """Make the samples of a batch.

    All reads are planned, then fetched; then numbers are cut and frames decoded into the memory
    that the batch is handed out in. Where the episodes' samples differ in keys or shapes, each
    kind gets memory of its own.

    Args:
        parts: one per episode, their places together 0 to `size` - 1.
        size: samples of the batch.
        allocate: makes the memory.

    Raises:
        EpisodeError: a sample can't be made; names episode, key and frame.
    """
    with lent_arena() as arena:
        fetched = [part.maker.fetch(part.frames, arena) for part in parts]
        are_alike = all(one.fields is fetched[0].fields for one in fetched)
        if are_alike and not parts[0].maker.settings.transforms:
            return _fill(parts, fetched, size, allocate)
        samples = _fill_kinds(parts, fetched, size, allocate)
    for part in parts:
        for place in part.places:
            samples[place] = part.maker.transform(samples[place])
    return Batch.of_samples(samples, [field for one in fetched for field in one.fields])


def _fill_kinds(
    parts: Sequence[Part], fetched: Sequence[Fetched], size: int, allocate: Allocate
) -> list[Sample]:
    """Return the samples of a batch, with memory for each kind of them."""
    samples: list[Sample] = [{} for _ in range(size)]
    for kind in {one.fields for one in fetched}:
        members = [place for place, one in enumerate(fetched) if one.fields == kind]
        places = np.array([n for place in members for n in parts[place].places])
        alike = [_renumbered(parts[place], places) for place in members]
        batch = _fill(alike, [fetched[place] for place in members], len(places), allocate)
        for place, sample in zip(places.tolist(), batch, strict=True):
            samples[place] = sample
    return samples


def make_sample(maker: SampleMaker, frame: int) -> Sample:
    """Make the sample of one frame, in [0, total_frames); a batch of one."""
    part = Part(maker, np.array([frame], dtype=np.int64), range(1), marks_of([frame]))
    return make_batch([part], 1)[0]


def _renumbered(part: Part, places: IntArray) -> Part:
    """Return a part whose places are those within `places`."""
    order = np.argsort(places)
    found = order[np.searchsorted(places, part.places, sorter=order)]
    return part._replace(places=found.tolist())


def _fill(
    parts: Sequence[Part], fetched: Sequence[Fetched], size: int, allocate: Allocate
) -> Batch:
    """Fill the memory of a batch whose samples are all of one kind."""
    fields: Sequence[Field] = fetched[0].fields
    images = {
        field.key: allocate_column(field, size, allocate) for field in fields if field.has_pixels
    }
    cuts = [part.maker.cut(one, part.marks) for part, one in zip(parts, fetched, strict=True)]
    # One part is the whole batch, in order; `_renumbered` keeps it so.
    columns = cuts[0] if len(parts) == 1 else _scatter(fields, parts, cuts, size, allocate)
    for part, one in zip(parts, fetched, strict=True):
        if images:
            part.maker.decode(one, images, part.places)
    return Batch(fields, {**columns, **images}, size)


def _scatter(
    fields: Sequence[Field],
    parts: Sequence[Part],
    cuts: Sequence[Mapping[str, Column]],
    size: int,
    allocate: Allocate,
) -> dict[str, Column]:
    """Put what was cut for each part where its samples stand in the batch."""
    columns: dict[str, Column] = {}
    order = np.argsort(np.concatenate([np.asarray(part.places) for part in parts]))
    for field in fields:
        if field.has_pixels:
            continue
        values = [cut[field.key] for cut in cuts]
        column = allocate_column(field, size, allocate)
        if isinstance(column, np.ndarray):
            # A permutation needs no clipping; any other mode would copy once more.
            np.concatenate(values).take(order, axis=0, out=column, mode="clip")
        else:
            loose = list(itertools.chain.from_iterable(values))
            column = [loose[place] for place in order.tolist()]
        columns[field.key] = column
    return columns
