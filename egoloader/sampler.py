"""The order in which frames are drawn: a pure function of length, batch size, seed and pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from egoloader.errors import SettingsError

__all__ = ["ShuffledBatches"]


class ShuffledBatches:
    """Every frame of a source once a pass, shuffled, in batches; all full but the last.

    Args:
        num_frames: frames of the source.
        batch_size: frames of a batch.
        seed: of the shuffle.

    Raises:
        SettingsError: no frames, or a batch size below 1.
    """

    def __init__(self, num_frames: int, batch_size: int, seed: int) -> None:
        if num_frames < 1:
            raise SettingsError(f"there must be at least one frame to draw, got {num_frames}")
        if type(batch_size) is not int or batch_size < 1:
            raise SettingsError(f"batch_size must be a whole number above 0, got {batch_size!r}")
        self._num_frames, self._batch_size, self._seed = num_frames, batch_size, seed

    def __len__(self) -> int:
        """Return the number of batches of one pass."""
        return -(-self._num_frames // self._batch_size)

    def from_batch(self, number: int) -> Iterator[list[int]]:
        """Yield batches of frame indices without end, from batch `number` on, counted over passes.

        Pass p holds the batches p * len(self) to (p + 1) * len(self), and has an order of its own.
        """
        while True:
            cycle, first = divmod(number, len(self))
            order = self._order(cycle)
            for batch in range(first, len(self)):
                start = batch * self._batch_size
                yield order[start : start + self._batch_size].tolist()
                number += 1

    def _order(self, cycle: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.random.default_rng([self._seed, cycle]).permutation(self._num_frames)
