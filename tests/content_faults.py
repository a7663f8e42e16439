"""Faults of what frames hold, seeded in good recordings, each with all that must be found of it."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import zarr

from tests.episodes import edit_attrs, foreign_numbers
from tests.faults import (
    FAULTS,
    Found,
    Rng,
    arrays_in,
    as_a_whole,
    at_frames,
    row_in,
    seeded,
    span_in,
)
from tests.jpegs import CMYK, PROGRESSIVE
from tests.recordings import (
    CAMERA,
    CHUNK,
    FPS,
    GRIPPER,
    HEAD,
    JOINTS,
    NOTES,
    POSE,
    TIMES,
    TOTAL,
    VELOCITY,
    change,
    declare,
    file_of,
    frames,
    turned,
    undeclare,
)

__all__ = ["FAULTS"]

_XYZ = np.array([1, 1, 1, 0, 0, 0, 0])


def _bad_frame(episode: Path, rng: Rng, data: Callable[[bytes], bytes]) -> Iterable[Found]:
    row = row_in(rng)
    change(episode, CAMERA, row, data)
    return at_frames("camera frame", CAMERA, (row, row + 1))


@seeded()
def cut_jpeg(episode: Path, rng: Rng) -> Iterable[Found]:
    return _bad_frame(episode, rng, lambda jpeg: jpeg[: len(jpeg) * 7 // 10])


@seeded()
def cut_progressive_jpeg(episode: Path, rng: Rng) -> Iterable[Found]:
    return _bad_frame(episode, rng, lambda _: PROGRESSIVE[: len(PROGRESSIVE) * 7 // 10])


@seeded()
def cmyk_jpeg(episode: Path, rng: Rng) -> Iterable[Found]:
    return _bad_frame(episode, rng, lambda _: CMYK)


@seeded()
def random_bytes(episode: Path, rng: Rng) -> Iterable[Found]:
    return _bad_frame(episode, rng, lambda jpeg: rng.bytes(len(jpeg)))


@seeded()
def random_bytes_with_the_head_of_a_jpeg(episode: Path, rng: Rng) -> Iterable[Found]:
    return _bad_frame(episode, rng, lambda jpeg: jpeg[:300] + rng.bytes(len(jpeg)))


@seeded()
def jpeg_of_another_size(episode: Path, rng: Rng) -> Iterable[Found]:
    size = (16, 16) if rng.random() < 0.5 else (32, 48)
    return _bad_frame(episode, rng, lambda _: frames(1, size)[0])


@seeded()
def jpeg_of_another_size_than_most(episode: Path, rng: Rng) -> Iterable[Found]:
    declare(episode, CAMERA, shape=[])
    change(episode, CAMERA, 0, frames(1, (32, 48))[0])
    return at_frames("camera frame", CAMERA, (0, 1))


@seeded()
def empty_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    start, stop = span_in(rng, 1, 50)  # no camera that stands still
    change(episode, CAMERA, slice(start, stop), b"")
    return at_frames("camera frame", CAMERA, (start, stop))


@seeded()
def frozen_camera(episode: Path, rng: Rng) -> Iterable[Found]:
    change(episode, CAMERA, slice(None), frames()[row_in(rng)])
    return as_a_whole("frozen camera", CAMERA, "content")


@seeded()
def repeated_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    start, stop = span_in(rng, FPS + 1, 2 * FPS)
    change(episode, CAMERA, slice(start, stop), frames()[start])
    return [("repeated frames", CAMERA, start, stop, "content")]


@seeded()
def repeated_frames_at_the_end(episode: Path, rng: Rng) -> Iterable[Found]:
    start = TOTAL - int(rng.integers(FPS + 1, 3 * FPS))
    change(episode, CAMERA, slice(start, None), frames()[start])
    return [("repeated frames", CAMERA, start, TOTAL, "content")]


@seeded()
def repeated_frames_around_a_bad_one(episode: Path, rng: Rng) -> Iterable[Found]:
    bad = int(rng.integers(FPS + 1, 2 * FPS))
    change(episode, CAMERA, slice(0, bad + FPS), frames()[0])  # behind it, a second at most
    change(episode, CAMERA, bad, b"")
    found = at_frames("camera frame", CAMERA, (bad, bad + 1))
    return [*found, ("repeated frames", CAMERA, 0, bad, "content")]


@seeded()
def not_finite(episode: Path, rng: Rng) -> Iterable[Found]:
    key, row = str(rng.choice([POSE, HEAD, JOINTS, VELOCITY, TIMES])), row_in(rng)
    bad = rng.choice([np.nan, np.inf, -np.inf])
    change(episode, key, row, lambda one: np.append(one[:-1], bad) if one.shape else bad)
    return at_frames("not finite", key, (row, row + 1))


@seeded()
def run_of_rows_not_finite(episode: Path, rng: Rng) -> Iterable[Found]:
    found: list[Found] = []
    for key, value in ((POSE, np.nan), (HEAD, np.inf), (JOINTS, -np.inf), (TIMES, np.inf)):
        start, stop = span_in(rng, 2, 70)
        change(episode, key, slice(start, stop), value)
        found += at_frames("not finite", key, (start, stop))
    return found


def _moved(rng: Rng) -> np.ndarray:
    """Return what moves poses by half a metre to three, in any direction."""
    way = rng.normal(size=3)
    return np.append(way * (rng.uniform(0.5, 3) / np.linalg.norm(way)), np.zeros(4))


@seeded()
def position_spike(episode: Path, rng: Rng) -> Iterable[Found]:
    row, moved = row_in(rng), _moved(rng)
    change(episode, POSE, row, lambda rows: rows + moved)
    return at_frames("jump", POSE, (row, row + 1))


@seeded()
def position_spikes_at_both_ends(episode: Path, rng: Rng) -> Iterable[Found]:
    moved = _moved(rng)
    change(episode, POSE, [0, TOTAL - 1], lambda rows: rows + moved)
    return at_frames("jump", POSE, (0, 1), (TOTAL - 1, TOTAL))


@seeded()
def position_step(episode: Path, rng: Rng) -> Iterable[Found]:
    row, moved = row_in(rng, 2), _moved(rng)
    change(episode, POSE, slice(row, None), lambda rows: rows + moved)
    return at_frames("jump", POSE, (row, row + 1))


@seeded()
def rotation_flip(episode: Path, rng: Rng) -> Iterable[Found]:
    row = row_in(rng)
    change(episode, HEAD, row, lambda pose: turned(pose, np.pi))
    return at_frames("jump", HEAD, (row, row + 1))


@seeded()
def quaternions_of_other_norms(episode: Path, rng: Rng) -> Iterable[Found]:
    start, stop = span_in(rng, 1, 55)
    scale = np.append([1.0] * 3, [rng.choice([0, 0.5, 1.02, 3])] * 4)
    change(episode, POSE, slice(start, stop), lambda rows: rows * scale)
    return at_frames("quaternion", POSE, (start, stop))


@seeded()
def most_quaternions_of_other_norms(episode: Path, rng: Rng) -> Iterable[Found]:
    change(episode, HEAD, slice(0, TOTAL // 2 + 1), lambda rows: rows * [1, 1, 1, 2, 2, 2, 2])
    return as_a_whole("quaternion", HEAD, "content")


@seeded()
def no_quaternion_of_norm_1(episode: Path, rng: Rng) -> Iterable[Found]:
    change(
        episode, POSE, slice(None), lambda rows: rows * [1, 1, 1, *[rng.choice([0, 0.5, 2])] * 4]
    )
    return as_a_whole("quaternion", POSE, "content")


@seeded()
def no_rotations(episode: Path, rng: Rng) -> Iterable[Found]:
    change(episode, HEAD, slice(None), lambda rows: rows * _XYZ + [0, 0, 0, 1, 0, 0, 0])
    return as_a_whole("quaternion", HEAD, "content")


@seeded()
def time_goes_back(episode: Path, rng: Rng) -> Iterable[Found]:
    row = row_in(rng, 1)
    change(episode, TIMES, slice(row, None), lambda times: times - 1.5 / FPS)
    return [("timestamps", TIMES, row, row + 1, "content")]


@seeded()
def time_stands_still(episode: Path, rng: Rng) -> Iterable[Found]:
    row = row_in(rng, 1)
    change(episode, TIMES, row, (row - 1) / FPS)
    return [("timestamps", TIMES, row, row + 1, "content")]


@seeded()
def gaps_in_time(episode: Path, rng: Rng) -> Iterable[Found]:
    rows = sorted(1 + rng.permutation(TOTAL - 1)[:2])
    for row, gap in zip(rows, (1.6, 90), strict=True):  # in frames, beside the one that is due
        change(episode, TIMES, slice(row, None), lambda times, gap=gap: times + gap / FPS)
    return [("timestamps", TIMES, row, row + 1, "content") for row in rows]


@seeded()
def other_rate(episode: Path, rng: Rng) -> Iterable[Found]:
    change(episode, TIMES, slice(None), lambda times: times * rng.choice([0.5, 0.9, 1.1, 4]))
    return as_a_whole("timestamps", TIMES, "content")


@seeded()
def time_in_nanoseconds(episode: Path, rng: Rng) -> Iterable[Found]:
    change(episode, TIMES, slice(None), lambda times: times * rng.choice([1e3, 1e6, 1e9]) * 1.1)
    return as_a_whole("timestamps", TIMES, "content")


@seeded("zarr")
def timestamps_of_flags(episode: Path, rng: Rng) -> Iterable[Found]:
    shutil.rmtree(episode / TIMES)
    flags = rng.random(TOTAL) < 0.5
    foreign_numbers(zarr.open_group(episode, mode="r+"), TIMES, flags, chunks=(CHUNK,))
    declare(episode, TIMES, dtype="bool")
    return as_a_whole("timestamps", TIMES)


def _annotated(episode: Path, row: bytes) -> None:
    change(episode, "annotations", slice(None), row)


@seeded()
def annotation_outside(episode: Path, rng: Rng) -> Iterable[Found]:
    start, end = (0, TOTAL + 1 + row_in(rng)) if rng.random() < 0.5 else (-1 - row_in(rng), 5)
    _annotated(episode, json.dumps({"text": "x", "start_idx": start, "end_idx": end}).encode())
    return [("annotations", "annotations", start, end, "content")]


@seeded()
def reversed_annotation(episode: Path, rng: Rng) -> Iterable[Found]:
    start = row_in(rng, 1)
    end = int(rng.integers(0, start + 1))
    _annotated(episode, json.dumps({"text": "x", "start_idx": start, "end_idx": end}).encode())
    return [("annotations", "annotations", start, end, "content")]


@seeded()
def annotation_of_no_frames(episode: Path, rng: Rng) -> Iterable[Found]:
    _annotated(episode, b'{"text": "x", "start_idx": 7, "end_idx": 7}')
    return [("annotations", "annotations", 7, 7, "content")]


@seeded()
def annotation_that_is_none(episode: Path, rng: Rng) -> Iterable[Found]:
    _annotated(episode, (b"no JSON", b"[1, 2]", b'{"text": "x", "start_idx": 0}')[rng.integers(3)])
    return as_a_whole("annotations", "annotations")


@seeded()
def zeros_at_the_end(episode: Path, rng: Rng) -> Iterable[Found]:
    """As padding is, where `total_frames` counts it; the gripper rests at zero before."""
    start = TOTAL - int(rng.integers(2, 50))
    arrays = (POSE, HEAD, JOINTS, GRIPPER, TIMES)
    change(episode, VELOCITY, slice(None), 0)
    for key in arrays:
        change(episode, key, slice(start, None), 0)
    found = [one for key in arrays for one in at_frames("zero tail", key, (start, TOTAL))]
    found += [one for key in (POSE, HEAD) for one in at_frames("quaternion", key, (start, TOTAL))]
    return [*found, ("timestamps", TIMES, start, TOTAL, "content")]


@seeded()
def zeros_at_the_end_of_an_array(episode: Path, rng: Rng) -> Iterable[Found]:
    start = TOTAL - int(rng.integers(2, 50))
    change(episode, JOINTS, slice(start, None), 0)
    change(episode, POSE, slice(start, None), 0)
    tails = [("zero tail", key, start, TOTAL, "frames") for key in (JOINTS, POSE)]
    return [*tails, *at_frames("quaternion", POSE, (start, TOTAL))]


@seeded("zarr")
def row_that_is_no_json(episode: Path, rng: Rng) -> Iterable[Found]:
    row = row_in(rng)
    change(episode, NOTES, row, (b"", b"{", b"\xff")[rng.integers(3)])
    return at_frames("json", NOTES, (row, row + 1))


@seeded()
def timestamps_of_many_numbers(episode: Path, rng: Rng) -> Iterable[Found]:
    shutil.rmtree(episode / TIMES)
    shutil.copytree(episode / POSE, episode / TIMES)
    declare(episode, TIMES, dtype="float32", shape=[7])
    return as_a_whole("timestamps", TIMES)


@seeded()
def timestamps_of_bytes(episode: Path, rng: Rng) -> Iterable[Found]:
    shutil.rmtree(episode / TIMES)
    shutil.copytree(episode / CAMERA, episode / TIMES)
    declare(episode, TIMES, dtype="bytes")
    return as_a_whole("timestamps", TIMES)


# Notes.


@seeded()
def no_fps(episode: Path, rng: Rng) -> Iterable[Found]:
    edit_attrs(episode, fps=...)
    return as_a_whole("fps", harm="note")


@seeded()
def undeclared_arrays(episode: Path, rng: Rng) -> Iterable[Found]:
    keys = arrays_in(episode, rng)
    for key in keys:
        undeclare(episode, key)
    return [one for key in keys for one in as_a_whole("features", key, "note")]


@seeded()
def undeclared_arrays_with_bad_rows(episode: Path, rng: Rng) -> Iterable[Found]:
    keys = (JOINTS, CAMERA, "annotations")
    for key in keys:
        undeclare(episode, key)
    change(episode, JOINTS, slice(3, 9), np.nan)
    change(episode, CAMERA, 5, b"no JPEG")
    _annotated(episode, b"no JSON")
    found = [one for key in keys for one in as_a_whole("features", key, "note")]
    found += [*at_frames("not finite", JOINTS, (3, 9)), *at_frames("camera frame", CAMERA, (5, 6))]
    return [*found, *as_a_whole("annotations", "annotations")]


@seeded()
def undeclared_array_without_a_file(episode: Path, rng: Rng) -> Iterable[Found]:
    undeclare(episode, HEAD)
    path, rows = file_of(episode, HEAD, row_in(rng))
    path.unlink()
    noted = as_a_whole("features", HEAD, "note")
    return [*noted, *at_frames("unreadable", HEAD, rows)]


@seeded()
def no_annotations_in_shards_of_nothing(episode: Path, rng: Rng) -> Iterable[Found]:
    layout = json.loads((episode / CAMERA / "zarr.json").read_text())
    shutil.rmtree(episode / "annotations")
    (episode / "annotations").mkdir()
    index = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]
    inner = {"chunk_shape": [1], "codecs": layout["codecs"], "index_codecs": index}
    if layout["codecs"][0]["name"] == "sharding_indexed":
        inner = layout["codecs"][0]["configuration"]
    layout["codecs"] = [{"name": "sharding_indexed", "configuration": inner}]
    layout["chunk_grid"]["configuration"]["chunk_shape"] = layout["shape"] = [0]
    (episode / "annotations/zarr.json").write_text(json.dumps(layout))
    return as_a_whole("shards", "annotations", "note")


@seeded()
def stale_consolidated_metadata(episode: Path, rng: Rng) -> Iterable[Found]:
    late = episode.parent / "late"
    shutil.move(episode / JOINTS, late)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # v3 does not specify it
        zarr.consolidate_metadata(episode)
    shutil.move(late, episode / JOINTS)
    return as_a_whole("consolidated", harm="note")
