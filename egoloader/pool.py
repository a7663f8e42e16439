"""`EpisodePool`: every frame of many episodes once, from a bounded number of them at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from egoloader.clocks import Clocks, Limits
from egoloader.errors import SettingsError, check_whole
from egoloader.remainder import broken, check_clocks, reading_state
from egoloader.roster import Ident, Roster, check_fingerprint
from egoloader.seeding import permutation, stream_key
from egoloader.shuffles import Items, Shuffles

__all__ = ["EpisodePool", "admission_order"]


class EpisodePool(Iterator[tuple[Any, int]]):
    """One epoch's order of frames: `(episode id, frame index)`, each exactly once.

    At most `pool_size` episodes are resident. They are admitted in a seeded order; a draw is
    uniform over all frames that the resident ones have left; an episode leaves when its last frame
    is drawn, and the next one comes. Nothing is read: this is a plan. The order is a function of
    the seed, the epoch, the limits and the set of episodes, not of the order they are listed in.

    Args:
        episodes: (id, frames) pairs, or a mapping; ids are texts or whole numbers. Episodes without
            frames are skipped.
        pool_size: episodes that are resident at most.
        seed: of the order.
        epoch: each has an order of its own.
        byte_sizes: bytes of each id (a mapping), or of each pair in its order.
        byte_budget: bytes that the resident episodes have at most. One that doesn't fit yet is
            passed over, for one of the next `LOOK_PAST`, and comes later.

    Raises:
        SettingsError: an option that can't be meant, a size that is missing, or an episode that is
            larger than the budget; names the episode.
    """

    def __init__(
        self,
        episodes: Mapping[Any, int] | Iterable[tuple[Any, int]],
        pool_size: int = 32,
        seed: int = 0,
        epoch: int = 0,
        byte_sizes: Mapping[Any, int] | Sequence[int] | None = None,
        byte_budget: int | None = None,
    ) -> None:
        check_whole("pool_size", pool_size, 1)
        check_whole("seed", seed, 0)
        check_whole("epoch", epoch, 0)
        if byte_budget is not None and byte_sizes is None:
            raise SettingsError("byte_budget needs byte_sizes, the bytes of each episode")
        roster = Roster(episodes, byte_sizes)
        roster.check_budget(byte_budget)
        self._ids = roster.ids
        self._shuffles = Shuffles(seed, epoch, roster.lengths)
        self._items = admission_order(self._shuffles)
        self._limits = Limits(pool_size, byte_budget, roster.sizes)
        self._fingerprint = {
            "seed": seed,
            "epoch": epoch,
            "pool_size": pool_size,
            "byte_budget": byte_budget,
            "number of episodes": len(roster.ids),
            "number of frames": roster.num_frames,
            "set of episodes": roster.digest(),
        }
        self._clocks = Clocks(self._shuffles, self._items, self._limits)

    def __next__(self) -> tuple[Any, int]:
        if not self._clocks.remaining:
            raise StopIteration
        number, frame = self._clocks.draw()
        return self._ids[number], frame

    @property
    def remaining(self) -> int:
        """Frames that are left to draw."""
        return self._clocks.remaining

    @property
    def resident(self) -> tuple[Ident, ...]:
        """The resident episodes, in the order of admission."""
        return tuple(self._ids[number] for number in self._clocks.residents)

    @property
    def resident_bytes(self) -> int:
        """Bytes of the resident episodes."""
        return self._clocks.held_bytes

    def drain_admitted(self) -> list[Ident]:
        """Return the episodes admitted since the last call, in their order."""
        return self._drain(self._clocks.admitted)

    def drain_evicted(self) -> list[Ident]:
        """Return the episodes used up since the last call, in their order."""
        return self._drain(self._clocks.evicted)

    def prefetch_candidates(self, count: int) -> list[Ident]:
        """Return up to `count` episodes that come next, and up to `LOOK_PAST` (64) in all.

        Without a budget, they come in exactly this order; with one, which of them comes first
        depends on what fits then.

        Raises:
            SettingsError: `count` is no whole number from 0 on.
        """
        check_whole("count", count, 0)
        upcoming = itertools.islice(self._clocks.upcoming(), count)
        return [self._ids[number] for number in upcoming]

    def state_dict(self) -> dict[str, Any]:
        """Return plain values that tell where the order stands; they grow with `pool_size` alone.

        The resident episodes count as announced: `drain_admitted` has them all again where the
        state is loaded, as a cache starts empty there.
        """
        return {
            "fingerprint": dict(self._fingerprint),
            "remaining": self.remaining,
            "clocks": self._clocks.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; costs as much as the resident episodes have frames.

        Raises:
            ResumeError: it is of other episodes or settings, and what differs is named; or it is
                broken.
        """
        with reading_state():
            check_fingerprint(state.get("fingerprint"), self._fingerprint)
            if check_clocks(state["clocks"], self._items) != state["remaining"]:
                raise broken("as many frames are not left as it says")
            clocks = Clocks(self._shuffles, self._items, self._limits, state["clocks"])
        self._clocks = clocks

    def _drain(self, numbers: list[int]) -> list[Ident]:
        drained = [self._ids[number] for number in numbers]
        numbers.clear()
        return drained


def admission_order(shuffles: Shuffles) -> Items:
    """Return whole episodes in the order in which an epoch admits them."""
    count = len(shuffles.lengths)
    numbers = permutation(stream_key("admission", shuffles.seed, shuffles.epoch), count)
    return Items(numbers, np.zeros(count, np.int64), shuffles.lengths[numbers])
