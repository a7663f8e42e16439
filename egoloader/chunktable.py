"""Where each chunk of one array lies: in which file, from which byte to which."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from egoloader.cache import ByteCache
from egoloader.errors import ReadError
from egoloader.files import Signature, StoredFile
from egoloader.layout import ArrayLayout
from egoloader.shards import EMPTY, IndexArray, decode_index, index_size
from egoloader.store import EpisodeFolder, OnHole

__all__ = ["ChunkTable", "Extent", "Tail"]


#: The first coordinate of a stored object, and the others.
_ShardName = tuple[int, tuple[int, ...]]


class Extent(NamedTuple):
    """Where one chunk lies.

    Attributes:
        path: of the file, below the episode.
        file: the open file.
        start: first byte.
        stop: one past the last byte.
    """

    path: str
    file: StoredFile
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
        indexes: where shard indexes are kept.
        on_hole: called with the array and the path of what is not stored; may raise, else the
            chunk is one of fill values.
        has_every_chunk: whether an empty entry of a shard's index is such a hole, too.
    """

    def __init__(
        self,
        folder: EpisodeFolder,
        key: str,
        layout: ArrayLayout,
        indexes: ByteCache,
        on_hole: OnHole,
        *,
        has_every_chunk: bool,
    ) -> None:
        self._folder, self._key, self.layout = folder, key, layout
        self._indexes, self._on_hole = indexes, on_hole
        self._has_every_chunk = has_every_chunk
        self._is_shard = layout.shard_shape is not None
        per_shard = layout.chunks_per_shard if math.prod(layout.shape) else (1,)
        self._shard_chunks, self._row_entries = per_shard[0], math.prod(per_shard[1:])
        self._shards: dict[_ShardName, _Shard] = {}
        #: The chunks of one row of chunks, in C order.
        self.tails = _tails(layout, per_shard[1:])

    def signature(self, row_chunk: int) -> tuple[Signature, ...] | None:
        """Return the signatures of the files that a row of chunks lies in; None if one is missing.

        A shard's is taken when it is first asked for, as its index is, and stays.
        """
        found = []
        for tail in self.tails:
            name = (row_chunk // self._shard_chunks, tail.outer)
            if self._is_shard:
                shard = self._shard(name)
                signature = None if shard is None else shard.signature
            else:
                signature = self._folder.signature(self._path(name))
            if signature is None:
                return None
            found.append(signature)
        return tuple(found)

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
        found: list[Extent | None] = []
        opened: dict[_ShardName, _Opened | None] = {}
        for number in row_chunks:
            shard, inner = divmod(number, self._shard_chunks)
            for tail in self.tails:
                name = (shard, tail.outer)
                if name not in opened:
                    opened[name] = self._open(name)
                one = opened[name]
                if one is None:
                    found.append(None)
                elif one.entries is None:
                    found.append(Extent(one.path, one.file, 0, one.file.size))
                else:
                    place = inner * self._row_entries + tail.inner
                    found.append(self._entry(one.path, one.file, one.entries, place))
        return found

    def _path(self, name: _ShardName) -> str:
        return f"{self._key}/{self.layout.object_path((name[0], *name[1]))}"

    def _shard(self, name: _ShardName) -> _Shard | None:
        """Return a shard, as it was when it was first asked for; None where there is no file."""
        shard = self._shards.get(name)
        if shard is None:
            path = self._path(name)
            signature = self._folder.signature(path)
            if signature is None:
                return None
            full = self._folder.full_path(path)
            shard = self._shards[name] = _Shard(path, signature, (full, signature))
        return shard

    def _open(self, name: _ShardName) -> _Opened | None:
        if self._is_shard:
            shard = self._shard(name)
            path = self._path(name) if shard is None else shard.path
            kept = None if shard is None else shard.signature
            file = None if shard is None else self._folder.open_file(self._key, path, kept)
        else:
            # A chunk's own file is read whole and let go; a shard is asked again and again.
            shard, path = None, self._path(name)
            file = self._folder.open_file(self._key, path, None)
        if file is None:
            self._on_hole(self._key, path)
            return None
        if shard is None or not self.layout.index_is_plain:
            return _Opened(path, file, None)
        index = self._indexes.get(shard.index_name)
        if index is None:
            index = self._read_index(path, file)
            self._indexes.put(shard.index_name, index, index.nbytes)
        return _Opened(path, file, index)

    def _read_index(self, path: str, file: StoredFile) -> IndexArray:
        layout = self.layout
        num_chunks = self._shard_chunks * self._row_entries
        size = index_size(num_chunks, has_crc=layout.index_has_crc)
        start = max(0, file.size - size) if layout.index_at_end else 0
        data = self._folder.read_range(self._key, path, file, start, start + size)
        try:
            return decode_index(data, num_chunks, has_crc=layout.index_has_crc)
        except ValueError as error:
            raise ReadError(
                f"{path}, bytes {start} to {start + size}: {error}",
                episode=self._folder.name,
                key=self._key,
            ) from error

    def _entry(self, path: str, file: StoredFile, index: IndexArray, place: int) -> Extent | None:
        start, size = index.item(2 * place), index.item(2 * place + 1)
        if start + size <= file.size:
            return Extent(path, file, start, start + size)
        if start == EMPTY and size == EMPTY:
            if self._has_every_chunk:
                self._on_hole(self._key, f"{path}, chunk {place}")
            return None
        raise ReadError(
            f"{path} is cut short: chunk {place} is to lie in bytes {start} to "
            f"{start + size}, the file has {file.size}",
            episode=self._folder.name,
            key=self._key,
        )


class _Shard(NamedTuple):
    path: str
    signature: Signature
    index_name: object


class _Opened(NamedTuple):
    path: str
    file: StoredFile
    entries: IndexArray | None


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
