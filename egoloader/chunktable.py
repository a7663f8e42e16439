"""Where each chunk of one array lies: in which file, from which byte to which."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterable
from typing import NamedTuple

from egoloader.cache import ENTRY_BYTES, ByteCache
from egoloader.errors import ReadError
from egoloader.files import Signature, StoredFile
from egoloader.layout import ArrayLayout
from egoloader.shards import EMPTY, IndexArray, decode_index, index_size
from egoloader.store import EpisodeFolder, OnHole

__all__ = ["ChunkTable", "Extent", "Tail"]


class Extent(NamedTuple):
    """Where one chunk lies.

    Attributes:
        path: of the file, below the episode.
        file: the open shard; None where the chunk has a file of its own.
        start: first byte.
        stop: one past the last byte.
    """

    path: str
    file: StoredFile | None
    start: int
    stop: int


class Tail(NamedTuple):
    """One of the chunks that lie side by side behind the axis of rows; most arrays have one.

    Attributes:
        outer: coordinates of its stored object, without the first.
        inner: its place among the chunks of one row of chunks in a shard.
        box: what it holds of a row: one slice an axis.
    """

    outer: tuple[int, ...]
    inner: int
    box: tuple[slice, ...]


class ChunkTable:
    """Finds the chunks of one array; reads shard indexes on the way and keeps them.

    Args:
        folder: the episode's files.
        key: the array.
        layout: how it lies on disk.
        cache: where shard indexes are kept for when the episode is opened again.
        on_hole: called with the array and the path of what is not stored; may raise, else the
            chunk is one of fill values.
        has_every_chunk: whether an empty entry of a shard's index is such a hole, too.
    """

    def __init__(
        self,
        folder: EpisodeFolder,
        key: str,
        layout: ArrayLayout,
        cache: ByteCache,
        on_hole: OnHole,
        *,
        has_every_chunk: bool,
    ) -> None:
        self._folder, self._key, self.layout = folder, key, layout
        self._cache, self._on_hole = cache, on_hole
        self._has_every_chunk, self._most_bytes = has_every_chunk, layout.stored_limit
        #: Whether chunks lie in shards, so that their names stay.
        self.is_shard = layout.shard_shape is not None
        per_shard = layout.chunks_per_shard if math.prod(layout.shape) else (1,)
        self._shard_chunks, self._row_entries = per_shard[0], math.prod(per_shard[1:])
        self._shards: dict[_Place, _Shard] = {}
        #: The chunks of one row of chunks, in C order.
        self.tails = _tails(layout, per_shard[1:])

    def name(self, row_chunk: int) -> str | None:
        """Return what tells a row of chunks from all others; None where a file of it is missing.

        Files are told by path and signature: a shard's is taken when it is first asked for, as its
        index is, and stays.
        """
        files: list[str] = []
        shard_number = row_chunk // self._shard_chunks
        for tail in self.tails:
            place = (shard_number, tail.outer)
            shard = self._shards.get(place) or self._find_shard(place)
            if shard is None:
                return None
            files.append(shard.name)
        # No path holds a zero, so no two names are spelt alike.
        return "\0".join([str(row_chunk), *files])

    def find(self, row_chunks: Iterable[int]) -> list[Extent | None]:
        """Return where chunks lie; None for one of fill values.

        Args:
            row_chunks: numbers of chunks along the rows.

        Returns:
            For each of them, one a tail.

        Raises:
            MissingChunkError: what `on_hole` makes of a chunk that is not stored.
            ReadError: a shard is cut short, its index is broken, or it is another file than before.
        """
        if not self.is_shard:
            self._folder.check_unchanged(self._key)
            return [self._whole(number, tail) for number in row_chunks for tail in self.tails]
        found: list[Extent | None] = []
        opened: dict[_Place, _Opened | None] = {}
        for number in row_chunks:
            shard, inner = divmod(number, self._shard_chunks)
            for tail in self.tails:
                name = (shard, tail.outer)
                if name not in opened:
                    opened[name] = self._open(name)
                one = opened[name]
                if one is None:
                    found.append(None)
                    continue
                path, file, entries = one
                if entries is None:
                    self._check_size(path, 0, file.size)
                    found.append(Extent(path, file, 0, file.size))
                    continue
                place = inner * self._row_entries + tail.inner
                start = entries.item(2 * place)
                stop = start + entries.item(2 * place + 1)
                if stop > file.size:
                    self._check_hole(path, file, place, start, stop)
                    found.append(None)
                else:
                    if stop - start > self._most_bytes:
                        self._check_size(path, start, stop)
                    found.append(Extent(path, file, start, stop))
        return found

    def _check_size(self, path: str, start: int, stop: int) -> None:
        """Refuse more bytes than a chunk can have, before they are read."""
        if stop - start > self._most_bytes:
            raise ReadError(
                f"{path}, bytes {start} to {stop} are to be one chunk, for which the limit is "
                f"{self._most_bytes} bytes; copy or write the episode again",
                episode=self._folder.name,
                key=self._key,
            )

    def _whole(self, number: int, tail: Tail) -> Extent | None:
        """Return the extent of a chunk that has a file of its own, which stays closed."""
        path = self._path((number, tail.outer))
        signature = self._folder.signature(path)
        if signature is None:
            self._on_hole(self._key, path)
            return None
        self._check_size(path, 0, signature[0])
        return Extent(path, None, 0, signature[0])

    def _path(self, place: _Place) -> str:
        return f"{self._key}/{self.layout.object_path((place[0], *place[1]))}"

    def _find_shard(self, place: _Place) -> _Shard | None:
        """Return a stored object as it is now; None where there is no file. A shard is kept."""
        self._folder.check_unchanged(self._key)
        path = self._path(place)
        signature = self._folder.signature(path)
        if signature is None:
            return None
        name = "\0".join([self._folder.full_path(path), *map(str, signature)])
        shard = _Shard(path, signature, name)
        if self.is_shard:
            self._shards[place] = shard
        return shard

    def _open(self, place: _Place) -> _Opened | None:
        shard = self._shards.get(place) or self._find_shard(place)
        file = None if shard is None else shard.file()
        if shard is not None and file is None:
            file = self._folder.open_file(self._key, shard.path, shard.signature)
        if shard is None or file is None:
            self._on_hole(self._key, self._path(place))
            return None
        shard.file = weakref.ref(file)
        if not self.layout.index_is_plain:
            return shard.path, file, None
        if shard.index is None:
            shard.index = self._index(shard, file)
        return shard.path, file, shard.index

    def _index(self, shard: _Shard, file: StoredFile) -> IndexArray:
        index: IndexArray | None = self._cache.get(shard.name)
        if index is None:
            index = self._read_index(shard.path, file)
            self._cache.put(shard.name, index, index.nbytes + ENTRY_BYTES)
        return index

    def _read_index(self, path: str, file: StoredFile) -> IndexArray:
        layout = self.layout
        num_chunks = self._shard_chunks * self._row_entries
        size = index_size(num_chunks, has_crc=layout.index_has_crc)
        start = max(0, file.size - size) if layout.index_at_end else 0
        # Metadata may promise an index that is larger than the file, or than any memory.
        stop = min(start + size, file.size)
        data = self._folder.read_range(self._key, path, file, start, stop)
        try:
            return decode_index(data, num_chunks, has_crc=layout.index_has_crc)
        except ValueError as error:
            raise ReadError(
                f"{path}, bytes {start} to {stop}: {error}; the file is cut short or "
                "damaged, copy or write the episode again",
                episode=self._folder.name,
                key=self._key,
            ) from error

    def _check_hole(self, path: str, file: StoredFile, place: int, start: int, stop: int) -> None:
        """Pass an entry that points behind the file's end if it says that nothing is stored."""
        if start == stop - start == EMPTY:
            if self._has_every_chunk:
                self._on_hole(self._key, f"{path}, chunk {place}")
            return
        raise ReadError(
            f"{path} is cut short: chunk {place} is to lie in bytes {start} to {stop}, "
            f"the file has {file.size}; copy or write the episode again",
            episode=self._folder.name,
            key=self._key,
        )


