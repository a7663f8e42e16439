"""The range reader: from planned rows to chunks to byte ranges, each fetched and decoded once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from egoloader.arena import Arena
from egoloader.cache import ENTRY_BYTES, ByteCache
from egoloader.chunkcodec import ChunkCodec, ChunkRows
from egoloader.chunktable import ChunkTable, Extent
from egoloader.counts import KeyCounter, ReadCounts
from egoloader.decompression import Stored
from egoloader.errors import ReadError
from egoloader.guard import ChunkGuard
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPieces, ReadPlan
from egoloader.ranges import MergeLimits, merge_ranges
from egoloader.reader import BytesReader, ReadAlike, join_rows
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
        self._arrays: dict[str, _BytesArray | _NumericArray] = {}

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Read the plan's groups; see `Reader.read`."""
        if layout.kind == "bytes":
            rows = dict(self.open_bytes(key, layout).stream(plan, None))
            return [rows[place] for place in range(len(rows))]
        (parts,) = self.open_numbers({key: layout})(plan)
        return join_rows(parts)

    def open_bytes(self, key: str, layout: ArrayLayout) -> BytesReader:
        """Return what reads an array of bytes."""
        array = self._arrays.get(key)
        if array is None:
            made = _BytesArray(*self._opened(key, layout))
            array = self._arrays.setdefault(key, made)
        assert isinstance(array, _BytesArray)
        return array

    def open_numbers(self, layouts: Mapping[str, ArrayLayout]) -> ReadAlike:
        """Return what reads arrays of numbers whose chunks have equally many rows."""
        arrays = []
        for key, layout in layouts.items():
            array = self._arrays.get(key)
            if array is None:
                made = _NumericArray(*self._opened(key, layout), self._chunks)
                array = self._arrays.setdefault(key, made)
            assert isinstance(array, _NumericArray)
            arrays.append(array)
        return _NumericArrays(arrays, self._chunks).read

    def _opened(self, key: str, layout: ArrayLayout) -> tuple[_Files, ChunkTable, KeyCounter]:
        table, counter = self._guard.table(key, layout), self._counts.of(key)
        return _Files(self._folder, key, self._limits), table, counter


class _Files:
    """Fetches the stored bytes of one array's chunks, neighbours with one request."""

    def __init__(self, folder: EpisodeFolder, key: str, limits: MergeLimits) -> None:
        self._folder, self._key, self._limits = folder, key, limits

    def fetch(self, extents: Sequence[Extent | None]) -> list[Stored | None]:
        """Return the stored bytes of each extent, in memory that may be kept."""
        if len(extents) == 1 and extents[0] is not None:
            return [self._request(extents[0], None)]
        stored: list[Stored | None] = [None] * len(extents)
        for extent, members in self._requests(extents):
            data = self._request(extent, None)
            for place, low, high in members:
                stored[place] = data[low:high]
        return stored

    def stream(
        self, extents: Sequence[Extent | None], arena: Arena | None
    ) -> Iterator[tuple[int, Stored]]:
        """Yield the place of each extent, and the bytes that are stored there.

        Those of an arena are good until the next are asked for.
        """
        for extent, members in self._requests(extents):
            data = self._request(extent, arena)
            for place, low, high in members:
                yield place, data[low:high]

    def _requests(
        self, extents: Sequence[Extent | None]
    ) -> Iterable[tuple[Extent, Sequence[tuple[int, int, int]]]]:
        """Return what to ask for: the place of each extent in it, its first byte, and its last."""
        if len(extents) == 1 and extents[0] is not None:
            return ((extents[0], ((0, 0, extents[0].stop - extents[0].start),)),)
        requests = []
        for places in _by_file(extents):
            found: list[Any] = [extents[place] for place in places]
            path, file, _, _ = found[0]
            ranges = [(start, stop) for _, _, start, stop in found]
            for start, stop, members in merge_ranges(ranges, self._limits):
                its = [(places[n], ranges[n][0] - start, ranges[n][1] - start) for n in members]
                requests.append((Extent(path, file, start, stop), its))
        return requests

    def _request(self, extent: Extent, arena: Arena | None) -> Stored:
        path, file, start, stop = extent
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

    def stream(self, plan: ReadPlan, arena: Arena | None) -> Iterator[tuple[int, Stored]]:
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
        for place, data in self._files.stream(extents, arena):
            try:
                rows = self._codec.decode(data)
            except Exception as error:  # whatever a decompressor raises
                raise self._files.undecodable(extents[place], error) from error
            yield place, rows, True


