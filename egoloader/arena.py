"""Memory for the stored bytes of one batch, used again for another when that is made.

New memory of a JPEG's size comes from the system a page at a time, and goes back to it with every
batch: that costs more than reading the bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

__all__ = ["KEPT_BYTES", "Arena", "lent_arena"]

#: Bytes that an arena keeps from one batch to the next, at most.
KEPT_BYTES = 128 * 2**20
_LEAST_BLOCK, _MOST_BLOCK = 2**20, 2**24
#: Where pieces begin, so that none shares a cache line with another.
_ALIGNMENT = 64

Memory = npt.NDArray[np.uint8]


class Arena:
    """Hands out pieces of memory, all of which are taken back at once by `clear`."""

    def __init__(self) -> None:
        self._blocks: list[Memory] = []
        self._block = self._used = 0

    def take(self, size: int) -> Memory:
        """Return (size,) uint8 memory, which is good until the arena is cleared."""
        while self._block < len(self._blocks):
            block, start = self._blocks[self._block], self._used
            if start + size <= block.nbytes:
                self._used = start + -(-size // _ALIGNMENT) * _ALIGNMENT
                return block[start : start + size]
            self._block, self._used = self._block + 1, 0
        common = min(max(self.num_bytes, _LEAST_BLOCK), _MOST_BLOCK)
        self._blocks.append(np.empty(max(size, common), dtype=np.uint8))
        return self.take(size)

    def clear(self) -> None:
        """Take all pieces back, and keep blocks for the next ones within `KEPT_BYTES`."""
        while self.num_bytes > KEPT_BYTES:
            self._blocks.pop()
        self._block = self._used = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(block.nbytes for block in self._blocks)


#: Arenas that nobody uses; as many as were ever in use at once, up to a number.
_free: deque[Arena] = deque(maxlen=16)


@contextmanager
def lent_arena() -> Iterator[Arena]:
    """Lend out an arena that nobody else has, and clear it afterwards."""
    try:
        arena = _free.pop()
    except IndexError:
        arena = Arena()
    try:
        yield arena
    finally:
        arena.clear()
        _free.append(arena)
