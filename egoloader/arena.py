"""Memory for the stored bytes of a batch's frames, used again for the next ones.

New memory of a JPEG's size comes from the system a page at a time, and goes back to it with every
batch: that costs more than reading the bytes. What was just written is still in the processor's
caches, too, so one frame's bytes go where the last one's were.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

__all__ = ["KEPT_BYTES", "Arena", "lent_arena"]

#: Bytes that an arena keeps from one batch to the next, at most.
KEPT_BYTES = 32 * 2**20
_LEAST_BYTES = 2**18

Memory = npt.NDArray[np.uint8]


class Arena:
    """Hands out its memory, one piece at a time."""

    def __init__(self) -> None:
        self._memory: Memory = np.empty(0, dtype=np.uint8)

    def take(self, size: int) -> Memory:
        """Return (size,) uint8 memory, which is good until more is taken."""
        if size > self._memory.nbytes:
            # Half as much again, so that sizes that grow slowly don't make new memory each time.
            self._memory = np.empty(max(size + size // 2, _LEAST_BYTES), dtype=np.uint8)
        return self._memory[:size]

    def trim(self) -> None:
        """Let memory go that is larger than `KEPT_BYTES`."""
        if self._memory.nbytes > KEPT_BYTES:
            self._memory = np.empty(0, dtype=np.uint8)

    @property
    def num_bytes(self) -> int:
        """Bytes that it has."""
        return self._memory.nbytes


#: Arenas that nobody uses; as many as were ever in use at once, up to a number.
_free: deque[Arena] = deque(maxlen=16)


class _Loan:
    """An arena while it is lent out."""

    def __enter__(self) -> Arena:
        try:
            self._arena = _free.pop()
        except IndexError:
            self._arena = Arena()
        return self._arena

    def __exit__(self, *_: object) -> None:
        self._arena.trim()
        _free.append(self._arena)


def lent_arena() -> _Loan:
    """Lend out an arena that nobody else has, within a `with` block."""
    return _Loan()
