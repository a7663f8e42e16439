"""One array on its way to disk: rows in, chunks appended to a shard file, the index last.

Layouts are those of the Zarr v3 core specification with the `sharding_indexed` codec; chunks are
`bytes` + `zstd` + `crc32c` for numbers, `vlen-bytes` + `crc32c` for JPEGs and annotations.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
from numcodecs.zstd import Zstd

from egoloader.decode import jpeg_size
from egoloader.errors import FrameError, WriterError
from egoloader.shards import crc32c, encode_index

__all__ = ["CameraFile", "NumericFile", "annotation_files"]

_SUBSAMPLINGS = frozenset({"444", "422", "420", "440", "411"})
_ZSTD_LEVEL = 3
_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
_CRC32C = {"name": "crc32c"}
_VLEN_BYTES = {"name": "vlen-bytes", "configuration": {}}


class _ShardFile:
    """The one shard of an array: chunks appended in order, then the index."""

    def __init__(self, folder: Path) -> None:
        self._file = folder.open("xb")
        self._lengths: list[int] = []

    @property
    def num_chunks(self) -> int:
        return len(self._lengths)

    def append(self, chunk: bytes) -> None:
        data = chunk + crc32c(chunk)
        self._file.write(data)
        self._lengths.append(len(data))

    def finish(self) -> None:
        lengths = np.array(self._lengths, dtype=np.uint64)
        self._file.write(encode_index(np.cumsum(lengths) - lengths, lengths))
        self._file.close()

    def close(self) -> None:
        self._file.close()


class NumericFile:
    """An array of numbers, written row by row.

    Args:
        episode: the folder of the episode being written.
        key: the array's name.
        first: its first row, (D…); fixes shape and dtype.
        chunk_rows: rows of one chunk.

    Raises:
        WriterError: `first` is not made of booleans, integers or floats.

    """

    def __init__(self, episode: Path, key: str, first: npt.ArrayLike, chunk_rows: int) -> None:
        row = np.asarray(first)
        if row.dtype.kind not in "biuf" or row.dtype.itemsize > 8:
            raise WriterError(f"array {key!r} must hold numbers, got dtype {row.dtype}")
        if row.size == 0:
            raise WriterError(f"array {key!r} has rows of shape {row.shape}, which hold nothing")
        self._key, self._shape, self._dtype = key, row.shape, row.dtype.newbyteorder("=")
        self._chunk_rows, self._rows = chunk_rows, 0
        self._chunk = np.zeros((chunk_rows, *row.shape), dtype=self._dtype)
        self._folder = _array_folder(episode, key, len(row.shape) + 1)
        self._shard = _ShardFile(_shard_path(self._folder, len(row.shape) + 1))
        self._zstd = Zstd(level=_ZSTD_LEVEL)
        self.non_finite_rows, self.first_non_finite = 0, -1

    @property
    def feature(self) -> dict[str, Any]:
        """The array's entry in the episode's `features`."""
        return {"dtype": self._dtype.name, "shape": list(self._shape)}

    def check(self, value: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return `value` as a row, or refuse it."""
        row = np.asarray(value)
        if row.shape != self._shape:
            raise WriterError(
                f"array {self._key!r}, frame {self._rows}: shape {row.shape}, the first row has "
                f"{self._shape}"
            )
        if row.dtype.newbyteorder("=") != self._dtype:
            raise WriterError(
                f"array {self._key!r}, frame {self._rows}: dtype {row.dtype}, the first row has "
                f"{self._dtype}"
            )
        return row

    def append(self, row: npt.NDArray[Any]) -> None:
        """Append a checked row; a full chunk goes to disk."""
        if self._dtype.kind == "f" and not np.isfinite(row).all():
            if self.non_finite_rows == 0:
                self.first_non_finite = self._rows
            self.non_finite_rows += 1
        self._chunk[self._rows % self._chunk_rows] = row
        self._rows += 1
        if self._rows % self._chunk_rows == 0:
            self._flush()

    def finish(self) -> None:
        """Write the last chunk, the index and the array's metadata."""
        if self._rows % self._chunk_rows:
            self._chunk[self._rows % self._chunk_rows :] = 0
            self._flush()
        self._shard.finish()
        stored = self._shard.num_chunks * self._chunk_rows
        zstd = {"name": "zstd", "configuration": {"level": _ZSTD_LEVEL, "checksum": False}}
        _write_metadata(
            self._folder,
            shape=(self._rows, *self._shape),
            shard=(stored, *self._shape),
            chunk=(self._chunk_rows, *self._shape),
            data_type=self._dtype.name,
            fill_value=False if self._dtype.kind == "b" else 0,
            codecs=[_LITTLE, zstd, _CRC32C],
        )

    def close(self) -> None:
        """Close the file."""
        self._shard.close()

    def _flush(self) -> None:
        little = self._chunk.astype(self._dtype.newbyteorder("<"), copy=False)
        self._shard.append(bytes(self._zstd.encode(little.tobytes())))


