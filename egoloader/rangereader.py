"""The range reader: from planned rows to chunks to byte ranges, each fetched and decoded once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
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
from egoloader.reader import ArrayReader, join_rows
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
        self._arrays: dict[str, ArrayReader] = {}

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Read the plan's groups; see `Reader.read`."""
        return join_rows(self.open(key, layout).parts(plan))

    def open(self, key: str, layout: ArrayLayout) -> ArrayReader:
        """Return what reads one array."""
        array = self._arrays.get(key)
        if array is None:
            table, counter = self._guard.table(key, layout), self._counts.of(key)
            files = _Files(self._folder, key, counter, self._limits)
            made = _bytes_or_numbers(files, table, counter, self._chunks)
            array = self._arrays.setdefault(key, made)
        return array


def _bytes_or_numbers(
    files: _Files, table: ChunkTable, counter: KeyCounter, chunks: ByteCache
) -> ArrayReader:
    # Bytes of frames and texts are decoded or parsed behind this, so they are not kept.
    if table.layout.kind == "bytes":
        return _BytesArray(files, table, counter)
    return _NumericArray(files, table, counter, chunks)


class _Files:
    """Fetches the stored bytes of one array's chunks, neighbours with one request."""

    def __init__(
        self, folder: EpisodeFolder, key: str, counter: KeyCounter, limits: MergeLimits
    ) -> None:
        self._folder, self._key, self._counter, self._limits = folder, key, counter, limits

    def fetch(
        self, extents: Sequence[Extent | None], arena: Arena | None
    ) -> Iterator[tuple[int, Stored]]:
        """Yield the places of the extents, and the bytes that are stored there.

        Those of an arena are good until the next are asked for.
        """
        if len(extents) == 1 and extents[0] is not None:
            yield 0, self._request(*extents[0], arena)
            return
        for places in _by_file(extents):
            found: list[Any] = [extents[place] for place in places]
            path, file, _, _ = found[0]
            ranges = [(start, stop) for _, _, start, stop in found]
            for start, stop, members in merge_ranges(ranges, self._limits):
                data = self._request(path, file, start, stop, arena)
                for member in members:
                    low, high = ranges[member]
                    yield places[member], data[low - start : high - start]

    def _request(
        self, path: str, file: StoredFile | None, start: int, stop: int, arena: Arena | None
    ) -> Stored:
        # A shard is asked again and again; a chunk's own file is read whole and let go.
        opened = file or self._folder.open_file(self._key, path, None)
        if opened is None:
            raise ReadError(
                f"{path} went missing while it was read", episode=self._folder.name, key=self._key
            )
        return self._folder.read_range(self._key, path, opened, start, stop, arena)

    def undecodable(self, extent: Extent | None, error: Exception) -> ReadError:
        """Return the error that names the bytes that could not be decoded."""
        assert extent is not None
        return ReadError(
            f"{extent.path}, bytes {extent.start} to {extent.stop} can't be decoded: "
            f"{type(error).__name__}: {error}; the file is damaged, or was written to while it "
            "was open: copy or write the episode again",
            episode=self._folder.name,
            key=self._key,
        )


class _BytesArray:
    """An array of bytes of one episode."""

    def __init__(self, files: _Files, table: ChunkTable, counter: KeyCounter) -> None:
        self._files, self._table, self._counter = files, table, counter
        self._codec, self._chunk_rows = ChunkCodec(table.layout), table.layout.chunk_rows

    def parts(self, plan: ReadPlan) -> Sequence[ChunkRows]:
        rows = dict(self._stream(plan, None))
        return [[rows[place] for place in range(len(rows))]]

    def stream(self, plan: ReadPlan, arena: Arena) -> Iterator[tuple[int, Stored]]:
        return self._stream(plan, arena)

    def _stream(self, plan: ReadPlan, arena: Arena | None) -> Iterator[tuple[int, Stored]]:
        pieces = plan.pieces(self._chunk_rows)
        lines = _lines(pieces) if self._chunk_rows > 1 else None
        num_rows = num_decoded = 0
        try:
            for chunk, rows, is_decoded in self._chunks(pieces.chunks, arena):
                num_decoded += is_decoded
                for place, line in ((chunk, 0),) if lines is None else lines[chunk]:
                    num_rows += 1
                    yield place, rows[line]
        finally:
            self._counter.add_read(num_rows, num_decoded)

    def _chunks(
        self, numbers: Sequence[int], arena: Arena | None
    ) -> Iterator[tuple[int, ChunkRows, bool]]:
        """Yield the place of each chunk in `numbers`, its rows, and whether they were decoded."""
        extents = self._table.find(numbers)
        for place, extent in enumerate(extents):
            if extent is None:
                yield place, self._codec.filled(), False
        for place, data in self._files.fetch(extents, arena):
            try:
                rows = self._codec.decode(data)
            except Exception as error:  # whatever a decompressor raises
                raise self._files.undecodable(extents[place], error) from error
            yield place, rows, True


