"""What tests of orders share: episodes without files, samplers over them, and slow truths."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from egoloader import EpisodePoolSampler, clocks
from egoloader.clocks import Limits
from egoloader.inorder import InOrder
from egoloader.order import Order
from egoloader.roster import Roster
from egoloader.sampler import PositionedSampler
from egoloader.seeding import stream_key
from egoloader.shuffles import Items, Shuffles

TAILS = ("spread", "drop", "repeat")
#: The orders that a sampler may have; all but `weights` cover every frame.
KINDS = ("pool", "budget", "inorder", "weights")
COVERING = KINDS[:3]

#: Frames of up to 12 episodes; some have none, and sometimes none has.
lengths_of = st.one_of(
    st.lists(st.integers(0, 9), max_size=12), st.lists(st.just(0), max_size=3), st.just([40])
)
some_lengths = lengths_of.filter(any)


@st.composite
def budgets(draw: st.DrawFn, count: int) -> tuple[list[int], int]:
    """Bytes of each episode and a budget, which often is just what the largest one has."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    largest = max([1, *sizes])
    return sizes, draw(st.one_of(st.just(largest), st.integers(largest, 30)))


@contextlib.contextmanager
def short_runs(draws: int, per_resident: int = 1, look_past: int = 64) -> Iterator[None]:
    """Plan only so many draws at once, so that a run ends anywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "_RUN_DRAWS", draws)
        patch.setattr(clocks, "_DRAWS_A_RESIDENT", per_resident)
        patch.setattr(clocks, "LOOK_PAST", look_past)
        yield


# Slow truths, in plain Python.


def slow_word(key: int, place: int) -> int:
    """SplitMix64 as published, seeded with `key`: its number `place`."""
    z: int = (key + (place + 1) * 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def slow_exponential(key: int, place: int) -> float:
    return -math.log1p(-(slow_word(key, place) >> 11) / 2**53)


def slow_shuffle(key: int, count: int) -> list[int]:
    return sorted(range(count), key=lambda place: slow_word(key, place))


class SlowClocks:
    """One frame at a time: a heap of all clocks of the resident parts, the next to ring first.

    Clocks that ring at the same time do so in the order in which their parts were admitted.
    """

    def __init__(
        self,
        shuffles: Shuffles,
        items: Items,
        limits: Limits,
        *,
        look_past: int = 64,
        exponential: Callable[[int, int], float] = slow_exponential,
    ) -> None:
        self.shuffles, self.limits, self.look_past = shuffles, limits, look_past
        self.exponential = exponential
        self.items: list[tuple[int, ...]] = list(
            zip(*(values.tolist() for values in items), strict=True)
        )
        self.waiting = list(range(len(self.items)))
        self.left: dict[int, list[int]] = {}
        self.rings: list[tuple[float, int, int]] = []
        self.admissions = itertools.count()
        self.held_bytes, self.admitted, self.evicted = 0, list[int](), list[int]()
        self.admit(0.0)

    @property
    def residents(self) -> list[int]:
        return [self.items[place][0] for place in self.left]

    @property
    def upcoming(self) -> list[int]:
        return [self.items[place][0] for place in self.waiting[: self.look_past]]

    @property
    def remaining(self) -> int:
        waiting = sum(self.items[place][2] - self.items[place][1] for place in self.waiting)
        return waiting + sum(len(frames) for frames in self.left.values())

    def draw(self) -> tuple[int, int]:
        now, _, place = heapq.heappop(self.rings)
        number, frame = self.items[place][0], self.left[place].pop(0)
        if not self.left[place]:
            del self.left[place]
            self.held_bytes -= int(self.limits.sizes[number])
            self.evicted.append(number)
            self.admit(now)
        return number, frame

    def admit(self, now: float) -> None:
        while len(self.left) < self.limits.pool_size:
            fitting = (place for place in self.waiting[: self.look_past] if self.fits(place))
            place = next(fitting, None)
            if place is None:
                return
            self.waiting.remove(place)
            number, start, stop = self.items[place]
            self.held_bytes += int(self.limits.sizes[number])
            self.admitted.append(number)
            base, order = (self.shuffles.seed, self.shuffles.epoch, number), next(self.admissions)
            length = int(self.shuffles.lengths[number])
            self.left[place] = slow_shuffle(stream_key("frames", *base), length)[start:stop]
            anew = (self.shuffles.first,) if self.shuffles.first else ()
            key, time = stream_key("rings", *base, start, *anew), 0.0
            for k in range(stop - start):
                time += self.exponential(key, k) / (stop - start - k)
                heapq.heappush(self.rings, (time + now, order, place))

    def fits(self, place: int) -> bool:
        size = int(self.limits.sizes[self.items[place][0]])
        budget = self.limits.byte_budget
        return budget is None or self.held_bytes + size <= budget


def surprise(cells: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return how far counts are from what is expected, in standard deviations.

    It is that of Pearson's statistic over all cells, each (observed, expected), by the cube root
    of Wilson and Hilferty (1931). Below -5 they are too close to be random.
    """
    total, freedom = 0.0, 0
    for observed, expected in cells:
        total += sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        freedom += len(observed) - 1
    spread = 2 / (9 * freedom)
    return float(((total / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread))


# Samplers over episodes without files.


class Listed:
    """A dataset of which only names and frames are known: whoever opens an episode finds nothing.

    The names are neither in the order of listing nor all of one length.
    """

    def __init__(
        self, lengths: Sequence[int], names: Sequence[str] | None = None, seed: int = 0
    ) -> None:
        self.seed, self.spared = seed, dict[str, Any]()
        names = [f"e{7 * n % 101}" for n in range(len(lengths))] if names is None else names
        self.listed = list(zip(names, lengths, strict=True))

    def __len__(self) -> int:
        return sum(frames for _, frames in self.listed)

    def frames_by_episode(self) -> list[tuple[str, int]]:
        return list(self.listed)

    def draw_among(self, indices: Iterable[int]) -> int:
        self.drawn = list(indices)
        return 0

    def open_each(self) -> Iterator[Any]:
        for name, frames in self.listed:
            yield SimpleNamespace(name=name, total_frames=frames)

    def byte_sizes(self) -> dict[str, int]:
        return {name: 3 * frames + 1 for name, frames in self.listed}


def one_to_three(episode: Any) -> Any:
    """Weights of an episode's frames."""
    return 1 + np.arange(episode.total_frames) % 3


def sampler(
    kind: str, lengths: Sequence[int], rank: int = 0, world_size: int = 1, **options: Any
) -> PositionedSampler:
    """Make a sampler of a kind; 2 frames a batch of 2 episodes unless told otherwise."""
    options = {"batch_size": 2, "pool_size": 2, "seed": 3, "tail": "spread", **options}
    if kind == "inorder":
        size, tail = options["batch_size"], options["tail"]
        return PositionedSampler(InOrder(sum(lengths), size, rank, world_size, tail))
    data = Listed(lengths)
    if kind == "budget":
        sizes = data.byte_sizes()
        options |= {"byte_sizes": sizes, "byte_budget": max(sizes.values()) + 5, "pool_size": 4}
    elif kind == "weights":
        options["weights"] = one_to_three
    return EpisodePoolSampler(data, rank=rank, world_size=world_size, **options)


def job(
    kind: str, lengths: Sequence[int], world_size: int, **options: Any
) -> list[PositionedSampler]:
    """Make a sampler for every rank."""
    return [sampler(kind, lengths, rank, world_size, **options) for rank in range(world_size)]


Batch = list[tuple[int, int, bool]]


def marked(batch: Iterable[Any]) -> Batch:
    """Return all that a batch's indices carry."""
    return [(int(index), index.epoch, index.is_repeat) for index in batch]


def rest(one: PositionedSampler) -> list[Batch]:
    """Hand out what the running epoch has left."""
    return [marked(batch) for batch in one]


def frames_in(batches: Iterable[Batch]) -> list[int]:
    """Return the frames of batches, but for repeats."""
    return [frame for batch in batches for frame, _, is_repeat in batch if not is_repeat]


def saved(one: PositionedSampler, handed_out: int | None = None) -> dict[str, Any]:
    """Return a state as it comes back from a file."""
    return dict(json.loads(json.dumps(one.state_dict(handed_out))))


def resumed(
    kind: str, lengths: Sequence[int], world_size: int, state: Mapping[str, Any], **options: Any
) -> list[PositionedSampler]:
    """Make a sampler for every rank that goes on from one rank's state."""
    ranks = job(kind, lengths, world_size, **options)
    for one in ranks:
        one.load_state_dict(state)
    return ranks


def served_by(ranks: Sequence[PositionedSampler], steps: int) -> list[int]:
    """Hand out some batches of every rank; their frames, but for repeats."""
    iterators = [iter(one) for one in ranks]
    return [f for _ in range(steps) for one in iterators for f in frames_in([marked(next(one))])]


# Orders over episodes that have numbers for names.

Pairs = list[tuple[int, int]]
#: Frames, rank and number of ranks that don't go together, and what is said of them.
NO_JOBS: list[tuple[list[int], Any, Any, str]] = [
    ([3, 4], 2, 2, "rank 2 is none of 2: they are 0 to 1"),
    ([3, 4], -1, 2, "rank must be a whole number from 0 on, got -1"),
    ([3, 4], True, 2, "rank .* got True"),
    ([3, 4], 0, 0, "world_size must be a whole number from 1 on, got 0"),
    ([3, 4], 0, 1.0, "world_size .* got 1.0"),
    ([], 0, 1, "no episodes with frames"),
    ([0, 0], 0, 1, "no episodes with frames"),
]


def roster_of(lengths: list[int], sizes: list[int] | None = None) -> Roster:
    return Roster(list(enumerate(lengths)), sizes)


def drawn(order: Order, epoch: int = 0, done: int = 0) -> list[tuple[Pairs, Pairs]]:
    """Return, for each batch that is left, its frames and its repeats."""
    found = []
    for draws in order.batches(epoch, done):
        assert draws.numbers.shape == draws.frames.shape
        pairs = list(zip(draws.numbers.tolist(), draws.frames.tolist(), strict=True))
        real = len(pairs) - draws.num_repeats
        found.append((pairs[:real], pairs[real:]))
    return found


def once(batches: list[tuple[Pairs, Pairs]]) -> Pairs:
    return [pair for real, _ in batches for pair in real]


def state_at(order: Order, epoch: int, done: int) -> dict[str, Any]:
    state = {"epoch": epoch, "done": done, **order.state(epoch, done)}
    return dict(json.loads(json.dumps(state)))
