"""Which frame of which resident episode is drawn next: uniformly among all that are left.

Every frame of an episode gets a clock when the episode is admitted, which rings after a waiting
time of its own, exponential at rate 1. As such clocks don't remember how long they have been
running, the next to ring is any of those left, each as likely as the others; so drawing in the
order of the rings is drawing uniformly. The rings of one episode are known when it is admitted,
and with them when it is used up and the next one comes: many draws are one sort.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.shuffles import Items, Shuffles

__all__ = ["LOOK_PAST", "Clocks", "Limits"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

#: Episodes, from the next one on, of which the first that fits the budget is admitted.
LOOK_PAST = 64
#: Draws that are planned together at least, and per resident episode.
_RUN_DRAWS, _DRAWS_A_RESIDENT = 2048, 32


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be resident.

    Attributes:
        pool_size: parts at most.
        byte_budget: bytes at most; None for any number.
        sizes: (n,) bytes of each episode.
    """

    pool_size: int
    byte_budget: int | None
    sizes: IntArray

    def fits(self, size: int, held: int) -> bool:
        """Return whether an episode of a size may join those that hold so many bytes."""
        return self.byte_budget is None or held + size <= self.byte_budget


class _Resident:
    """A part of an episode while it is in the pool.

    Attributes:
        place: of the part among the items.
        number: of the episode.
        admitted: when, on the clocks' time.
        drawn: frames drawn of it when the run began that is drawn from now.
        times: when its frames are drawn.
    """

    __slots__ = ("_frames", "_shuffles", "admitted", "drawn", "number", "place", "span", "times")

    def __init__(
        self, place: int, items: Items, shuffles: Shuffles, admitted: float, drawn: int
    ) -> None:
        self.place, self.number = place, int(items.numbers[place])
        self.span = (int(items.starts[place]), int(items.stops[place]))
        self.admitted, self.drawn = admitted, drawn
        self.times = shuffles.rings(self.number, *self.span) + admitted
        self._shuffles = shuffles
        self._frames: IntArray | None = None

    @property
    def frames(self) -> IntArray:
        """Its frame indices in the order in which they are drawn."""
        if self._frames is None:
            self._frames = self._shuffles.frames(self.number, *self.span)
        return self._frames


class _Change(NamedTuple):
    """What happens in the pool behind one draw.

    Attributes:
        draws: of the run, behind which it happens.
        evicted: what was used up.
        admitted: what comes.
    """

    draws: int
    evicted: _Resident
    admitted: list[_Resident]


class _Queue:
    """The items that were not admitted yet: those passed over, and all from a place on."""

    def __init__(self, length: int, upcoming: int, passed: list[int]) -> None:
        self.length, self.upcoming, self.passed = length, upcoming, passed

    def copy(self) -> _Queue:
        return _Queue(self.length, self.upcoming, list(self.passed))

    def candidates(self) -> Iterator[int]:
        yield from self.passed
        stop = self.upcoming + max(LOOK_PAST - len(self.passed), 0)
        yield from range(self.upcoming, min(stop, self.length))

    def take(self, place: int) -> None:
        if place < self.upcoming:
            self.passed.remove(place)
        else:
            self.passed.extend(range(self.upcoming, place))
            self.upcoming = place + 1


