"""The range reader: from planned rows to chunks to byte ranges, each fetched and decoded once."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from egoloader.arena import Arena
from egoloader.cache import ENTRY_BYTES, ByteCache
from egoloader.chunkcodec import ChunkCodec, ChunkRows
from egoloader.chunktable import ChunkTable, Extent
from egoloader.counts import KeyCounter, ReadCounts
from egoloader.decompression import Stored
from egoloader.errors import ReadError
from egoloader.files import StoredFile
from egoloader.guard import ChunkGuard
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPieces, ReadPlan
from egoloader.ranges import MergeLimits, merge_ranges
from egoloader.reader import ArrayReader
from egoloader.store import EpisodeFolder

__all__ = ["RangeReader"]


class RangeReader:
    """Reads arrays by byte ranges, without zarr-python.

    Args:
        folder: the episode's files.
        guard: says where chunks lie, and what becomes of those that are not stored.
        counts: where the cost is added.
        chunks: where decoded chunks of numbers are kept.
        limits: when neighbouring byte ranges become one request.
    """

    def __init__(
        self,
        folder: EpisodeFolder,
        guard: ChunkGuard,
        counts: ReadCounts,
        chunks: ByteCache,
        limits: MergeLimits,
    ) -> None:
        self._folder, self._guard, self._counts = folder, guard, counts
        self._chunks, self._limits = chunks, limits
        self._arrays: dict[str, _Array] = {}

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Read the plan's groups; see `Reader.read`."""
        return self.open(key, layout)(plan, None)

    def open(self, key: str, layout: ArrayLayout) -> ArrayReader:
        """Return what reads one array."""
        array = self._arrays.get(key)
        if array is None:
            table = self._guard.table(key, layout)
            # Bytes of frames and texts are decoded or parsed behind this, so they are not kept.
            chunks = self._chunks if layout.kind == "numeric" else ByteCache(0)
            counter = self._counts.of(key)
            made = _Array(self._folder, table, key, counter, chunks, self._limits)
            array = self._arrays.setdefault(key, made)
        return array.read


