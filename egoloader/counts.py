"""What reading cost, counted where it happens: per array, reads, rows, chunks, requests, bytes."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Mapping

__all__ = ["KeyCounts", "ReadCounts"]


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


class ReadCounts(Mapping[str, KeyCounts]):
    """Counts per array; an array that was never read counts zeros. Safe to add to from threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, KeyCounts] = {}

    def __getitem__(self, key: str) -> KeyCounts:
        return self._counts.get(key, KeyCounts())

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def __repr__(self) -> str:
        return f"ReadCounts({self._counts!r})"

    @property
    def total(self) -> KeyCounts:
        """The sum over all arrays."""
        return sum(self.values(), KeyCounts())

    def add(self, key: str, cost: KeyCounts) -> None:
        """Add a cost to an array's counts."""
        with self._lock:
            self._counts[key] = self._counts.get(key, KeyCounts()) + cost

    def reset(self) -> None:
        """Set every count back to zero."""
        with self._lock:
            self._counts.clear()
