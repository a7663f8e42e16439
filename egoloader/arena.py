"""Memory for the stored bytes of one batch, used again for the next that the thread makes.

New memory of a JPEG's size comes from the system a page at a time, and goes back to it with every
batch: that costs more than reading the bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

__all__ = ["KEPT_BYTES", "Arena", "thread_arena"]

#: Bytes that a thread keeps from one batch to the next, at most.
KEPT_BYTES = 64 * 2**20
_BLOCK_BYTES = 2**20
#: Where pieces begin, so that none shares a cache line with another.
_ALIGNMENT = 64

Memory = npt.NDArray[np.uint8]


class Arena:
    """Hands out pieces of memory, all of which are taken back at once by `clear`."""

    def __init__(self) -> None:
        self._blocks: list[Memory] = []
        self._left = 0

    def take(self, size: int) -> Memory:
        """Return (size,) uint8 memory, which is good until the arena is cleared."""
        if size > self._left or not self._blocks:
            block = np.empty(max(size, _BLOCK_BYTES, 2 * self.num_bytes), dtype=np.uint8)
            self._blocks.append(block)
            self._left = block.nbytes
        block = self._blocks[-1]
        start = block.nbytes - self._left
        self._left -= min(self._left, -(-size // _ALIGNMENT) * _ALIGNMENT)
        return block[start : start + size]

    def clear(self) -> None:
        """Take all pieces back; the next ones come from the largest block."""
        largest = self._blocks[-1:]
        self._blocks = [block for block in largest if block.nbytes <= KEPT_BYTES]
        self._left = self.num_bytes

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks)


_here = threading.local()


@contextmanager
def thread_arena() -> Iterator[Arena]:
    """Lend out the thread's arena, cleared afterwards; another one if it is lent out already."""
    arena: Arena | None = getattr(_here, "arena", None)
    _here.arena = None
    if arena is None:
        arena = Arena()
    try:
        yield arena
    finally:
        arena.clear()
        _here.arena = arena