class _NumericArray:
    """An array of numbers of one episode."""

    def __init__(
        self, files: _Files, table: ChunkTable, counter: KeyCounter, chunks: ByteCache
    ) -> None:
        self._files, self._table, self._counter, self._chunks = files, table, counter, chunks
        self._layout, self._chunk_rows = table.layout, table.layout.chunk_rows
        self._codec = ChunkCodec(table.layout)
        self._width = len(table.tails)
        # Where a chunk is no wider than a row, and no narrower, it needs no joining or trimming.
        self._is_joined = self._layout.chunk_shape[1:] != self._layout.row_shape
        self._holds_nothing = math.prod(self._layout.row_shape) == 0

    def parts(self, plan: ReadPlan) -> Sequence[ChunkRows]:
        if self._holds_nothing:
            rows = np.empty((plan.num_rows, *self._layout.row_shape), self._layout.dtype)
            self._counter.add_read(len(rows), 0)
            return [rows]
        pieces = plan.pieces(self._chunk_rows)
        load = self._kept_or_loaded if self._chunks.budget else self._load
        chunks, num_decoded = load(pieces.chunks)
        parts = [chunks[place][start:stop] for place, start, stop in pieces.slices]
        self._counter.add_read(sum(map(len, parts)), num_decoded)
        return parts

    def _kept_or_loaded(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Return chunks, and how many of them were decoded; the others were kept."""
        names = self._table.names(numbers)
        chunks = self._chunks.get_all(names)
        missing = [place for place, chunk in enumerate(chunks) if chunk is None]
        if not missing:
            return chunks, 0
        loaded, num_decoded = self._load([numbers[place] for place in missing])
        for place, chunk in zip(missing, loaded, strict=True):
            chunks[place] = chunk
            if names[place] is not None and isinstance(chunk, np.ndarray):
                self._chunks.put(names[place], chunk, chunk.nbytes + ENTRY_BYTES)
        return chunks, num_decoded

    def _load(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Fetch and decode rows of chunks; return them, and how many chunks were decoded."""
        extents = self._table.find(numbers)
        # Each in memory of its own, as it may be kept.
        stored = dict(self._files.fetch(extents, None))
        pieces = [self._decode(extent, stored.get(n)) for n, extent in enumerate(extents)]
        if not self._is_joined:
            return pieces, len(stored)
        starts = range(0, len(pieces), self._width)
        return [self._join(pieces[at : at + self._width]) for at in starts], len(stored)

    def _decode(self, extent: Extent | None, data: Stored | None) -> ChunkRows:
        if data is None:
            return self._codec.filled()
        try:
            return self._codec.decode(data)
        except Exception as error:  # whatever a decompressor raises
            raise self._files.undecodable(extent, error) from error

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


def _lines(pieces: ReadPieces) -> list[list[tuple[int, int]]]:
    """Return, per chunk of a read, its rows: their places in the read, and in the chunk."""
    lines: list[list[tuple[int, int]]] = [[] for _ in pieces.chunks]
    place = 0
    for chunk, start, stop in pieces.slices:
        lines[chunk] += [(place + line - start, line) for line in range(start, stop)]
        place += stop - start
    return lines
