"""What stands ahead of every reader: a check that the planned chunks are really stored."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np

from egoloader.errors import MissingChunkError, MissingChunkWarning, ReadError
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan, Window
from egoloader.shards import EMPTY, IndexArray, decode_index, index_size
from egoloader.store import EpisodeFolder

__all__ = ["ChunkGuard", "MissingChunks"]

MissingChunks = Literal["error", "fill"]


class ChunkGuard:
    """Refuses reads of chunks that are not stored, where zarr-python would serve fill values.

    An episode by our writer stores every chunk, so there any hole is an error. Elsewhere an empty
    entry of a shard's index is a chunk of fill values, and a missing file an error unless
    `missing_chunks` is `fill`.

    Args:
        folder: the episode's files.
        stamped: whether our writer made the episode.
        missing_chunks: what becomes of a missing file.
        warned_keys: keys whose missing files were warned of already; added to.
    """

    def __init__(
        self,
        folder: EpisodeFolder,
        *,
        stamped: bool,
        missing_chunks: MissingChunks,
        warned_keys: set[str],
    ) -> None:
        self._folder, self._stamped, self._missing_chunks = folder, stamped, missing_chunks
        self._indexes: dict[str, tuple[tuple[int, int], IndexArray]] = {}
        self._warned = warned_keys

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
                self.meet_hole(key, path)
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

    def meet_hole(self, key: str, path: str) -> None:
        """Refuse a chunk of array `key` that is not stored, or warn once that it is filled.

        Raises:
            ReadError: the array itself can't be reached, so that nothing was left out.
            MissingChunkError: the chunk is missing and may not be filled.
        """
        if not self._has_metadata(key):
            raise ReadError(
                f"{path} can't be reached, and neither can the array's metadata; was the episode "
                "moved, or is a disk gone?",
                episode=self._folder.name,
                key=key,
            )
        if self._stamped or self._missing_chunks == "error":
            way_out = (
                "the copy is incomplete; copy or write the episode again"
                if self._stamped
                else "if the writer left out chunks of fill values, set missing_chunks: fill"
            )
            raise MissingChunkError(
                f"{path} is missing; {way_out}", episode=self._folder.name, key=key
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
                    self.meet_hole(key, f"{path}, chunk {inner}")
            elif offset + length > size:
                raise ReadError(
                    f"{path} is cut short: chunk {inner} is to lie in bytes {offset} to "
                    f"{offset + length}, the file has {size}",
                    episode=self._folder.name,
                    key=key,
                )


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
