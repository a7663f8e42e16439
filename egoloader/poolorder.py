"""The order in which every frame comes once an epoch, dealt to ranks, from pools of episodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.clocks import Clocks, Limits
from egoloader.deal import Batching, deal
from egoloader.errors import ResumeError, SettingsError, check_whole
from egoloader.order import (
    Draws,
    OrderSettings,
    check_done,
    check_frames,
    check_ranks,
    data_fingerprint,
)
from egoloader.pool import admission_order
from egoloader.remainder import broken, check_clocks, left_of, pack, unpack
from egoloader.roster import Roster
from egoloader.seeding import permutation, stream_key, uniforms
from egoloader.shuffles import Items, Shuffles

__all__ = ["PoolOrder"]

IntArray = npt.NDArray[np.int64]
State = dict[str, Any]


class _Deal:
    """What is left of an epoch, dealt to the ranks.

    Attributes:
        epoch: of it.
        first: batches that were done before.
        items: what is dealt, in the order of admission.
        parts: per rank, what it gets.
        batching: of the ranks' frames.
        begun: the position that it was restored at, and every rank's state there.
        ranks: every rank's clocks at the position that a state was last asked for, as a state has
            them all.
        at: that position.
        own: this rank's clocks at the position that batches were last asked from, and it.
    """

    def __init__(
        self,
        epoch: int,
        first: int,
        items: Items,
        lengths: IntArray,
        world_size: int,
        settings: OrderSettings,
    ) -> None:
        self.epoch, self.first, self.items = epoch, first, items
        self.parts = _deal_begun_first(items, world_size, lengths)
        totals = tuple(part.num_frames for part in self.parts)
        self.batching = Batching(totals, settings.batch_size, settings.tail)
        self.begun: tuple[int, list[State | None]] = (first, [None] * world_size)
        self.ranks: list[Clocks] = []
        self.at = first
        self.own: tuple[Clocks, int] | None = None


class PoolOrder:
    """Every frame once an epoch, from a bounded number of episodes at a time, over all ranks.

    Args:
        roster: the episodes.
        settings: of the order.
        rank: whose batches these are.
        world_size: how many ranks there are.

    Raises:
        SettingsError: no frames, an episode above the budget, a rank that is none, or too few
            frames for the tail asked for.
    """

    covers = True

    def __init__(self, roster: Roster, settings: OrderSettings, rank: int, world_size: int) -> None:
        check_ranks(rank, world_size)
        check_frames(roster)
        roster.check_budget(settings.byte_budget)
        self._roster, self._settings = roster, settings
        self._rank, self._world_size = rank, world_size
        self._limits = Limits(settings.pool_size, settings.byte_budget, roster.sizes)
        self._bounds = np.cumsum(roster.lengths)
        self._digest = roster.digest()
        self._restored: _Deal | None = None
        self._whole = {0: self._deal_whole(0)}  # of an epoch, and of one that is drawn ahead

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Order`."""
        return {
            **data_fingerprint(self._roster, self._digest),
            **asdict(self._settings),
            "weights": None,
        }

    def num_batches(self, epoch: int) -> int:
        """See `Order`."""
        dealt = self._deal_of(epoch)
        return dealt.first + dealt.batching.num_batches

    def left_out(self, epoch: int) -> int:
        """See `Order`."""
        return self._deal_of(epoch).batching.left_out

    def batches(self, epoch: int, done: int) -> Iterator[Draws]:
        """See `Order`."""
        dealt = self._deal_of(epoch)
        clocks = self._own_clocks(dealt, done)
        batching, shuffles = dealt.batching, self._shuffles(epoch, dealt.first)
        for batch in range(done - dealt.first, batching.num_batches):
            drawn = batching.drawn(self._rank, batch)
            numbers, frames = clocks.take(batching.drawn(self._rank, batch + 1) - drawn)
            repeats = batching.repeats(self._rank, batch)
            if repeats:
                more_numbers, more_frames = self._again(shuffles, repeats)
                numbers = np.concatenate([numbers, more_numbers])
                frames = np.concatenate([frames, more_frames])
            yield Draws(numbers, frames, repeats, clocks.num_resident)

    def state(self, epoch: int, done: int) -> State:
        """See `Order`; it grows with ranks and pools, and by a bit an episode for other ranks.

        The first of an epoch passes over all ranks' draws so far, those that follow over what was
        drawn in between.
        """
        dealt = self._deal_of(epoch)
        self._move_ranks(dealt, done)
        return {
            "world_size": len(dealt.parts),
            "first": dealt.first,
            "base": pack(dealt.items, self._roster.lengths) if dealt.first else None,
            "ranks": [clocks.state() for clocks in dealt.ranks],
        }

    def restore(self, state: State) -> tuple[int, int]:
        """See `Order`.

        Raises:
            SettingsError: what is left is too little for so many ranks.
        """
        epoch, done = state["epoch"], state["done"]
        restored = self._restored_deal(state) if done else None  # None where the epoch is whole
        self._restored = restored
        is_over = bool(done) and restored is None
        return (epoch + 1, 0) if is_over else (epoch, done)

    def _restored_deal(self, state: State) -> _Deal | None:
        """Return what is left at a state; None where no batch is."""
        epoch, done, ranks = state["epoch"], state["done"], list(state["ranks"])
        dealt = self._saved_deal(state)
        if state["world_size"] == self._world_size:
            dealt.begun = (done, ranks)
            dealt.own = (self._clocks_at(dealt, self._rank, done), done)
            return dealt
        left = left_of(dealt.parts, ranks)
        full_step = self._settings.batch_size * self._world_size
        if self._settings.tail == "drop" and left.num_frames < full_step:
            return None
        try:
            return self._deal_anew(epoch, done, self._shuffled(epoch, done, left))
        except SettingsError as error:
            raise ResumeError(
                f"can't resume with tail: spread on {self._world_size} ranks: {left.num_frames} "
                "frames are left of the epoch, so that some would have fewer than batches; resume "
                f"on fewer ranks, or on {state['world_size']} as before"
            ) from error

    def _saved_deal(self, state: State) -> _Deal:
        """Return what was dealt to the ranks that a state is of, which must be one of it."""
        epoch, first, ranks = state["epoch"], state["first"], state["ranks"]
        check_whole("the state's first", first, 0)
        if len(ranks) != state["world_size"]:
            raise broken(f"it is of {state['world_size']} ranks and has {len(ranks)}")
        items = admission_order(self._shuffles(epoch))
        if first:
            items = self._shuffled(epoch, first, unpack(state["base"], self._roster.lengths))
        dealt = _Deal(epoch, first, items, self._roster.lengths, len(ranks), self._settings)
        check_done(state, dealt.batching)
        for rank, clocks in enumerate(ranks):
            drawn = dealt.batching.drawn(rank, state["done"] - first)
            if check_clocks(clocks, dealt.parts[rank]) != dealt.batching.totals[rank] - drawn:
                raise broken(f"rank {rank} has not drawn the frames of {state['done']} batches")
        return dealt

    def forget(self) -> None:
        """See `Order`."""
        self._restored = None

    def _shuffles(self, epoch: int, first: int = 0) -> Shuffles:
        return Shuffles(self._settings.seed, epoch, self._roster.lengths, first)

    def _deal_whole(self, epoch: int) -> _Deal:
        items = admission_order(self._shuffles(epoch))
        return self._deal_anew(epoch, 0, items)

    def _deal_anew(self, epoch: int, first: int, items: Items) -> _Deal:
        lengths = self._roster.lengths
        return _Deal(epoch, first, items, lengths, self._world_size, self._settings)

    def _deal_of(self, epoch: int) -> _Deal:
        if self._restored is not None and self._restored.epoch == epoch:
            return self._restored
        if epoch not in self._whole:
            recent = {at: dealt for at, dealt in self._whole.items() if at == epoch - 1}
            self._whole = {**recent, epoch: self._deal_whole(epoch)}
        return self._whole[epoch]

    def _clocks_at(self, dealt: _Deal, rank: int, done: int) -> Clocks:
        """Return a rank's clocks behind `done` batches."""
        begun, states = dealt.begun
        at, state = (begun, states[rank]) if done >= begun else (dealt.first, None)
        shuffles = self._shuffles(dealt.epoch, dealt.first)
        clocks = Clocks(shuffles, dealt.parts[rank], self._limits, state)
        clocks.skip(_drawn_between(dealt, rank, at, done))
        return clocks

    def _own_clocks(self, dealt: _Deal, done: int) -> Clocks:
        """Return clocks of this rank to draw from, behind `done` batches."""
        if dealt.own is None or dealt.own[1] > done:
            dealt.own = (self._clocks_at(dealt, self._rank, done), done)
        clocks, at = dealt.own
        clocks.skip(_drawn_between(dealt, self._rank, at, done))
        dealt.own = (clocks, done)
        shuffles = self._shuffles(dealt.epoch, dealt.first)
        return Clocks(shuffles, dealt.parts[self._rank], self._limits, clocks.state())

    def _move_ranks(self, dealt: _Deal, done: int) -> None:
        """Move every rank's clocks on to a position; back, by starting anew."""
        if not dealt.ranks or done < dealt.at:
            ranks = range(len(dealt.parts))
            dealt.ranks = [self._clocks_at(dealt, rank, done) for rank in ranks]
        else:
            for rank, clocks in enumerate(dealt.ranks):
                clocks.skip(_drawn_between(dealt, rank, dealt.at, done))
        dealt.at = done

    def _again(self, shuffles: Shuffles, count: int) -> tuple[IntArray, IntArray]:
        """Return frames to fill the last batch up with: any, drawn with replacement."""
        key = stream_key("repeats", shuffles.seed, shuffles.epoch, shuffles.first, self._rank)
        places = (uniforms(key, count) * self._roster.num_frames).astype(np.int64)
        numbers = np.searchsorted(self._bounds, places, side="right")
        return numbers, places - (self._bounds - self._roster.lengths)[numbers]

    def _shuffled(self, epoch: int, first: int, items: Items) -> Items:
        """Put what is left of an epoch in an order of admission of its own."""
        order = np.lexsort((items.starts, items.numbers))
        key = stream_key("admission", self._settings.seed, epoch, first)
        order = order[permutation(key, len(order))]
        return Items(items.numbers[order], items.starts[order], items.stops[order])


def _deal_begun_first(items: Items, world_size: int, lengths: IntArray) -> list[Items]:
    """Deal parts to ranks, of which each admits those of begun episodes first.

    So they end first, and don't become more each time that other ranks share what is left.
    """
    parts = []
    for part in deal(items, world_size):
        is_whole = part.stops - part.starts == lengths[part.numbers]
        order = np.argsort(is_whole, kind="stable")
        parts.append(Items(part.numbers[order], part.starts[order], part.stops[order]))
    return parts


def _drawn_between(dealt: _Deal, rank: int, start: int, stop: int) -> int:
    drawn = dealt.batching.drawn
    return drawn(rank, stop - dealt.first) - drawn(rank, start - dealt.first)
