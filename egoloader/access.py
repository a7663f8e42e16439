"""What reads one episode in one process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from egoloader.annotation import Annotation
from egoloader.arena import Arena
from egoloader.cache import ByteCache
from egoloader.chunkcodec import ChunkRows, unread_reason
from egoloader.counts import ReadCounts
from egoloader.decompression import Stored
from egoloader.files import Signature
from egoloader.guard import ChunkGuard, HolePolicy, MissingChunks
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan
from egoloader.rangereader import RangeReader
from egoloader.ranges import MergeLimits
from egoloader.reader import BytesReader, GuardedReader, ReadAlike, Reader, ReferenceReader
from egoloader.store import EpisodeFolder

__all__ = ["EpisodeAccess"]


class EpisodeAccess:
    """What reads one episode in one process: handles, counts, and metadata read so far.

    Args:
        path: the episode's folder.
        name: what errors call it.
        stamped: whether our writer made it.
        missing_chunks: see `ZarrEpisode`, like all that follow.
        warned_keys: see there.
        cache: see there.
        group: the file of the group's metadata, and which one it was when the episode was opened.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        stamped: bool,
        missing_chunks: MissingChunks,
        warned_keys: set[str],
        cache: ByteCache,
        group: tuple[str, Signature] | None,
    ) -> None:
        self.counts = ReadCounts()
        self.folder = EpisodeFolder(path, name, self.counts, group)
        holes = HolePolicy(
            self.folder,
            stamped=stamped,
            missing_chunks=missing_chunks,
            warned_keys=warned_keys,
        )
        self.guard = ChunkGuard(self.folder, holes, cache)
        self._ranges = RangeReader(self.folder, self.guard, self.counts, cache, MergeLimits())
        self._reference = GuardedReader(
            ReferenceReader(self.folder, self.counts, holes.meet), self.guard
        )
        self.readers: dict[tuple[str, ...], ReadAlike] = {}
        self.bytes_readers: dict[str, BytesReader] = {}
        self.layouts: dict[str, ArrayLayout | None] = {}
        self.annotations: dict[str, tuple[Annotation, ...]] = {}

    def open(self, layouts: Mapping[str, ArrayLayout]) -> ReadAlike:
        """Return what reads arrays by one plan: the range reader wherever it knows the codecs."""
        if all(one.kind == "numeric" and not unread_reason(one) for one in layouts.values()):
            return self._ranges.open_numbers(layouts)

        # Without a reference to this object, which is to hold what is returned.
        chosen = [(self._reader(one), key, one) for key, one in layouts.items()]

        def read(plan: ReadPlan) -> Sequence[Sequence[ChunkRows]]:
            return [[reader.read(key, layout, plan)] for reader, key, layout in chosen]

        return read

    def open_bytes(self, key: str, layout: ArrayLayout) -> BytesReader:
        """Return what reads an array of bytes."""
        if not unread_reason(layout):
            return self._ranges.open_bytes(key, layout)
        return _ReferenceBytes(self._reference, key, layout)

    def _reader(self, layout: ArrayLayout) -> Reader:
        return self._reference if unread_reason(layout) else self._ranges


class _ReferenceBytes:
    """An array of bytes that zarr-python reads."""

    def __init__(self, reader: Reader, key: str, layout: ArrayLayout) -> None:
        self._reader, self._key, self._layout = reader, key, layout

    def stream(self, plan: ReadPlan, _arena: Arena | None) -> Iterable[tuple[int, Stored]]:
        return enumerate(self._reader.read(self._key, self._layout, plan))
