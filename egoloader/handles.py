"""Open episodes, bounded in number: the least recently used is closed first."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

from egoloader.counts import ReadCounts
from egoloader.sample import SampleMaker

__all__ = ["OpenEpisodes"]


class OpenEpisodes:
    """Sample makers of the episodes that one process has open. Safe to ask from threads.

    Args:
        capacity: episodes that stay open at once.
        open_episode: opens the episode of a number.
    """

    def __init__(self, capacity: int, open_episode: Callable[[int], SampleMaker]) -> None:
        self._capacity, self._open_episode = capacity, open_episode
        self._lock = threading.Lock()
        self._makers: OrderedDict[int, SampleMaker] = OrderedDict()
        self._closed_bytes = 0
        # What was let go and may still be read by whoever has it.
        self._let_go: list[tuple[weakref.ref[SampleMaker], ReadCounts]] = []

    def __len__(self) -> int:
        return len(self._makers)

    @property
    def bytes_read(self) -> int:
        """Bytes that were read of episodes, open ones and those that were closed since."""
        with self._lock:
            self._settle()
            counts = [one.episode.counts for one in self._makers.values()]
            counts += [one for _, one in self._let_go]
            return self._closed_bytes + sum(one.total.bytes for one in counts)

    def _settle(self) -> None:
        """Add up what was read of episodes that nobody has any more."""
        for maker, counts in self._let_go:
            if maker() is None:
                self._closed_bytes += counts.total.bytes
        self._let_go = [one for one in self._let_go if one[0]() is not None]

    def get(self, number: int) -> SampleMaker:
        """Return an episode's maker, opened if need be."""
        with self._lock:
            if number in self._makers:
                self._makers.move_to_end(number)
                return self._makers[number]
            # Under the lock, so that two threads don't open one episode twice.
            maker = self._open_episode(number)
            self._makers[number] = maker
            if len(self._makers) > self._capacity:
                _, closed = self._makers.popitem(last=False)
                self._settle()
                self._let_go.append((weakref.ref(closed), closed.episode.counts))
            return maker
