"""Indices that carry what a sampler knows of a sample."""

from __future__ import annotations

import operator
from collections.abc import Sequence, Sized
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.errors import FrameIndexError, IndexKindError, SettingsError

__all__ = ["FrameIndex", "Marks", "check_indices", "marks_of", "sets_of"]


class FrameIndex(int):
    """An index of a dataset, drawn by a sampler; a plain number stands for epoch 0, no repeat.

    Args:
        index: into the dataset.
        epoch: that it is drawn in, on which the sample's randomness depends.
        is_repeat: whether it only fills a batch up, having been drawn in this epoch already.
        among: the set of indices of which one may be served in its place where it is bad, as the
            dataset numbers them (`FrameDataset.draw_among`); 0 for all.
    """

    epoch: int
    is_repeat: bool
    among: int

    def __new__(
        cls, index: int, epoch: int = 0, is_repeat: bool = False, among: int = 0
    ) -> FrameIndex:
        """Make an index."""
        made = super().__new__(cls, index)
        made.epoch, made.is_repeat, made.among = epoch, is_repeat, among
        return made

    def __reduce__(self) -> tuple[object, ...]:
        return FrameIndex, (int(self), self.epoch, self.is_repeat, self.among)

    def at(self, index: int, among: int = 0) -> FrameIndex:
        """Return another index, drawn in the same epoch, among its own set or another one."""
        return FrameIndex(index, self.epoch, self.is_repeat, self.among or among)


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


def sets_of(indices: Sequence[Any]) -> list[int]:
    """Return the sets that indices were drawn among."""
    return [index.among if isinstance(index, FrameIndex) else 0 for index in indices]


def check_indices(indices: Sequence[int], length: int) -> npt.NDArray[np.int64]:
    """Return indices of a dataset of a length, none of them negative: (B,) int64.

    Raises:
        FrameIndexError: one is outside the dataset.
        IndexKindError: one is no whole number.
        SettingsError: they are no list.
    """
    if not isinstance(indices, Sized):
        raise SettingsError(f"a batch is a list of indices, got {indices!r}")
    checked = np.empty(len(indices), dtype=np.int64)
    for place, index in enumerate(indices):
        number = _whole(index)
        if not -length <= number < length:
            raise FrameIndexError(f"index {number} is outside a dataset of {length} frames")
        checked[place] = number % length
    return checked


def _whole(index: object) -> int:
    try:
        return operator.index(index)  # type: ignore[arg-type]
    except TypeError as error:
        hint = ""
        if isinstance(index, list):
            hint = "; many are asked for by __getitems__, and an EpisodePoolSampler, which yields "
            hint += "batches, is DataLoader's batch_sampler, not its sampler"
        raise IndexKindError(f"an index is a whole number, got {index!r:.60}{hint}") from error


_PLAIN = FrameIndex(0)
