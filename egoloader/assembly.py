"""Putting a batch together: plan all, fetch once, then fill the batch's own memory."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.arena import Arena, lent_arena
from egoloader.batch import Allocate, Batch, Column, Field, Sample, allocate_column
from egoloader.cuts import cut_columns
from egoloader.frameindex import Marks, marks_of
from egoloader.images import fill_images
from egoloader.sample import SampleMaker
from egoloader.share import Fetched, divide
from egoloader.transformation import transformed

__all__ = ["fresh_memory", "make_batch", "make_sample"]

IntArray = npt.NDArray[np.int64]


def fresh_memory(_key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return new memory."""
    return np.empty(shape, dtype=dtype)


def make_batch(
    makers: Sequence[SampleMaker],
    numbers: IntArray,
    frames: IntArray,
    marks: Marks,
    allocate: Allocate = fresh_memory,
) -> Batch:
    """Make the samples of a batch.

    All reads are planned; numbers are fetched and cut, then frames read and decoded, into the
    memory that the batch is handed out in. Where the episodes' samples differ in keys or shapes,
    each kind gets memory of its own. The samples of a kind go through their transforms together.

    Args:
        makers: of the samples, one an episode.
        numbers: (B,) int64, B >= 1, which of them makes each sample; each makes one at least.
        frames: (B,) int64 frame indices; repeats are allowed.
        marks: what the sampler knows of the samples.
        allocate: makes the memory.

    Raises:
        EpisodeError: a sample can't be made; names episode, key and frame.
    """
    with lent_arena() as arena:
        fetched = [share.fetch() for share in divide(makers, numbers, frames, marks)]
        parts = [
            (places, _fill(members, len(places), allocate, arena))
            for places, members in _parts(fetched)
        ]
    made = [(places, transformed(batch, makers, numbers[places])) for places, batch in parts]
    if len(made) == 1:
        return made[0][1]
    samples: list[Sample] = [{} for _ in range(len(frames))]
    for places, batch in made:
        for place, sample in zip(places, batch, strict=True):
            samples[place] = sample
    return Batch.of_samples(samples, [field for _, batch in made for field in batch.fields])


def make_sample(maker: SampleMaker, frame: int) -> Sample:
    """Make the sample of one frame, in [0, total_frames); a batch of one."""
    frames = np.array([frame], dtype=np.int64)
    return make_batch([maker], np.zeros(1, np.int64), frames, marks_of([frame]))[0]


def _parts(fetched: Sequence[Fetched]) -> list[tuple[list[int], list[Fetched]]]:
    """Return what has the same fields and the same transforms, and where in the batch it stands.

    The places of what is in a part are those within it.
    """
    alike: dict[tuple[tuple[Field, ...], int], list[Fetched]] = {}
    for one in fetched:
        transforms = one.share.makers[0].transforms
        alike.setdefault((one.kind.fields, id(transforms)), []).append(one)
    parts = []
    for members in alike.values():
        places = sorted(place for one in members for place in one.share.places)
        if len(alike) > 1:
            members = [_within(one, places) for one in members]
        parts.append((places, members))
    return parts


def _within(fetched: Fetched, places: Sequence[int]) -> Fetched:
    """Return what was fetched with its places among those of a part."""
    within = {place: number for number, place in enumerate(places)}
    its = [within[place] for place in fetched.share.places]
    return fetched._replace(share=fetched.share._replace(places=its))


def _fill(fetched: Sequence[Fetched], size: int, allocate: Allocate, arena: Arena) -> Batch:
    """Fill the memory of a batch whose samples all have the same fields."""
    fields, pixels = fetched[0].kind.fields, fetched[0].kind.pixels
    images = {field.key: allocate_column(field, size, allocate) for field in pixels}
    # One share is the whole batch, in order.
    memory = allocate if len(fetched) == 1 else fresh_memory
    cuts = [{**cut_columns(one, memory), **fill_images(one, images, arena)} for one in fetched]
    columns = cuts[0] if len(cuts) == 1 else _scatter(fields, fetched, cuts, size, allocate)
    return Batch(fields, {**columns, **images}, size)


def _scatter(
    fields: Sequence[Field],
    fetched: Sequence[Fetched],
    cuts: Sequence[Mapping[str, Column]],
    size: int,
    allocate: Allocate,
) -> dict[str, Column]:
    """Put what was cut for each share where its samples stand in the batch."""
    columns: dict[str, Column] = {}
    order = np.argsort(np.concatenate([np.asarray(one.share.places) for one in fetched]))
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
