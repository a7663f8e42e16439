"""Batches of every rank and epoch as a function of settings, data and position."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodePool
from egoloader.clocks import Clocks, Items, Limits, Shuffles
from egoloader.errors import SettingsError
from egoloader.order import Order, OrderSettings, PoolOrder
from egoloader.roster import Roster
from egoloader.seeding import stream_key
from egoloader.weighted import WeightedOrder
from tests.orders import TAILS, SlowClocks, budgets, slow_shuffle, some_lengths, surprise

Pairs = list[tuple[int, int]]
MANY = [(number, 1000) for number in range(100_000)]


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


def slow_ranks(roster: Roster, options: OrderSettings, epoch: int, world_size: int) -> list[Pairs]:
    """Deal the frames one by one in the order of admission, and draw each rank's from a heap."""
    lengths = roster.lengths.tolist()
    order = slow_shuffle(stream_key("admission", options.seed, epoch), len(lengths))
    flat = [(number, place) for number in order for place in range(lengths[number])]
    ranks = []
    for rank in range(world_size):
        span = slice(len(flat) * rank // world_size, len(flat) * (rank + 1) // world_size)
        groups = itertools.groupby(flat[span], key=lambda pair: pair[0])
        places = [(number, [place for _, place in group]) for number, group in groups]
        spans = [(number, own[0], own[-1] + 1) for number, own in places]
        spans.sort(key=lambda span: span[2] - span[1] == lengths[span[0]])  # those cut come first
        slow = SlowClocks(
            Shuffles(options.seed, epoch, roster.lengths),
            Items(*np.array(spans, dtype=np.int64).reshape(-1, 3).T),
            Limits(options.pool_size, options.byte_budget, roster.sizes),
        )
        ranks.append([slow.draw() for _ in flat[span]])
    return ranks


@settings(deadline=None, max_examples=150)
@given(
    st.data(), some_lengths, st.integers(1, 4), st.integers(1, 4), st.integers(1, 3),
    st.sampled_from(TAILS),
)  # fmt: skip
def test_every_frame_once_over_all_ranks(
    data: st.DataObject, lengths: list[int], world_size: int, batch_size: int, pool: int, tail: Any
) -> None:
    sizes, budget = data.draw(budgets(len(lengths)))
    budget_or_none = data.draw(st.sampled_from([None, budget]))
    roster, epoch = roster_of(lengths, sizes), data.draw(st.integers(0, 2))
    options = OrderSettings(batch_size, pool, 1, tail, budget_or_none)
    fewest, most = sum(lengths) // world_size, -(-sum(lengths) // world_size)
    if fewest < {"spread": -(-most // batch_size), "drop": batch_size, "repeat": 0}[tail]:
        with pytest.raises(SettingsError, match=f"tail: {tail}"):
            PoolOrder(roster, options, 0, world_size)
        return
    ranks = [PoolOrder(roster, options, rank, world_size) for rank in range(world_size)]
    slow = slow_ranks(roster, options, epoch, world_size)
    batches = [drawn(order, epoch) for order in ranks]
    for own, order, wanted in zip(batches, ranks, slow, strict=True):
        assert len(own) == order.num_batches(epoch) == len(batches[0])
        assert once(own) == wanted[: len(once(own))]
        assert all(len(real) + len(more) == batch_size for real, more in own[:-2])
        assert tail == "repeat" or not any(more for _, more in own)
        frames = roster.lengths.tolist()
        assert all(0 <= frame < frames[n] for _, more in own for n, frame in more)
    served = list(itertools.chain(*map(once, batches)))
    assert len(served) == len(set(served)) == sum(lengths) - ranks[0].left_out(epoch)
    assert tail == "drop" or ranks[0].left_out(epoch) == 0
    if tail == "repeat":
        filled = [len(real) + len(more) for own in batches for real, more in own]
        assert filled == [batch_size] * len(filled)


def test_one_rank_draws_what_the_pool_does() -> None:
    lengths = {"a": 5, "b": 0, "c": 9, "d": 14, "e": 2}
    for epoch in range(3):
        order = PoolOrder(Roster(lengths), OrderSettings(4, 2, 7), 0, 1)
        named = [("acde"[number], frame) for number, frame in once(drawn(order, epoch))]
        assert named == list(EpisodePool(lengths, 2, 7, epoch))


def test_how_many_are_resident_behind_each_batch() -> None:
    order, pool = PoolOrder(roster_of([4, 6, 5, 3]), OrderSettings(3, 2, 1), 0, 1), None
    pool = EpisodePool(enumerate([4, 6, 5, 3]), 2, 1)
    for draws in order.batches(0, 0):
        for _ in draws.numbers:
            next(pool)
        assert draws.num_resident == len(pool.resident)
    assert draws.num_resident == 0


def test_repeats_are_frames_of_any_episode_and_differ_by_rank() -> None:
    lengths = [50] * 20
    again = []
    for epoch, rank in itertools.product(range(3), range(3)):
        order = PoolOrder(roster_of(lengths), OrderSettings(900, 4, 0, "repeat"), rank, 3)
        (_, repeats) = drawn(order, epoch)[-1]
        assert len(repeats) in (566, 567)
        again.append(tuple(repeats))
    assert len(set(again)) == 9
    counts = Counter(number for repeats in again for number, _ in repeats)
    expected = [sum(counts.values()) / 20] * 20
    assert abs(surprise([([counts[number] for number in range(20)], expected)])) < 5
    frames = Counter(frame for repeats in again for _, frame in repeats)
    expected = [sum(counts.values()) / 50] * 50
    assert abs(surprise([([frames[frame] for frame in range(50)], expected)])) < 5


@pytest.mark.parametrize("epochs", [(0, 3, 1, 0), (2, 2, 1), (5, 4, 5, 6, 5)])
def test_epochs_may_be_asked_for_in_any_order(epochs: tuple[int, ...]) -> None:
    order = PoolOrder(roster_of([5, 7, 9]), OrderSettings(2, 2), 1, 2)
    for epoch in epochs:
        fresh = PoolOrder(roster_of([5, 7, 9]), OrderSettings(2, 2), 1, 2)
        assert drawn(order, epoch) == drawn(fresh, epoch)
        assert order.state(epoch, 3) == fresh.state(epoch, 3)
        assert order.state(epoch, 1) == fresh.state(epoch, 1)


def test_two_epochs_may_be_drawn_in_turns() -> None:
    order = PoolOrder(roster_of([5, 7, 9]), OrderSettings(2, 2), 0, 1)
    one, other = order.batches(0, 0), order.batches(1, 4)
    turns = [next(which).frames.tolist() for which in (one, other, one, other, one)]
    fresh = PoolOrder(roster_of([5, 7, 9]), OrderSettings(2, 2), 0, 1)
    wanted = [[frame for _, frame in real] for real, _ in drawn(fresh, 0)[:3]]
    assert turns[::2] == wanted
    wanted = [[frame for _, frame in real] for real, _ in drawn(fresh, 1, 4)[:2]]
    assert turns[1::2] == wanted


# What positions cost.


class Counts:
    """How many frames were passed over or drawn, and how many shuffles were made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.skipped, self.taken, self.shuffles = 0, 0, 0
        skip, take, frames = Clocks.skip, Clocks.take, Shuffles.frames

        def noted_skip(clocks: Clocks, count: int) -> None:
            self.skipped += count
            skip(clocks, count)

        def noted_take(clocks: Clocks, count: int) -> Any:
            self.taken += count
            return take(clocks, count)

        def noted_frames(shuffles: Shuffles, *part: int) -> Any:
            self.shuffles += 1
            return frames(shuffles, *part)

        patch.setattr(Clocks, "skip", noted_skip)
        patch.setattr(Clocks, "take", noted_take)
        patch.setattr(Shuffles, "frames", noted_frames)


@pytest.mark.parametrize("world_size", [1, 3])
def test_states_draw_nothing_and_pass_over_every_frame_once(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = PoolOrder(roster_of([40] * 30), OrderSettings(8, 4), 0, world_size)
    counts = Counts(monkeypatch)
    states = [order.state(0, done) for done in range(order.num_batches(0))]
    assert (counts.taken, counts.shuffles) == (0, 0)
    assert counts.skipped < 40 * 30
    order.state(0, len(states) - 1)
    assert counts.skipped < 40 * 30
    assert order.state(0, 2) == states[2]


@pytest.mark.parametrize("before", [1, 2])
def test_restoring_passes_over_nothing(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = [4000] * 30
    first = PoolOrder(roster_of(lengths), OrderSettings(8, 4), 0, before)
    done = first.num_batches(0) * 2 // 3
    state = state_at(first, 0, done)
    counts = Counts(monkeypatch)
    order = PoolOrder(roster_of(lengths), OrderSettings(8, 4), 1, 2)
    assert order.restore(state) == (0, done)
    assert state_at(order, 0, done)["epoch"] == 0
    next(order.batches(0, done))
    assert (counts.skipped, counts.taken) == (0, 8)
    assert counts.shuffles <= 6  # of the 4 residents, and of those that come within a run


def test_a_hundred_thousand_episodes_fit_into_memory() -> None:
    tracemalloc.start()
    try:
        pool = EpisodePool(MANY, pool_size=4096)
        assert pool.remaining == 100_000_000
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_a_state_of_a_hundred_thousand_episodes_is_small() -> None:
    pool = EpisodePool(MANY, pool_size=32)
    for _ in range(500):
        next(pool)
    assert len(pickle.dumps(pool.state_dict())) < 200e3
    roster = Roster(MANY)
    for pool_size in (32, 4096):
        order = PoolOrder(roster, OrderSettings(32, pool_size), 0, 1)
        state = state_at(order, 0, 3000)
        assert len(pickle.dumps(state)) < 200e3
    for world_size in (2, 1):
        order = PoolOrder(roster, OrderSettings(32, 32), 0, world_size)
        epoch, done = order.restore(state_at(PoolOrder(roster, OrderSettings(32, 32), 0, 1), 0, 99))
        assert len(pickle.dumps(state_at(order, epoch, done + 1000))) < 200e3


def test_many_changes_of_ranks_keep_the_state_small() -> None:
    # It grows with ranks and pool, however often the ranks have been others.
    roster, options = roster_of([50] * 3000), OrderSettings(8, 8)
    state = state_at(PoolOrder(roster, options, 0, 1), 0, 40)
    for world_size in [2, 3] * 6:
        order = PoolOrder(roster, options, 0, world_size)
        epoch, done = order.restore(state)
        state = state_at(order, epoch, done + 40)
    begun = len(state["base"]["parts"]) + sum(len(one["residents"]) for one in state["ranks"])
    assert begun <= 3 * (3 * 8 + 3)


# Weights.


WEIGHTS = [0, 1, 2, 0, 3, 4, 0.5, 0]


def weighted(rank: int = 0, world_size: int = 1, **options: Any) -> WeightedOrder:
    made = OrderSettings(**{"batch_size": 3, "seed": 2, **options})
    weights = np.array(WEIGHTS, dtype=np.float64)
    return WeightedOrder(roster_of([3, 1, 4]), weights, made, rank, world_size)


def places(batches: list[tuple[Pairs, Pairs]]) -> list[int]:
    """Return which of the 8 frames, counted through, batches hold."""
    return [[0, 3, 4][number] + frame for real, more in batches for number, frame in real + more]


@pytest.mark.parametrize("world_size", [1, 2])
def test_frames_are_drawn_as_often_as_they_weigh(world_size: int) -> None:
    orders = [weighted(rank, world_size) for rank in range(world_size)]
    assert not any(order.covers for order in orders)
    found = [
        place for epoch in range(1500) for one in orders for place in places(drawn(one, epoch))
    ]
    assert len(found) == 1500 * 8
    counts = Counter(found)
    some = [place for place, weight in enumerate(WEIGHTS) if weight]
    assert set(counts) == set(some)
    expected = [len(found) * WEIGHTS[place] / sum(WEIGHTS) for place in some]
    assert abs(surprise([([counts[place] for place in some], expected)])) < 5
    pairs = Counter(itertools.pairwise(found))
    share = {place: WEIGHTS[place] / sum(WEIGHTS) for place in some}
    cells = list(itertools.product(some, repeat=2))
    expected = [share[a] * share[b] * (len(found) - 1) for a, b in cells]
    assert abs(surprise([([pairs[cell] for cell in cells], expected)])) < 5


def test_weighted_draws_are_a_function_of_what_they_are_for() -> None:
    orders = [drawn(weighted(rank, 2), epoch) for rank in range(2) for epoch in range(4)]
    assert len({str(order) for order in orders}) == 8
    assert [drawn(weighted(r, 2), e) for r in range(2) for e in range(4)] == orders
    assert drawn(weighted(seed=3)) != drawn(weighted())
    assert places(drawn(weighted())) == [5, 4, 5, 2, 1, 5, 5, 5]


def test_weighted_batches_are_as_many_as_of_all_frames() -> None:
    assert [len(real) for real, _ in drawn(weighted())] == [3, 3, 2]
    assert [len(real) for real, _ in drawn(weighted(0, 2))] == [3, 1]
    assert [len(real) for real, _ in drawn(weighted(tail="drop"))] == [3, 3]
    assert weighted(tail="drop").left_out(0) == 2
    assert [len(more) for _, more in drawn(weighted(tail="repeat"))] == [0, 0, 1]
    with pytest.raises(SettingsError, match="tail: spread"):
        weighted(0, 7, batch_size=1)


def test_other_ranks_make_other_weighted_draws_of_what_is_left() -> None:
    before = weighted(0, 1, batch_size=1)
    state = state_at(before, 0, 4)
    after = [weighted(rank, 2, batch_size=1) for rank in range(2)]
    assert {order.restore(state) for order in after} == {(0, 4)}
    left = [drawn(order, 0, 4) for order in after]
    assert [len(once(batches)) for batches in left] == [2, 2]
    assert [order.num_batches(0) for order in after] == [6, 6]
    assert [order.num_batches(1) for order in after] == [4, 4]
    assert len({str(once(one)) for one in [*left, drawn(before, 0)[:2], drawn(before, 0, 6)]}) == 4


# Errors.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"batch_size": True}, "batch_size .* got True"),
        ({"batch_size": 8.0}, "batch_size .* got 8.0"),
        ({"pool_size": 0}, "pool_size .* got 0"),
        ({"pool_size": 1.0}, "pool_size .* got 1.0"),
        ({"seed": -1}, "seed .* got -1"),
        ({"seed": True}, "seed .* got True"),
        ({"tail": "dorp"}, "did you mean 'drop'"),
    ],
)
def test_settings_that_can_not_be_meant(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        OrderSettings(**options)


@pytest.mark.parametrize("kind", ["pool", "weights"])
@pytest.mark.parametrize(
    ("lengths", "rank", "world_size", "match"),
    [
        ([3, 4], 2, 2, "rank 2 is none of 2: they are 0 to 1"),
        ([3, 4], -1, 2, "rank must be a whole number from 0 on, got -1"),
        ([3, 4], True, 2, "rank .* got True"),
        ([3, 4], 0, 0, "world_size must be a whole number from 1 on, got 0"),
        ([3, 4], 0, 1.0, "world_size .* got 1.0"),
        ([], 0, 1, "no episodes with frames"),
        ([0, 0], 0, 1, "no episodes with frames"),
    ],
)
def test_ranks_and_episodes_that_there_are_not(
    kind: str, lengths: list[int], rank: Any, world_size: Any, match: str
) -> None:
    roster, weights, options = roster_of(lengths), np.ones(sum(lengths)), OrderSettings(2)
    makers: dict[str, Callable[[], Order]] = {
        "pool": lambda: PoolOrder(roster, options, rank, world_size),
        "weights": lambda: WeightedOrder(roster, weights, options, rank, world_size),
    }
    with pytest.raises(SettingsError, match=match):
        makers[kind]()


@pytest.mark.parametrize(
    ("budget", "match"), [(0, "got 0"), (2.0, "got 2.0"), (4, "episode 1 has 5 bytes")]
)
def test_budgets_that_can_not_be_met(budget: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        PoolOrder(roster_of([3, 4], [4, 5]), OrderSettings(2, byte_budget=budget), 0, 1)