class _Array:
    """One array of one episode."""

    def __init__(
        self,
        folder: EpisodeFolder,
        table: ChunkTable,
        key: str,
        counter: KeyCounter,
        chunks: ByteCache,
        limits: MergeLimits,
    ) -> None:
        self._folder, self._table, self._key, self._counter = folder, table, key, counter
        self._chunks, self._limits = chunks, limits
        self._layout, self._chunk_rows = table.layout, table.layout.chunk_rows
        self._is_bytes = table.layout.kind == "bytes"
        self._codec = ChunkCodec(table.layout)
        self._width = len(table.tails)
        # Where a chunk is no wider than a row, and no narrower, it needs no joining or trimming.
        self._is_joined = self._layout.chunk_shape[1:] != self._layout.row_shape
        self._holds_nothing = math.prod(self._layout.row_shape) == 0

    def read(self, plan: ReadPlan, arena: Arena | None) -> ChunkRows:
        if self._holds_nothing:
            rows: ChunkRows = np.empty((plan.num_rows, *self._layout.row_shape), self._layout.dtype)
            self._counter.add_read(len(rows), 0)
            return rows
        pieces = plan.pieces(self._chunk_rows)
        if self._chunks.budget:
            chunks, num_decoded = self._kept_or_loaded(pieces.chunks)
        else:
            # Numbers may be kept, by whoever asked for them; bytes are decoded or copied.
            memory = arena if self._is_bytes else None
            chunks, num_decoded = self._load(pieces.chunks, memory)
        rows = self._cut(pieces, chunks)
        self._counter.add_read(len(rows), num_decoded)
        return rows

    def _cut(self, pieces: ReadPieces, chunks: Sequence[ChunkRows]) -> ChunkRows:
        """Return the rows of a read out of its chunks."""
        if self._is_bytes and self._chunk_rows == 1:
            return [chunk[0] for chunk in chunks]
        if len(pieces.slices) == 1:
            ((_, start, stop),) = pieces.slices
            return chunks[0][start:stop]
        parts: list[Any] = [chunks[place][start:stop] for place, start, stop in pieces.slices]
        return (
            list(itertools.chain.from_iterable(parts)) if self._is_bytes else np.concatenate(parts)
        )

    def _kept_or_loaded(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Return chunks, and how many of them were decoded; the others were kept."""
        names = [self._table.name(number) for number in numbers]
        chunks = self._chunks.get_all(names)
        missing = [place for place, chunk in enumerate(chunks) if chunk is None]
        if not missing:
            return chunks, 0
        loaded, num_decoded = self._load([numbers[place] for place in missing], None)
        for place, chunk in zip(missing, loaded, strict=True):
            chunks[place] = chunk
            if names[place] is not None and isinstance(chunk, np.ndarray):
                self._chunks.put(names[place], chunk, chunk.nbytes + ENTRY_BYTES)
        return chunks, num_decoded

    def _load(self, numbers: Sequence[int], arena: Arena | None) -> tuple[list[ChunkRows], int]:
        """Fetch and decode rows of chunks; return them, and how many chunks were decoded."""
        extents = self._table.find(numbers)
        pieces = self._decode(extents, self._fetch(extents, arena))
        num_decoded = len(extents) - extents.count(None)
        if not self._is_joined:
            return pieces, num_decoded
        starts = range(0, len(pieces), self._width)
        return [self._join(pieces[at : at + self._width]) for at in starts], num_decoded

    def _fetch(
        self, extents: Sequence[Extent | None], arena: Arena | None
    ) -> Sequence[Stored | None]:
        """Return the stored bytes of each extent."""
        if len(extents) == 1 and extents[0] is not None:
            path, file, start, stop = extents[0]
            return (self._request(path, file, start, stop, arena),)
        stored: list[Stored | None] = [None] * len(extents)
        for places in _by_file(extents):
            found: list[Any] = [extents[place] for place in places]
            path, file, _, _ = found[0]
            ranges = [(start, stop) for _, _, start, stop in found]
            for start, stop, members in merge_ranges(ranges, self._limits):
                data = self._request(path, file, start, stop, arena)
                for member in members:
                    low, high = ranges[member]
                    stored[places[member]] = data[low - start : high - start]
        return stored

    def _request(
        self, path: str, file: StoredFile | None, start: int, stop: int, arena: Arena | None
    ) -> Stored:
        # A shard is asked again and again; a chunk's own file is read whole and let go.
        opened = file or self._folder.open_file(self._key, path, None)
        if opened is None:
            raise ReadError(
                f"{path} went missing while it was read", episode=self._folder.name, key=self._key
            )
        if arena is None:
            return self._folder.read_range(self._key, path, opened, start, stop)
        return self._folder.read_into(arena, self._key, path, opened, start, stop)

    def _decode(
        self, extents: Sequence[Extent | None], stored: Sequence[Stored | None]
    ) -> list[ChunkRows]:
        pieces: list[ChunkRows] = []
        try:
            for data in stored:
                piece = self._codec.filled() if data is None else self._codec.decode(data)
                pieces.append(piece)
        except Exception as error:  # whatever a decompressor raises
            broken = extents[len(pieces)]
            assert broken is not None
            raise ReadError(
                f"{broken.path}, bytes {broken.start} to {broken.stop} can't be decoded: "
                f"{type(error).__name__}: {error}; the file is damaged, or was written to while it "
                "was open: copy or write the episode again",
                episode=self._folder.name,
                key=self._key,
            ) from error
        return pieces

    def _join(self, pieces: Sequence[ChunkRows]) -> ChunkRows:
        """Put the chunks of one row of chunks side by side."""
        shape = (self._chunk_rows, *self._layout.row_shape)
        joined = np.empty(shape, dtype=self._layout.dtype)
        for tail, piece in zip(self._table.tails, pieces, strict=True):
            inside = tuple(slice(0, one.stop - one.start) for one in tail.box)
            joined[(slice(None), *tail.box)] = np.asarray(piece)[(slice(None), *inside)]
        joined.flags.writeable = False
        return joined


def _by_file(extents: Sequence[Extent | None]) -> Iterable[Sequence[int]]:
    """Return the places of the extents of each file."""
    places: dict[str, list[int]] = {}
    for place, extent in enumerate(extents):
        if extent is not None:
            places.setdefault(extent.path, []).append(place)
    return places.values()
