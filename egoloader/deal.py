"""Frames of an epoch for each rank, and batches of them of which every rank has as many."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from egoloader.errors import SettingsError, near_miss
from egoloader.shuffles import Items

__all__ = ["Batching", "Tail", "check_tail", "deal", "shares"]

Tail = Literal["spread", "drop", "repeat"]


def shares(count: int, world_size: int) -> list[tuple[int, int]]:
    """Cut `count` things into one half-open range a rank; they differ by at most one."""
    bounds = [count * rank // world_size for rank in range(world_size + 1)]
    return list(itertools.pairwise(bounds))


def deal(items: Items, world_size: int) -> list[Items]:
    """Deal parts of episodes to ranks, in their order, so that frames differ by at most one.

    Parts go to a rank whole, but for those that lie across the end of a rank's share, at most
    `world_size` - 1 cuts, which are cut there.
    """
    stops = np.cumsum(items.stops - items.starts)
    starts = stops - (items.stops - items.starts)
    dealt = []
    for low, high in shares(items.num_frames, world_size):
        first = int(np.searchsorted(stops, low, side="right"))
        last = int(np.searchsorted(starts, high, side="left")) if low < high else first
        mine = slice(first, last)
        begin = items.starts[mine] + np.maximum(low - starts[mine], 0)
        end = items.stops[mine] - np.maximum(stops[mine] - high, 0)
        dealt.append(Items(items.numbers[mine], begin, end))
    return dealt


@dataclass(frozen=True, slots=True)
class Batching:
    """How the frames of every rank become as many batches.

    Attributes:
        totals: frames of each rank; they differ by at most one.
        batch_size: frames of a full batch.
        tail: `spread`, every frame once: all batches are full but the last, and where that would be
            empty, one frame moves over from the batch before. `drop`: full batches only. `repeat`:
            the last batch is filled up with frames that are marked as repeats.

    Raises:
        SettingsError: `spread`, and a rank has fewer frames than batches; `drop`, and a rank has
            no full batch.
    """

    totals: tuple[int, ...]
    batch_size: int
    tail: Tail

    def __post_init__(self) -> None:
        least, count = min(self.totals), self.num_batches
        where = f"{sum(self.totals)} frames over {len(self.totals)} ranks"
        if self.tail == "spread" and least < count:
            raise SettingsError(
                f"tail: spread can't give every rank as many batches: {where}, and rank "
                f"{self.totals.index(least)} has {least} for {count} batches of at most "
                f"{self.batch_size}; set tail: repeat or drop, or use fewer ranks"
            )
        if self.tail == "drop" and not count:
            raise SettingsError(
                f"tail: drop leaves no batch: {where} in batches of {self.batch_size}; set tail: "
                "repeat or spread, or a smaller batch_size"
            )

    @property
    def num_batches(self) -> int:
        """Batches of every rank."""
        if self.tail == "drop":
            return min(self.totals) // self.batch_size
        return -(-max(self.totals) // self.batch_size)

    @property
    def left_out(self) -> int:
        """Frames that no rank draws."""
        return sum(self.totals) - sum(
            self.drawn(rank, self.num_batches) for rank in range(len(self.totals))
        )

    def drawn(self, rank: int, batches: int) -> int:
        """Return how many of its frames a rank has drawn behind so many batches."""
        total, full = self.totals[rank], batches * self.batch_size
        is_last_empty = total <= (self.num_batches - 1) * self.batch_size
        if self.tail == "spread" and is_last_empty and batches == self.num_batches - 1:
            return total - 1
        return min(full, total)

    def repeats(self, rank: int, batch: int) -> int:
        """Return how many repeats a rank's batch is filled up with."""
        if self.tail != "repeat":
            return 0
        return self.batch_size - (self.drawn(rank, batch + 1) - self.drawn(rank, batch))


def check_tail(tail: object) -> None:
    """Refuse a tail that there is not.

    Raises:
        SettingsError: there is none of that name.
    """
    if tail not in get_args(Tail):
        raise SettingsError(f"tail is {tail!r}; {near_miss(str(tail), get_args(Tail))}")