class _Run:
    """Draws that were planned together.

    Attributes:
        residents: that it draws from, in the order of admission.
        stops: how many frames of each are drawn when it is over.
        size: n, the number of draws.
        owners: (n,) per draw, which resident it takes from.
        numbers: (n,) per draw, the number of the episode.
        changes: of the pool, in their order.
    """

    def __init__(self, residents: list[_Resident], ended: list[_End], horizon: float) -> None:
        self.residents = residents
        self.stops = [int(one.times.searchsorted(horizon, "right")) for one in residents]
        counts = np.array([s - one.drawn for s, one in zip(self.stops, residents, strict=True)])
        times = [one.times[one.drawn : s] for one, s in zip(residents, self.stops, strict=True)]
        self._order = _argsort(np.concatenate(times))
        self.owners = np.repeat(np.arange(len(residents)), counts)[self._order]
        self.changes: deque[_Change] = deque()
        if ended:
            places = np.empty_like(self._order)
            places[self._order] = np.arange(len(places))
            bounds = np.cumsum(counts)
            for end in ended:
                last = int(places[bounds[end.order] - 1])
                self.changes.append(_Change(last + 1, residents[end.order], end.admitted))
        self.numbers = np.array([one.number for one in residents])[self.owners]
        self.size = len(self.owners)
        self._frames: IntArray | None = None
        self._pairs: list[tuple[int, int]] | None = None

    @property
    def frames(self) -> IntArray:
        """Per draw, the frame index: (n,)."""
        if self._frames is None:
            pairs = zip(self.residents, self.stops, strict=True)
            drawn = [one.frames[one.drawn : s] for one, s in pairs if s > one.drawn]
            self._frames = np.concatenate(drawn)[self._order]
        return self._frames

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Per draw, the episode's number and the frame index."""
        if self._pairs is None:
            self._pairs = list(zip(self.numbers.tolist(), self.frames.tolist(), strict=True))
        return self._pairs

    def drawn(self, draws: int) -> list[int]:
        """Return how many frames of each resident are drawn behind so many draws."""
        counts = np.bincount(self.owners[:draws], minlength=len(self.residents)).tolist()
        return [one.drawn + n for one, n in zip(self.residents, counts, strict=True)]


def _argsort(times: FloatArray) -> IntArray:
    """Sort; equal times, of which there hardly are any, keep their order on every machine."""
    order = times.argsort()
    ascending = times[order]
    if (ascending[1:] == ascending[:-1]).any():
        order = times.argsort(kind="stable")
    return order


def _check_moment(residents: list[_Resident]) -> None:
    """Refuse clocks of which one rang later than one that did not yet."""
    latest = max((one.times[one.drawn - 1] for one in residents if one.drawn), default=0.0)
    if any(one.times[one.drawn] < max(latest, one.admitted) for one in residents):
        raise ValueError("a clock rang that is behind one that did not")


class _End(NamedTuple):
    """A part that is used up within a run."""

    order: int
    admitted: list[_Resident]


