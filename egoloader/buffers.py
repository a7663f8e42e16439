"""Recycled memory for batches: new memory costs a page fault for every 4 kB that is written.

A buffer is lent out under a fresh alias. The alias is at the root of all memory views that are
made of it, in NumPy and in PyTorch, so it goes when the last of them does, and only then does the
buffer come back.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["LEAST_BYTES", "Buffers", "Fence", "cuda_fence", "no_fence"]

#: Smaller memory is not worth recycling.
LEAST_BYTES = 64 * 2**10

#: Called when a buffer is let go; returns what tells whether the copies out of it are done.
Fence = Callable[[], Callable[[], bool]]
Buffer = npt.NDArray[np.uint8]


def no_fence() -> Callable[[], bool]:
    """Return what says at once that nothing reads the buffer any more."""
    return _is_done


def cuda_fence(device: int) -> Fence:
    """Return a fence for copies to a GPU.

    It records an event behind what the current stream of the thread that lets a buffer go was
    asked for. Copies on another stream must be over, or waited for by that one, before.
    """

    def record() -> Callable[[], bool]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        done: Callable[[], bool] = event.query
        return done

    return record


def _is_done() -> bool:
    return True


class Buffers:
    """Memory that batches are made in, kept for the next when they are gone.

    Where all buffers are held it allocates; it never waits. Safe from threads without a lock, as a
    lease may end anywhere, in the middle of `allocate` too.

    Args:
        capacity: buffers that are kept of each key.
        pin: whether memory is page-locked, for copies to a GPU that don't wait.
        fence: see `Fence`.
    """

    def __init__(self, capacity: int, *, pin: bool, fence: Fence) -> None:
        self._capacity, self._pin, self._fence = capacity, pin, fence
        self._free: dict[str, deque[tuple[Buffer, Callable[[], bool]]]] = {}
        self._pid = os.getpid()

    def allocate(self, key: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return memory of a shape and dtype, recycled if any is free; see `batch.Allocate`."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if num_bytes < LEAST_BYTES:
            return np.empty(shape, dtype=dtype)
        lease = _Lease(self, key, self._take(key, num_bytes))
        memory = np.asarray(lease)[:num_bytes]
        return memory.view(dtype).reshape(shape)

    def num_free(self, key: str) -> int:
        """Return how many buffers of a key are waiting to be used again."""
        return len(self._free.get(key, ()))

    def _take(self, key: str, num_bytes: int) -> Buffer:
        if self._pid != os.getpid():
            # A forked child's copies of its parent's buffers are not pinned, nor its fences any.
            self._free, self._pid = {}, os.getpid()
        free = self._free.setdefault(key, deque())
        for _ in range(len(free)):
            try:
                buffer, is_done = free.pop()  # the last one back may still be in a cache
            except IndexError:  # another thread was faster
                break
            if not is_done():
                free.appendleft((buffer, is_done))
            elif buffer.nbytes >= num_bytes:
                return buffer
        return self._make(num_bytes)

    def _make(self, num_bytes: int) -> Buffer:
        if not self._pin:
            return np.empty(num_bytes, dtype=np.uint8)
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy()

    def give_back(self, key: str, buffer: Buffer, pid: int) -> None:
        """Keep a buffer whose lease is over; of too many, one that nothing reads is let go."""
        if pid != os.getpid():
            return  # a forked child has a copy of its parent's lease
        free = self._free.setdefault(key, deque())
        free.append((buffer, self._fence()))
        for _ in range(len(free) if len(free) > self._capacity else 0):
            try:
                waiting = free.popleft()
            except IndexError:
                return
            if waiting[1]():
                return
            free.append(waiting)  # let go now, its memory could be another's while it is read


class _Lease:
    """A buffer on loan; NumPy takes it for memory, and keeps it as long as any view is left."""

    def __init__(self, buffers: Buffers, key: str, buffer: Buffer) -> None:
        self._buffers, self._key, self._buffer = buffers, key, buffer
        self._pid = os.getpid()

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self._buffer.__array_interface__

    def __del__(self) -> None:
        self._buffers.give_back(self._key, self._buffer, self._pid)
