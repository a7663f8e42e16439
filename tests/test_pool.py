"""`EpisodePool`: every frame once, uniformly from what is resident, and from any position on."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodePool
from egoloader.clocks import LOOK_PAST, Limits
from egoloader.errors import SettingsError
from egoloader.pool import admission_order
from egoloader.seeding import stream_key
from egoloader.shuffles import Items, Shuffles
from tests.orders import (
    SlowClocks,
    budgets,
    lengths_of,
    short_runs,
    slow_shuffle,
    some_lengths,
    surprise,
)

Pairs = list[tuple[str, int]]
sets = st.tuples(lengths_of, st.integers(1, 5), st.integers(0, 3), st.integers(1, 40))


def listed(lengths: list[int]) -> Pairs:
    return [(f"e{n}", frames) for n, frames in enumerate(lengths)]


def every_frame(lengths: list[int]) -> Pairs:
    return [(ident, frame) for ident, frames in listed(lengths) for frame in range(frames)]


# Coverage.


@settings(deadline=None, max_examples=200)
@given(sets)
def test_every_frame_once(drawn: tuple[list[int], int, int, int]) -> None:
    lengths, pool_size, seed, run = drawn
    with short_runs(run):
        pool = EpisodePool(listed(lengths), pool_size, seed)
        assert sorted(pool) == sorted(every_frame(lengths))
        assert (pool.remaining, pool.resident, pool.resident_bytes) == (0, (), 0)
        assert list(pool) == []


@settings(deadline=None, max_examples=200)
@given(st.data(), sets)
def test_every_frame_once_within_a_budget(
    data: st.DataObject, drawn: tuple[list[int], int, int, int]
) -> None:
    lengths, pool_size, seed, run = drawn
    sizes, budget = data.draw(budgets(len(lengths)))
    size_of = dict(zip((ident for ident, _ in listed(lengths)), sizes, strict=True))
    with short_runs(run):
        pool = EpisodePool(listed(lengths), pool_size, seed, byte_sizes=sizes, byte_budget=budget)
        found = []
        while pool.remaining:
            assert 0 < len(pool.resident) <= pool_size
            assert pool.resident_bytes == sum(size_of[ident] for ident in pool.resident) <= budget
            # Nothing waits that would fit, as far as one looks.
            if len(pool.resident) < pool_size:
                waiting = pool.prefetch_candidates(LOOK_PAST)
                assert all(pool.resident_bytes + size_of[ident] > budget for ident in waiting)
            found.append(next(pool))
        assert sorted(found) == sorted(every_frame(lengths))


def test_a_budget_of_just_one_episode() -> None:
    pool = EpisodePool([("a", 3), ("b", 4), ("c", 2)], byte_sizes=[7, 7, 7], byte_budget=7)
    order = [ident for ident, _ in pool]
    assert len(list(itertools.groupby(order))) == 3
    assert len(order) == 9


def test_one_that_does_not_fit_is_passed_over_and_comes_later() -> None:
    # 1 large and 200 small episodes: the large one comes when it fits at last.
    episodes = [("large", 5), *((f"s{n}", 2) for n in range(200))]
    late = []
    for seed in range(6):
        pool = EpisodePool(episodes, 4, seed, byte_sizes=[40, *[10] * 200], byte_budget=40)
        order = [ident for ident, _ in pool]
        assert order.count("large") == 5
        late.append(order.index("large"))
    assert max(late) == 400
    alone = EpisodePool(episodes, 4, 0, byte_sizes=[40, *[10] * 200], byte_budget=80)
    assert Counter(ident for ident, _ in alone)["large"] == 5


@settings(deadline=None, max_examples=60)
@given(st.data(), some_lengths, st.integers(1, 5), st.integers(0, 3), st.integers(0, 3))
def test_it_is_the_heap(
    data: st.DataObject, lengths: list[int], pool_size: int, seed: int, epoch: int
) -> None:
    sizes, budget = data.draw(budgets(len(lengths)))
    ids = [ident for ident, frames in sorted(listed(lengths)) if frames]
    frames = np.array([dict(listed(lengths))[ident] for ident in ids])
    by_id = dict(zip((ident for ident, _ in listed(lengths)), sizes, strict=True))
    order = slow_shuffle(stream_key("admission", seed, epoch), len(ids))
    slow = SlowClocks(
        Shuffles(seed, epoch, frames),
        Items(np.array(order), np.zeros(len(ids), np.int64), frames[order]),
        Limits(pool_size, budget, np.array([by_id[ident] for ident in ids])),
    )
    pool = EpisodePool(listed(lengths), pool_size, seed, epoch, by_id, budget)
    for ident, frame in pool:
        number, wanted = slow.draw()
        assert (ident, frame) == (ids[number], wanted)
    assert not slow.remaining


# What fixes the order.


@settings(deadline=None, max_examples=60)
@given(st.data(), some_lengths, st.integers(1, 5))
def test_however_the_episodes_are_listed(
    data: st.DataObject, lengths: list[int], pool_size: int
) -> None:
    sizes, budget = data.draw(budgets(len(lengths)))
    by_id = dict(zip((ident for ident, _ in listed(lengths)), sizes, strict=True))
    wanted = EpisodePool(listed(lengths), pool_size, 1, 2, by_id, budget)
    state, order = wanted.state_dict(), list(wanted)
    other = data.draw(st.permutations(listed(lengths)))
    in_its_order = [by_id[ident] for ident, _ in other]
    for episodes in (other, dict(other), iter(other), [pair for pair in other if pair[1]]):
        given_sizes: Any = in_its_order if episodes is other else by_id
        pool = EpisodePool(episodes, pool_size, 1, 2, given_sizes, budget)
        assert pool.state_dict() == state
        assert list(pool) == order


def test_every_setting_makes_another_order() -> None:
    episodes, sizes = listed([20] * 6), [5, 6, 7, 8, 9, 10]
    base: dict[str, Any] = {"pool_size": 4, "seed": 0, "epoch": 0}
    budget = {"byte_sizes": sizes, "byte_budget": 20}
    settings_of = [base, *({**base, name: value + 1} for name, value in base.items())]
    orders = [list(EpisodePool(episodes, **one)) for one in [*settings_of, {**base, **budget}]]
    orders.append(list(EpisodePool(listed([20] * 7), **base)))
    assert len({tuple(order) for order in orders}) == len(orders)
    again = [list(EpisodePool(episodes, **one)) for one in settings_of]
    assert again == orders[:4]


def test_an_order_never_changes() -> None:
    # Checkpoints go on from it: what they were saved with, and what goes on, must draw the same.
    pool = EpisodePool({"a": 3, "b": 2, "c": 4}, pool_size=2, seed=7, epoch=1)
    assert "".join(f"{ident}{frame}" for ident, frame in pool) == "c2b1c3c0c1b0a2a0a1"


# Announcements.


@settings(deadline=None, max_examples=100)
@given(sets, st.integers(0, 12))
def test_announcements_are_exact_without_a_budget(
    drawn: tuple[list[int], int, int, int], count: int
) -> None:
    lengths, pool_size, seed, run = drawn
    with short_runs(run):
        pool, left = EpisodePool(listed(lengths), pool_size, seed), dict(listed(lengths))
        frames, total = dict(listed(lengths)), sum(lengths)
        known = set(pool.drain_admitted())
        assert pool.drain_admitted() == pool.drain_evicted() == []
        assert known == set(pool.resident)
        waiting = sum(n > 0 for n in lengths) - len(known)
        for drawn_so_far in itertools.count(1):
            expected = pool.prefetch_candidates(count)
            assert len(expected) == min(count, waiting)
            ident, _ = next(pool, (None, 0))
            if ident is None:
                break
            assert ident in known
            left[ident] -= 1
            admitted, evicted = pool.drain_admitted(), pool.drain_evicted()
            assert evicted == ([ident] if not left[ident] else [])
            assert admitted[:count] == expected[: len(admitted)]
            assert len(admitted) == (min(1, waiting) if evicted else 0)
            waiting -= len(admitted)
            known = (known | set(admitted)) - set(evicted)
            assert known == set(pool.resident)
            assert pool.resident[len(known) - len(admitted) :] == tuple(admitted)
            assert pool.remaining == total - drawn_so_far
            assert len(known) == min(pool_size, len(known) + waiting)
        assert not known
        assert not any(left[ident] for ident in frames)


def test_what_is_not_drained_adds_up() -> None:
    pool = EpisodePool(listed([3] * 10), 2)
    order = list(pool)
    admitted, evicted = pool.drain_admitted(), pool.drain_evicted()
    assert sorted(admitted) == sorted(evicted) == sorted({ident for ident, _ in order})
    last = {ident: place for place, (ident, _) in enumerate(order)}
    assert evicted == sorted(last, key=lambda ident: last[ident])


# Uniformity.


@pytest.mark.parametrize(("lengths", "pool_size"), [([1, 2, 3], 9), ([2, 2, 1, 3], 2), ([5, 1], 2)])
def test_a_draw_is_uniform_over_the_frames_left(lengths: list[int], pool_size: int) -> None:
    # What is drawn given what is left of each resident episode, over many epochs.
    cells: dict[tuple[tuple[str, int], ...], Counter[str]] = {}
    for epoch in range(1200):
        pool, left = EpisodePool(listed(lengths), pool_size, 11, epoch), dict(listed(lengths))
        while pool.remaining:
            state = tuple(sorted((ident, left[ident]) for ident in pool.resident))
            ident, _ = next(pool)
            left[ident] -= 1
            cells.setdefault(state, Counter())[ident] += 1
    table = []
    for state, found in cells.items():
        count, frames = sum(found.values()), sum(n for _, n in state)
        expected = [count * n / frames for _, n in state]
        if len(state) > 1 and min(expected) >= 5:
            table.append(([found[ident] for ident, _ in state], expected))
    assert len(table) > 3
    assert abs(surprise(table)) < 5


def test_every_order_of_a_whole_pool_is_as_likely() -> None:
    episodes = [("a", 1), ("b", 3)]
    orders = Counter(tuple(EpisodePool(episodes, 2, 5, epoch)) for epoch in range(2400))
    assert len(orders) == 24
    assert abs(surprise([(list(orders.values()), [100.0] * 24)])) < 5


def test_admission_is_uniform() -> None:
    lengths = np.ones(4, np.int64)
    orders = Counter(
        tuple(admission_order(Shuffles(5, epoch, lengths)).numbers.tolist())
        for epoch in range(9600)
    )
    assert len(orders) == 24
    assert abs(surprise([(list(orders.values()), [400.0] * 24)])) < 5


# Resume.


@settings(deadline=None, max_examples=25)
@given(st.data(), sets, st.booleans())
def test_every_position_goes_on_the_same(
    data: st.DataObject, drawn: tuple[list[int], int, int, int], has_budget: bool
) -> None:
    lengths, pool_size, seed, run = drawn
    sizes, budget = data.draw(budgets(len(lengths)))
    limits: dict[str, Any] = {"byte_sizes": sizes, "byte_budget": budget} if has_budget else {}

    def make() -> EpisodePool:
        return EpisodePool(listed(lengths), pool_size, seed, **limits)

    def look(pool: EpisodePool) -> tuple[Any, ...]:
        return pool.remaining, pool.resident, pool.resident_bytes, pool.prefetch_candidates(9)

    with short_runs(run):
        pool, order = make(), list(make())
        for at in range(len(order) + 1):
            state = json.loads(json.dumps(pool.state_dict()))
            loaded = make()
            loaded.load_state_dict(state)
            assert look(loaded) == look(pool)
            assert (loaded.drain_admitted(), loaded.drain_evicted()) == (list(pool.resident), [])
            assert json.loads(json.dumps(loaded.state_dict())) == state
            assert list(loaded) == order[at:]
            # One that has gone on goes back.
            loaded.load_state_dict(state)
            assert list(itertools.islice(loaded, 3)) == order[at : at + 3]
            next(pool, None)


RESUME: dict[str, Any] = {
    "episodes": {"a": 3, "b": 4},
    "pool_size": 2,
    "seed": 1,
    "epoch": 2,
    "byte_sizes": {"a": 1, "b": 2, "c": 0},
    "byte_budget": 5,
}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"episodes": {"a": 3, "b": 4, "c": 1}}, "number of episodes was 2 and is 3"),
        ({"episodes": {"a": 3, "b": 5}}, "number of frames was 7 and is 8"),
        ({"episodes": {"a": 4, "b": 3}}, "set of episodes"),
        ({"episodes": {"a": 3, "c": 4}}, "set of episodes"),
        ({"byte_sizes": {"a": 1, "b": 3}}, "set of episodes"),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"epoch": 3}, "epoch was 2 and is 3"),
        ({"pool_size": 3}, "pool_size was 2 and is 3"),
        ({"byte_budget": 6}, "byte_budget was 5 and is 6"),
        ({"byte_budget": None}, "byte_budget was 5 and is None"),
    ],
)
def test_a_state_of_others_is_refused_by_name(change: dict[str, Any], name: str) -> None:
    state = EpisodePool(**RESUME).state_dict()
    other = EpisodePool(**{**RESUME, **change})
    before = list(EpisodePool(**{**RESUME, **change}))
    with pytest.raises(SettingsError, match=f"can't resume: {name}"):
        other.load_state_dict(state)
    assert list(other) == before


def test_a_state_of_something_else() -> None:
    with pytest.raises(SettingsError, match="holds no fingerprint"):
        EpisodePool(**RESUME).load_state_dict({"epoch": 1})


# Errors.


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"pool_size": 0}, "pool_size must be a whole number from 1 on, got 0"),
        ({"pool_size": True}, "pool_size .* got True"),
        ({"pool_size": 2.0}, "pool_size .* got 2.0"),
        ({"pool_size": None}, "pool_size .* got None"),
        ({"seed": -1}, "seed must be a whole number from 0 on, got -1"),
        ({"seed": False}, "seed .* got False"),
        ({"seed": 1.5}, "seed .* got 1.5"),
        ({"epoch": -1}, "epoch .* got -1"),
        ({"epoch": "0"}, "epoch .* got '0'"),
        ({"byte_budget": 0}, "byte_budget must be .* got 0"),
        ({"byte_budget": -5}, "byte_budget .* got -5"),
        ({"byte_budget": 1.5}, "byte_budget .* got 1.5"),
        ({"byte_budget": True}, "byte_budget .* got True"),
        ({"byte_budget": 1}, "episode 'b' has 2 bytes, more than byte_budget = 1"),
        ({"byte_sizes": None}, "byte_budget needs byte_sizes"),
        ({"byte_sizes": {"a": 1}}, "'b' is missing from byte_sizes"),
        ({"byte_sizes": {"a": 1, "b": -2}}, "'b': byte_sizes .* got -2"),
        ({"byte_sizes": {"a": float("nan"), "b": 2}}, "'a': byte_sizes .* got nan"),
        ({"episodes": {"a": -3, "b": 4}}, "'a': frames .* got -3"),
        ({"episodes": [("a", 3), ("a", 4)]}, "'a' is listed twice"),
        ({"episodes": [("a", 3), (None, 4)]}, "id is a text or a whole number, got None"),
    ],
)
def test_what_can_not_be_meant(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        EpisodePool(**{**RESUME, **options})


@pytest.mark.parametrize("count", [-1, True, 1.0, None])
def test_how_many_candidates(count: Any) -> None:
    with pytest.raises(SettingsError, match="count must be a whole number from 0 on"):
        EpisodePool({"a": 3}).prefetch_candidates(count)