class _NumericArrays:
    """Arrays of numbers of one episode whose chunks have equally many rows: read by one plan.

    What they need is looked for among the kept chunks all at once.
    """

    def __init__(self, arrays: Sequence[_NumericArray], chunks: ByteCache) -> None:
        self._arrays, self._chunks = arrays, chunks
        self._chunk_rows = arrays[0].chunk_rows
        self._keeps_names = all(array.has_fixed_names for array in arrays)
        self._names: dict[int, list[str | None]] = {}

    def read(self, plan: ReadPlan) -> Sequence[Sequence[ChunkRows]]:
        """Read the plan's groups of each array; see `ReadAlike`."""
        numbers, slices = plan.pieces(self._chunk_rows)
        if self._chunks.budget:
            chunks = self._kept_or_loaded(numbers)
        else:
            chunks = [array.load(numbers) for array in self._arrays]
        found = []
        for array, (its, num_decoded) in zip(self._arrays, chunks, strict=True):
            parts = [its[place][start:stop] for place, start, stop in slices]
            array.counter.add_read(sum(map(len, parts)), num_decoded)
            found.append(parts)
        return found

    def _kept_or_loaded(self, numbers: Sequence[int]) -> list[tuple[list[ChunkRows], int]]:
        """Return each array's chunks, and how many of them were decoded; the others were kept."""
        names: list[str | None] = []
        for number in numbers:
            names += self._names.get(number) or self._find_names(number)
        kept, has_all = self._chunks.get_all(names)
        width = len(self._arrays)
        if has_all:
            return [(kept[place::width], 0) for place in range(width)]
        return [
            array.complete(numbers, names[place::width], kept[place::width])
            for place, array in enumerate(self._arrays)
        ]

    def _find_names(self, number: int) -> list[str | None]:
        """Return what a chunk of each array is kept as; None for one that is not."""
        names = [array.name(number) for array in self._arrays]
        if self._keeps_names and None not in names:
            self._names[number] = names
        return names


class _NumericArray:
    """An array of numbers of one episode."""

    def __init__(
        self, files: _Files, table: ChunkTable, counter: KeyCounter, chunks: ByteCache
    ) -> None:
        self._files, self._table, self.counter, self._chunks = files, table, counter, chunks
        self._layout, self.chunk_rows = table.layout, table.layout.chunk_rows
        self._codec = ChunkCodec(table.layout)
        self._width = len(table.tails)
        # Where a chunk is no wider than a row, and no narrower, it needs no joining or trimming.
        self._is_joined = self._layout.chunk_shape[1:] != self._layout.row_shape
        self._is_empty = math.prod(self._layout.row_shape) == 0

    @property
    def has_fixed_names(self) -> bool:
        """Whether a chunk is kept under the same name as long as the array is open."""
        return self._table.is_shard

    def name(self, number: int) -> str | None:
        """Return what a chunk is kept as; None for one that is not kept."""
        return None if self._is_empty else self._table.name(number)

    def complete(
        self, numbers: Sequence[int], names: Sequence[str | None], chunks: list[Any]
    ) -> tuple[list[ChunkRows], int]:
        """Add the chunks that are None and keep them; return all, and how many were decoded."""
        missing = [place for place, chunk in enumerate(chunks) if chunk is None]
        if not missing:
            return chunks, 0
        loaded, num_decoded = self.load([numbers[place] for place in missing])
        for place, chunk in zip(missing, loaded, strict=True):
            chunks[place], name = chunk, names[place]
            if name is not None and isinstance(chunk, np.ndarray):
                self._chunks.put(name, chunk, chunk.nbytes + ENTRY_BYTES)
        return chunks, num_decoded

    def load(self, numbers: Sequence[int]) -> tuple[list[ChunkRows], int]:
        """Fetch and decode rows of chunks; return them, and how many chunks were decoded."""
        if self._is_empty:
            chunk = np.empty((self.chunk_rows, *self._layout.row_shape), self._layout.dtype)
            return [chunk] * len(numbers), 0
        extents = self._table.find(numbers)
        # Each in memory of its own, as it may be kept.
        stored = self._files.fetch(extents)
        pieces = list(map(self._decode, extents, stored))
        num_decoded = len(stored) - stored.count(None)
        if not self._is_joined:
            return pieces, num_decoded
        starts = range(0, len(pieces), self._width)
        return [self._join(pieces[at : at + self._width]) for at in starts], num_decoded

    def _decode(self, extent: Extent | None, data: Stored | None) -> ChunkRows:
        if data is None:
            return self._codec.filled()
        try:
            return self._codec.decode(data)
        except Exception as error:  # whatever a decompressor raises
            raise self._files.undecodable(extent, error) from error

    def _join(self, pieces: Sequence[ChunkRows]) -> ChunkRows:
        """Put the chunks of one row of chunks side by side."""
        shape = (self.chunk_rows, *self._layout.row_shape)
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
