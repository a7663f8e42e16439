"""Frames of which one may be served in the place of another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.errors import SettingsError

__all__ = ["FrameSets", "Peers"]

IntArray = npt.NDArray[np.int64]


class Peers(NamedTuple):
    """Indices of a dataset of which one may take the place of another.

    Attributes:
        name: what they have in common.
        starts: (n,) int64, the first index of each run of them, ascending.
        bounds: (n,) int64, how many there are up to the end of each run.
    """

    name: str
    starts: IntArray
    bounds: IntArray

    @classmethod
    def of(cls, name: str, indices: IntArray) -> Peers:
        """Return those of some indices: (n,) int64, ascending, n >= 1."""
        is_first = np.ones(len(indices), dtype=np.bool_)
        is_first[1:] = np.diff(indices) != 1
        firsts = np.flatnonzero(is_first)
        return cls(name, indices[firsts], np.append(firsts[1:], len(indices)))

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.bounds[-1]) if len(self.bounds) else 0

    def at(self, place: int) -> int:
        """Return the index of the one at a place among them."""
        run = int(self.bounds.searchsorted(place, side="right"))
        before = int(self.bounds[run - 1]) if run else 0
        return int(self.starts[run]) + place - before

    def has(self, indices: IntArray) -> npt.NDArray[np.bool_]:
        """Return which of some indices are among them: (n,) bool."""
        runs = self.starts.searchsorted(indices, side="right") - 1
        lengths = np.diff(self.bounds, prepend=0)
        return np.asarray((runs >= 0) & (indices - self.starts[runs] < lengths[runs]))


class FrameSets:
    """Sets of a dataset's indices, each known by a number; 0 is that of all.

    The number depends on the set alone, so that every process knows it by the same.
    """

    def __init__(self) -> None:
        self._sets: dict[int, IntArray] = {}

    def add(self, indices: Iterable[int]) -> int:
        """Take a set in; return its number."""
        listed = np.array(indices if isinstance(indices, np.ndarray) else list(indices), np.int64)
        # Of millions, NumPy's own search for distinct ones takes a hundred times as long.
        listed.sort()
        is_new = np.ones(len(listed), dtype=np.bool_)
        is_new[1:] = listed[1:] != listed[:-1]
        listed = listed[is_new]
        digest = hashlib.blake2b(listed.astype("<i8").tobytes(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") or 1
        self._sets[number] = listed
        return number

    def within(self, peers: Peers, number: int) -> Peers:
        """Return those of peers that are in a set.

        Raises:
            SettingsError: there is no set of that number.
        """
        if not number:
            return peers
        if number not in self._sets:
            raise SettingsError(
                "an index was drawn by a sampler that this copy of the dataset does not know: "
                "make the sampler of the same dataset, and before the processes that read it"
            )
        indices = self._sets[number]
        return Peers.of(f"{peers.name}, {number:x}", indices[peers.has(indices)])
