"""Orders: the batches of every epoch and rank, by settings, data and position alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from egoloader.deal import Batching, Tail, check_tail
from egoloader.errors import SettingsError, check_whole
from egoloader.remainder import broken
from egoloader.roster import Roster

__all__ = [
    "Draws",
    "Order",
    "OrderSettings",
    "check_done",
    "check_frames",
    "check_ranks",
    "data_fingerprint",
]

IntArray = npt.NDArray[np.int64]
#: Changes with whatever changes an order that settings and data leave as it was.
_KIND = "clocks 2"
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OrderSettings:
    """What fixes an order, beside the episodes.

    Args:
        batch_size: frames of a full batch.
        pool_size: episodes that a rank has resident at most.
        seed: of the order.
        tail: how an epoch ends; see `Batching`.
        byte_budget: bytes that a rank's resident episodes have at most.

    Raises:
        SettingsError: an option that can't be meant.
    """

    batch_size: int = 32
    pool_size: int = 32
    seed: int = 0
    tail: Tail = "spread"
    byte_budget: int | None = None

    def __post_init__(self) -> None:
        check_whole("batch_size", self.batch_size, 1)
        check_whole("pool_size", self.pool_size, 1)
        check_whole("seed", self.seed, 0)
        check_tail(self.tail)
        if self.byte_budget is not None:
            check_whole("byte_budget", self.byte_budget, 1)


class Draws(NamedTuple):
    """The frames of one batch of one rank.

    Attributes:
        numbers: (n,) of the episodes in the roster.
        frames: (n,) frame indices.
        num_repeats: how many of them, at the end, are drawn again to fill the batch.
        num_resident: episodes that are resident behind it.
    """

    numbers: IntArray
    frames: IntArray
    num_repeats: int
    num_resident: int


class Order(Protocol):
    """What a sampler takes its batches from; a position is an epoch, and batches of it done."""

    #: Whether an epoch has each frame exactly once.
    covers: bool

    def fingerprint(self) -> Mapping[str, Any]:
        """Return what the order depends on, small enough for a checkpoint."""
        ...

    def num_batches(self, epoch: int) -> int:
        """Return an epoch's batches, those done included."""
        ...

    def left_out(self, epoch: int) -> int:
        """Return the frames of an epoch that no rank draws."""
        ...

    def batches(self, epoch: int, done: int) -> Iterator[Draws]:
        """Yield what is left of an epoch for this rank behind `done` batches."""
        ...

    def state(self, epoch: int, done: int) -> State:
        """Return plain values that tell what every rank has left at a position."""
        ...

    def restore(self, state: State) -> tuple[int, int]:
        """Take over a state, dealing what is left anew if the ranks are others; the position."""
        ...

    def forget(self) -> None:
        """Be as before any state was taken over."""
        ...


def check_ranks(rank: object, world_size: object) -> None:
    """Refuse a rank that is none of `world_size`.

    Raises:
        SettingsError: it is none.
    """
    check_whole("world_size", world_size, 1)
    check_whole("rank", rank, 0)
    assert isinstance(rank, int)
    assert isinstance(world_size, int)
    if rank >= world_size:
        raise SettingsError(f"rank {rank} is none of {world_size}: they are 0 to {world_size - 1}")


def check_done(state: State, batching: Batching) -> None:
    """Refuse a state whose position is outside of its epoch.

    Args:
        state: with `done` batches, `first` of them before what is left was dealt.
        batching: of what was dealt then.

    Raises:
        SettingsError: it is.
    """
    first, done = state["first"], state["done"]
    if not first <= done < first + batching.num_batches:
        raise broken(
            f"{done} batches are done of an epoch that has {batching.num_batches} behind {first}"
        )


def check_frames(roster: Roster) -> None:
    """Refuse to draw from nothing.

    Raises:
        SettingsError: there are no frames.
    """
    if not roster.ids:
        raise SettingsError("there are no episodes with frames to draw from")


def data_fingerprint(roster: Roster, digest: str) -> dict[str, Any]:
    """Return what tells the data of an order, of which the digest is known."""
    return {
        "number of episodes": len(roster.ids),
        "number of frames": roster.num_frames,
        "set of episodes": digest,
        "kind of order": _KIND,
    }
