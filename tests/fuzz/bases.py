"""Good episodes to mutate: as the writer leaves them, and as other people's tools do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
)

from egoloader import EpisodeWriter, KeyMap, KeySpec
from tests.entries import entry
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, ramp
from tests.recordings import SIZE, frames

__all__ = ["BASES", "CAMERA", "FPS", "TOTAL", "Base", "Recording"]

#: Frames of an episode, rows that other people's tools store of it, Hz, and rows of a chunk.
TOTAL, STORED, FPS, CHUNK = 10, 12, 10, 4
CAMERA, POSE, COUNT, TIMES = "images.front", "arm/pose", "count", "timestamp"
WIDE, REST, EVENTS, ANNOTATIONS = "wide", "rest", "events", "annotations"
_SPANS = [("reach", 0, 6), ("grasp", 4, TOTAL)]


@dataclass(frozen=True, slots=True)
class Recording:
    """What was recorded, before anything was stored.

    Attributes:
        rows: per array, its rows: numbers, or bytes; annotations are rows of JSON.
        total: frames.
        fps: in Hz.
        embodiment: the body.
    """

    rows: Mapping[str, Any]
    total: int = TOTAL
    fps: float = FPS
    embodiment: str = "arm"

    def has(self, key: str) -> bool:
        """Return whether there is an array of that name."""
        return key in self.rows

    def count(self, key: str) -> int:
        """Return how many rows an array has."""
        return len(self.rows[key])

    def row(self, key: str, number: int) -> Any:
        """Return one row: numbers, or bytes."""
        return self.rows[key][number]


@dataclass(frozen=True, slots=True)
class Base:
    """A way to store a recording, and what is read of it.

    Attributes:
        name: of the way.
        keys: the arrays that it has.
        write: stores a recording at a path.
        has_cutoff: whether annotations end action horizons.
        others: entries beyond those of every base.
    """

    name: str
    keys: tuple[str, ...]
    write: Callable[[Path, Recording], object]
    has_cutoff: bool = False
    others: Mapping[str, KeySpec] = field(default_factory=dict)

    @property
    def keymap(self) -> KeyMap:
        """What is read: every array, the pose with all kinds of windows."""
        return KeyMap(
            {
                "cam": entry(CAMERA, "camera_keys"),
                "past": entry(CAMERA, "camera_keys", lag_s=0.2, mask=True),
                "now": entry(POSE),
                "history": entry(POSE, history=3, stride_s=0.2, mask=True),
                "next": entry(POSE, "action_keys", horizon=4, mask=True),
                "count": entry(COUNT, "metadata_keys", dtype="int64"),
                **self.others,
            }
        )

    def recording(self, number: int = 0) -> Recording:
        """Return the recording of a number; no two have a row of an array in common."""
        first = number * TOTAL
        texts = [{"text": t, "start_idx": a, "end_idx": b} for t, a, b in _SPANS]
        rest = ramp(TOTAL, 2) + 500 * number
        rest[:CHUNK] = 0
        rows: dict[str, Any] = {
            CAMERA: frames(2 * TOTAL, SIZE)[first : first + TOTAL],
            POSE: ramp(TOTAL, 3) + 500 * number,
            COUNT: np.arange(first, first + TOTAL, dtype=np.int64) * 1000,
            TIMES: np.arange(TOTAL) / FPS + number / 64,
            WIDE: ramp(TOTAL, 300) + 500 * number,
            REST: rest,
            EVENTS: [json.dumps({"step": t, "of": number}).encode() for t in range(TOTAL)],
            ANNOTATIONS: [json.dumps({**t, "of": number}).encode() for t in texts],
        }
        return Recording({key: rows[key] for key in self.keys})


_TEXT = {"text": entry(ANNOTATIONS, "annotation_keys")}
_REST = {"rest": entry(REST, "action_keys", offsets=[-4, 0, 3], optional=True, shape=(2,))}
_EVENTS = {"event": entry(EVENTS, "metadata_keys", history=2)}


def _write_by_us(path: Path, recording: Recording) -> None:
    numeric = {k: v for k, v in recording.rows.items() if isinstance(v, np.ndarray)}
    EpisodeWriter.write(
        path,
        numeric=numeric,
        images={CAMERA: recording.rows[CAMERA]},
        fps=recording.fps,
        embodiment=recording.embodiment,
        annotations=_SPANS,
        chunk_rows=CHUNK,
    )


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Stores recordings with zarr-python.

    Attributes:
        numbers: options of arrays of numbers, from the shape of a stored chunk of one.
        images: options of a camera.
        stored: rows that are stored, padding behind the recorded ones.
        has_features: whether arrays are declared.
        zarr_format: 2 or 3.
    """

    numbers: Callable[[tuple[int, ...]], dict[str, Any]]
    images: Mapping[str, Any]
    stored: int = TOTAL
    has_features: bool = False
    zarr_format: int = 3

    def __call__(self, path: Path, recording: Recording) -> None:
        features = {key: _feature(key, rows) for key, rows in recording.rows.items()}
        attrs: dict[str, Any] = {"fps": recording.fps, "embodiment": recording.embodiment}
        if self.has_features:
            attrs["features"] = features
        group = foreign_group(path, recording.total, zarr_format=self.zarr_format, **attrs)
        for key, rows in recording.rows.items():
            if isinstance(rows, np.ndarray):
                padding = np.zeros((self.stored - len(rows), *rows.shape[1:]), rows.dtype)
                layout = self.numbers((CHUNK, *rows.shape[1:]))
                foreign_numbers(group, key, np.concatenate([rows, padding]), **layout)
            elif key == CAMERA:
                padded = [*rows, *[rows[-1]] * (self.stored - len(rows))]
                foreign_bytes(group, key, padded, **self.images)
            else:
                foreign_bytes(group, key, rows, chunks=(CHUNK,))


