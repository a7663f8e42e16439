"""`EpisodePoolSampler` and its kin: batches of each rank, and one position in them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from egoloader import EpisodePool, EpisodePoolSampler
from egoloader.errors import LoaderError, SettingsError
from egoloader.sampler import PositionedSampler
from tests.orders import (
    KINDS,
    TAILS,
    Batch,
    Listed,
    frames_in,
    job,
    marked,
    rest,
    resumed,
    sampler,
    saved,
    served_by,
    some_lengths,
)

#: 22 frames: 11 batches of 2 on one rank.
LENGTHS = (5, 0, 1, 9, 3, 4)
TOTAL = sum(LENGTHS)


class Closed(Listed):
    """A dataset of which nothing may be opened."""

    def open_each(self) -> Iterator[Any]:
        raise AssertionError("an order needs no files")


def epochs_of(one: PositionedSampler, count: int) -> list[list[Batch]]:
    return [rest(one) for _ in range(count)]


# What a sampler hands out.


@settings(deadline=None, max_examples=60)
@given(some_lengths, st.integers(1, 4), st.permutations(range(12)))
def test_indices_are_the_pools_frames(lengths: list[int], pool: int, order: list[int]) -> None:
    data = Closed(lengths, [f"n{n}" for n in order[: len(lengths)]])
    one = EpisodePoolSampler(data, 3, pool, seed=5)
    bounds = np.cumsum([frames for _, frames in data.listed])
    starts = {name: int(b) - n for (name, n), b in zip(data.listed, bounds, strict=True)}
    for epoch in range(2):
        assert one.covers
        assert (one.epoch, one.done, one.left_out) == (epoch, 0, 0)
        assert len(one) == -(-sum(lengths) // 3)
        batches = rest(one)
        assert len(batches) == len(one)
        assert {(e, again) for batch in batches for _, e, again in batch} == {(epoch, False)}
        wanted = EpisodePool(data.listed, pool, 5, epoch)
        assert frames_in(batches) == [starts[name] + frame for name, frame in wanted]


def test_however_the_episodes_are_listed_frames_come_in_one_order() -> None:
    names = ["b", "a", "d", "c"]
    lengths = dict(zip(names, [5, 2, 7, 3], strict=True))
    orders = []
    for listing in itertools.permutations(names):
        data = Closed([lengths[name] for name in listing], listing)
        where = [(name, frame) for name, n in data.listed for frame in range(n)]
        one = EpisodePoolSampler(data, 4, 2, seed=1)
        orders.append([where[index] for index in frames_in(rest(one))])
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize("kind", KINDS)
def test_epochs_advance_by_themselves_and_differ(kind: str) -> None:
    one = sampler(kind, LENGTHS)
    first, second, third = epochs_of(one, 3)
    assert (one.epoch, one.done) == (3, 0)
    plain = [[[index for index, _, _ in batch] for batch in e] for e in (first, second, third)]
    if kind == "inorder":
        assert plain[0] == plain[1]
    else:
        assert plain[0] != plain[1] != plain[2] != plain[0]
    one.reset()
    assert (one.epoch, one.done) == (0, 0)
    assert rest(one) == first
    assert epochs_of(sampler(kind, LENGTHS), 2) == [first, second]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_an_iterator_goes_on_from_the_position(kind: str, tail: str) -> None:
    wanted = epochs_of(sampler(kind, LENGTHS, tail=tail), 2)
    one, found = sampler(kind, LENGTHS, tail=tail), []
    while one.epoch == 0:
        assert len(one) == len(wanted[0])
        found.append(marked(next(iter(one))))
    assert found == wanted[0]
    assert list(map(marked, itertools.islice(one, 3))) == wanted[1][:3]
    assert (one.epoch, one.done) == (1, 3)
    assert len(one) == one.pass_length == len(wanted[1])
    assert rest(one) == wanted[1][3:]


def test_a_newer_iterator_ends_an_older_one() -> None:
    one = sampler("pool", LENGTHS)
    older, same = iter(one), iter(one)
    next(same)
    with pytest.raises(LoaderError, match="a newer iterator"):
        next(older)
    for end in (lambda: one.load_state_dict(saved(one)), one.reset, one.begin):
        older = iter(one)
        next(older)
        end()
        at = (one.epoch, one.done)
        with pytest.raises(LoaderError, match="a newer iterator"):
            next(older)
        assert (one.epoch, one.done) == at


@pytest.mark.parametrize("kind", KINDS)
def test_looking_ahead_moves_nothing(kind: str) -> None:
    one, wanted = sampler(kind, LENGTHS), epochs_of(sampler(kind, LENGTHS), 3)
    passes = one.upcoming_passes()
    for done in range(2 * len(wanted[0]) + 2):
        epoch, at = divmod(done, len(wanted[0]))
        assert (one.epoch, one.done) == (epoch, at)
        assert list(map(marked, one.upcoming())) == wanted[epoch][at:]
        assert marked(next(passes)) == wanted[epoch][at]
        one.advance()


def test_a_pools_occupancy() -> None:
    one = EpisodePoolSampler(Closed([4, 6, 5, 3]), 2, 4)
    assert one.pool_occupancy == 0
    found = [one.pool_occupancy for _ in one]
    assert found[0] == 1
    assert found[-1] == 0
    assert all(0 <= share <= 1 for share in found)
    assert found == sorted(found, reverse=True)
    pooled = EpisodePoolSampler(Closed([4] * 20), 2, 8)
    next(iter(pooled))
    assert pooled.pool_occupancy == 1


# Positions.


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_every_position_goes_on_the_same(kind: str, tail: str, world_size: int) -> None:
    options = {"tail": tail, "pool_size": 2}
    whole = [epochs_of(one, 3) for one in job(kind, LENGTHS, world_size, **options)]
    steps = len(whole[0][0])
    walking = job(kind, LENGTHS, world_size, **options)
    for done in range(steps + 2):
        states = [saved(one) for one in walking]
        assert all(state == states[0] for state in states)
        ranks = resumed(kind, LENGTHS, world_size, states[done % world_size], **options)
        for one, (first, second, third) in zip(ranks, whole, strict=True):
            epoch, at = divmod(done, steps)
            assert (one.epoch, one.done, len(one)) == (epoch, at, steps)
            assert saved(one) == states[0]
            assert rest(one) == (first, second)[epoch][at:]
            assert rest(one) == (second, third)[epoch]
        for one in walking:
            next(iter(one))


@pytest.mark.parametrize("kind", KINDS)
def test_saved_twice_in_an_epoch_the_position_adds_up(kind: str) -> None:
    whole = epochs_of(sampler(kind, LENGTHS), 1)[0]
    one = sampler(kind, LENGTHS)
    found = list(map(marked, itertools.islice(one, 3)))
    (one,) = resumed(kind, LENGTHS, 1, saved(one))
    found += map(marked, itertools.islice(one, 4))
    (one,) = resumed(kind, LENGTHS, 1, saved(one))
    assert (one.epoch, one.done) == (0, 7)
    assert found + rest(one) == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("begun", [0, 4])
def test_a_state_of_what_was_handed_out(kind: str, begun: int) -> None:
    walking = sampler(kind, LENGTHS)
    states = []
    for _ in range(12):
        states.append(saved(walking))
        next(iter(walking))
    ahead, fresh = sampler(kind, LENGTHS), sampler(kind, LENGTHS)
    ahead.load_state_dict(states[begun])
    fresh.load_state_dict(states[begun])
    drawing = iter(ahead)
    for drawn in range(12 - begun):
        for handed_out in range(drawn + 1):
            assert saved(ahead, handed_out) == states[begun + handed_out]
        assert saved(ahead) == states[begun + drawn]
        if drawn < 11 - begun:
            for more in (drawn + 1, 99):
                with pytest.raises(SettingsError, match=f"handed_out is {more}, more batches"):
                    ahead.state_dict(more)
        next(drawing, None)
    rest(fresh)
    assert saved(fresh, 11 - begun) == states[11]


@pytest.mark.parametrize("more", [1, 7])
def test_an_epoch_hands_out_no_more_than_it_has(more: int) -> None:
    one = sampler("pool", LENGTHS)
    count = len(rest(one))
    with pytest.raises(SettingsError, match=f"handed_out is {count + more}, more batches"):
        one.state_dict(count + more)


def test_what_older_iterators_handed_out_does_not_count() -> None:
    one = sampler("pool", LENGTHS)
    rest(one)
    list(itertools.islice(one, 5))
    newest = iter(one)
    next(newest)
    with pytest.raises(SettingsError, match=r"handed_out is 2, more batches than the 1 that"):
        one.state_dict(2)
    assert saved(one, 1) == saved(one)
    assert saved(one, 0)["done"] == 5


@pytest.mark.parametrize("handed_out", [-1, True, 1.0])
def test_how_many_were_handed_out(handed_out: Any) -> None:
    with pytest.raises(SettingsError, match="handed_out must be a whole number from 0 on"):
        sampler("pool", LENGTHS).state_dict(handed_out)


def test_under_a_plain_loader_that_draws_ahead() -> None:
    wanted = epochs_of(sampler("pool", LENGTHS), 2)
    one = sampler("pool", LENGTHS)
    loader: Any = DataLoader(
        list(range(TOTAL)),  # type: ignore[arg-type]
        batch_sampler=one,
        num_workers=1,
        prefetch_factor=4,
        multiprocessing_context="fork",
    )
    found = [batch.tolist() for batch in itertools.islice(loader, 3)]
    assert one.done > 3
    (again,) = resumed("pool", LENGTHS, 1, saved(one, handed_out=3))
    batches = [[index for index, _, _ in batch] for batch in wanted[0]]
    assert found + [[index for index, _, _ in batch] for batch in rest(again)] == batches
    assert rest(again) == wanted[1]
    # The same sampler goes back to behind what came out.
    one.load_state_dict(saved(one, handed_out=3))
    assert found + [[index for index, _, _ in batch] for batch in rest(one)] == batches
    assert rest(one) == wanted[1]


# What is refused.


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_state_leaves_the_position(kind: str) -> None:
    one = sampler(kind, LENGTHS)
    served_by([one], 4)
    early = saved(one)
    served_by([one], 6)
    late = saved(one)  # with 2 frames left, too few for 3 ranks
    (two, *_), (wanted, *_) = (resumed(kind, LENGTHS, 3, early) for _ in range(2))
    for bad in (late, {**late, "fingerprint": {**late["fingerprint"], "number of frames": 3}}):
        with pytest.raises(SettingsError):
            two.load_state_dict(bad)
        assert (two.epoch, two.done) == (0, 4)
    assert rest(two) == rest(wanted)


SIZES = {"a": 10, "b": 20, "c": 5}
RESUME: dict[str, Any] = {
    "data": Closed([5, 6], ["a", "b"]),
    "batch_size": 2,
    "pool_size": 3,
    "seed": 1,
    "byte_budget": 40,
    "byte_sizes": SIZES,
}


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"data": Closed([5, 6, 1], ["a", "b", "c"])}, "number of episodes was 2 and is 3"),
        ({"data": Closed([5, 7], ["a", "b"])}, "number of frames was 11 and is 12"),
        ({"data": Closed([6, 5], ["a", "b"])}, "set of episodes"),
        ({"data": Closed([5, 6], ["a", "c"])}, "set of episodes"),
        ({"byte_sizes": {"a": 10, "b": 21}}, "set of episodes"),
        ({"batch_size": 3}, "batch_size was 2 and is 3"),
        ({"data": Closed([5, 6], ["a", "b"], seed=7)}, "the data's seed was 0 and is 7"),
        ({"pool_size": 2}, "pool_size was 3 and is 2"),
        ({"seed": 2}, "seed was 1 and is 2"),
        ({"tail": "drop"}, "tail was 'spread' and is 'drop'"),
        ({"byte_budget": 41}, "byte_budget was 40 and is 41"),
        ({"frame_filter": lambda e: np.arange(e.total_frames) > 0}, "frame_filter was None and"),
        ({"weights": lambda e: np.ones(e.total_frames)}, "weights was None and is"),
    ],
)
def test_a_state_of_others_is_refused_by_name(change: dict[str, Any], name: str) -> None:
    state = saved(EpisodePoolSampler(**RESUME))
    if {"frame_filter", "weights"} & set(change):
        change = {**change, "data": Listed([5, 6], ["a", "b"])}
    other = EpisodePoolSampler(**{**RESUME, **change})
    with pytest.raises(SettingsError, match=f"can't resume: {name}"):
        other.load_state_dict(state)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["epoch", "done", "world_size"])
@pytest.mark.parametrize("value", [..., None, -1, True, 2.0, "3"])
def test_a_broken_state_is_refused(kind: str, name: str, value: Any) -> None:
    one, wanted = sampler(kind, LENGTHS), sampler(kind, LENGTHS)
    served_by([one, wanted], 4)
    state = {**saved(one), name: value}
    if value is ...:
        del state[name]
    with pytest.raises(SettingsError, match=f"can't resume: the state.*{name}"):
        one.load_state_dict(state)
    assert rest(one) == rest(wanted)


@pytest.mark.parametrize("state", [None, [], "x", 3])
def test_what_is_no_state(state: Any) -> None:
    with pytest.raises(SettingsError, match="can't resume: a state is a mapping, got"):
        sampler("pool", LENGTHS).load_state_dict(state)


@pytest.mark.parametrize("kind", ["pool", "weights"])
def test_a_state_of_another_way_to_draw_is_refused(kind: str) -> None:
    state = saved(sampler(kind, LENGTHS))
    state["fingerprint"]["kind of order"] = "clocks 0"
    with pytest.raises(SettingsError, match="can't resume: kind of order was 'clocks 0' and is"):
        sampler(kind, LENGTHS).load_state_dict(state)


def test_another_listing_or_rank_is_no_reason_to_refuse() -> None:
    state = saved(EpisodePoolSampler(**RESUME))
    other = EpisodePoolSampler(**{**RESUME, "data": Closed([6, 0, 5], ["b", "c", "a"])})
    other.load_state_dict(state)
    EpisodePoolSampler(**RESUME, rank=1, world_size=2).load_state_dict(state)
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"data": [1, 2, 3]}, "needs a MultiDataset or a ZarrDataset, got list"),
        ({"data": Closed([], [])}, "no episodes with frames"),
        ({"data": Closed([0, 0], ["a", "b"])}, "no episodes with frames"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"batch_size": True}, "batch_size .* got True"),
        ({"batch_size": 2.5}, "batch_size .* got 2.5"),
        ({"pool_size": 0}, "pool_size .* got 0"),
        ({"pool_size": False}, "pool_size .* got False"),
        ({"seed": 0.0}, "seed .* got 0.0"),
        ({"rank": 1}, "rank 1 is none of 1"),
        ({"rank": 0.0}, "rank .* got 0.0"),
        ({"world_size": True}, "world_size .* got True"),
        ({"tail": "sprade"}, "did you mean 'spread'"),
        ({"byte_budget": 0}, "byte_budget must be .* got 0"),
        ({"byte_budget": -1}, "byte_budget .* got -1"),
        ({"byte_budget": True}, "byte_budget .* got True"),
        ({"byte_budget": 19}, "episode 'b' has 20 bytes, more than byte_budget = 19"),
        ({"byte_sizes": {"a": 1}}, "'b' is missing from byte_sizes"),
        ({"byte_sizes": {"a": 1, "b": -1}}, "'b': byte_sizes .* got -1"),
        ({"byte_sizes": {"a": 1, "b": float("nan")}}, "'b': byte_sizes .* got nan"),
        ({"rank": 2, "world_size": 12}, "tail: spread"),
    ],
)
def test_what_can_not_be_meant(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        EpisodePoolSampler(**{**RESUME, **options})
