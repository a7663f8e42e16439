"""Readers of one array, opened by hand, and independent witnesses of what they do."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest

from egoloader import ZarrEpisode
from egoloader.cache import ByteCache
from egoloader.chunkcodec import ChunkCodec
from egoloader.counts import KeyCounts, ReadCounts
from egoloader.errors import EgoloaderError
from egoloader.guard import ChunkGuard, HolePolicy
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan, plan_reads
from egoloader.rangereader import RangeReader
from egoloader.ranges import MergeLimits
from egoloader.reader import ReferenceReader
from egoloader.store import EpisodeFolder

__all__ = [
    "BYTE_RANGE",
    "OpenedArray",
    "Reads",
    "assert_same_rows",
    "attempt",
    "checked",
    "named",
    "no_gaps",
    "open_range",
    "open_reference",
    "shard_entries",
]

no_gaps = MergeLimits(gap_bytes=0)


class OpenedArray:
    """One array behind one reader, and what reading it cost."""

    def __init__(self, reader: Any, key: str, layout: ArrayLayout, counts: ReadCounts) -> None:
        self._reader, self._key, self.layout, self._counts = reader, key, layout, counts

    def read(self, windows: Sequence[tuple[int, int]]) -> Any:
        """Return the rows of the plan of some windows."""
        return self._reader.read(self._key, self.layout, self.plan(windows))

    def plan(self, windows: Sequence[tuple[int, int]]) -> ReadPlan:
        return ReadPlan(tuple(plan_reads(windows, self.layout.chunk_rows)))

    def cost(self, windows: Sequence[tuple[int, int]]) -> KeyCounts:
        """Read windows, and return what that alone cost."""
        self._counts.reset()
        self.read(windows)
        return self._counts[self._key]


def open_range(
    path: Path,
    key: str = "a",
    *,
    limits: MergeLimits | None = None,
    cache_bytes: int = 0,
    missing_chunks: Any = "error",
) -> OpenedArray:
    """Open an array of an episode behind the range reader."""
    folder, holes, counts = _episode(path, missing_chunks)
    guard = ChunkGuard(folder, holes, ByteCache(2**20))
    reader = RangeReader(folder, guard, counts, ByteCache(cache_bytes), limits or MergeLimits())
    return OpenedArray(reader, key, ZarrEpisode(path).layout(key), counts)


def open_reference(path: Path, key: str = "a", *, missing_chunks: Any = "error") -> OpenedArray:
    """Open an array of an episode behind the reference reader."""
    folder, holes, counts = _episode(path, missing_chunks)
    reader = ReferenceReader(folder, counts, holes.meet)
    return OpenedArray(reader, key, ZarrEpisode(path).layout(key), counts)


def _episode(path: Path, missing_chunks: Any) -> tuple[EpisodeFolder, HolePolicy, ReadCounts]:
    counts = ReadCounts()
    folder = EpisodeFolder(path, path.name, counts)
    holes = HolePolicy(
        folder,
        stamped=ZarrEpisode(path).header.stamped,
        missing_chunks=missing_chunks,
        warned_keys=set(),
    )
    return folder, holes, counts


def assert_same_rows(found: Any, wanted: npt.NDArray[Any], layout: ArrayLayout) -> None:
    """Compare a reader's rows with zarr-python's: shape, dtype, and every bit."""
    if layout.kind == "bytes":
        assert [bytes(row) for row in found] == wanted.tolist()
        return
    assert found.dtype == layout.dtype == wanted.dtype.newbyteorder("=")
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.astype(found.dtype).tobytes()


@dataclasses.dataclass
class Reads:
    """What the system was asked for below a folder, and which chunks were decoded.

    Attributes:
        ranges: file below the folder, first byte, and bytes that came, per call of `pread` or
            `preadv`; metadata is left out, as counts leave it out.
        decodes: chunks that were decoded.
    """

    ranges: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    decodes: int = 0

    def clear(self) -> None:
        self.ranges.clear()
        self.decodes = 0

    def agree_with(self, counted: KeyCounts) -> bool:
        """Return whether requests, bytes and chunks were counted as they were seen."""
        seen = (len(self.ranges), sum(size for _, _, size in self.ranges), self.decodes)
        return seen == (counted.requests, counted.bytes, counted.chunks)

    @classmethod
    def below(cls, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
        """Watch from now on."""
        reads = cls()
        pread: Callable[..., bytes] = os.pread
        preadv: Callable[..., int] = os.preadv
        decode: Callable[..., Any] = ChunkCodec.decode

        def note(fd: int, offset: int, size: int) -> None:
            path = Path(f"/proc/self/fd/{fd}").readlink()
            if path.is_relative_to(folder) and path.name not in ("zarr.json", ".zarray", ".zattrs"):
                reads.ranges.append((path.relative_to(folder).as_posix(), offset, size))

        def noted_pread(fd: int, size: int, offset: int) -> bytes:
            data = pread(fd, size, offset)
            note(fd, offset, len(data))
            return data

        def noted_preadv(fd: int, buffers: Any, offset: int) -> int:
            size = preadv(fd, buffers, offset)
            note(fd, offset, size)
            return size

        def noted_decode(self: ChunkCodec, *args: Any) -> Any:
            reads.decodes += 1
            return decode(self, *args)

        monkeypatch.setattr(os, "pread", noted_pread)
        monkeypatch.setattr(os, "preadv", noted_preadv)
        monkeypatch.setattr(ChunkCodec, "decode", noted_decode)
        return reads


def shard_entries(shard: Path, num_chunks: int) -> npt.NDArray[np.int64]:
    """Return (num_chunks, 2) offsets and sizes from an index with a crc32c at a shard's end."""
    index = shard.read_bytes()[-16 * num_chunks - 4 : -4]
    return np.array(struct.unpack(f"<{2 * num_chunks}Q", index)).reshape(num_chunks, 2)


#: How errors say where they met bad bytes.
BYTE_RANGE = r"bytes \d+ to \d+"


def named(error: EgoloaderError, key: str, file: str) -> bool:
    """Return whether an error says which bytes of which file of which array of which episode."""
    words = ("ep.zarr", key, file)
    is_located = (error.episode, error.key) == ("ep.zarr", key)  # type: ignore[attr-defined]
    has_words = all(word in str(error) for word in words)
    return is_located and has_words and re.search(BYTE_RANGE, str(error)) is not None


def attempt(ep: ZarrEpisode, key: str, windows: list[tuple[int, int]]) -> Any:
    """Return the rows of windows, or the error that came instead."""
    try:
        return ep.read({key: windows})[key]
    except EgoloaderError as error:
        return error


def checked(data: bytes) -> bytes:
    """Return data with its crc32c behind it."""
    return data + struct.pack("<I", google_crc32c.value(data))
