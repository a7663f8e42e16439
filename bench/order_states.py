"""States in the middle of an epoch: how large they are, and what going on from them takes."""

from __future__ import annotations

import pickle
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.order_draws import Episodes, Position
from bench.pairing import Contender, Timings, WrongAnswerError, measure
from egoloader import EpisodePool, EpisodePoolSampler
from egoloader.poolorder import PoolOrder

__all__ = ["Reached", "StateSettings", "reach", "state_sizes", "time_states"]


@dataclass(frozen=True, slots=True)
class StateSettings:
    """What is asked of states.

    Attributes:
        pool_sizes: of the states.
        shares: of the epoch that is done, at least two; ratios are against the first.
        rounds: timed per contender.
        world_size: ranks of a state whose size is looked at at the first share.
        fewer: ranks that go on from it, and save again.
        drawn_after: batches drawn from a state, to compare with where passing over them leads.
    """

    pool_sizes: tuple[int, ...] = (32, 4096)
    shares: tuple[float, ...] = (0.01, 0.5)
    rounds: int = 5
    world_size: int = 8
    fewer: int = 3
    drawn_after: int = 100

    def __post_init__(self) -> None:
        if len(self.shares) < 2 or not self.pool_sizes:
            raise ValueError(f"at least two shares of an epoch are compared, got {self}")
        if self.fewer == self.world_size:
            raise ValueError(f"the ranks that go on are to be others than those before, got {self}")


@dataclass(frozen=True, slots=True)
class Reached:
    """Positions of one pool size, by name.

    Attributes:
        positions: by the share of the epoch that is done.
        seconds: of CPU time that the first state of an epoch took there, with none before it.
    """

    positions: Mapping[str, Position]
    seconds: Mapping[str, float]


def reach(episodes: Episodes, pool_size: int, settings: StateSettings) -> Reached:
    """Ask orders that begin anew for their state at each share of an epoch.

    Raises:
        WrongAnswerError: drawing leads elsewhere than passing over.
    """
    positions, seconds = {}, {}
    pool = episodes.pool(pool_size)
    for share in settings.shares:
        order = episodes.order(pool_size)
        done = int(share * order.num_batches(0))
        start = time.process_time()
        before = Position(done, order.state(0, done))
        seconds[_name(share)] = time.process_time() - start
        positions[_name(share)] = _drawn_on(order, pool, before, episodes, settings.drawn_after)
    return Reached(positions, seconds)


def _drawn_on(
    order: PoolOrder, pool: EpisodePool, before: Position, episodes: Episodes, batches: int
) -> Position:
    """Return the position some batches further, which drawing must lead to as well."""
    position = Position(before.done + batches, order.state(0, before.done + batches))
    before.move_pool(pool, episodes.batch_size)
    for _ in range(batches * episodes.batch_size):
        next(pool)
    left = len(episodes) - position.done * episodes.batch_size
    if (pool.state_dict()["clocks"], pool.remaining) != (position.state["ranks"][0], left):
        raise WrongAnswerError(f"behind {position.done} batches, drawing and passing over differ")
    return position


def time_states(
    episodes: Episodes, pool_size: int, positions: Mapping[str, Position], rounds: int
) -> dict[str, Timings]:
    """Time saving and going on, at each position in turn; return CPU times by what is done.

    Raises:
        WrongAnswerError: a state, or the first frames behind it, are not what they were.
    """
    pool, sampler = episodes.pool(pool_size), episodes.sampler(pool_size)
    pools, samplers = {}, {}
    for name, position in positions.items():
        position.move_pool(pool, episodes.batch_size)
        pools[name] = pool.state_dict()
        position.move_sampler(sampler)
        samplers[name] = sampler.state_dict()
        first = next(iter(sampler))[0]
        if next(pool) != _frame(episodes, int(first)):
            raise WrongAnswerError(f"{name}: the sampler goes on with another frame than the pool")
    return {
        "EpisodePool: load_state_dict and a draw": _time_loading(pool, pools, rounds),
        "EpisodePoolSampler: load_state_dict and a batch": _time_loading(sampler, samplers, rounds),
        "EpisodePool: state_dict": _time_saving(
            {name: episodes.pool(pool_size) for name in pools}, pools, rounds
        ),
        "EpisodePoolSampler: state_dict": _time_saving(
            {name: episodes.sampler(pool_size) for name in samplers}, samplers, rounds
        ),
    }


