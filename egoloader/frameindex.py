"""Indices that carry what a sampler knows of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["FrameIndex", "Marks", "marks_of"]


class FrameIndex(int):
    """An index of a dataset, drawn by a sampler; a plain number stands for epoch 0, no repeat.

    Args:
        index: into the dataset.
        epoch: that it is drawn in, on which the sample's randomness depends.
        is_repeat: whether it only fills a batch up, having been drawn in this epoch already.
    """

    epoch: int
    is_repeat: bool

    def __new__(cls, index: int, epoch: int = 0, is_repeat: bool = False) -> FrameIndex:
        """Make an index."""
        made = super().__new__(cls, index)
        made.epoch, made.is_repeat = epoch, is_repeat
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return FrameIndex, (int(self), self.epoch, self.is_repeat)

    def at(self, index: int) -> FrameIndex:
        """Return another index, drawn in the same epoch."""
        return FrameIndex(index, self.epoch, self.is_repeat)


class Marks(NamedTuple):
    """What a sampler knows of B samples.

    Attributes:
        epochs: B epochs.
        is_repeat: (B,) bool.
        is_replaced: (B,) bool, whether a sample is there in the place of a bad one.
    """

    epochs: Sequence[int]
    is_repeat: npt.NDArray[np.bool_]
    is_replaced: npt.NDArray[np.bool_]

    def at(self, places: npt.NDArray[Any]) -> Marks:
        """Return those of some samples, (b,) places of them."""
        epochs = [self.epochs[place] for place in places.tolist()]
        return Marks(epochs, self.is_repeat[places], self.is_replaced[places])


def marks_of(indices: Sequence[Any]) -> Marks:
    """Return what indices carry."""
    drawn = [index if isinstance(index, FrameIndex) else _PLAIN for index in indices]
    is_repeat = np.fromiter((index.is_repeat for index in drawn), np.bool_, len(drawn))
    is_replaced = np.zeros(len(drawn), dtype=np.bool_)
    return Marks([index.epoch for index in drawn], is_repeat, is_replaced)


_PLAIN = FrameIndex(0)
