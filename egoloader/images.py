"""The images of a batch: each frame read when its turn comes, and decoded into all its places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from egoloader.arena import Arena
from egoloader.batch import Column
from egoloader.decompression import Stored
from egoloader.frames import Camera
from egoloader.kind import Entry
from egoloader.share import Fetched

__all__ = ["fill_images"]

IntArray = npt.NDArray[np.int64]
#: Where a frame goes: images or JPEGs, and which of them.
_Target = tuple[Any, int]
#: Per place in what the reads of a camera return: the frame's row, and where it goes.
_Targets = dict[int, tuple[int, list[_Target]]]


def fill_images(
    fetched: Fetched, images: Mapping[str, Column], arena: Arena
) -> dict[str, list[Any]]:
    """Read the frames of all cameras, each once, and decode them into a batch's memory.

    A frame is decoded right after it was read, while the processor still has its bytes at hand.

    Args:
        fetched: of B samples.
        images: per camera entry that has its pixels there, memory of the batch.
        arena: where stored bytes go.

    Returns:
        Per other camera entry, a list of B: tensors or JPEGs.

    Raises:
        FrameError: a frame can't be decoded; names episode, key and frame.
        ReadError: a frame can't be read.
    """
    cameras: dict[str, _Targets] = {key: {} for key, _ in fetched.kind.cameras}
    loose: dict[str, list[Any]] = {}
    for entry in fetched.kind.images:
        if entry.is_image:
            samples = _in_batch(images[entry.key], fetched.share.places)
        else:
            samples = loose[entry.key] = _on_its_own(entry, fetched)
        if entry.number >= 0:
            _aim(cameras[entry.zarr_key], entry, samples, fetched)
        elif not fetched.kind.has_jpegs:
            for sample in samples:
                sample[...] = 0
    for zarr_key, read in fetched.kind.cameras:
        _fill(zarr_key, read, cameras[zarr_key], fetched, arena)
    if fetched.kind.has_jpegs:
        return loose
    return {key: [torch.from_numpy(one).movedim(-1, -3) for one in loose[key]] for key in loose}


def _in_batch(column: Column, places: Sequence[int]) -> Sequence[Any]:
    """Return the images of an entry in a batch's memory, a sample's at a time."""
    return [column[place] for place in places]


def _on_its_own(entry: Entry, fetched: Fetched) -> list[Any]:
    """Return new memory for the images of an entry, or places for their JPEGs."""
    if fetched.kind.has_jpegs:
        return [[b""] * entry.steps[0] if entry.steps else b"" for _ in fetched.names]
    makers = [fetched.share.makers[number] for number in fetched.share.numbers.tolist()]
    shapes = [maker.image_shape(entry) or () for maker in makers]  # which are known by now
    return [np.empty(shape, entry.dtype) for shape in shapes]


def _aim(targets: _Targets, entry: Entry, samples: Sequence[Any], fetched: Fetched) -> None:
    """Add the places of an entry's frames: a sample, or a step of one."""
    places, rows = fetched.plan.places(entry.key), fetched.plan.rows(entry.key)
    if not entry.steps:
        _add(targets, samples, places, rows)
        return
    for sample, its_places, its_rows in zip(samples, places, rows, strict=True):
        _add(targets, sample, its_places, its_rows)


def _add(targets: _Targets, line: Any, places: IntArray, rows: IntArray) -> None:
    for number, (place, row) in enumerate(zip(places.tolist(), rows.tolist(), strict=True)):
        targets.setdefault(place, (row, []))[1].append((line, number))


def _fill(zarr_key: str, read: int, targets: _Targets, fetched: Fetched, arena: Arena) -> None:
    """Read one camera's frames, and put them where they go."""
    held = fetched.stored.get(zarr_key)
    put = _put_jpeg if fetched.kind.has_jpegs else _put_pixels
    before = 0
    for maker, reads in zip(fetched.share.makers, fetched.plan.episodes, strict=True):
        plan, camera = reads[read], maker.cameras[zarr_key]
        if held is None:
            rows = maker.episode.bytes_reader(zarr_key).stream(plan, arena)
        else:
            rows = enumerate(held)
        for place, data in rows:
            target = targets.get(before + place)
            if target is not None:  # a chunk may hold rows that nobody asked for
                put(camera, data, *target)
        before += plan.num_rows


def _put_pixels(camera: Camera, data: Stored, row: int, targets: Sequence[_Target]) -> None:
    camera.decode(data, [line[number] for line, number in targets], row)


def _put_jpeg(camera: Camera, data: Stored, row: int, targets: Sequence[_Target]) -> None:
    camera.check(data, row)
    jpeg = bytes(data)
    for line, number in targets:
        line[number] = jpeg
