"""Reading planned rows of one array: the seam between a plan and the store.

A reader is handed a plan and fetches it; it decides nothing about rows. `ReferenceReader` asks
zarr-python. `ChunkGuard` stands ahead of any reader and refuses what is not really stored.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import zarr
from numcodecs.abc import Codec
from zarr.abc.codec import ArrayBytesCodec, BytesBytesCodec
from zarr.codecs import ShardingCodec, VLenBytesCodec
from zarr.core.array_spec import ArraySpec
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from egoloader.counts import KeyCounts, ReadCounts
from egoloader.errors import (
    EgoloaderError,
    MissingChunkError,
    MissingChunkWarning,
    ReadError,
)
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan, Window
from egoloader.shards import EMPTY, IndexArray, decode_index, index_size
from egoloader.store import CountingStore, EpisodeFolder

__all__ = ["ChunkGuard", "MissingChunks", "Reader", "ReferenceReader"]

MissingChunks = Literal["error", "fill"]
ObjectArray = npt.NDArray[Any]


class Reader(Protocol):
    """Fetches the rows of a plan."""

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ObjectArray:
        """Read the plan's groups of array `key`, one behind the other.

        Returns:
            (plan.num_rows, D…) numbers of the layout's dtype, or (plan.num_rows,) objects, each
            the bytes of a row.

        Raises:
            ReadError: bytes that can't be turned into rows.
        """
        ...


class ReferenceReader:
    """Reads through zarr-python: any codec it knows, and the oracle for faster readers."""

    def __init__(self, folder: EpisodeFolder, counts: ReadCounts) -> None:
        self._folder, self._counts = folder, counts
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ObjectArray:
        """Read the plan's groups; see `Reader.read`."""
        try:
            if key not in self._arrays:
                self._arrays[key] = self._open(key)
            rows = np.asarray(_select(self._arrays[key], plan), dtype=layout.dtype)
        except EgoloaderError:
            raise
        except Exception as error:
            raise ReadError(
                f"rows {_spell(plan.groups)} can't be read: {type(error).__name__}: {error}",
                episode=self._folder.name,
                key=key,
            ) from error
        self._counts.add(key, KeyCounts(reads=1, rows=len(rows)))
        return rows

    def _open(self, key: str) -> zarr.Array[Any]:
        store = CountingStore(LocalStore(self._folder.root, read_only=True), key, self._counts)
        array = zarr.open_array(store=store, path=key, mode="r")
        metadata = _with_tally(array.metadata, lambda: self._counts.add(key, KeyCounts(chunks=1)))
        return zarr.Array(zarr.AsyncArray(metadata, array.store_path))


