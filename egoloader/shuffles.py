"""Episodes shuffled, each on its own, in parts: which frames, and when their clocks ring."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.seeding import exponentials, permutation, stream_key

__all__ = ["Items", "Shuffles"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: Clocks that are set at once, so that long episodes need little memory beside their own.
_BLOCK = 2**16


class Items(NamedTuple):
    """Parts of episodes, in the order of admission; each a range of the episode's own shuffle.

    Attributes:
        numbers: (n,) of the episodes.
        starts: (n,) first place in the shuffle.
        stops: (n,) one past the last.
    """

    numbers: IntArray
    starts: IntArray
    stops: IntArray

    @property
    def num_frames(self) -> int:
        """Frames of all parts."""
        return int((self.stops - self.starts).sum())


@dataclass(frozen=True, slots=True)
class Shuffles:
    """Each episode's own shuffle in one epoch.

    Attributes:
        seed: of the order.
        epoch: of the order.
        lengths: (n,) frames of each episode.
        first: batches that were done when what was left was dealt anew.
    """

    seed: int
    epoch: int
    lengths: IntArray
    first: int = 0

    def frames(self, number: int, start: int, stop: int) -> IntArray:
        """Return a part of an episode's shuffle: (stop - start,) frame indices."""
        key = stream_key("frames", self.seed, self.epoch, number)
        return permutation(key, int(self.lengths[number]))[start:stop]

    def rings(self, number: int, start: int, stop: int) -> FloatArray:
        """Return when the clocks of a part ring, ascending: (stop - start,) from its admission.

        The k-th gap between exponential times is itself exponential, at the rate of those left
        (Rényi 1953), so that nothing needs sorting. Clocks that were dealt anew are set anew: of
        those that did not ring before, one knows that they were slow.
        """
        anew = (self.first,) if self.first else ()
        key = stream_key("rings", self.seed, self.epoch, number, start, *anew)
        gaps = np.empty(stop - start)
        for low in range(0, len(gaps), _BLOCK):
            block = gaps[low : low + _BLOCK]
            left = np.arange(len(gaps) - low, len(gaps) - low - len(block), -1)
            np.divide(exponentials(key, len(block), low), left, out=block)
        return np.cumsum(gaps, out=gaps)
