"""Pools in a steady state, and the ways to draw from them."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from bench.pairing import Contender, Timings, WrongAnswerError, measure
from egoloader import EpisodePool, EpisodePoolSampler, ZarrEpisode
from egoloader.frameindex import FrameIndex
from egoloader.order import Draws, OrderSettings
from egoloader.poolorder import PoolOrder
from egoloader.roster import Roster

__all__ = ["WAYS", "DrawSettings", "Episodes", "Position", "steady", "time_draws"]

IntArray = npt.NDArray[np.int64]
WAYS = ("EpisodePool", "PoolOrder", "EpisodePoolSampler")


@dataclass(frozen=True, slots=True)
class Episodes:
    """Episodes of which there is nothing but names and lengths; a dataset to a sampler.

    Attributes:
        count: how many.
        total_frames: of each.
        batch_size: frames of a batch that is drawn from them.
        seed: of the order.
    """

    count: int = 100_000
    total_frames: int = 1000
    batch_size: int = 32
    seed: int = 0

    def __len__(self) -> int:
        return self.count * self.total_frames

    @property
    def spared(self) -> Mapping[str, Any]:
        """Nothing, as all frames are served."""
        return {}

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the names, ascending, and the frames."""
        return [(f"episode_{number:06d}", self.total_frames) for number in range(self.count)]

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Refuse: there is nothing to open."""
        raise RuntimeError("these episodes are names and lengths alone")

    def pool(self, pool_size: int) -> EpisodePool:
        """Make the planner of an epoch."""
        return EpisodePool(self.frames_by_episode(), pool_size, self.seed)

    def order(self, pool_size: int, world_size: int = 1) -> PoolOrder:
        """Make the order of the first rank."""
        settings = OrderSettings(self.batch_size, pool_size, self.seed)
        return PoolOrder(Roster(self.frames_by_episode()), settings, 0, world_size)

    def sampler(self, pool_size: int, world_size: int = 1) -> EpisodePoolSampler:
        """Make the first rank's sampler."""
        return EpisodePoolSampler(self, self.batch_size, pool_size, self.seed, 0, world_size)


@dataclass(frozen=True, slots=True)
class DrawSettings:
    """How draws are timed.

    Attributes:
        pool_sizes: that are compared; ratios are against the first.
        rounds: timed per contender.
        batches: of a round; the same frames are drawn one by one, too.
    """

    pool_sizes: tuple[int, ...] = (32, 256, 1024, 4096)
    rounds: int = 10
    batches: int = 6400

    def __post_init__(self) -> None:
        if len(self.pool_sizes) < 2:
            raise ValueError(f"at least two pool sizes are compared, got {self}")


class Position(NamedTuple):
    """A place in the first epoch.

    Attributes:
        done: batches of every rank.
        state: what `PoolOrder.state` says there.
    """

    done: int
    state: dict[str, Any]

    def move_order(self, order: PoolOrder) -> None:
        """Move an order to it."""
        order.restore({**self.state, "epoch": 0, "done": self.done})

    def move_pool(self, pool: EpisodePool, batch_size: int) -> None:
        """Move the planner of a whole epoch to where the only rank is."""
        (clocks,), state = self.state["ranks"], pool.state_dict()
        left = state["fingerprint"]["number of frames"] - self.done * batch_size
        pool.load_state_dict({**state, "remaining": left, "clocks": clocks})

    def move_sampler(self, sampler: EpisodePoolSampler) -> None:
        """Move a sampler to it."""
        begun = {"epoch": 0, "done": self.done}
        sampler.load_state_dict({**sampler.state_dict(), **self.state, **begun})


