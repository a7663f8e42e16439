"""Counting decoded chunks inside zarr-python: a codec that passes bytes on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from numcodecs.abc import Codec
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import ShardingCodec, VLenBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer

__all__ = ["with_tally"]


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
        raise ValueError(f"a chunk says that it holds {found} rows of bytes, not {num_items}")


def with_tally(metadata: Any, count: Callable[[], None]) -> Any:
    """Return an array's metadata with a codec added that counts and checks each decoded chunk."""
    if metadata.zarr_format == 2:
        # The filter that comes last in encoding order decodes first, right behind the compressor.
        filters = tuple(metadata.filters or ())
        is_vlen = bool(filters) and filters[-1].codec_id == "vlen-bytes"
        tally = _TallyFilter(count, math.prod(metadata.chunks) if is_vlen else None)
        return dataclasses.replace(metadata, filters=(*filters, tally))
    sharding = metadata.codecs[0]
    if not isinstance(sharding, ShardingCodec):
        shape = metadata.chunk_grid.chunk_shape
        return dataclasses.replace(metadata, codecs=_insert_tally(metadata.codecs, shape, count))
    inner = ShardingCodec(
        chunk_shape=sharding.chunk_shape,
        codecs=_insert_tally(sharding.codecs, sharding.chunk_shape, count),
        index_codecs=sharding.index_codecs,
        index_location=sharding.index_location,
    )
    return dataclasses.replace(metadata, codecs=(inner, *metadata.codecs[1:]))


def _insert_tally(
    codecs: Sequence[Any], chunk_shape: Sequence[int], count: Callable[[], None]
) -> tuple[Any, ...]:
    """Put a tally behind the codec that makes bytes of an array, ahead of all compressors."""
    place = next(n for n, codec in enumerate(codecs) if isinstance(codec, ArrayBytesCodec))
    is_vlen = isinstance(codecs[place], VLenBytesCodec)
    tally = _Tally(count, math.prod(chunk_shape) if is_vlen else None)
    return (*codecs[: place + 1], tally, *codecs[place + 1 :])