def _feature(key: str, rows: Any) -> dict[str, Any]:
    if isinstance(rows, np.ndarray):
        return {"dtype": str(rows.dtype), "shape": rows.shape[1:]}
    return {"dtype": "jpeg", "shape": (*SIZE, 3)} if key == CAMERA else {"dtype": "json"}


def _zstd_shards(chunk: tuple[int, ...]) -> dict[str, Any]:
    return {"chunks": chunk, "shards": (STORED, *chunk[1:])}


def _index_first(chunk: tuple[int, ...], *codecs: Any) -> dict[str, Any]:
    sharding = ShardingCodec(
        chunk_shape=chunk,
        codecs=codecs or [BytesCodec()],
        index_codecs=[BytesCodec()],
        index_location="start",
    )
    config = {"write_empty_chunks": False}
    shard = (STORED, *chunk[1:])
    return {"chunks": shard, "serializer": sharding, "compressors": None, "config": config}


def _transposed(chunk: tuple[int, ...]) -> dict[str, Any]:
    return {
        "chunks": chunk,
        "filters": [TransposeCodec(order=tuple(range(len(chunk)))[::-1])],
        "serializer": BytesCodec(endian="big"),
        "compressors": [BloscCodec(cname="lz4"), Crc32cCodec()],
    }


def _raw(chunk: tuple[int, ...]) -> dict[str, Any]:
    return {"chunks": chunk, "compressors": None}


def _gzip(chunk: tuple[int, ...]) -> dict[str, Any]:
    return {"chunks": chunk, "compressors": GzipCodec(level=1)}


def _blosc_v2(chunk: tuple[int, ...]) -> dict[str, Any]:
    return {"chunks": chunk, "order": "F", "compressors": numcodecs.Blosc("zstd")}


def _zlib_v2(chunk: tuple[int, ...]) -> dict[str, Any]:
    # A codec that zarr-python alone knows.
    return {"chunks": chunk, "compressors": numcodecs.Zlib(1)}


_USUAL = (CAMERA, POSE, COUNT)


def _bases() -> Sequence[Base]:
    in_shards = {"chunks": (1,), "shards": (STORED,)}
    first = {"filters": None, **_index_first((1,), VLenBytesCodec())}
    zlib = {"compressors": numcodecs.Zlib(1)}
    return (
        Base("writer", (*_USUAL, TIMES, ANNOTATIONS), _write_by_us, True, _TEXT),
        Base("writer-zstd", (*_USUAL, WIDE, ANNOTATIONS), _write_by_us, True,
             {"wide": entry(WIDE, history=2)}),
        Base("shards", (*_USUAL, REST), _Foreign(_zstd_shards, in_shards, STORED), False, _REST),
        Base("shards-raw", (*_USUAL, REST), _Foreign(_index_first, first, STORED), False, _REST),
        Base("gzip", (*_USUAL, EVENTS, ANNOTATIONS),
             _Foreign(_gzip, {"compressors": GzipCodec()}, TOTAL, True), False,
             {**_TEXT, **_EVENTS}),
        Base("blosc", (*_USUAL, TIMES, ANNOTATIONS),
             _Foreign(_transposed, {"compressors": [BloscCodec(), Crc32cCodec()]}), True, _TEXT),
        Base("raw", (*_USUAL, ANNOTATIONS), _Foreign(_raw, {"compressors": None}), True),
        Base("v2-blosc", (*_USUAL, TIMES),
             _Foreign(_blosc_v2, {"compressors": numcodecs.Blosc()}, zarr_format=2)),
        Base("v2-zlib", (*_USUAL, ANNOTATIONS),
             _Foreign(_zlib_v2, zlib, TOTAL, True, zarr_format=2), True, _TEXT),
    )  # fmt: skip


#: By name.
BASES: Mapping[str, Base] = {base.name: base for base in _bases()}
