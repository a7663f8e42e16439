"""Frames in their own order over ranks: stretches, tails, positions, other numbers of ranks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.deal import Tail
from egoloader.errors import SettingsError
from egoloader.inorder import InOrder, fitting_tail
from tests.orders import TAILS

Batches = list[tuple[list[int], int]]


def handed_out(order: InOrder, epoch: int = 0, done: int = 0) -> Batches:
    found = []
    for indices, repeats in order.batches(epoch, done):
        assert indices.dtype == np.int64
        found.append((indices.tolist(), repeats))
    return found


def once(batches: Batches) -> list[int]:
    """Return the frames of batches, but for repeats."""
    return [frame for batch, repeats in batches for frame in batch[: len(batch) - repeats]]


def state_at(order: InOrder, epoch: int, done: int) -> dict[str, Any]:
    state = {"epoch": epoch, "done": done, **order.state(epoch, done)}
    return dict(json.loads(json.dumps(state)))


def fits(frames: int, batch_size: int, world_size: int, tail: Tail) -> bool:
    """Return whether a tail can be had, in plain words of it."""
    fewest, most = frames // world_size, -(-frames // world_size)
    if tail == "spread":
        return fewest >= -(-most // batch_size)
    return tail == "repeat" or fewest >= batch_size


def jobs(tail: Tail) -> list[tuple[int, int, int]]:
    """List frames of every length of tail, batch sizes and ranks that go together."""
    return [
        (frames, batch_size, world_size)
        for world_size in (1, 2, 3, 4)
        for batch_size in (1, 2, 3)
        for frames in range(1, world_size * (3 * batch_size + 1) + 1)
        if fits(frames, batch_size, world_size, tail)
    ]


@pytest.mark.parametrize("tail", TAILS)
def test_each_rank_has_a_stretch(tail: Tail) -> None:
    for frames, batch_size, world_size in jobs(tail):
        ranks = [InOrder(frames, batch_size, r, world_size, tail) for r in range(world_size)]
        drawn = [handed_out(order) for order in ranks]
        for order, batches in zip(ranks, drawn, strict=True):
            assert order.covers
            assert len(batches) == order.num_batches(0) == order.num_batches(7)
            assert batches == handed_out(order, epoch=5)
            found = once(batches)
            assert found == list(range(frames))[found[0] : found[-1] + 1] if found else True
            sizes = [len(batch) for batch, _ in batches]
            assert all(size == batch_size for size in sizes[: -2 if tail == "spread" else None])
            assert all(0 < size <= batch_size for size in sizes)
            assert all(0 <= frame < frames for batch, _ in batches for frame in batch)
            assert not any(repeats for _, repeats in batches[:-1])
        assert len({len(batches) for batches in drawn}) == 1
        served = list(itertools.chain(*map(once, drawn)))
        assert len(served) == frames - ranks[0].left_out(0)
        if tail == "drop":
            assert served == sorted(set(served))
        else:
            assert served == list(range(frames))
        total = sum(len(batch) for batches in drawn for batch, _ in batches)
        repeats = sum(repeats for batches in drawn for _, repeats in batches)
        assert total - repeats == len(served)
        assert tail == "repeat" or not repeats
        if tail == "repeat":
            assert total == len(drawn[0]) * batch_size * world_size


@pytest.mark.parametrize("tail", ["spread", "drop"])
def test_what_a_tail_refuses(tail: Tail) -> None:
    refused = 0
    for world_size, batch_size in itertools.product((1, 2, 3, 4), (1, 2, 3)):
        for frames in range(1, world_size * (3 * batch_size + 1) + 1):
            if not fits(frames, batch_size, world_size, tail):
                refused += 1
                with pytest.raises(SettingsError, match=f"tail: {tail} .*{frames} frames over"):
                    InOrder(frames, batch_size, 0, world_size, tail)
    assert refused > 10


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 8))
def test_a_tail_that_fits(frames: int, batch_size: int, world_size: int) -> None:
    tail = fitting_tail(frames, batch_size, world_size)
    assert tail == ("spread" if fits(frames, batch_size, world_size, "spread") else "repeat")
    drawn = [
        handed_out(InOrder(frames, batch_size, r, world_size, tail)) for r in range(world_size)
    ]
    assert list(itertools.chain(*map(once, drawn))) == list(range(frames))
    assert len({len(batches) for batches in drawn}) == 1
    assert drawn[0]
    assert all(batch for batches in drawn for batch, _ in batches)


def test_five_frames_over_two_ranks() -> None:
    drawn = [handed_out(InOrder(5, 2, rank, 2, fitting_tail(5, 2, 2))) for rank in range(2)]
    assert drawn == [[([0], 0), ([1], 0)], [([2, 3], 0), ([4], 0)]]
    assert fitting_tail(5, 1, 2) == "repeat"
    drawn = [handed_out(InOrder(5, 1, rank, 2, "repeat")) for rank in range(2)]
    assert drawn == [[([0], 0), ([1], 0), ([0], 1)], [([2], 0), ([3], 0), ([4], 0)]]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_every_position_goes_on_the_same(world_size: int, tail: Tail) -> None:
    for frames in range(6 * world_size, 8 * world_size + 1):
        ranks = [InOrder(frames, 2, rank, world_size, tail) for rank in range(world_size)]
        whole = [handed_out(order) for order in ranks]
        for done in range(ranks[0].num_batches(4)):
            states = [state_at(order, 4, done) for order in ranks]
            assert all(state == states[0] for state in states)
            for rank, batches in enumerate(whole):
                loaded = InOrder(frames, 2, rank, world_size, tail)
                assert loaded.restore(states[-1]) == (4, done)
                assert handed_out(loaded, 4, done) == batches[done:]
                assert handed_out(loaded, 5) == batches
                assert state_at(loaded, 4, done) == states[0]


#: Numbers of ranks in their turn, and how many steps each job makes at most.
hops = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 8)), max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 40), st.integers(1, 4), st.sampled_from(TAILS), st.integers(1, 4), hops)
def test_other_ranks_share_what_is_left(
    frames: int, batch_size: int, tail: Tail, last: int, chain: list[tuple[int, int]]
) -> None:
    done, served, state = 0, list[int](), None
    for world_size, most in [*chain, (last, 1000)]:
        if not fits(frames, batch_size, world_size, tail):
            return  # refused before a state is
        ranks = [InOrder(frames, batch_size, r, world_size, tail) for r in range(world_size)]
        left = list(set(range(frames)) - set(served))
        if tail == "drop" and state is not None and len(left) < batch_size * world_size:
            assert {order.restore(state) for order in ranks} == {(1, 0)}
            assert len(handed_out(ranks[0], 1)) == ranks[0].num_batches(1)
            break
        if state is not None and not fits(len(left), batch_size, world_size, tail):
            with pytest.raises(SettingsError, match=f"tail: {tail} .* {len(left)} frames over"):
                ranks[0].restore(state)
            return
        if state is not None:
            assert {order.restore(state) for order in ranks} == {(0, done)}
        batches = [handed_out(order, 0, done) for order in ranks]
        stretches = list(itertools.chain(*map(once, batches)))
        assert stretches == sorted(stretches)
        assert len(stretches) == len(left) - ranks[0].left_out(0)
        steps = min(most, len(batches[0]))
        assert steps or most == 0
        served += [frame for one in batches for frame in once(one[:steps])]
        done += steps
        if steps == len(batches[0]):
            break
        states = [state_at(order, 0, done) for order in ranks]
        assert all(one == states[0] for one in states)
        state = states[-1]
    assert len(served) == len(set(served))
    if tail != "drop":
        assert sorted(served) == list(range(frames))


def test_forgotten_is_as_new() -> None:
    order = InOrder(20, 2, 0, 2)
    state = state_at(InOrder(20, 2), 0, 3)
    order.restore(state)
    assert once(handed_out(order, 0, 3)) == list(range(6, 13))
    order.forget()
    assert handed_out(order) == handed_out(InOrder(20, 2, 0, 2))


def test_the_fingerprint_has_what_fixes_the_order() -> None:
    others = [InOrder(21, 2), InOrder(20, 3), InOrder(20, 2, tail="drop"), InOrder(20, 2, data="x")]
    orders = [InOrder(20, 2), *others]
    assert len({json.dumps(dict(order.fingerprint())) for order in orders}) == 5
    assert InOrder(20, 2, 1, 3).fingerprint() == orders[0].fingerprint()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 on, got 0"),
        ({"batch_size": 2.0}, "batch_size .* got 2.0"),
        ({"batch_size": True}, "batch_size .* got True"),
        ({"rank": 2, "world_size": 2}, "rank 2 is none of 2: they are 0 to 1"),
        ({"rank": -1}, "rank must be a whole number from 0 on, got -1"),
        ({"rank": False}, "rank .* got False"),
        ({"world_size": 0}, "world_size must be a whole number from 1 on, got 0"),
        ({"world_size": 2.0}, "world_size .* got 2.0"),
        ({"tail": "sprad"}, "did you mean 'spread'"),
    ],
)
def test_what_can_not_be_meant(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        InOrder(**{"num_frames": 20, "batch_size": 2, **options})
