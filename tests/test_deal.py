"""Frames dealt to ranks whole but for a few cuts, and batches of which all have as many."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.deal import Batching, Tail, check_tail, deal, shares
from egoloader.errors import SettingsError
from egoloader.shuffles import Items
from tests.orders import (
    COVERING,
    KINDS,
    TAILS,
    frames_in,
    job,
    rest,
    resumed,
    sampler,
    saved,
    served_by,
)

spans = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 20)), max_size=12)


def frames_of(items: Items) -> list[tuple[int, int]]:
    """Return every frame of parts, as episode and place in its shuffle."""
    rows = zip(*(values.tolist() for values in items), strict=True)
    return [(number, place) for number, start, stop in rows for place in range(start, stop)]


@settings(deadline=None)
@given(st.integers(0, 100), st.integers(1, 12))
def test_shares_differ_by_at_most_one(count: int, world_size: int) -> None:
    found = shares(count, world_size)
    assert len(found) == world_size
    assert [place for low, high in found for place in range(low, high)] == list(range(count))
    sizes = [high - low for low, high in found]
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None, max_examples=200)
@given(spans, st.integers(1, 9))
def test_parts_are_dealt_whole_but_for_a_few(parts: list[tuple[int, int]], world_size: int) -> None:
    starts, lengths = np.array(parts, dtype=np.int64).reshape(-1, 2).T
    items = Items(np.arange(len(parts)) + 3, starts, starts + lengths)
    dealt = deal(items, world_size)
    assert len(dealt) == world_size
    assert list(itertools.chain(*map(frames_of, dealt))) == frames_of(items)
    totals = [part.num_frames for part in dealt]
    assert sum(totals) == items.num_frames
    assert max(totals) - min(totals) <= 1
    pieces = [row for part in dealt for row in zip(*map(np.ndarray.tolist, part), strict=True)]
    assert all(start < stop for _, start, stop in pieces)
    assert len(pieces) <= len(parts) + world_size - 1
    listed = list(zip(*map(np.ndarray.tolist, items), strict=True))
    assert sum(row not in pieces for row in listed) <= world_size - 1


def test_where_shares_end_with_parts_nothing_is_cut() -> None:
    items = Items(np.arange(6), np.zeros(6, np.int64), np.full(6, 5))
    for world_size in (1, 2, 3, 6):
        dealt = deal(items, world_size)
        assert [part.numbers.tolist() for part in dealt] == (
            np.arange(6).reshape(world_size, -1).tolist()
        )
        assert all((part.stops - part.starts == 5).all() for part in dealt)


def sizes_of(batching: Batching, rank: int) -> list[int]:
    """Return how many frames each of a rank's batches has."""
    bounds = [batching.drawn(rank, n) for n in range(batching.num_batches + 1)]
    assert bounds[0] == 0
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def spread_of(total: int, batch_size: int, count: int) -> list[int] | None:
    """Return full batches and a rest, of which one frame comes from before where it has none."""
    if total < count:
        return None
    sizes = [batch_size] * (count - 1) + [total - batch_size * (count - 1)]
    if sizes[-1] == 0:
        sizes[-2:] = [batch_size - 1, 1]
    return sizes


JOBS = [
    (total, world_size, batch_size)
    for world_size in (1, 2, 3, 5)
    for batch_size in (1, 2, 3, 7)
    for total in range(1, world_size * (3 * batch_size + 1) + 1)
]


def totals_of(count: int, world_size: int) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in shares(count, world_size))


