"""All frames of a dataset in their own order, over the ranks of a job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.deal import Batching, Tail, check_tail, deal
from egoloader.errors import SettingsError, check_whole
from egoloader.order import check_done, check_ranks
from egoloader.remainder import broken, check_parts
from egoloader.shuffles import Items

__all__ = ["InOrder", "fitting_tail"]

IntArray = npt.NDArray[np.int64]
#: Ranks that a state is believed to be of where there are fewer frames than ranks.
_MOST_RANKS = 2**16


class InOrder:
    """Consecutive frames in batches; each rank has a stretch of its own.

    Args:
        num_frames: of the dataset.
        batch_size: frames of a full batch.
        rank: whose batches these are.
        world_size: how many ranks there are.
        tail: how a pass ends; see `Batching`.
        data: what tells the dataset from others, for resuming.

    Raises:
        SettingsError: an option that can't be meant, or too few frames for the tail asked for.
    """

    covers = True

    def __init__(
        self,
        num_frames: int,
        batch_size: int,
        rank: int = 0,
        world_size: int = 1,
        tail: Tail = "spread",
        data: str = "",
    ) -> None:
        check_whole("batch_size", batch_size, 1)
        check_ranks(rank, world_size)
        check_tail(tail)
        self._num_frames, self._batch_size, self._tail = num_frames, batch_size, tail
        self._data = data
        self._rank, self._world_size = rank, world_size
        self._restored: tuple[int, int, Items] | None = None  # an epoch, batches done, what is left
        self._whole = _runs([(0, num_frames)] if num_frames else [])
        self._batching(self._whole, world_size)

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Order`."""
        return {
            "number of frames": self._num_frames,
            "list of episodes": self._data,
            "batch_size": self._batch_size,
            "tail": self._tail,
            "shuffle": False,
        }

    def num_batches(self, epoch: int) -> int:
        """See `Order`."""
        first, left = self._left_of(epoch)
        return first + self._batching(left, self._world_size).num_batches

    def left_out(self, epoch: int) -> int:
        """See `Order`."""
        return self._batching(self._left_of(epoch)[1], self._world_size).left_out

    def batches(self, epoch: int, done: int) -> Iterator[tuple[IntArray, int]]:
        """Yield, per batch that is left, the indices and how many at their end are repeats."""
        first, left = self._left_of(epoch)
        batching = self._batching(left, self._world_size)
        mine = deal(left, self._world_size)[self._rank]
        for batch in range(done - first, batching.num_batches):
            span = (batching.drawn(self._rank, batch), batching.drawn(self._rank, batch + 1))
            indices = _rows(_between(mine, *span))
            repeats = batching.repeats(self._rank, batch)
            # The very first frames again: any would do.
            yield np.concatenate([indices, np.arange(repeats) % self._num_frames]), repeats

    def state(self, epoch: int, done: int) -> dict[str, Any]:
        """See `Order`."""
        first, left = self._left_of(epoch)
        batching, remaining = self._batching(left, self._world_size), []
        for rank, part in enumerate(deal(left, self._world_size)):
            rest = _between(part, batching.drawn(rank, done - first), part.num_frames)
            remaining += np.stack(rest[1:], axis=1).tolist()
        return {
            "world_size": self._world_size,
            "first": first,
            "base": np.stack(left[1:], axis=1).tolist(),
            "left": remaining,
        }

    def restore(self, state: dict[str, Any]) -> tuple[int, int]:
        """See `Order`.

        Raises:
            SettingsError: what is left is too little for so many ranks, or the state is broken.
        """
        self._check(state)
        epoch, done, restored = state["epoch"], state["done"], None
        if state["world_size"] == self._world_size:
            restored = (epoch, state["first"], _runs(state["base"]))
        elif done:
            left, full_step = _runs(state["left"]), self._batch_size * self._world_size
            if self._tail == "drop" and left.num_frames < full_step:
                epoch, done = epoch + 1, 0
            else:
                self._batching(left, self._world_size)
                restored = (epoch, done, left)
        self._restored = restored
        return epoch, done

    def forget(self) -> None:
        """See `Order`."""
        self._restored = None

    def _left_of(self, epoch: int) -> tuple[int, Items]:
        """Return the batches done before the last deal, and what was dealt."""
        if self._restored is not None and self._restored[0] == epoch:
            return self._restored[1:]
        return 0, self._whole

    def _check(self, state: dict[str, Any]) -> None:
        """Refuse a state that can't be one of these frames."""
        check_whole("the state's first", state["first"], 0)
        if state["world_size"] > max(self._num_frames, _MOST_RANKS):
            raise broken(f"it is of {state['world_size']} ranks")
        base, left = _runs(state["base"]), _runs(state["left"])
        for spans in (base, left):
            check_parts(spans, np.array([self._num_frames]))
        batching = self._batching(base, state["world_size"])
        check_done(state, batching)
        done = state["done"] - state["first"]
        drawn = sum(batching.drawn(rank, done) for rank in range(state["world_size"]))
        if left.num_frames != base.num_frames - drawn:
            raise broken(f"{left.num_frames} frames are left behind {state['done']} batches")

    def _batching(self, left: Items, world_size: int) -> Batching:
        totals = tuple(part.num_frames for part in deal(left, world_size))
        return Batching(totals, self._batch_size, self._tail)


def fitting_tail(num_frames: int, batch_size: int, world_size: int) -> Tail:
    """Return the tail by which every rank has as many batches and none lacks a frame.

    It is `spread` where it can be, else `repeat`, whose repeats are marked.
    """
    try:
        InOrder(num_frames, batch_size, 0, world_size, "spread")
    except SettingsError:
        return "repeat"
    return "spread"


def _runs(spans: list[tuple[int, int]]) -> Items:
    starts, stops = np.array(spans, dtype=np.int64).reshape(-1, 2).T
    return Items(np.zeros_like(starts), starts, stops)


def _between(items: Items, low: int, high: int) -> Items:
    """Return the frames `low` to `high` of what items hold, one after the other."""
    lengths = items.stops - items.starts
    before = np.cumsum(lengths) - lengths
    starts = items.starts + np.clip(low - before, 0, lengths)
    stops = items.starts + np.clip(high - before, 0, lengths)
    some = stops > starts
    return Items(items.numbers[some], starts[some], stops[some])


def _rows(items: Items) -> IntArray:
    pairs = zip(items.starts.tolist(), items.stops.tolist(), strict=True)
    return np.concatenate([np.empty(0, np.int64), *(np.arange(a, b) for a, b in pairs)])
