"""The range reader: from planned rows to chunks to byte ranges, each fetched and decoded once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from egoloader.cache import ByteCache
from egoloader.chunkcodec import ChunkCodec, ChunkRows
from egoloader.chunktable import ChunkTable, Extent
from egoloader.counts import KeyCounter, ReadCounts
from egoloader.errors import ReadError
from egoloader.guard import ChunkGuard
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan, touched_chunks
from egoloader.ranges import MergeLimits, merge_ranges
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
        return self.open(key, layout)(plan)

    def open(self, key: str, layout: ArrayLayout) -> Callable[[ReadPlan], ChunkRows]:
        """Return the reader of one array."""
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

    def read(self, plan: ReadPlan) -> ChunkRows:
        numbers = touched_chunks(self._chunk_rows, plan)
        load = self._kept_or_loaded if self._chunks.budget else self._load
        chunks, num_decoded = load(numbers)
        rows = self._cut(plan, numbers, chunks)
        self._counter.add_read(len(rows), num_decoded)
        return rows

    def _cut(
        self, plan: ReadPlan, numbers: Sequence[int], chunks: Sequence[ChunkRows]
    ) -> ChunkRows:
        """Return the plan's rows out of its chunks."""
        if self._is_bytes and self._chunk_rows == 1:
            return [chunk[0] for chunk in chunks]
        if len(chunks) == 1 and len(plan.groups) == 1:
            base = numbers[0] * self._chunk_rows
            start, stop = plan.groups[0]
            return chunks[0][start - base : stop - base]
        parts: list[Any] = []
        for start, stop in plan.groups:
            for number in range(start // self._chunk_rows, (stop - 1) // self._chunk_rows + 1):
                base = number * self._chunk_rows
                chunk = chunks[numbers.index(number)]
                parts.append(chunk[max(start - base, 0) : stop - base])
        if self._is_bytes:
            return list(itertools.chain.from_iterable(parts))
        return np.concatenate(parts)

    def _kept_or_loaded(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Return chunks, and how many of them were decoded; the others were kept."""
        names = [self._name(number) for number in numbers]
        chunks: list[Any] = [None if name is None else self._chunks.get(name) for name in names]
        missing = [place for place, chunk in enumerate(chunks) if chunk is None]
        if not missing:
            return chunks, 0
        loaded, num_decoded = self._load([numbers[place] for place in missing])
        for place, chunk in zip(missing, loaded, strict=True):
            chunks[place] = chunk
            if names[place] is not None and isinstance(chunk, np.ndarray):
                self._chunks.put(names[place], chunk, chunk.nbytes)
        return chunks, num_decoded

    def _name(self, number: int) -> tuple[object, ...] | None:
        """Return what a row of chunks is kept under; None where a file of it is missing."""
        signature = self._table.signature(number)
        return None if signature is None else (self._folder.root_name, self._key, number, signature)

    def _load(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Fetch and decode rows of chunks; return them, and how many chunks were decoded."""
        extents = self._table.find(numbers)
        pieces = self._decode(extents, self._fetch(extents))
        num_decoded = len(extents) - extents.count(None)
        width = self._width
        if width == 1:
            return pieces, num_decoded
        starts = range(0, len(pieces), width)
        return [self._join(pieces[at : at + width]) for at in starts], num_decoded

    def _fetch(self, extents: Sequence[Extent | None]) -> Sequence[bytes | None]:
        """Return the stored bytes of each extent."""
        if len(extents) == 1 and extents[0] is not None:
            path, file, start, stop = extents[0]
            return (self._folder.read_range(self._key, path, file, start, stop),)
        by_file: dict[str, list[int]] = {}
        for place, extent in enumerate(extents):
            if extent is not None:
                by_file.setdefault(extent.path, []).append(place)
        stored: list[bytes | None] = [None] * len(extents)
        for places in by_file.values():
            found: list[Any] = [extents[place] for place in places]
            ranges = [(one.start, one.stop) for one in found]
            for start, stop, members in merge_ranges(ranges, self._limits):
                data = self._folder.read_range(self._key, found[0].path, found[0].file, start, stop)
                for member in members:
                    low, high = ranges[member]
                    stored[places[member]] = data[low - start : high - start]
        return stored

    def _decode(
        self, extents: Sequence[Extent | None], stored: Sequence[bytes | None]
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
                f"{type(error).__name__}: {error}",
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