def test_spread_has_every_frame_once() -> None:
    refused = moved = 0
    for count, world_size, batch_size in JOBS:
        totals = totals_of(count, world_size)
        batches = -(-max(totals) // batch_size)
        wanted = [spread_of(total, batch_size, batches) for total in totals]
        if None in wanted:
            refused += 1
            rank = wanted.index(None)
            match = f"{count} frames over {world_size} ranks, and rank {rank} has {totals[rank]} "
            with pytest.raises(SettingsError, match=f"tail: spread .*: {match}"):
                Batching(totals, batch_size, "spread")
            continue
        batching = Batching(totals, batch_size, "spread")
        assert batching.num_batches == batches
        assert [sizes_of(batching, rank) for rank in range(world_size)] == wanted
        assert all(min(sizes) > 0 for sizes in wanted if sizes)
        assert batching.left_out == 0
        assert not any(batching.repeats(r, n) for r in range(world_size) for n in range(batches))
        moved += any(sizes is not None and sizes[-2:] == [batch_size - 1, 1] for sizes in wanted)
    # Both happen: a rank with too few frames, and one whose last batch gets a frame from before.
    assert refused > 10
    assert moved > 10


def test_drop_has_full_batches_only() -> None:
    for count, world_size, batch_size in JOBS:
        totals = totals_of(count, world_size)
        batches = min(totals) // batch_size
        if not batches:
            match = f"tail: drop leaves no batch: {count} frames over {world_size} ranks"
            with pytest.raises(SettingsError, match=match):
                Batching(totals, batch_size, "drop")
            continue
        batching = Batching(totals, batch_size, "drop")
        for rank in range(world_size):
            assert sizes_of(batching, rank) == [batch_size] * batches
            assert not any(batching.repeats(rank, n) for n in range(batches))
        assert batching.left_out == count - batches * batch_size * world_size


def test_repeat_fills_the_last_batch_up() -> None:
    for count, world_size, batch_size in JOBS:
        totals = totals_of(count, world_size)
        batching = Batching(totals, batch_size, "repeat")
        assert batching.num_batches == -(-max(totals) // batch_size)
        assert batching.left_out == 0
        for rank, total in enumerate(totals):
            sizes = sizes_of(batching, rank)
            repeats = [batching.repeats(rank, n) for n in range(len(sizes))]
            assert sum(sizes) == total
            assert [a + b for a, b in zip(sizes, repeats, strict=True)] == [batch_size] * len(sizes)
            assert not any(repeats[:-1])


def test_ranks_without_a_frame() -> None:
    batching = Batching((0, 0, 1), 4, "repeat")
    assert [sizes_of(batching, rank) for rank in range(3)] == [[0], [0], [1]]
    assert [batching.repeats(rank, 0) for rank in range(3)] == [4, 4, 3]
    with pytest.raises(SettingsError, match=r"rank 0 has 0 for 1 batches of at most 4"):
        Batching((0, 0, 1), 4, "spread")


@pytest.mark.parametrize("tail", TAILS)
def test_tails_that_there_are(tail: Tail) -> None:
    check_tail(tail)


@pytest.mark.parametrize(
    ("tail", "match"), [("dropp", "did you mean 'drop'"), ("", "spread"), (None, "tail is None")]
)
def test_a_tail_that_there_is_not(tail: object, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        check_tail(tail)


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("kind", KINDS)
def test_tails_of_every_length(kind: str, tail: str) -> None:
    # What each batch has is in `test_deal`; here, that ranks and marks add up.
    for world_size, total in itertools.product((1, 2, 3), range(1, 3 * 7 + 1)):
        lengths = [total // 3, total - total // 3]
        fewest, most = total // world_size, -(-total // world_size)
        refuses = {"spread": fewest < -(-most // 2), "drop": fewest < 2, "repeat": False}[tail]
        if refuses:
            with pytest.raises(SettingsError, match=f"tail: {tail}"):
                sampler(kind, lengths, 0, world_size, tail=tail)
            continue
        ranks = job(kind, lengths, world_size, tail=tail)
        batches = [rest(one) for one in ranks]
        assert {len(own) for own in batches} == {len(one) for one in ranks} == {len(batches[0])}
        served = list(itertools.chain(*map(frames_in, batches)))
        left_out = total - fewest // 2 * 2 * world_size if tail == "drop" else 0
        assert {one.left_out for one in ranks} == {left_out}
        assert len(served) == total - left_out
        assert kind == "weights" or len(set(served)) == len(served)
        repeats = sum(again for own in batches for batch in own for _, _, again in batch)
        filled = len(batches[0]) * 2 * world_size
        assert repeats == (filled - total if tail == "repeat" else 0)
        assert all(batch for own in batches for batch in own)


# Other ranks.


#: 22 frames: 11 batches of 2 on one rank.
LENGTHS = (5, 0, 1, 9, 3, 4)
TOTAL = sum(LENGTHS)


def is_refused(left: int, world_size: int, tail: str) -> bool:
    most = -(-left // world_size)
    return tail == "spread" and left // world_size < -(-most // 2)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("kind", COVERING)
def test_ranks_come_and_go_at_every_position(kind: str, tail: str, steps: int) -> None:
    refused = finished = 0
    for done in range(11):
        ranks = job(kind, LENGTHS, 1, tail=tail)
        served, at = served_by(ranks, done), done
        for world_size in (2, 3, 2, 1):
            states, left = [saved(one) for one in ranks], TOTAL - len(served)
            assert all(state == states[0] for state in states)
            if is_refused(left, world_size, tail):
                refused += 1
                with pytest.raises(SettingsError, match=f"tail: spread .* {left} frames "):
                    resumed(kind, LENGTHS, world_size, states[-1], tail=tail)
                break
            ranks = resumed(kind, LENGTHS, world_size, states[-1], tail=tail)
            assert len({(one.epoch, one.done, len(one)) for one in ranks}) == 1
            if tail == "drop" and at and left < 2 * world_size:
                assert (ranks[0].epoch, ranks[0].done) == (1, 0)
                break
            assert (ranks[0].epoch, ranks[0].done) == (0, at)
            here = min(steps, len(ranks[0]) - at)
            served += served_by(ranks, here)
            at += here
            if ranks[0].epoch:
                finished += 1
                break
        else:
            assert len(ranks) == 1
            left_out = ranks[0].left_out
            served += frames_in(rest(ranks[0]))
            assert len(served) == TOTAL - left_out
            finished += 1
        assert len(served) == len(set(served))
        if tail == "repeat" or (ranks[0].epoch == 1 and tail == "spread"):
            assert sorted(served) == list(range(TOTAL))
    assert finished
    assert refused or tail != "spread"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_a_dealt_epoch_is_followed_by_whole_ones(kind: str, tail: str) -> None:
    one = sampler(kind, LENGTHS, tail=tail)
    served_by([one], 4)
    whole = [[rest(two) for _ in range(3)][1:] for two in job(kind, LENGTHS, 2, tail=tail)]
    ranks = resumed(kind, LENGTHS, 2, saved(one), tail=tail)
    assert [len(two) for two in ranks] == [4 + 4 - (tail == "drop")] * 2
    assert {two.pass_length for two in ranks} == {len(whole[0][0])}
    for two, wanted in zip(ranks, whole, strict=True):
        first = rest(two)
        assert {epoch for batch in first for _, epoch, _ in batch} == {0}
        assert [rest(two), rest(two)] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tail", TAILS)
def test_every_position_of_a_dealt_epoch_goes_on_the_same(kind: str, tail: str) -> None:
    one = sampler(kind, LENGTHS, tail=tail)
    served_by([one], 3)
    (two, *_) = resumed(kind, LENGTHS, 2, saved(one), tail=tail)
    served_by([two], 2)
    state = saved(two)
    whole = [rest(three) for three in resumed(kind, LENGTHS, 3, state, tail=tail)]
    walking = resumed(kind, LENGTHS, 3, state, tail=tail)
    for done in range(len(whole[0])):
        states = [saved(three) for three in walking]
        assert all(state == states[0] for state in states)
        for three, wanted in zip(
            resumed(kind, LENGTHS, 3, states[1], tail=tail), whole, strict=True
        ):
            assert saved(three) == states[0]
            assert rest(three) == wanted[done:]
            assert (three.epoch, three.done) == (1, 0)
        served_by(walking, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dealt_epoch_is_forgotten_with_the_position(kind: str) -> None:
    one = sampler(kind, LENGTHS)
    served_by([one], 4)
    (two, *_) = resumed(kind, LENGTHS, 2, saved(one))
    two.reset()
    assert rest(two) == rest(sampler(kind, LENGTHS, 0, 2))


def test_what_is_left_out_is_of_the_running_epoch() -> None:
    one = sampler("pool", LENGTHS, tail="drop")
    served_by([one], 1)
    (two, *_) = resumed("pool", LENGTHS, 3, saved(one), tail="drop")
    assert two.left_out == (TOTAL - 2) % 6
    rest(two)
    assert two.left_out == TOTAL % 6


@pytest.mark.parametrize("kind", KINDS)
def test_a_later_load_is_as_the_first(kind: str) -> None:
    # A position in epoch 1, dealt anew, and then one near the end of epoch 0, which `drop` leaves.
    one, options = sampler(kind, LENGTHS, tail="drop"), {"tail": "drop"}
    late = []
    for at in range(15):
        if at in (10, 14):
            late.append(saved(one))
        next(iter(one))
    ranks = resumed(kind, LENGTHS, 2, late[1], **options)
    assert (ranks[0].epoch, ranks[0].done) == (1, 3)
    for two, wanted in zip(ranks, resumed(kind, LENGTHS, 2, late[0], **options), strict=True):
        two.load_state_dict(late[0])
        assert (two.epoch, two.done) == (1, 0)
        assert rest(two) == rest(wanted)
