"""Counting and checking chunks inside zarr-python: codecs that pass bytes on."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numcodecs.abc import Codec
from numcodecs.compat import ensure_contiguous_ndarray
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import ShardingCodec, VLenBytesCodec, VLenUTF8Codec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer

from egoloader.expansion import check_expansion

__all__ = ["with_tally"]

Limit = Callable[[int], int]


@dataclasses.dataclass(frozen=True)
class _Check(BytesBytesCodec):
    """Passes bytes on to a codec, where not too much can come out of them."""

    codec: Any
    limit: Limit
    is_fixed_size = True

    async def _decode_single(self, chunk_data: Buffer, _chunk_spec: ArraySpec) -> Buffer:
        described = self.codec.to_dict()
        data: memoryview = chunk_data.as_numpy_array().view(np.uint8).data
        settings, limit = described.get("configuration") or {}, self.limit(len(data))
        await asyncio.to_thread(check_expansion, described["name"], settings, data, limit)
        return chunk_data

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        return input_byte_length


@dataclasses.dataclass(frozen=True)
class _Tally(BytesBytesCodec):
    """Passes a chunk's decompressed bytes on, counts the chunk, and checks its number of items."""

    count: Callable[[], None]
    num_items: int | None
    is_fixed_size = True

    async def _decode_single(self, chunk_data: Buffer, _chunk_spec: ArraySpec) -> Buffer:
        self.count()
        _check_items(chunk_data[:4].to_bytes(), self.num_items)
        return chunk_data

    def compute_encoded_size(self, input_byte_length: int, _chunk_spec: ArraySpec) -> int:
        return input_byte_length


class _GuardedFilter(Codec):  # type: ignore[misc]
    """A codec of numcodecs that decodes nothing of which too much can come out."""

    # Classes must have one; of each object it is that of its codec.
    codec_id = "egoloader_guarded"

    def __init__(self, codec: Any, limit: Limit) -> None:
        self._codec, self._limit = codec, limit
        self.codec_id = codec.codec_id

    def encode(self, buf: Any) -> Any:
        return self._codec.encode(buf)

    def decode(self, buf: Any, _out: Any = None) -> Any:
        data = ensure_contiguous_ndarray(buf, max_buffer_size=2**63 - 1).view(np.uint8).data
        check_expansion(self.codec_id, self._codec.get_config(), data, self._limit(len(data)))
        return self._codec.decode(buf)


class _TallyFilter(Codec):  # type: ignore[misc]
    """The same for Zarr v2 arrays, whose chunks go through numcodecs filters."""

    codec_id = "egoloader_tally"

    def __init__(self, count: Callable[[], None], num_items: int | None) -> None:
        self._count, self._num_items = count, num_items

    def encode(self, buf: Any) -> Any:
        return buf

    def decode(self, buf: Any, _out: Any = None) -> Any:
        self._count()
        _check_items(bytes(memoryview(buf).cast("B")[:4]), self._num_items)
        return buf


def _check_items(head: bytes, num_items: int | None) -> None:
    """Check the head of a `vlen-bytes` chunk; its decoder makes room for as many as it says."""
    if num_items is not None and int.from_bytes(head, "little") != num_items:
        found = int.from_bytes(head, "little")
        raise ValueError(f"a chunk says that it holds {found} rows, not {num_items}")


def with_tally(metadata: Any, count: Callable[[], None], limit: Limit) -> Any:
    """Return an array's metadata with codecs added that count and check each decoded chunk.

    Args:
        metadata: zarr-python's.
        count: called for each chunk.
        limit: from the bytes that go into a codec to the most that may come out of it.
    """
    if metadata.zarr_format == 3:
        shape = metadata.chunk_grid.chunk_shape
        codecs = _guarded(metadata.codecs, shape, count, limit)
        return dataclasses.replace(metadata, codecs=codecs)
    # The filter that comes last in encoding order decodes first, right behind the compressor.
    filters = tuple(metadata.filters or ())
    is_vlen = bool(filters) and filters[-1].codec_id in ("vlen-bytes", "vlen-utf8")
    tally = _TallyFilter(count, math.prod(metadata.chunks) if is_vlen else None)
    compressor = metadata.compressor
    return dataclasses.replace(
        metadata,
        filters=(*(_GuardedFilter(one, limit) for one in filters), tally),
        compressor=None if compressor is None else _GuardedFilter(compressor, limit),
    )


def _guarded(
    codecs: Sequence[Any], chunk_shape: Sequence[int], count: Callable[[], None], limit: Limit
) -> tuple[Any, ...]:
    """Put a tally behind the codec that makes bytes of an array, and a check behind each other."""
    place = next(n for n, codec in enumerate(codecs) if isinstance(codec, ArrayBytesCodec))
    serializer, chain = codecs[place], list[Any]()
    if isinstance(serializer, ShardingCodec):
        inner = _guarded(serializer.codecs, serializer.chunk_shape, count, limit)
        chain.append(dataclasses.replace(serializer, codecs=inner))
    else:
        is_vlen = isinstance(serializer, VLenBytesCodec | VLenUTF8Codec)
        chain += [serializer, _Tally(count, math.prod(chunk_shape) if is_vlen else None)]
    for codec in codecs[place + 1 :]:
        # Ahead of a codec in decoding order is behind it here.
        chain += [codec, _Check(codec, limit)]
    return (*codecs[:place], *chain)
