"""What stands ahead of every reader: whether the planned chunks are really stored."""

from __future__ import annotations

import warnings
from typing import Literal

from egoloader.cache import ByteCache
from egoloader.chunktable import ChunkTable
from egoloader.errors import LostEpisodeError, MissingChunkError, MissingChunkWarning, ReadError
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan
from egoloader.store import EpisodeFolder

__all__ = ["ChunkGuard", "HolePolicy", "MissingChunks"]

MissingChunks = Literal["error", "fill"]


class HolePolicy:
    """What becomes of chunks that are not stored.

    An episode by our writer stores every chunk, so there any hole is an error. Elsewhere a missing
    file is one unless `missing_chunks` is `fill`.

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
        self._folder, self.stamped, self._missing_chunks = folder, stamped, missing_chunks
        self._warned = warned_keys

    def meet(self, key: str, path: str) -> None:
        """Refuse a chunk of array `key` that is not stored, or warn once that it is filled.

        Raises:
            ReadError: the array itself can't be reached, so that nothing was left out.
            MissingChunkError: the chunk is missing and may not be filled.
        """
        if not self._has_metadata(key):
            raise LostEpisodeError(
                f"{path} can't be reached, and neither can the array's metadata; was the episode "
                "moved, or is a disk gone?",
                episode=self._folder.name,
                key=key,
            )
        if self.stamped or self._missing_chunks == "error":
            way_out = (
                "the copy is incomplete; copy or write the episode again"
                if self.stamped
                else "if the writer left out chunks of fill values, set missing_chunks: fill"
            )
            raise MissingChunkError(
                f"{path} is missing; {way_out}", episode=self._folder.name, key=key
            )
        if key not in self._warned:
            warnings.warn(
                f"episode {self._folder.name!r}, key {key!r}: {path} is missing; "
                "fill values are served for missing chunks of this key",
                MissingChunkWarning,
                stacklevel=2,
            )
            self._warned.add(key)

    def _has_metadata(self, key: str) -> bool:
        names = (f"{key}/zarr.json", f"{key}/.zarray")
        return any(self._folder.signature(name) is not None for name in names)


class ChunkGuard:
    """Refuses reads of chunks that are not stored, where zarr-python would serve fill values.

    An empty entry of a shard's index is a chunk of fill values, except in an episode by our writer.

    Args:
        folder: the episode's files.
        holes: what becomes of chunks that are not stored.
        cache: where shard indexes are kept.
    """

    def __init__(self, folder: EpisodeFolder, holes: HolePolicy, cache: ByteCache) -> None:
        self._folder, self._holes, self._cache = folder, holes, cache
        self._tables: dict[str, ChunkTable] = {}

    def table(self, key: str, layout: ArrayLayout) -> ChunkTable:
        """Return the table of an array's chunks; what is not stored goes to the policy."""
        table = self._tables.get(key)
        if table is None:
            made = ChunkTable(
                self._folder,
                key,
                layout,
                self._cache,
                self._holes.meet,
                has_every_chunk=self._holes.stamped,
            )
            table = self._tables.setdefault(key, made)
        return table

    def check(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> None:
        """Check that every chunk the plan touches is stored, and lies inside its file.

        Raises:
            MissingChunkError: a chunk is not stored.
            ReadError: a shard is cut short, or its index is broken.
        """
        self.table(key, layout).find(plan.pieces(layout.chunk_rows).chunks)

    def blame(self, key: str, layout: ArrayLayout, plan: ReadPlan, error: ReadError) -> ReadError:
        """Return a reader's error with the byte ranges added that it was to decode."""
        found = self.table(key, layout).find(plan.pieces(layout.chunk_rows).chunks)
        ranges = [f"{one.path}, bytes {one.start} to {one.stop}" for one in found if one]
        shown = "; ".join(ranges[:4]) + ("; …" if len(ranges) > 4 else "")
        return ReadError(f"{error.message} (in {shown})", episode=error.episode, key=key)