class CameraFile:
    """A camera: one JPEG a row, one chunk a JPEG.

    Args:
        episode: the folder of the episode being written.
        key: the array's name.
        first: its first frame, which fixes the size.
        quality: 1…100, for frames that come as pixels.
        subsampling: chroma subsampling of those.

    Raises:
        WriterError: quality or subsampling can't be meant, or `first` is no image.

    """

    def __init__(
        self, episode: Path, key: str, first: Any, *, quality: int, subsampling: str
    ) -> None:
        if type(quality) is not int or not 1 <= quality <= 100:
            raise WriterError(f"jpeg_quality must be a whole number in 1…100, got {quality!r}")
        if subsampling not in _SUBSAMPLINGS:
            raise WriterError(
                f"jpeg_subsampling must be one of {sorted(_SUBSAMPLINGS)}, got {subsampling!r}"
            )
        self._key, self._quality, self._subsampling = key, quality, subsampling
        self._rows, self._size = 0, None if isinstance(first, bytes) else np.shape(first)[:2]
        if self._size is None:
            self._size = self._jpeg_size(first)
        self._folder = _array_folder(episode, key, 1)
        self._shard = _ShardFile(_shard_path(self._folder, 1))

    @property
    def feature(self) -> dict[str, Any]:
        """The array's entry in the episode's `features`."""
        assert self._size is not None
        return {"dtype": "jpeg", "shape": [*self._size, 3]}

    def check(self, image: Any) -> bytes:
        """Return `image` as a JPEG of the camera's size, or refuse it."""
        where = f"camera {self._key!r}, frame {self._rows}"
        if isinstance(image, bytes):
            size, jpeg = self._jpeg_size(image), image
        else:
            pixels = np.asarray(image)
            if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
                raise WriterError(
                    f"{where}: pixels must be (H, W, 3) uint8 RGB, got {pixels.shape} "
                    f"{pixels.dtype}; JPEGs come as bytes"
                )
            size, jpeg = pixels.shape[:2], b""
        if size != self._size:
            raise WriterError(f"{where}: {size} pixels, the first frame has {self._size}")
        return jpeg or self._encode(pixels)

    def append(self, jpeg: bytes) -> None:
        """Append a checked JPEG; it goes to disk at once."""
        self._shard.append(_vlen_bytes(jpeg))
        self._rows += 1

    def finish(self) -> None:
        """Write the index and the array's metadata."""
        self._shard.finish()
        _write_metadata(
            self._folder,
            shape=(self._rows,),
            shard=(self._rows,),
            chunk=(1,),
            data_type="variable_length_bytes",
            fill_value="",
            codecs=[_VLEN_BYTES, _CRC32C],
        )

    def close(self) -> None:
        """Close the file."""
        self._shard.close()

    def _encode(self, pixels: npt.NDArray[np.uint8]) -> bytes:
        return bytes(
            simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels),
                quality=self._quality,
                colorspace="RGB",
                colorsubsampling=self._subsampling,
            )
        )

    def _jpeg_size(self, jpeg: bytes) -> tuple[int, int]:
        try:
            size = jpeg_size(jpeg, episode="being written", key=self._key, frame=self._rows)
        except FrameError as error:
            raise WriterError(str(error)) from None
        if b"\xff\xd9" not in jpeg[-64:]:
            raise WriterError(
                f"camera {self._key!r}, frame {self._rows}: the JPEG has no end marker; it is cut"
            )
        return size


def annotation_files(episode: Path, spans: Sequence[tuple[str, int, int]]) -> None:
    """Write the array of annotation spans (text, start, end); it may be empty."""
    folder = _array_folder(episode, "annotations", 1)
    for place, (text, start, end) in enumerate(spans):
        row = json.dumps({"text": text, "start_idx": start, "end_idx": end}).encode()
        chunk = _vlen_bytes(row)
        (folder / "c" / str(place)).write_bytes(chunk + crc32c(chunk))
    metadata = _metadata((len(spans),), (1,), "variable_length_bytes", "", [_VLEN_BYTES, _CRC32C])
    (folder / "zarr.json").write_text(json.dumps(metadata, indent=1))


def _vlen_bytes(row: bytes) -> bytes:
    """Encode one row with Zarr's `vlen-bytes`: number of items, then each length and its bytes."""
    return struct.pack("<II", 1, len(row)) + row


def _array_folder(episode: Path, key: str, ndim: int) -> Path:
    folder = episode / key
    _shard_path(folder, ndim).parent.mkdir(parents=True)
    return folder


def _shard_path(folder: Path, ndim: int) -> Path:
    return folder.joinpath("c", *["0"] * ndim)


def _write_metadata(
    folder: Path,
    *,
    shape: tuple[int, ...],
    shard: tuple[int, ...],
    chunk: tuple[int, ...],
    data_type: str,
    fill_value: Any,
    codecs: list[dict[str, Any]],
) -> None:
    sharding = {
        "name": "sharding_indexed",
        "configuration": {
            "chunk_shape": list(chunk),
            "codecs": codecs,
            "index_codecs": [_LITTLE, _CRC32C],
            "index_location": "end",
        },
    }
    metadata = _metadata(shape, shard, data_type, fill_value, [sharding])
    (folder / "zarr.json").write_text(json.dumps(metadata, indent=1))


def _metadata(
    shape: tuple[int, ...],
    chunk: tuple[int, ...],
    data_type: str,
    fill_value: Any,
    codecs: list[dict[str, Any]],
) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {},
        "storage_transformers": [],
    }
