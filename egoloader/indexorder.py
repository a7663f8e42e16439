"""Orders of frames as indices of the dataset that serves them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from egoloader.columns import ListedFrames, digest_of
from egoloader.order import Order, OrderSettings
from egoloader.poolorder import PoolOrder
from egoloader.roster import Roster

__all__ = ["IndexOrder", "IndexedOrder", "pooled_indices"]

IntArray = npt.NDArray[np.int64]


class IndexOrder(Protocol):
    """An `Order` whose batches are indices of a dataset."""

    covers: bool

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Order`."""
        ...

    def num_batches(self, epoch: int) -> int:
        """See `Order`."""
        ...

    def left_out(self, epoch: int) -> int:
        """See `Order`."""
        ...

    def batches(self, epoch: int, done: int) -> Iterator[tuple[IntArray, int]]:
        """Yield, per batch that is left, the indices and how many at their end are repeats."""
        ...

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """See `Order`."""
        ...

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """See `Order`."""
        ...

    def forget(self) -> None:
        """See `Order`."""
        ...


def pooled_indices(data: ListedFrames, settings: OrderSettings) -> IndexOrder:
    """Return the pooled order of a dataset's frames for one rank, as indices.

    Raises:
        SettingsError: no frames.
    """
    listed = data.frames_by_episode()
    roster = Roster(listed)
    return IndexedOrder(PoolOrder(roster, settings, 0, 1), data, roster.ids, {})


class IndexedOrder:
    """An order of episodes' frames, as indices of a dataset.

    Args:
        order: of the frames.
        data: the dataset.
        ids: of the episodes that the order numbers.
        kept: per filtered episode, its served frames that are drawn.
    """

    def __init__(
        self,
        order: Order,
        data: ListedFrames,
        ids: Sequence[Any],
        kept: Mapping[str, IntArray],
    ) -> None:
        self._order, self.covers, self.num_resident = order, order.covers, 0
        listed = data.frames_by_episode()
        stops = np.cumsum([frames for _, frames in listed])
        starts = {
            name: int(stop) - frames for (name, frames), stop in zip(listed, stops, strict=True)
        }
        self._starts = np.array([starts[name] for name in ids], dtype=np.int64)
        self._kept = {n: kept[name] for n, name in enumerate(ids) if name in kept}
        self._digests = {
            "frame_filter": digest_of(kept),
            "quarantine": digest_of(data.spared),
        }
        self._seed = data.seed

    def drawn(self, lengths: IntArray, weights: npt.NDArray[np.float64] | None) -> IntArray:
        """Return the indices that may be drawn: (n,) int64.

        Args:
            lengths: (e,) int64, drawn frames of each episode.
            weights: of all their frames, one behind the other; those of 0 are never drawn.
        """
        parts = [
            start + self._kept.get(number, np.arange(length))
            for number, (start, length) in enumerate(
                zip(self._starts.tolist(), lengths.tolist(), strict=True)
            )
        ]
        indices = np.concatenate(parts)
        return indices if weights is None else indices[weights > 0]

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Order`."""
        # These first: what they say of is why numbers of frames differ, too.
        return {**self._digests, **self._order.fingerprint(), "the data's seed": self._seed}

    def num_batches(self, epoch: int) -> int:
        """See `Order`."""
        return self._order.num_batches(epoch)

    def left_out(self, epoch: int) -> int:
        """See `Order`."""
        return self._order.left_out(epoch)

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """See `Order`."""
        return self._order.state(epoch, done)

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """See `Order`."""
        return self._order.restore(state)

    def forget(self) -> None:
        """See `Order`."""
        self._order.forget()

    def batches(self, epoch: int, done: int) -> Iterator[tuple[IntArray, int]]:
        """See `IndexOrder`."""
        for draws in self._order.batches(epoch, done):
            frames, self.num_resident = draws.frames, draws.num_resident
            if self._kept:
                pairs = zip(draws.numbers.tolist(), frames.tolist(), strict=True)
                frames = np.array([self._kept[n][f] if n in self._kept else f for n, f in pairs])
            yield self._starts[draws.numbers] + frames, draws.num_repeats
