"""From the stored bytes of one chunk to its rows: the codecs that episodes are met with.

Zarr v3 core specification and the specifications of its codecs (`bytes`, `transpose`, `zstd`,
`gzip`, `blosc`, `crc32c`); numcodecs' `vlen-bytes`. Pure, and without the interpreter's lock where
it takes long: zstd and blosc let it go.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.decompression import DECOMPRESSORS, Decompress, Stored
from egoloader.layout import MAX_BYTES_CHUNK, PACKING_BYTES, ArrayLayout, Codec

__all__ = ["ChunkCodec", "ChunkRows", "unread_reason"]

#: Rows of numbers, (rows, D…), or the bytes of each row.
ChunkRows = npt.NDArray[Any] | Sequence[bytes | memoryview]

_FLOAT_NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ENDS = {"little": "<", "big": ">"}


def unread_reason(layout: ArrayLayout) -> str:
    """Return why chunks of this layout can't be decoded here; empty where they can."""
    if layout.kind == "other":
        return f"data type {layout.type_name}"
    if layout.kind == "bytes" and layout.row_shape:
        return "several byte strings a row"
    if layout.shard_shape is not None and not layout.index_is_plain:
        return "a shard index in other codecs"
    names = layout.codecs
    serializer = "vlen-bytes" if layout.kind == "bytes" else "bytes"
    if serializer not in names:
        return f"no codec {serializer}"
    place = names.index(serializer)
    known = set(DECOMPRESSORS) if layout.zarr_format == 3 else set(DECOMPRESSORS) - {"crc32c"}
    for codec in layout.chain[:place]:
        if codec.name != "transpose" or _axes(codec, len(layout.chunk_shape)) is None:
            return f"codec {codec.name}"
    for codec in layout.chain[place + 1 :]:
        if codec.name not in known:
            return f"codec {codec.name}"
    if layout.kind == "numeric" and _endian(layout.chain[place]) is None:
        return f"byte order {layout.chain[place].configuration.get('endian')!r}"
    return "" if _fill(layout) is not None else f"fill value {layout.fill_value!r}"


