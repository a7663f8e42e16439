"""The order in which frames are drawn: a pure function of name, length, batch size and seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from egoloader.errors import SettingsError

__all__ = ["BatchRun", "InOrder", "ShuffledBatches", "check_batch_size"]


class ShuffledBatches:
    """Every frame of a source once a pass, shuffled, in batches; all full but a pass's last.

    Args:
        name: the source's name, so that sources of one length have orders of their own.
        num_frames: frames of the source.
        batch_size: frames of a batch.
        seed: of the shuffle.

    Raises:
        SettingsError: no frames, or a batch size below 1.
    """

    def __init__(self, name: str, num_frames: int, batch_size: int, seed: int) -> None:
        if num_frames < 1:
            raise SettingsError(f"{name!r} has no frames to draw")
        check_batch_size(batch_size)
        self._num_frames, self._batch_size = num_frames, batch_size
        self._seed = (seed, zlib.crc32(name.encode()))

    def __len__(self) -> int:
        """Return the number of batches of one pass."""
        return -(-self._num_frames // self._batch_size)

    def run(self, start: int, count: int) -> BatchRun:
        """Return `count` batches from batch `start` on, counted over all passes.

        Pass p holds the batches p * len(self) to (p + 1) * len(self), in an order of its own.
        """
        return BatchRun(self, start, count)

    def from_batch(self, number: int) -> Iterator[list[int]]:
        """Yield batches of frame indices without end, from batch `number` on."""
        while True:
            cycle, first = divmod(number, len(self))
            order = np.random.default_rng([*self._seed, cycle]).permutation(self._num_frames)
            for batch in range(first, len(self)):
                start = batch * self._batch_size
                yield order[start : start + self._batch_size].tolist()
                number += 1


class BatchRun:
    """A stretch of batches, for a `DataLoader`'s `batch_sampler`; batches are made when drawn."""

    def __init__(self, batches: ShuffledBatches, start: int, count: int) -> None:
        self._batches, self._start, self._count = batches, start, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[list[int]]:
        drawn = self._batches.from_batch(self._start)
        for _ in range(self._count):
            yield next(drawn)


class InOrder(Sequence[Sequence[int]]):
    """Batches of consecutive frame indices, as ranges; all full but the last.

    Args:
        num_frames: frames in all.
        batch_size: frames of a batch.

    Raises:
        SettingsError: a batch size below 1.
    """

    def __init__(self, num_frames: int, batch_size: int) -> None:
        check_batch_size(batch_size)
        self._starts, self._frames = range(0, num_frames, batch_size), range(num_frames)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: Any) -> Any:
        start = self._starts[number]
        return self._frames[start : start + self._starts.step]


def check_batch_size(batch_size: object) -> None:
    """Refuse a batch size that is no whole number above 0.

    Raises:
        SettingsError: it is none.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise SettingsError(f"batch_size must be a whole number above 0, got {batch_size!r}")