#: The first coordinate of a stored object, and the others.
_Place = tuple[int, tuple[int, ...]]
#: Path, file, and index; no index where zarr-python alone can read it.
_Opened = tuple[str, StoredFile, IndexArray | None]


class _Shard:
    """A stored object as it was when it was first asked for.

    Its index stays as long as the episode is open. Its file is kept elsewhere, within bounds; here
    is only the shortest way to it.
    """

    __slots__ = ("file", "index", "name", "path", "signature")

    def __init__(self, path: str, signature: Signature, name: str) -> None:
        self.path, self.signature, self.name = path, signature, name
        self.file: Callable[[], StoredFile | None] = _nothing
        self.index: IndexArray | None = None


def _nothing() -> None:
    return None


def _tails(layout: ArrayLayout, per_shard: tuple[int, ...]) -> tuple[Tail, ...]:
    if math.prod(layout.shape) == 0:
        return (Tail((0,) * len(layout.row_shape), 0, ()),)
    sides = layout.chunk_shape[1:]
    grid = [-(-extent // side) for extent, side in zip(layout.row_shape, sides, strict=True)]
    tails = []
    for coords in itertools.product(*map(range, grid)):
        outer = tuple(c // n for c, n in zip(coords, per_shard, strict=True))
        inner = 0
        for c, o, n in zip(coords, outer, per_shard, strict=True):
            inner = inner * n + c - o * n
        box = tuple(
            slice(c * side, min((c + 1) * side, extent))
            for c, side, extent in zip(coords, sides, layout.row_shape, strict=True)
        )
        tails.append(Tail(outer, inner, box))
    return tuple(tails)
