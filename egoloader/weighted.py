"""Frames drawn as often as their weights say."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.deal import Batching, shares
from egoloader.errors import check_whole
from egoloader.order import (
    Draws,
    OrderSettings,
    check_done,
    check_frames,
    check_ranks,
    data_fingerprint,
)
from egoloader.remainder import broken
from egoloader.roster import Roster
from egoloader.seeding import stream_key, uniforms

__all__ = ["WeightedOrder"]

State = dict[str, Any]


class WeightedOrder:
    """Frames drawn with replacement, each as often as its weight says; covers nothing.

    An epoch has as many draws as there are frames. Episodes are not pooled: a batch is of as many
    as chance has it.

    Args:
        roster: the episodes.
        weights: (frames,) float64, of all frames of the roster's episodes, one after the other;
            from 0 on, not all 0.
        settings: of the order; pool and budget are not used.
        rank: whose batches these are.
        world_size: how many ranks there are.

    Raises:
        SettingsError: weights that can't be meant, or what `PoolOrder` refuses.
    """

    covers = False

    def __init__(
        self,
        roster: Roster,
        weights: npt.NDArray[np.float64],
        settings: OrderSettings,
        rank: int,
        world_size: int,
    ) -> None:
        check_ranks(rank, world_size)
        check_frames(roster)
        self._roster, self._settings = roster, settings
        self._rank, self._world_size = rank, world_size
        self._weights = np.cumsum(weights)
        self._bounds = np.cumsum(roster.lengths)
        self._digest = roster.digest()
        self._weights_digest = hashlib.blake2b(weights.tobytes(), digest_size=16).hexdigest()
        # An epoch, its batches done before what is left was dealt, and draws of all ranks in them.
        self._deal = (0, 0, 0)
        self._batching(0, world_size)

    def fingerprint(self) -> Mapping[str, Any]:
        """See `Order`."""
        return {
            **data_fingerprint(self._roster, self._digest),
            **asdict(self._settings),
            "weights": self._weights_digest,
        }

    def num_batches(self, epoch: int) -> int:
        """See `Order`."""
        _, first, before = self._deal_of(epoch)
        return first + self._batching(before, self._world_size).num_batches

    def left_out(self, epoch: int) -> int:
        """See `Order`."""
        return self._batching(self._deal_of(epoch)[2], self._world_size).left_out

    def batches(self, epoch: int, done: int) -> Iterator[Draws]:
        """See `Order`."""
        _, first, before = self._deal_of(epoch)
        batching = self._batching(before, self._world_size)
        key = stream_key("weights", self._settings.seed, epoch, first, self._rank)
        for batch in range(done - first, batching.num_batches):
            start, repeats = batching.drawn(self._rank, batch), batching.repeats(self._rank, batch)
            count = batching.drawn(self._rank, batch + 1) - start + repeats
            at = uniforms(key, count, batch * self._settings.batch_size) * self._weights[-1]
            places = np.searchsorted(self._weights, at, side="right")
            places = np.minimum(places, len(self._weights) - 1)  # where rounding met the very end
            numbers = np.searchsorted(self._bounds, places, side="right")
            frames = places - (self._bounds - self._roster.lengths)[numbers]
            yield Draws(numbers, frames, repeats, 0)

    def state(self, epoch: int, done: int) -> State:
        """See `Order`."""
        _, first, before = self._deal_of(epoch)
        batching = self._batching(before, self._world_size)
        drawn = sum(batching.drawn(rank, done - first) for rank in range(self._world_size))
        return {
            "world_size": self._world_size,
            "first": first,
            "before": before,
            "drawn": before + drawn,
        }

    def restore(self, state: State) -> tuple[int, int]:
        """See `Order`.

        Raises:
            SettingsError: the state is broken.
        """
        epoch, done, deal = state["epoch"], state["done"], (0, 0, 0)
        self._check(state)
        if state["world_size"] == self._world_size:
            deal = (epoch, state["first"], state["before"])
        elif done:
            left = self._roster.num_frames - state["drawn"]
            full_step = self._settings.batch_size * self._world_size
            if self._settings.tail == "drop" and left < full_step:
                epoch, done = epoch + 1, 0
            else:
                self._batching(state["drawn"], self._world_size)
                deal = (epoch, done, state["drawn"])
        self._deal = deal
        return epoch, done

    def forget(self) -> None:
        """See `Order`."""
        self._deal = (0, 0, 0)

    def _deal_of(self, epoch: int) -> tuple[int, int, int]:
        return self._deal if self._deal[0] == epoch else (epoch, 0, 0)

    def _check(self, state: State) -> None:
        """Refuse a state that can't be one of these frames."""
        for name in ("first", "before", "drawn"):
            check_whole(f"the state's {name}", state[name], 0)
        first, before, world_size = state["first"], state["before"], state["world_size"]
        if before > self._roster.num_frames:
            raise broken(f"{before} draws were done of {self._roster.num_frames}")
        batching = self._batching(before, world_size)
        check_done(state, batching)
        done = state["done"] - first
        if state["drawn"] != before + sum(batching.drawn(rank, done) for rank in range(world_size)):
            raise broken(f"{state['drawn']} draws are not those of {state['done']} batches")

    def _batching(self, before: int, world_size: int) -> Batching:
        left = shares(self._roster.num_frames - before, world_size)
        totals = tuple(stop - start for start, stop in left)
        return Batching(totals, self._settings.batch_size, self._settings.tail)
