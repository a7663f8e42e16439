"""Frames drawn with replacement, as often as they weigh."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from egoloader import weighted as weighted_module
from egoloader.errors import SettingsError
from egoloader.order import OrderSettings
from egoloader.weighted import WeightedOrder
from tests.orders import NO_JOBS, TAILS, Pairs, drawn, once, roster_of, state_at, surprise

WEIGHTS = [0, 1, 2, 0, 3, 4, 0.5, 0]


def weighted(rank: int = 0, world_size: int = 1, **options: Any) -> WeightedOrder:
    made = OrderSettings(**{"batch_size": 3, "seed": 2, **options})
    weights = np.array(WEIGHTS, dtype=np.float64)
    return WeightedOrder(roster_of([3, 1, 4]), weights, made, rank, world_size)


def places(batches: list[tuple[Pairs, Pairs]]) -> list[int]:
    """Return which of the 8 frames, counted through, batches hold."""
    pairs = [pair for real, more in batches for pair in real + more]
    assert all(0 <= frame < [3, 1, 4][number] for number, frame in pairs)
    return [[0, 3, 4][number] + frame for number, frame in pairs]


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


@pytest.mark.parametrize(("done", "position"), [(4, (0, 4)), (5, (1, 0))])
def test_less_than_a_full_step_is_dropped(done: int, position: tuple[int, int]) -> None:
    state = state_at(weighted(0, 1, batch_size=1, tail="drop"), 0, done)
    assert weighted(0, 4, batch_size=1, tail="drop").restore(state) == position


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


@pytest.mark.parametrize("uniform", [0.0, 2.0**-53, 1 - 2.0**-53])
def test_at_the_ends_no_frame_without_weight_is_drawn(
    uniform: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        weighted_module, "uniforms", lambda key, count, start: np.full(count, uniform)
    )
    assert set(places(drawn(weighted()))) == {1 if uniform < 0.5 else 6}


@pytest.mark.parametrize("tail", TAILS)
def test_a_dealt_epoch_has_as_many_draws_as_frames(tail: Any) -> None:
    def job(world_size: int) -> list[WeightedOrder]:
        made = OrderSettings(2, tail=tail)
        roster, weights = roster_of([15, 25]), np.arange(40.0)
        return [
            WeightedOrder(roster, weights, made, rank, world_size) for rank in range(world_size)
        ]

    count, state = 0, state_at(job(1)[0], 0, 0)
    for done, world_size in enumerate((1, 2, 3, 2)):
        orders = job(world_size)
        assert {order.restore(state) for order in orders} == {(0, done)}
        batches = [drawn(order, 0, done) for order in orders]
        count += sum(len(once(own[:1])) for own in batches)
        states = [state_at(order, 0, done + 1) for order in orders]
        assert all(one == states[0] for one in states)
        state = states[0]
        # On as many ranks, it goes on the same.
        again = job(world_size)
        assert {order.restore(state) for order in again} == {(0, done + 1)}
        assert [drawn(order, 0, done + 1) for order in again] == [own[1:] for own in batches]
    (last,) = job(1)
    assert last.restore(state) == (0, 4)
    assert count == 2 + 4 + 6 + 4
    assert len(once(drawn(last, 0, 4))) == 40 - count


@pytest.mark.parametrize(("lengths", "rank", "world_size", "match"), NO_JOBS)
def test_ranks_and_episodes_that_there_are_not(
    lengths: list[int], rank: Any, world_size: Any, match: str
) -> None:
    weights = np.ones(sum(lengths))
    with pytest.raises(SettingsError, match=match):
        WeightedOrder(roster_of(lengths), weights, OrderSettings(2), rank, world_size)