def steady(order: PoolOrder, episodes: Episodes, pool_size: int) -> Position:
    """Return a position behind which none of the episodes is resident that an epoch begins with.

    Raises:
        ValueError: the epoch ends before.
    """
    step = max(1, pool_size * episodes.total_frames // episodes.batch_size // 8)
    for done in range(step, order.num_batches(0), step):
        state = order.state(0, done)
        # Residents are told by their places in the order of admission.
        if min(place for place, *_ in state["ranks"][0]["residents"]) >= pool_size:
            return Position(done, state)
    raise ValueError(f"{episodes.count} episodes don't turn a pool of {pool_size} over")


class Block(NamedTuple):
    """Draws that are timed in one go.

    Attributes:
        number: of the block.
        kept: batches at its end of which single draws and lists of indices are kept. Arrays all
            are; so many objects would weigh on the garbage collector.
    """

    number: int
    kept: int


class _Way(Protocol):
    """One way to draw a block of frames."""

    def answer(self, block: Block, /) -> Any:
        """Draw the next frames."""
        ...

    def indices(self, answer: Any) -> IntArray:
        """Return the indices of the frames that were kept, as a dataset would number them."""
        ...


class _Planner:
    """One draw after the other."""

    def __init__(self, pool: EpisodePool, episodes: Episodes, batches: int) -> None:
        self._pool, self._batch_size = pool, episodes.batch_size
        self._count = batches * episodes.batch_size
        names = (name for name, _ in episodes.frames_by_episode())
        self._starts = {name: n * episodes.total_frames for n, name in enumerate(names)}

    def answer(self, block: Block) -> deque[tuple[str, int]]:
        kept = block.kept * self._batch_size
        return deque(itertools.islice(self._pool, self._count), maxlen=kept)

    def indices(self, answer: deque[tuple[str, int]]) -> IntArray:
        return np.array([self._starts[name] + frame for name, frame in answer], dtype=np.int64)


class _Arrays:
    """Batches as arrays."""

    def __init__(self, order: PoolOrder, position: Position, episodes: Episodes, n: int) -> None:
        position.move_order(order)
        self._batches, self._count = order.batches(0, position.done), n
        self._total_frames = episodes.total_frames

    def answer(self, _: Block) -> list[Draws]:
        return list(itertools.islice(self._batches, self._count))

    def indices(self, answer: list[Draws]) -> IntArray:
        numbers, frames = (np.concatenate([draws[n] for draws in answer]) for n in (0, 1))
        return numbers * self._total_frames + frames


class _Lists:
    """Batches as lists of indices."""

    def __init__(self, sampler: EpisodePoolSampler, batches: int) -> None:
        self._batches, self._count = iter(sampler), batches

    def answer(self, block: Block) -> deque[list[FrameIndex]]:
        return deque(itertools.islice(self._batches, self._count), maxlen=block.kept)

    def indices(self, answer: deque[list[FrameIndex]]) -> IntArray:
        return np.array(list(itertools.chain.from_iterable(answer)), dtype=np.int64)


def time_draws(episodes: Episodes, settings: DrawSettings) -> dict[str, Timings]:
    """Time blocks of draws, each way and pool size in turn; return CPU times by way.

    Raises:
        WrongAnswerError: the ways draw different frames, or one comes twice.
        ValueError: the epoch is too short.
    """
    ways = {size: _ways(episodes, size, settings) for size in settings.pool_sizes}
    named = [(f"{name}, {_size(size)}", ways[size][name]) for name in WAYS for size in ways]
    seen = {size: np.zeros(len(episodes), dtype=bool) for size in ways}

    def check(
        contenders: Sequence[Contender[Block, Any]], block: Block, answers: Sequence[Any]
    ) -> None:
        by_name = {one.name: answer for one, answer in zip(contenders, answers, strict=True)}
        for size, of_size in ways.items():
            drawn = {
                name: way.indices(by_name[f"{name}, {_size(size)}"])
                for name, way in of_size.items()
            }
            where = f"{_size(size)}, block {block.number}"
            _check_same(drawn, where)
            _check_new(drawn["PoolOrder"], seen[size], where)

    timings = measure(
        [Contender(name, way.answer) for name, way in named],
        [Block(number, 1) for number in range(1, settings.rounds + 1)],
        check,
        rehearsal=[Block(0, settings.batches)],
        clock=time.process_time_ns,
    )
    sizes = tuple(_size(size) for size in ways)
    columns = np.split(timings.nanoseconds, len(WAYS), axis=1)
    return {name: Timings(sizes, times) for name, times in zip(WAYS, columns, strict=True)}


def _size(pool_size: int) -> str:
    return f"pool_size={pool_size}"


def _ways(episodes: Episodes, pool_size: int, settings: DrawSettings) -> dict[str, _Way]:
    order, batches = episodes.order(pool_size), settings.batches
    position = steady(order, episodes, pool_size)
    if position.done + batches * (settings.rounds + 1) > order.num_batches(0):
        raise ValueError(f"{episodes.count} episodes are too few for {settings.rounds} rounds")
    pool, sampler = episodes.pool(pool_size), episodes.sampler(pool_size)
    position.move_pool(pool, episodes.batch_size)
    position.move_sampler(sampler)
    ways = (
        _Planner(pool, episodes, batches),
        _Arrays(order, position, episodes, batches),
        _Lists(sampler, batches),
    )
    return dict(zip(WAYS, ways, strict=True))


def _check_same(drawn: dict[str, IntArray], where: str) -> None:
    """Hold what was kept against the arrays, which are whole."""
    whole = drawn["PoolOrder"]
    for name, indices in drawn.items():
        if not len(indices) or not np.array_equal(indices, whole[-len(indices) :]):
            raise WrongAnswerError(f"{where}: {name} draws other frames than PoolOrder")


def _check_new(indices: IntArray, seen: npt.NDArray[np.bool_], where: str) -> None:
    if seen[indices].any() or len(np.unique(indices)) < len(indices):
        raise WrongAnswerError(f"{where}: a frame is drawn twice")
    seen[indices] = True
