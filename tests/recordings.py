"""Good recordings whose numbers move as those of robots do, and ways to change what is stored."""

from __future__ import annotations

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import zarr

from egoloader import EpisodeWriter
from tests.episodes import (
    edit_json,
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
)

#: Frames of a good recording, Hz, and rows of a chunk of numbers.
TOTAL, FPS, CHUNK = 120, 30, 50
POSE, HEAD, CAMERA = "left.obs_ee_pose", "obs_head_pose", "images.front_1"
JOINTS, VELOCITY, GRIPPER, TIMES = "obs_joints", "obs_velocity", "obs_gripper", "timestamp"
#: Rows of JSON, which only zarr-python writes.
NOTES = "events"
SIZE = (16, 24)
#: What both recordings have.
KEYS = (POSE, HEAD, JOINTS, VELOCITY, GRIPPER, TIMES, CAMERA)


def numbers(total: int = TOTAL) -> dict[str, npt.NDArray[Any]]:
    """Return numbers that move smoothly: quaternions turn; velocity and gripper end at rest."""
    t = np.arange(total) / FPS
    slowing = np.clip(1.2 - t / t[-1] * 1.3, 0, None)
    return {
        POSE: _poses(t, 0.7),
        HEAD: _poses(t, 0.3),
        JOINTS: np.stack([np.sin(t + j) + 1.5 for j in range(6)], axis=1).astype(np.float32),
        VELOCITY: (slowing[:, None] * [0.2, -0.1, 0.4]).astype(np.float32),
        GRIPPER: np.where(t < t[-1] / 2, 0.08, 0.0).astype(np.float32)[:, None],
        TIMES: t,
    }


def _poses(t: npt.NDArray[np.float64], rate: float) -> npt.NDArray[np.float32]:
    """Return (T, 7): a circle in metres, and a turn about an axis, as unit wxyz quaternions."""
    half = rate * t / 2 + 0.4
    xyz = np.stack([np.cos(rate * t), np.sin(rate * t), 0.1 * t + 0.5], axis=1)
    axis = np.sin(half)[:, None] * (np.array([1, 2, 2]) / 3)
    return np.concatenate([xyz, np.cos(half)[:, None], axis], axis=1).astype(np.float32)


def turned(poses: npt.NDArray[Any], angle: float) -> npt.NDArray[Any]:
    """Return (…, 7) poses, turned by an angle in rad about their first axis."""
    w, x, y, z = np.moveaxis(poses[..., 3:], -1, 0)
    cos, sin = np.cos(angle / 2), np.sin(angle / 2)
    turns = [w * cos - x * sin, x * cos + w * sin, y * cos + z * sin, z * cos - y * sin]
    return np.concatenate([poses[..., :3], np.stack(turns, axis=-1)], axis=-1)


@functools.cache
def frames(total: int = TOTAL, size: tuple[int, int] = SIZE) -> tuple[bytes, ...]:
    """Return JPEGs of grain, neighbours in other colours."""
    grain = np.random.default_rng(5).integers(0, 60, (*size, 3))
    colours = [(36 * (i % 6), 36 * (i // 6 % 6), 36 * (i // 36 % 6)) for i in range(total)]
    pictures = [(grain + colour).astype(np.uint8) for colour in colours]
    return tuple(simplejpeg.encode_jpeg(one, quality=90) for one in pictures)


def write_by_us(path: Path, total: int = TOTAL, **options: Any) -> Path:
    """Write a good recording with the writer, and return its path."""
    EpisodeWriter.write(
        path,
        numeric=numbers(total),
        images={CAMERA: frames(total)},
        chunk_rows=CHUNK,
        **{"fps": FPS, "embodiment": "arm", "annotations": [("reach", 0, total // 2)], **options},
    )
    return path


def write_by_zarr(path: Path, total: int = TOTAL) -> Path:
    """Write a good recording with zarr-python: no shards, zstd, rows of JSON among the arrays."""
    rows = numbers(total)
    features = {k: {"dtype": str(v.dtype), "shape": v.shape[1:]} for k, v in rows.items()}
    features[CAMERA] = {"dtype": "jpeg", "shape": (*SIZE, 3)}
    features |= {key: {"dtype": "json", "shape": ()} for key in (NOTES, "annotations")}
    group = foreign_group(path, total, fps=FPS, embodiment="arm", features=features)
    for key, values in rows.items():
        foreign_numbers(group, key, values, chunks=(CHUNK, *values.shape[1:]))
    foreign_bytes(group, CAMERA, frames(total))
    notes = [json.dumps({"step": t}).encode() for t in range(total)]
    foreign_bytes(group, NOTES, notes, chunks=(CHUNK,))
    foreign_annotations(group, [("reach", 0, total // 2)])
    return path


def write_numbers(path: Path, total: int = 60, **rows: Any) -> Path:
    """Write an episode of these numbers with zarr-python; nothing is declared."""
    group = foreign_group(path, total, fps=FPS)
    for key, values in rows.items():
        foreign_numbers(group, key, np.asarray(values), chunks=(16, *np.shape(values)[1:]))
    return path


def change(episode: Path, key: str, rows: Any, values: Any) -> None:
    """Store other values in rows of an array, with checksums that fit; a function makes them."""
    with warnings.catch_warnings(), zarr.config.set({"array.write_empty_chunks": True}):
        warnings.simplefilter("ignore")  # rows of bytes are not in the v3 specification yet
        array = zarr.open_array(episode / key, mode="r+")
        which = np.arange(array.shape[0])[rows]
        low, high = int(which.min()), int(which.max()) + 1
        kept = np.array(array[low:high])
        kept[which - low] = values(kept[which - low]) if callable(values) else values
        array[low:high] = kept


def declare(episode: Path, key: str, **fields: Any) -> None:
    """Change what `features` says of an array."""
    edit_json(
        episode / "zarr.json", lambda group: group["attributes"]["features"][key].update(fields)
    )


def undeclare(episode: Path, key: str) -> None:
    """Take an array out of `features`."""
    edit_json(episode / "zarr.json", lambda group: group["attributes"]["features"].pop(key))


def number_of(key: str, row: int) -> int:
    """Return the number of the chunk that holds a row."""
    return row if key == CAMERA else row // CHUNK


def num_chunks(key: str) -> int:
    return number_of(key, TOTAL - 1) + 1


def chunk_of(key: str, row: int) -> tuple[int, int]:
    """Return the half-open rows of the chunk that holds a row."""
    size = 1 if key == CAMERA else CHUNK
    return row // size * size, min(row // size * size + size, TOTAL)


def is_sharded(episode: Path, key: str) -> bool:
    return "sharding_indexed" in (episode / key / "zarr.json").read_text()


def file_of(episode: Path, key: str, row: int) -> tuple[Path, tuple[int, int]]:
    """Return the shard or chunk that holds a row, and the half-open rows that it has."""
    folder, number, rows = episode / key / "c", str(number_of(key, row)), chunk_of(key, row)
    if is_sharded(episode, key):
        number, rows = "0", (0, TOTAL)
    (found,) = (p for p in folder.rglob("*") if p.is_file() and _first(p, folder) == number)
    return found, rows


def _first(path: Path, folder: Path) -> str:
    return path.relative_to(folder).parts[0]