def _time_loading(
    source: EpisodePool | EpisodePoolSampler, states: Mapping[str, Any], rounds: int
) -> Timings:
    def load(state: Any) -> Any:
        source.load_state_dict(state)
        return next(iter(source))

    firsts = {name: load(state) for name, state in states.items()}
    contenders = [_contender(name, load, state) for name, state in states.items()]
    return _timed(contenders, firsts, rounds)


def _time_saving(
    sources: Mapping[str, EpisodePool | EpisodePoolSampler], states: Mapping[str, Any], rounds: int
) -> Timings:
    def save(source: EpisodePool | EpisodePoolSampler) -> Any:
        return source.state_dict()

    for name, source in sources.items():
        source.load_state_dict(states[name])
        next(iter(source))  # so that it is in the middle of what it has planned to draw
    saved = {name: save(source) for name, source in sources.items()}
    if any(saved[name] == states[name] for name in sources):
        raise WrongAnswerError("a draw leaves the state as it was")
    contenders = [_contender(name, save, source) for name, source in sources.items()]
    return _timed(contenders, saved, rounds)


def _contender(name: str, task: Any, argument: Any) -> Contender[int, Any]:
    return Contender(name, lambda _: task(argument))


def _timed(
    contenders: list[Contender[int, Any]], wanted: Mapping[str, Any], rounds: int
) -> Timings:
    def check(
        contenders: Sequence[Contender[int, Any]], question: int, answers: Sequence[Any]
    ) -> None:
        for contender, answer in zip(contenders, answers, strict=True):
            if answer != wanted[contender.name]:
                raise WrongAnswerError(f"{contender.name}, round {question}: another answer")

    return measure(
        contenders, range(1, rounds + 1), check, rehearsal=[0], clock=time.process_time_ns
    )


def state_sizes(
    episodes: Episodes, pool_size: int, settings: StateSettings
) -> dict[str, dict[str, int]]:
    """Return the bytes of pickled states at the first share of an epoch.

    Raises:
        WrongAnswerError: a sampler saves something else than what it has loaded, or goes on with
            too few or too many batches.
    """
    sizes = {}
    for world_size in (1, settings.world_size):
        order = episodes.order(pool_size, world_size)
        done = int(settings.shares[0] * order.num_batches(0))
        position = Position(done, order.state(0, done))
        sampler = episodes.sampler(pool_size, world_size)
        position.move_sampler(sampler)
        state = sampler.state_dict()
        if any(state[name] != value for name, value in position.state.items()):
            raise WrongAnswerError(f"ranks: {world_size}: another state is saved than was loaded")
        sizes[f"ranks: {world_size}"] = _size(state, world_size)
    fewer = episodes.sampler(pool_size, settings.fewer)
    fewer.load_state_dict(state)
    left = len(episodes) - done * episodes.batch_size * world_size
    if len(fewer) - fewer.done != -(-left // (episodes.batch_size * settings.fewer)):
        raise WrongAnswerError(f"{settings.fewer} ranks go on with {len(fewer)} batches")
    name = f"ranks: {settings.fewer}, going on from {world_size}"
    sizes[name] = _size(fewer.state_dict(), settings.fewer)
    return sizes


def _size(state: dict[str, Any], ranks: int) -> dict[str, int]:
    size = len(pickle.dumps(state))
    return {"ranks": ranks, "bytes": size, "bytes a rank": -(-size // ranks)}


def _frame(episodes: Episodes, index: int) -> tuple[str, int]:
    number, frame = divmod(index, episodes.total_frames)
    return episodes.frames_by_episode()[number][0], frame


def _name(share: float) -> str:
    return f"{share:.0%} done"