class ChunkCodec:
    """Decodes the chunks of one array.

    Args:
        layout: of an array that `unread_reason` has nothing against.
    """

    def __init__(self, layout: ArrayLayout) -> None:
        self._layout = layout
        serializer = "vlen-bytes" if layout.kind == "bytes" else "bytes"
        place = layout.codecs.index(serializer)
        packing = [DECOMPRESSORS[codec.name] for codec in reversed(layout.chain[place + 1 :])]
        self._fill = _fill(layout)
        if layout.kind == "bytes":
            self._unpack: Callable[[Stored], ChunkRows] = self._unpack_bytes
        else:
            self._unpack = self._unpack_numbers
            self._stored_dtype = _stored_dtype(layout, layout.chain[place])
            self._is_native = self._stored_dtype == layout.dtype
            self._shape, self._axes = _transposition(layout.chain[:place], layout.chunk_shape)
            self._size = math.prod(self._shape) * self._stored_dtype.itemsize
        self._steps = self._limited(packing)

    def _limited(self, packing: Sequence[Decompress]) -> list[tuple[Decompress, int]]:
        """Return each step with the most bytes that may come out of it."""
        layout = self._layout
        size = MAX_BYTES_CHUNK if layout.kind == "bytes" else self._size
        inner = size + size // 8 + PACKING_BYTES  # what still goes through another step
        return [(one, inner) for one in packing[:-1]] + [(one, size) for one in packing[-1:]]

    def decode(self, data: Stored) -> ChunkRows:
        """Decode one stored chunk.

        Returns:
            The chunk, ragged ends filled up: numbers of the layout's dtype and chunk shape, which
            may not be written to; or the bytes of each row.

        Raises:
            ValueError, RuntimeError, OSError, EOFError: the bytes are not those of such a chunk.
        """
        if not self._steps:
            return self._unpack(data)
        most = self._layout.unpacked_limit(len(data))
        for decompress, limit in self._steps:
            data = decompress(data, min(limit, most))
        return self._unpack(data)

    def filled(self) -> ChunkRows:
        """Return a chunk of fill values."""
        if self._layout.kind == "bytes":
            return [b""] * self._layout.chunk_rows
        return np.full(self._layout.chunk_shape, self._fill, dtype=self._layout.dtype)

    def _unpack_numbers(self, data: Stored) -> ChunkRows:
        if len(data) != self._size:
            raise ValueError(f"{len(data)} bytes of numbers where a chunk has {self._size}")
        numbers: npt.NDArray[Any] = np.ndarray(self._shape, self._stored_dtype, data)
        if self._axes is not None:
            numbers = numbers.transpose(self._axes)
        return numbers if self._is_native else numbers.astype(self._layout.dtype)

    def _unpack_bytes(self, data: Stored) -> ChunkRows:
        view = memoryview(data)
        is_single = self._layout.chunk_rows == 1 and len(data) >= 8  # as cameras have them
        if is_single and _ONE_ROW.unpack_from(view) == (1, len(data) - 8):
            return (view[8:],)
        count = int.from_bytes(view[:4], "little")
        if count != self._layout.chunk_rows or len(data) < 4 + 4 * count:
            raise ValueError(
                f"{len(data)} bytes that say they hold {count} rows, not {self._layout.chunk_rows}"
            )
        rows: list[memoryview] = []
        at = 4
        for _ in range(count):
            (size,) = _UINT32.unpack_from(view, at) if at + 4 <= len(data) else (0,)
            start, at = at + 4, at + 4 + size
            rows.append(view[start:at])
        if at != len(data):
            raise ValueError(f"rows of {at} bytes in a chunk of {len(data)}")
        return rows


_UINT32 = struct.Struct("<I")
#: One row, and its length.
_ONE_ROW = struct.Struct("<II")


def _endian(codec: Codec) -> str | None:
    # Numbers of one byte have none to name.
    return _ENDS.get(str(codec.configuration.get("endian", "little")))


def _stored_dtype(layout: ArrayLayout, codec: Codec) -> np.dtype[Any]:
    assert layout.dtype is not None
    return layout.dtype.newbyteorder(_endian(codec) or "=")  # type: ignore[arg-type]


def _axes(codec: Codec, num_axes: int) -> tuple[int, ...] | None:
    """Return the permutation of a transpose; None where it is none."""
    order = codec.configuration.get("order")
    if not isinstance(order, list | tuple) or any(type(axis) is not int for axis in order):
        return None
    if sorted(order) != list(range(num_axes)):
        return None
    return tuple(order)


def _transposition(
    chain: Sequence[Codec], shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the shape that a chunk is stored in, and the axes that bring it back."""
    axes = tuple(range(len(shape)))
    for codec in chain:
        order = _axes(codec, len(shape)) or axes
        axes = tuple(axes[n] for n in order)
    stored = tuple(shape[n] for n in axes)
    if axes == tuple(range(len(shape))):
        return stored, None
    return stored, tuple(int(n) for n in np.argsort(axes))


def _fill(layout: ArrayLayout) -> Any:
    """Return the fill value of an array; None where it can't be told."""
    value = layout.fill_value
    if layout.kind == "bytes":
        return b"" if value in (None, "", [], b"") else None
    assert layout.dtype is not None
    if value is None and layout.zarr_format == 2:
        return layout.dtype.type(0)
    if isinstance(value, str):
        if layout.dtype.kind != "f" or value not in _FLOAT_NAMES:
            return None
        value = _FLOAT_NAMES[value]
    if not isinstance(value, int | float) or (layout.dtype.kind in "iu" and value % 1):
        return None
    try:
        return layout.dtype.type(value)
    except (OverflowError, ValueError):
        return None
