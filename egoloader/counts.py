"""What reading cost, counted where it happens: per array, reads, rows, chunks, requests, bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping

__all__ = ["KeyCounter", "KeyCounts", "ReadCounts"]


@dataclasses.dataclass(frozen=True, slots=True)
class KeyCounts:
    """The cost of one array so far.

    Attributes:
        reads: calls to the reader.
        rows: rows copied out of decoded chunks.
        chunks: chunks decoded.
        requests: requests to the store for chunks and shard indexes, metadata left out.
        bytes: bytes that those requests returned.
    """

    reads: int = 0
    rows: int = 0
    chunks: int = 0
    requests: int = 0
    bytes: int = 0

    def __add__(self, other: KeyCounts) -> KeyCounts:
        return KeyCounts(
            self.reads + other.reads,
            self.rows + other.rows,
            self.chunks + other.chunks,
            self.requests + other.requests,
            self.bytes + other.bytes,
        )


class KeyCounter:
    """The running cost of one array. Safe to add to from threads."""

    __slots__ = ("_lock", "bytes", "chunks", "reads", "requests", "rows")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Set every count back to zero."""
        with self._lock:
            self.reads = self.rows = self.chunks = self.requests = self.bytes = 0

    def add_read(self, rows: int, chunks: int) -> None:
        """Count one call to a reader, the rows it copied out, and the chunks it decoded."""
        with self._lock:
            self.reads += 1
            self.rows += rows
            self.chunks += chunks

    def add_chunk(self) -> None:
        """Count one decoded chunk."""
        with self._lock:
            self.chunks += 1

    def add_request(self, size: int) -> None:
        """Count one request to the store and the bytes that it returned."""
        with self._lock:
            self.requests += 1
            self.bytes += size

    def snapshot(self) -> KeyCounts:
        """Return the counts as they stand."""
        with self._lock:
            return KeyCounts(self.reads, self.rows, self.chunks, self.requests, self.bytes)


class ReadCounts(Mapping[str, KeyCounts]):
    """Counts per array; an array that was never read counts zeros. Safe to add to from threads."""

    def __init__(self) -> None:
        self._counters: dict[str, KeyCounter] = {}

    def of(self, key: str) -> KeyCounter:
        """Return an array's running count, to add to."""
        counter = self._counters.get(key)
        # Threads may come here together; all take the one that was first put in.
        return self._counters.setdefault(key, KeyCounter()) if counter is None else counter

    def __getitem__(self, key: str) -> KeyCounts:
        counter = self._counters.get(key)
        return KeyCounts() if counter is None else counter.snapshot()

    def __iter__(self) -> Iterator[str]:
        return iter([key for key in tuple(self._counters) if self[key] != KeyCounts()])

    def __contains__(self, key: object) -> bool:
        return any(key == counted for counted in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"ReadCounts({dict(self)!r})"

    @property
    def total(self) -> KeyCounts:
        """The sum over all arrays."""
        return sum(self.values(), KeyCounts())

    def reset(self) -> None:
        """Set every count back to zero."""
        for counter in tuple(self._counters.values()):
            counter.clear()
