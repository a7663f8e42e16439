"""Batches of every rank and epoch as a function of settings, data and position."""

from __future__ import annotations

import itertools
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodePool
from egoloader.clocks import Clocks, Limits
from egoloader.errors import SettingsError
from egoloader.order import OrderSettings
from egoloader.pool import admission_order
from egoloader.poolorder import PoolOrder
from egoloader.roster import Roster
from egoloader.seeding import stream_key
from egoloader.shuffles import Items, Shuffles
from tests.orders import (
    NO_JOBS,
    TAILS,
    Pairs,
    SlowClocks,
    budgets,
    drawn,
    once,
    roster_of,
    slow_shuffle,
    some_lengths,
    state_at,
    surprise,
)

MANY = [(number, 1000) for number in range(100_000)]


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


def test_draws_are_uniform_behind_a_change_of_ranks() -> None:
    # Of the residents that a rank begins with, those that were resident before and not drawn from
    # are as likely as others to be drawn from first.
    cells = []
    for pool_size, count, length, done in ((10, 40, 1, 10), (12, 60, 300, 1)):
        found, expected = np.zeros(2), np.zeros(2)
        for seed in range(160):
            options = OrderSettings(4 if length > 1 else 1, pool_size, seed, "repeat")
            roster = roster_of([length] * count)
            before = PoolOrder(roster, options, 0, 1)
            state = state_at(before, 0, done)
            (clocks,) = state["ranks"]
            items = admission_order(Shuffles(seed, 0, roster.lengths))
            carried = {
                int(items.numbers[p]) for p, _, drawn_of in clocks["residents"] if not drawn_of
            }
            for rank in range(2):
                order = PoolOrder(roster, options, rank, 2)
                epoch, at = order.restore(state)
                part = order._deal_of(epoch).parts[rank]
                sizes = (part.stops - part.starts)[:pool_size]
                is_carried = np.isin(part.numbers[:pool_size], list(carried))
                share = sizes[is_carried].sum() / sizes.sum()
                first = int(next(iter(order.batches(epoch, at))).numbers[0])
                found[int(first in carried)] += 1
                expected += (1 - share, share)
        cells.append((found.tolist(), expected.tolist()))
    assert abs(surprise(cells)) < 5


def test_one_full_step_that_is_left_is_drawn_by_other_ranks() -> None:
    roster, options = roster_of([5, 7, 4]), OrderSettings(2, 2, 3, "drop")
    for done, left in ((4, 2), (5, 1), (6, 1), (7, 0)):  # 16 frames: steps of 2, and then of 4
        order = PoolOrder(roster, options, 0, 2)
        epoch, at = order.restore(state_at(PoolOrder(roster, options, 0, 1), 0, done))
        assert (epoch, at) == ((0, done) if left else (1, 0))
        assert len(list(order.batches(epoch, at))) == (left or 4)


def test_repeats_are_frames_of_any_episode_and_differ_by_rank() -> None:
    lengths = [50] * 20
    again = []
    for seed, epoch, rank in itertools.product(range(2), range(3), range(3)):
        order = PoolOrder(roster_of(lengths), OrderSettings(900, 4, seed, "repeat"), rank, 3)
        (_, repeats) = drawn(order, epoch)[-1]
        assert len(repeats) in (566, 567)
        again.append(tuple(repeats))
    assert len(set(again)) == 18
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


def test_what_is_dealt_anew_comes_in_a_seeded_order() -> None:
    def admitted(seed: int, done: int) -> list[list[int]]:
        """Return the episodes of each rank in the order in which their first frames come."""
        before = PoolOrder(roster_of([20] * 40), OrderSettings(2, 1, seed), 0, 1)
        ranks = [PoolOrder(roster_of([20] * 40), OrderSettings(2, 1, seed), r, 2) for r in range(2)]
        state = state_at(before, 0, done)
        assert {order.restore(state) for order in ranks} == {(0, done)}
        frames = [once(drawn(order, 0, done)) for order in ranks]
        return [list(dict.fromkeys(number for number, _ in own)) for own in frames]

    orders = [admitted(seed, done) for seed in range(3) for done in (7, 8)]
    assert len({str(order) for order in orders}) == 6
    for one, other in orders:
        assert sorted({*one, *other}) == list(range(40))
        assert one != sorted(one)
        assert 2 < sum(number < 20 for number in one) < 18
    # Checkpoints go on from it: it never changes.
    assert orders[0][0][:8] == [23, 4, 34, 10, 12, 36, 7, 18]


def test_epochs_gone_by_are_not_kept() -> None:
    orders = [PoolOrder(roster_of([2] * 500), OrderSettings(100, 4), 0, 1) for _ in range(2)]
    for epoch in range(30):
        drawn(orders[0], epoch)
        orders[0].state(epoch, 1)
    sizes = [len(pickle.dumps(order)) for order in orders]
    assert sizes[0] < 3 * sizes[1]


# What positions cost.


def drawn_first(order: PoolOrder, done: int) -> Pairs:
    draws = next(order.batches(0, done))
    return list(zip(draws.numbers.tolist(), draws.frames.tolist(), strict=True))


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


def test_going_on_after_a_break_passes_over_every_frame_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order = PoolOrder(roster_of([40] * 30), OrderSettings(8, 4), 0, 1)
    wanted, counts = drawn(order), Counts(monkeypatch)
    found = [drawn_first(order, done) for done in range(len(wanted))]
    assert found == [real for real, _ in wanted]
    assert (counts.taken, counts.skipped) == (1200, 1200 - 8)
    assert drawn(order, 0, 3) == wanted[3:]


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
    base = state["base"]
    parts = len(base["gaps"]) + len(base["pieces"])
    begun = parts + sum(len(one["residents"]) for one in state["ranks"])
    assert begun <= 3 * (3 * 8 + 3)


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


@pytest.mark.parametrize(("lengths", "rank", "world_size", "match"), NO_JOBS)
def test_ranks_and_episodes_that_there_are_not(
    lengths: list[int], rank: Any, world_size: Any, match: str
) -> None:
    with pytest.raises(SettingsError, match=match):
        PoolOrder(roster_of(lengths), OrderSettings(2), rank, world_size)


@pytest.mark.parametrize(
    ("budget", "match"), [(0, "got 0"), (2.0, "got 2.0"), (4, "episode 1 has 5 bytes")]
)
def test_budgets_that_can_not_be_met(budget: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        PoolOrder(roster_of([3, 4], [4, 5]), OrderSettings(2, byte_budget=budget), 0, 1)
