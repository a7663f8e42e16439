"""Faults of what is stored, seeded in good recordings, each with all that must be found of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from egoloader.shards import encode_index
from egoloader.validate import Finding
from tests.episodes import edit_attrs, edit_json
from tests.readers import shard_entries
from tests.recordings import (
    CAMERA,
    JOINTS,
    KEYS,
    NOTES,
    POSE,
    TOTAL,
    chunk_of,
    declare,
    file_of,
    num_chunks,
    number_of,
)

#: What is found: check, key, first frame, one past the last, harm.
Found = tuple[str, str | None, int | None, int | None, str]
Rng = np.random.Generator
#: Seeds a fault in a good recording, and returns all that must be found.
Fault = Callable[[Path, Rng], Iterable[Found]]

#: By name, with the recordings it is seeded in: `us`, by the writer, or `zarr`.
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {}


def places(findings: Iterable[Finding]) -> list[Found]:
    """Return what was found and where, sorted."""
    return in_order((one.check, one.key, one.start, one.end, one.harm) for one in findings)


def in_order(found: Iterable[Found]) -> list[Found]:
    return sorted(found, key=lambda one: tuple(map(str, one)))


def seeded(*recordings: str) -> Callable[[Fault], Fault]:
    def keep(fault: Fault) -> Fault:
        FAULTS[fault.__name__] = fault, recordings or ("us", "zarr")
        return fault

    return keep


def row_in(rng: Rng, least: int = 0) -> int:
    return int(rng.integers(least, TOTAL))


def span_in(rng: Rng, shortest: int, longest: int) -> tuple[int, int]:
    length = int(rng.integers(shortest, longest + 1))
    start = int(rng.integers(0, TOTAL - length))
    return start, start + length


def arrays_in(episode: Path, rng: Rng) -> list[str]:
    """Return an array of numbers, and all of bytes."""
    notes = [NOTES] if (episode / NOTES).exists() else []
    return [str(rng.choice(KEYS[:-1])), CAMERA, *notes]


def at_frames(found: str, key: str, *rows: tuple[int, int]) -> list[Found]:
    return [
        as_a_whole(found, key)[0] if row == (0, TOTAL) else (found, key, *row, "frames")
        for row in rows
    ]


def as_a_whole(found: str, key: str | None = None, harm: str = "frames") -> list[Found]:
    return [(found, key, None, None, harm)]


def flip_bit(path: Path, place: int, rng: Rng) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


@seeded("us")
def flipped_bit(episode: Path, rng: Rng) -> Iterable[Found]:
    found: list[Found] = []
    for key in arrays_in(episode, rng):
        row = row_in(rng)
        path, _ = file_of(episode, key, row)
        offset, length = shard_entries(path, num_chunks(key))[number_of(key, row)]
        flip_bit(path, int(offset + rng.integers(length)), rng)
        found += at_frames("unreadable", key, chunk_of(key, row))
    return found


@seeded("us")
def flipped_bit_of_annotations(episode: Path, rng: Rng) -> Iterable[Found]:
    path = episode / "annotations/c/0"
    flip_bit(path, int(rng.integers(path.stat().st_size)), rng)
    return as_a_whole("annotations", "annotations")


@seeded()
def deleted_file_of_annotations(episode: Path, rng: Rng) -> Iterable[Found]:
    (episode / "annotations/c/0").unlink()
    return as_a_whole("metadata", "annotations")


@seeded()
def truncated_file(episode: Path, rng: Rng) -> Iterable[Found]:
    found: list[Found] = []
    for key in arrays_in(episode, rng):
        path, rows = file_of(episode, key, row_in(rng))
        data = path.read_bytes()
        path.write_bytes(data[: int(rng.integers(len(data)))])
        found += at_frames("unreadable", key, rows)
    return found


@seeded()
def deleted_file(episode: Path, rng: Rng) -> Iterable[Found]:
    found: list[Found] = []
    for key in arrays_in(episode, rng):
        path, rows = file_of(episode, key, row_in(rng))
        path.unlink()
        found += at_frames("unreadable", key, rows)
    return found


@seeded("us")
def empty_index_entry(episode: Path, rng: Rng) -> Iterable[Found]:
    found: list[Found] = []
    for key in arrays_in(episode, rng):
        row = row_in(rng)
        path, _ = file_of(episode, key, row)
        entries = shard_entries(path, num_chunks(key)).astype(np.uint64)
        entries[number_of(key, row)] = 2**64 - 1
        index = encode_index(entries[:, 0], entries[:, 1])
        path.write_bytes(path.read_bytes()[: -len(index)] + index)
        found += at_frames("unreadable", key, chunk_of(key, row))
    return found


@seeded()
def deleted_array(episode: Path, rng: Rng) -> Iterable[Found]:
    keys = arrays_in(episode, rng)
    for key in keys:
        shutil.rmtree(episode / key)
    return [one for key in keys for one in as_a_whole("metadata", key)]


@seeded()
def short_array(episode: Path, rng: Rng) -> Iterable[Found]:
    keys = arrays_in(episode, rng)
    for key in keys:
        rows = row_in(rng, 101)  # as many chunks of numbers as before
        edit_json(episode / key / "zarr.json", lambda one, rows=rows: _shorten(one, rows))
    return [one for key in keys for one in as_a_whole("metadata", key)]


def _shorten(metadata: dict[str, Any], rows: int) -> None:
    metadata["shape"][0] = rows


@seeded()
def too_many_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, total_frames=TOTAL + 1 + row_in(rng))
    keys = [*KEYS, *([NOTES] if (episode / NOTES).exists() else [])]
    return [one for key in keys for one in as_a_whole("metadata", key)]


@seeded()
def broken_metadata_of_an_array(episode: Path, rng: Rng) -> Iterable[Found]:
    keys = arrays_in(episode, rng)
    for key in keys:
        path = episode / key / "zarr.json"
        path.write_bytes(path.read_bytes()[: -1 - int(rng.integers(100))])
    return [one for key in keys for one in as_a_whole("metadata", key)]


@seeded()
def metadata_that_is_a_loop(episode: Path, rng: Rng) -> Iterable[Found]:
    path = episode / POSE / "zarr.json"
    path.unlink()
    path.symlink_to(path)
    return as_a_whole("metadata", POSE)


@seeded()
def other_dtype_declared(episode: Path, rng: Rng) -> Iterable[Found]:
    declare(episode, JOINTS, dtype="float64")
    return as_a_whole("features", JOINTS, "content")


@seeded()
def other_shape_declared(episode: Path, rng: Rng) -> Iterable[Found]:
    declare(episode, POSE, shape=[8])
    declare(episode, CAMERA, shape=[24, 16, 3])
    shape = as_a_whole("features", POSE, "content")
    return [*shape, *at_frames("camera frame", CAMERA, (0, TOTAL))]


@seeded()
def other_kind_declared(episode: Path, rng: Rng) -> Iterable[Found]:
    declare(episode, JOINTS, dtype="jpeg")
    declare(episode, CAMERA, dtype="uint8")
    return [*as_a_whole("features", JOINTS), *as_a_whole("features", CAMERA)]


@seeded()
def camera_declared_as_json(episode: Path, rng: Rng) -> Iterable[Found]:
    declare(episode, CAMERA, dtype="json")
    return at_frames("json", CAMERA, (0, TOTAL))


@seeded()
def half_written(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, egoloader={"version": 1, "complete": False})
    return as_a_whole("metadata")


@seeded()
def no_total_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, total_frames=...)
    return as_a_whole("metadata")


@seeded()
def negative_total_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, total_frames=-row_in(rng, 1))
    return as_a_whole("metadata")


@seeded()
def no_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, total_frames=0)
    return as_a_whole("length", harm="content")


@seeded()
def fps_is_null(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, fps=None)
    return as_a_whole("metadata")