class Clocks:
    """Draws frames of parts of episodes, keeping a bounded number of them resident.

    Args:
        shuffles: of the episodes.
        items: the parts, in the order in which they are admitted; none is empty.
        limits: of what is resident.
        state: what `state` returned, to go on from there; nothing is drawn again for it. It must
            pass `check_clocks`.

    Attributes:
        remaining: frames left.
        held_bytes: of the resident episodes.
        admitted: numbers of the episodes that were admitted; whoever reads them clears them.
        evicted: the same of those that were used up.

    Raises:
        ValueError: the state is of no moment: a clock rang that is behind one that did not.
    """

    def __init__(
        self, shuffles: Shuffles, items: Items, limits: Limits, state: dict[str, Any] | None = None
    ) -> None:
        self._shuffles, self._items, self._limits = shuffles, items, limits
        begin = state or {"residents": [], "upcoming": 0, "passed": []}
        self._queue = _Queue(len(items.numbers), begin["upcoming"], list(begin["passed"]))
        self._residents: dict[int, _Resident] = {}
        self.held_bytes, self.admitted, self.evicted = 0, list[int](), list[int]()
        for place, time, drawn in begin["residents"]:
            self._enter(_Resident(place, items, shuffles, time, drawn))
        _check_moment(list(self._residents.values()))
        self.remaining = self._count_remaining()
        # The plan runs ahead of what was drawn: it has a queue and residents of its own.
        self._planned_queue, self._planned_bytes = self._queue.copy(), self.held_bytes
        self._planned = list(self._residents.values())
        if state is None:
            self._planned = self._admit(0.0, 0)
            for one in self._planned:
                self._queue.take(one.place)
                self._enter(one)
        self._run: _Run | None = None
        self._taken = 0

    @property
    def num_resident(self) -> int:
        """How many parts of episodes are resident."""
        return len(self._residents)

    @property
    def residents(self) -> list[int]:
        """The numbers of the resident episodes, in the order of admission."""
        return [one.number for one in self._residents.values()]

    def upcoming(self) -> Iterator[int]:
        """Yield the numbers of the episodes that come next, as far as one looks for one to fit."""
        for place in self._queue.candidates():
            yield int(self._items.numbers[place])

    def draw(self) -> tuple[int, int]:
        """Draw one frame; at least one must be left.

        Returns:
            The episode's number and the frame index.
        """
        run = self._current_run()
        pair = run.pairs[self._taken]
        self._move(1)
        return pair

    def take(self, count: int) -> tuple[IntArray, IntArray]:
        """Draw `count` frames; so many must be left.

        Returns:
            (count,) the episodes' numbers and (count,) frame indices.
        """
        numbers, frames = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        while count:
            run, start = self._current_run(), self._taken
            step = min(count, run.size - start)
            numbers.append(run.numbers[start : start + step])
            frames.append(run.frames[start : start + step])
            self._move(step)
            count -= step
        return np.concatenate(numbers), np.concatenate(frames)

    def skip(self, count: int) -> None:
        """Pass over `count` frames, as if they had been drawn; so many must be left."""
        while count:
            step = min(count, self._current_run().size - self._taken)
            self._move(step)
            count -= step

    def state(self) -> dict[str, Any]:
        """Return plain values that tell what is left: O(residents)."""
        drawn = {place: one.drawn for place, one in self._residents.items()}
        if self._run is not None:
            counts = self._run.drawn(self._taken)
            drawn |= {one.place: n for one, n in zip(self._run.residents, counts, strict=True)}
        return {
            "residents": [[p, one.admitted, drawn[p]] for p, one in self._residents.items()],
            "upcoming": self._queue.upcoming,
            "passed": list(self._queue.passed),
        }

    def _count_remaining(self) -> int:
        lengths = self._items.stops - self._items.starts
        waiting = lengths[self._queue.upcoming :].sum() + lengths[self._queue.passed].sum()
        return int(waiting) + sum(len(o.times) - o.drawn for o in self._residents.values())

    def _current_run(self) -> _Run:
        """Return the run that the next draw is of."""
        if self._run is None:
            self._run, self._taken = self._plan_run(), 0
        elif self._taken == self._run.size:
            for one, stop in zip(self._run.residents, self._run.stops, strict=True):
                one.drawn = stop
            self._planned = [one for one in self._planned if one.drawn < len(one.times)]
            self._run, self._taken = self._plan_run(), 0
        return self._run

    def _plan_run(self) -> _Run:
        """Plan the draws up to a time by which there are about as many as are worth one sort."""
        residents = self._planned
        wanted = max(_RUN_DRAWS, _DRAWS_A_RESIDENT * len(residents))
        left = sum(len(one.times) - one.drawn for one in residents)
        horizon = min(one.times.item(one.drawn) for one in residents) + wanted / left
        ends = [(one.times.item(-1), order) for order, one in enumerate(residents)]
        heapq.heapify(ends)
        ended: list[_End] = []
        while ends and ends[0][0] <= horizon:
            now, order = heapq.heappop(ends)
            self._planned_bytes -= self._size(residents[order])
            admitted = self._admit(now, len(ends))
            for one in admitted:
                heapq.heappush(ends, (one.times.item(-1), len(residents)))
                residents.append(one)
                left += len(one.times)
            ended.append(_End(order, admitted))
            # More frames ring more often.
            horizon = min(horizon, now + wanted / left)
        return _Run(list(residents), ended, horizon)

    def _admit(self, now: float, held: int) -> list[_Resident]:
        """Plan to admit what may come at a time, beside so many that are held."""
        admitted: list[_Resident] = []
        while held + len(admitted) < self._limits.pool_size:
            for place in self._planned_queue.candidates():
                size = int(self._limits.sizes[self._items.numbers[place]])
                if self._limits.fits(size, self._planned_bytes):
                    break
            else:
                break
            self._planned_queue.take(place)
            self._planned_bytes += size
            admitted.append(_Resident(place, self._items, self._shuffles, now, 0))
        return admitted

    def _move(self, step: int) -> None:
        """Count draws as done, and what was planned to happen behind them."""
        assert self._run is not None
        self.remaining -= step
        self._taken += step
        changes = self._run.changes
        while changes and changes[0].draws <= self._taken:
            change = changes.popleft()
            del self._residents[change.evicted.place]
            self.held_bytes -= self._size(change.evicted)
            self.evicted.append(change.evicted.number)
            for one in change.admitted:
                self._queue.take(one.place)
                self._enter(one)

    def _enter(self, one: _Resident) -> None:
        self._residents[one.place] = one
        self.held_bytes += self._size(one)
        self.admitted.append(one.number)

    def _size(self, one: _Resident) -> int:
        return int(self._limits.sizes[one.number])