class ChunkGuard:
    """Refuses reads of chunks that are not stored, where zarr-python would serve fill values.

    An episode by our writer stores every chunk, so there any hole is an error. Elsewhere an empty
    entry of a shard's index is a chunk of fill values, and a missing file an error unless
    `missing_chunks` is `fill`.
    """

    def __init__(
        self, folder: EpisodeFolder, *, stamped: bool, missing_chunks: MissingChunks
    ) -> None:
        self._folder, self._stamped, self._missing_chunks = folder, stamped, missing_chunks
        self._indexes: dict[str, tuple[tuple[int, int], IndexArray]] = {}
        self._warned: set[str] = set()

    def check(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> None:
        """Check that every chunk the plan touches is stored, and lies inside its file.

        Raises:
            MissingChunkError: a chunk is not stored.
            ReadError: a shard is cut short, or its index is broken.
        """
        for coords in _touched(plan.groups, layout.shape, layout.object_shape):
            path = f"{key}/{layout.object_path(coords)}"
            signature = self._folder.signature(path)
            if signature is None:
                self._refuse_hole(key, path)
            elif layout.shard_shape is not None and layout.index_is_plain:
                index = self._index(key, layout, path, signature)
                self._check_entries(key, layout, plan, coords, path, signature[0], index)

    def blame(self, key: str, layout: ArrayLayout, plan: ReadPlan, error: ReadError) -> ReadError:
        """Return a reader's error with the byte ranges added that it was to decode."""
        ranges: list[str] = []
        for coords in _touched(plan.groups, layout.shape, layout.object_shape):
            path = f"{key}/{layout.object_path(coords)}"
            signature = self._folder.signature(path)
            if signature is None:
                continue
            if layout.shard_shape is None or not layout.index_is_plain:
                ranges.append(f"{path}, bytes 0 to {signature[0]}")
                continue
            index = self._index(key, layout, path, signature)
            for inner in _touched_in_shard(plan.groups, layout, coords):
                offset, length = (int(n) for n in index[inner])
                if offset != EMPTY:
                    ranges.append(f"{path}, bytes {offset} to {offset + length}")
        shown = "; ".join(ranges[:4]) + ("; …" if len(ranges) > 4 else "")
        return ReadError(f"{error.message} (in {shown})", episode=error.episode, key=key)

    def _refuse_hole(self, key: str, path: str) -> None:
        if self._stamped or self._missing_chunks == "error":
            way_out = (
                "the copy is incomplete; copy or write the episode again"
                if self._stamped
                else "if the writer left out chunks of fill values, set missing_chunks: fill"
            )
            raise MissingChunkError(
                f"{path} is missing; {way_out}", episode=self._folder.name, key=key
            )
        if not self._has_metadata(key):
            # The whole array is out of reach, as when a disk goes away: nothing was left out.
            raise ReadError(
                f"{path} can't be reached, and neither can the array's metadata",
                episode=self._folder.name,
                key=key,
            )
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(
                f"episode {self._folder.name!r}, key {key!r}: {path} is missing; "
                "fill values are served for missing chunks of this key",
                MissingChunkWarning,
                stacklevel=2,
            )

    def _has_metadata(self, key: str) -> bool:
        names = (f"{key}/zarr.json", f"{key}/.zarray")
        return any(self._folder.signature(name) is not None for name in names)

    def _index(
        self, key: str, layout: ArrayLayout, path: str, signature: tuple[int, int]
    ) -> IndexArray:
        kept = self._indexes.get(path)
        if kept is not None and kept[0] == signature:
            return kept[1]
        num_chunks = math.prod(layout.chunks_per_shard)
        size = index_size(num_chunks, has_crc=layout.index_has_crc)
        start = max(0, signature[0] - size) if layout.index_at_end else 0
        data = self._folder.read_range(key, path, start, start + size)
        try:
            index = decode_index(data, num_chunks, has_crc=layout.index_has_crc)
        except ValueError as error:
            raise ReadError(
                f"{path}, bytes {start} to {start + size}: {error}",
                episode=self._folder.name,
                key=key,
            ) from error
        self._indexes[path] = (signature, index)
        return index

    def _check_entries(
        self,
        key: str,
        layout: ArrayLayout,
        plan: ReadPlan,
        shard: Sequence[int],
        path: str,
        size: int,
        index: IndexArray,
    ) -> None:
        for inner in _touched_in_shard(plan.groups, layout, shard):
            offset, length = (int(n) for n in index[inner])
            if offset == EMPTY and length == EMPTY:
                if self._stamped:
                    self._refuse_hole(key, f"{path}, chunk {inner}")
            elif offset + length > size:
                raise ReadError(
                    f"{path} is cut short: chunk {inner} is to lie in bytes {offset} to "
                    f"{offset + length}, the file has {size}",
                    episode=self._folder.name,
                    key=key,
                )


def _select(array: zarr.Array[Any], plan: ReadPlan) -> Any:
    if len(plan.groups) == 1:
        start, stop = plan.groups[0]
        return array[start:stop]
    return array.oindex[(plan.rows, *[slice(None)] * (array.ndim - 1))]


def _spell(groups: Sequence[Window]) -> str:
    shown = ", ".join(f"[{start}, {stop})" for start, stop in groups[:4])
    return f"{shown}, …" if len(groups) > 4 else shown


def _touched(
    groups: Iterable[Window], shape: Sequence[int], side: Sequence[int]
) -> Iterable[tuple[int, ...]]:
    """Yield grid coordinates of the boxes of extent `side` that rows of `groups` lie in."""
    first = sorted(
        {n for start, stop in groups for n in range(start // side[0], (stop - 1) // side[0] + 1)}
    )
    rest = [range(-(-extent // edge)) for extent, edge in zip(shape[1:], side[1:], strict=True)]
    return itertools.product(first, *rest)


def _touched_in_shard(
    groups: Iterable[Window], layout: ArrayLayout, shard: Sequence[int]
) -> Iterable[int]:
    """Yield the places in a shard's index of the inner chunks that rows of `groups` lie in."""
    per_shard = layout.chunks_per_shard
    for coords in _touched(groups, layout.shape, layout.chunk_shape):
        inner = [c - s * n for c, s, n in zip(coords, shard, per_shard, strict=True)]
        if all(0 <= c < n for c, n in zip(inner, per_shard, strict=True)):
            yield int(np.ravel_multi_index(inner, per_shard))


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


def _with_tally(metadata: Any, count: Callable[[], None]) -> Any:
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
