"""The draw engine against one frame at a time from a heap, wherever its runs end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import clocks
from egoloader.clocks import Clocks, Limits
from egoloader.shuffles import Items, Shuffles
from tests.orders import SlowClocks, short_runs, slow_word, surprise

Setting = tuple[Shuffles, Items, Limits]
#: Draws of a run, draws of it a resident, and how far one looks past what does not fit.
Run = tuple[int, int, int]


@st.composite
def parts(draw: st.DrawFn) -> Setting:
    """Parts of episodes in any order of admission, several of one episode among them."""
    cuts = draw(
        st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=4, unique=True), max_size=9)
    )
    spans = [
        (number, start, stop)
        for number, ends in enumerate(cuts)
        for start, stop in zip(sorted(ends), sorted(ends)[1:], strict=False)
    ]
    spans = draw(st.permutations(spans))
    items = Items(*np.array(spans, dtype=np.int64).reshape(-1, 3).T)
    lengths = np.array([max(ends) + n % 2 for n, ends in enumerate(cuts)], dtype=np.int64)
    sizes = draw(st.lists(st.integers(0, 9), min_size=len(cuts), max_size=len(cuts)))
    budget = draw(st.one_of(st.none(), st.integers(max([1, *sizes]), 25)))
    shuffles = Shuffles(draw(st.integers(0, 3)), draw(st.integers(0, 3)), lengths)
    pool_size = draw(st.one_of(st.integers(1, 6), st.just(50)))
    return shuffles, items, Limits(pool_size, budget, np.array(sizes, dtype=np.int64))


def whole(lengths: list[int], pool_size: int = 3, seed: int = 0, epoch: int = 0) -> Setting:
    """Whole episodes, admitted in their order."""
    frames = np.array(lengths)
    items = Items(np.arange(len(frames)), np.zeros_like(frames), frames)
    return Shuffles(seed, epoch, frames), items, Limits(pool_size, None, np.zeros_like(frames))


def look(one: Clocks | SlowClocks) -> tuple[Any, ...]:
    """Return all that is told between two draws."""
    upcoming = one.upcoming() if isinstance(one, Clocks) else one.upcoming
    told = (one.residents, one.held_bytes, one.remaining, list(upcoming))
    return (*told, list(one.admitted), list(one.evicted))


def pairs(drawn: tuple[Any, Any]) -> list[tuple[int, int]]:
    numbers, frames = drawn
    assert numbers.dtype == frames.dtype == np.int64
    return list(zip(numbers.tolist(), frames.tolist(), strict=True))


short = st.tuples(st.integers(1, 40), st.integers(1, 4), st.sampled_from([1, 2, 3, 64]))


@settings(deadline=None, max_examples=250)
@given(parts(), short)
def test_it_is_the_heap(setting: Setting, run: Run) -> None:
    with short_runs(*run):
        quick, slow = Clocks(*setting), SlowClocks(*setting, look_past=run[2])
        assert look(quick) == look(slow)
        while slow.remaining:
            assert quick.draw() == slow.draw()
            assert look(quick) == look(slow)
            assert quick.num_resident == len(slow.residents)
            if slow.remaining % 3 == 0:
                for one in (quick, slow):
                    one.admitted.clear()
                    one.evicted.clear()
        assert (quick.residents, quick.held_bytes, quick.remaining) == ([], 0, 0)


def same_time(key: int, place: int) -> float:
    """Whole waiting times, 0 among them, so that many clocks ring at once."""
    return float(slow_word(key, place) % 3 // 2)


def all_same_time(key: int, count: int, start: int = 0) -> Any:
    return np.array([same_time(key, start + n) for n in range(count)], dtype=np.float64)


@settings(deadline=None, max_examples=150)
@given(parts(), short)
def test_clocks_that_ring_at_once(setting: Setting, run: Run) -> None:
    with short_runs(*run), pytest.MonkeyPatch.context() as patch:
        patch.setattr("egoloader.shuffles.exponentials", all_same_time)
        quick = Clocks(*setting)
        slow = SlowClocks(*setting, look_past=run[2], exponential=same_time)
        while slow.remaining:
            assert quick.draw() == slow.draw()
            assert look(quick) == look(slow)


@settings(deadline=None, max_examples=100)
@given(parts(), short, st.data())
def test_every_way_to_draw(setting: Setting, run: Run, data: st.DataObject) -> None:
    with short_runs(*run):
        wanted = pairs(Clocks(*setting).take(setting[1].num_frames))
        one, at = Clocks(*setting), 0
        while one.remaining:
            count = data.draw(st.integers(0, one.remaining))
            way = data.draw(st.sampled_from(["draw", "take", "skip"]))
            if way == "draw":
                count = 1
                assert one.draw() == wanted[at]
            elif way == "take":
                assert pairs(one.take(count)) == wanted[at : at + count]
            else:
                one.skip(count)
            at += count
            assert one.remaining == len(wanted) - at
        assert at == len(wanted)
        assert pairs(one.take(0)) == []


@settings(deadline=None, max_examples=60)
@given(parts(), short, short)
def test_every_position_goes_on_the_same(setting: Setting, run: Run, other: Run) -> None:
    # Where a state is loaded, runs end elsewhere; how far one looks is what fixes the order.
    with short_runs(*run):
        wanted = pairs(Clocks(*setting).take(setting[1].num_frames))
        one, states = Clocks(*setting), []
        for at in range(len(wanted) + 1):
            states.append((one.state(), look(one)[:4]))
            skipped = Clocks(*setting)
            skipped.skip(at)
            assert skipped.state() == one.state()
            if at < len(wanted):
                one.draw()
    with short_runs(other[0], other[1], run[2]):
        for at, (state, told) in enumerate(states):
            loaded = Clocks(*setting, state)
            assert look(loaded)[:4] == told
            assert loaded.state() == state
            assert (loaded.admitted, loaded.evicted) == (loaded.residents, [])
            half = at + (len(wanted) - at) // 2
            assert pairs(loaded.take(half - at)) == wanted[at:half]
            assert loaded.state() == states[half][0]
            again = Clocks(*setting, loaded.state())
            assert pairs(again.take(loaded.remaining)) == wanted[half:]


def test_a_state_does_not_change_with_what_is_drawn_on() -> None:
    setting = whole([4, 5, 6, 7])
    one = Clocks(*setting)
    one.skip(3)
    state, kept = one.state(), repr(one.state())
    loaded = Clocks(*setting, state)
    loaded.skip(loaded.remaining)
    one.skip(one.remaining)
    assert repr(state) == kept


@pytest.mark.parametrize("block", [1, 2, 7, 10, 100])
def test_rings_are_the_same_however_many_are_made_at_once(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffles = Shuffles(1, 2, np.array([10, 30]))
    wanted = [shuffles.rings(1, start, 30).tolist() for start in range(31)]
    monkeypatch.setattr("egoloader.shuffles._BLOCK", block)
    assert [shuffles.rings(1, start, 30).tolist() for start in range(31)] == wanted
    assert all(rings == sorted(rings) for rings in wanted)
    assert [len(rings) for rings in wanted] == list(range(30, -1, -1))


def test_rings_are_those_of_clocks_of_rate_1() -> None:
    # Without their order, the rings of one episode are independent and exponential.
    shuffles = Shuffles(0, 0, np.full(400, 100))
    rings = np.concatenate([shuffles.rings(n, 0, 100) for n in range(400)])
    counts, _ = np.histogram(1 - np.exp(-rings), bins=40, range=(0, 1))
    z = (counts - 1000) / np.sqrt(1000 * (1 - 1 / 40))
    assert abs(z).max() < 5
    assert abs(surprise([(counts.tolist(), [1000.0] * 40)])) < 5


def test_a_shuffle_is_cut_from_one_of_the_whole_episode() -> None:
    shuffles = Shuffles(5, 1, np.array([3, 20]))
    frames = shuffles.frames(1, 0, 20).tolist()
    assert sorted(frames) == list(range(20))
    assert frames != shuffles.frames(1, 0, 20).tolist()[::-1]
    for start in range(20):
        assert shuffles.frames(1, start, start + 1).tolist() == [frames[start]]
    for other in (Shuffles(6, 1, shuffles.lengths), Shuffles(5, 2, shuffles.lengths)):
        assert other.frames(1, 0, 20).tolist() != frames
        assert other.rings(1, 0, 20).tolist() != shuffles.rings(1, 0, 20).tolist()


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Any]:
    """Note the calls of a method."""
    calls: list[Any] = []
    called: Callable[..., Any] = getattr(owner, name)

    def note(*args: Any) -> Any:
        calls.append(args)
        return called(*args)

    monkeypatch.setattr(owner, name, note)
    return calls


@pytest.mark.parametrize("done", [0, 5_000, 190_000])
def test_going_on_costs_as_much_as_is_resident(done: int, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = whole([500] * 400, pool_size=8)
    one = Clocks(*setting)
    one.skip(done)
    state = one.state()
    rings = counted(monkeypatch, Shuffles, "rings")
    frames = counted(monkeypatch, Shuffles, "frames")
    loaded = Clocks(*setting, state)
    assert [call[1] for call in rings] == loaded.residents
    assert not frames
    loaded.draw()
    # One run draws of those that are resident and of those that come within it.
    assert len(rings) <= 8 + clocks._RUN_DRAWS // 500 + 8
    assert len(frames) <= len(rings)


def test_passing_over_makes_no_shuffle(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = counted(monkeypatch, Shuffles, "frames")
    one = Clocks(*whole([50] * 40))
    one.skip(1999)
    one.state()
    assert not frames
    one.draw()
    assert frames


def test_long_episodes_behind_short_ones_make_no_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    # Planned for the few frames that are left at its begin, it ends sooner as more come.
    rings = counted(monkeypatch, Shuffles, "rings")
    one = Clocks(*whole([1, 1] + [3000] * 60, pool_size=2))
    one.draw()
    assert len(rings) < 8


@pytest.mark.parametrize("pool_size", [32, 4096])
def test_a_draw_costs_little_of_a_large_pool(
    pool_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run costs as much as its draws, and a little for each resident: at most an 8th a draw.
    runs = counted(monkeypatch, Clocks, "_plan_run")
    one = Clocks(*whole([100] * 6000, pool_size=pool_size))
    one.skip(200_000)
    assert (len(runs) - 1) * pool_size <= 200_000 / 8
