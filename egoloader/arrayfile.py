"""The files of one array: chunks appended to a shard file, its index last, its metadata.

Layouts are those of the Zarr v3 core specification with the `sharding_indexed` codec; chunks are
`bytes` + `crc32c` for numbers, with `zstd` between where rows are large, and `vlen-bytes` +
`crc32c` for JPEGs and annotations.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from egoloader.errors import WriterError
from egoloader.shards import crc32c, encode_index

__all__ = [
    "BYTES_CODECS",
    "LARGE_ROW",
    "ZSTD_LEVEL",
    "AnnotationSpan",
    "Codec",
    "Place",
    "ShardFile",
    "as_array",
    "encode_vlen_bytes",
    "numeric_codecs",
    "sharding",
    "write_annotations",
    "write_metadata",
]

AnnotationSpan = tuple[str, int, int]
Codec = Mapping[str, Any]

#: Bytes of a row of numbers from which on chunks are compressed. Poses and joints are some hundred:
#: next to a camera's frame that is nothing to save, and unpacking them costs more than reading.
LARGE_ROW = 1024
#: Fast levels leave what won't compress as it is, so that it decodes at the speed of memory.
ZSTD_LEVEL = -1
_LITTLE: Codec = {"name": "bytes", "configuration": {"endian": "little"}}
_ZSTD: Codec = {"name": "zstd", "configuration": {"level": ZSTD_LEVEL, "checksum": False}}
_CRC32C: Codec = {"name": "crc32c"}
_VLEN_BYTES: Codec = {"name": "vlen-bytes", "configuration": {}}
#: What a chunk of variable-length bytes goes through.
BYTES_CODECS = (_VLEN_BYTES, _CRC32C)


@dataclass(frozen=True, slots=True)
class Place:
    """What errors name: the episode, the array, the frame."""

    episode: str
    key: str
    frame: int

    def __str__(self) -> str:
        return f"episode {self.episode!r}, key {self.key!r}, frame {self.frame}"


class ShardFile:
    """The one shard of an array: chunks appended in order, then the index.

    The file is made with the first chunk.
    """

    def __init__(self, folder: Path, ndim: int) -> None:
        self._path = folder.joinpath("c", *["0"] * ndim)
        self._file: BinaryIO | None = None
        # 8 bytes a chunk is all that stays in memory: a camera has a chunk a frame.
        self._lengths = array("Q")

    @property
    def num_chunks(self) -> int:
        """Chunks appended so far."""
        return len(self._lengths)

    def append(self, chunk: bytes) -> None:
        """Append an encoded chunk, and its crc32c behind it."""
        file = self._opened()
        file.write(chunk)
        file.write(crc32c(chunk))
        self._lengths.append(len(chunk) + 4)

    def finish(self) -> None:
        """Write the index and close the file."""
        lengths = np.array(self._lengths, dtype=np.uint64)
        with self._opened() as file:
            file.write(encode_index(np.cumsum(lengths) - lengths, lengths))

    def abandon(self) -> None:
        """Close the file without finishing it."""
        if self._file is not None:
            # Closing writes what is buffered; on a full disk that fails, and doesn't matter.
            with suppress(OSError):
                self._file.close()

    def _opened(self) -> BinaryIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True)
            self._file = self._path.open("xb")
        return self._file


def write_annotations(folder: Path, spans: Sequence[AnnotationSpan]) -> None:
    """Write the array of annotation spans, in one chunk; it may be empty."""
    rows = [
        json.dumps({"text": text, "start_idx": start, "end_idx": end}).encode()
        for text, start, end in spans
    ]
    write_metadata(
        folder,
        shape=(len(rows),),
        chunk=(max(1, len(rows)),),
        data_type="variable_length_bytes",
        fill_value="",
        codecs=BYTES_CODECS,
    )
    if rows:
        chunk = encode_vlen_bytes(rows)
        (folder / "c").mkdir()
        (folder / "c" / "0").write_bytes(chunk + crc32c(chunk))


def as_array(value: npt.ArrayLike, where: Place | str) -> npt.NDArray[Any]:
    """Return `value` as an array.

    Raises:
        WriterError: it can't become one; names `where`.
    """
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors elsewhere
        raise WriterError(f"{where}: it can't become an array: {error}") from error


def numeric_codecs(row_bytes: int) -> tuple[Codec, ...]:
    """Return what a chunk of numbers goes through, by the bytes of one row."""
    if row_bytes < LARGE_ROW:
        return (_LITTLE, _CRC32C)
    return (_LITTLE, _ZSTD, _CRC32C)


def encode_vlen_bytes(rows: Sequence[bytes]) -> bytes:
    """Encode rows with Zarr's `vlen-bytes`: their number, then each one's length and bytes."""
    parts = [struct.pack("<I", len(rows))]
    for row in rows:
        parts += [struct.pack("<I", len(row)), row]
    return b"".join(parts)


def sharding(chunk: tuple[int, ...], codecs: Sequence[Codec]) -> Codec:
    """Return the codec that puts inner chunks of shape `chunk` into one shard, its index last."""
    return {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk),
            "codecs": list(codecs),
            "index_codecs": [_LITTLE, _CRC32C],
            "index_location": "end",
        },
    }


def write_metadata(
    folder: Path,
    *,
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    data_type: str,
    fill_value: Any,
    codecs: Sequence[Codec],
) -> None:
    """Write an array's `zarr.json`; `chunk` is the shape of a stored object."""
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": list(codecs),
        "attributes": {},
        "storage_transformers": [],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "zarr.json").write_text(json.dumps(metadata, indent=1))
