"""What the bench of the pool's order measures, checks and refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import mmap
import pickle
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from bench import order, order_build, order_draws, order_mixing, order_states
from bench.__main__ import main
from bench.order_draws import WAYS, DrawSettings, Episodes, Position, steady, time_draws
from bench.order_mixing import MixingSettings
from bench.order_states import StateSettings, reach, state_sizes, time_states
from bench.pairing import Spread, Timings, WrongAnswerError
from bench.result import Result
from egoloader import EpisodePool, EpisodePoolSampler
from egoloader.clocks import Clocks
from egoloader.errors import ResumeError
from egoloader.shuffles import Shuffles

EPISODES = Episodes(count=80, total_frames=20, batch_size=4)
DRAWS = DrawSettings(pool_sizes=(3, 6), rounds=2, batches=10)
STATES = StateSettings(pool_sizes=(3, 6), shares=(0.1, 0.5), rounds=2, world_size=3, fewer=2)
STATES = dataclasses.replace(STATES, drawn_after=5)
MIXING = MixingSettings(episodes=12, frames=(10, 30), batch_size=4, pool_sizes=(2, 6), epochs=2)
SETTINGS = order.Settings(EPISODES, DRAWS, 1, STATES, MIXING)


def test_the_order_is_measured() -> None:
    result = order.measure_order(SETTINGS)
    named: dict[str, list[str]] = {}
    for row in result.figures:
        named.setdefault(f"{row.case}, {row.unit}", []).append(row.contender)
    pools, kinds = ["pool_size=3", "pool_size=6"], ["EpisodePool", "PoolOrder"]
    shares, mixed = ["10% done", "50% done"], list(MIXING.names)
    done = [
        "EpisodePool: load_state_dict and a draw",
        "EpisodePoolSampler: load_state_dict and a batch",
        "EpisodePool: state_dict",
        "EpisodePoolSampler: state_dict",
    ]
    assert named == {
        **{f"{way}, a draw, µs": pools for way in WAYS},
        **{f"construction and a draw, {pool}, s": kinds for pool in pools},
        **{f"their peak memory, {pool}, MB": kinds for pool in pools},
        **{f"{what}, {pool}, ms": shares for pool in pools for what in done},
        **{f"PoolOrder: first state of an epoch, {pool}, s": shares for pool in pools},
        "unique episodes in a batch of 4, inner batches, episodes": mixed,
        "unique episodes in a batch of 4, last tenth, episodes": mixed,
    }
    bounds = [*[1.5] * 3, 5, 5, 200, *[1.2] * 4, *[200] * 6, 0.99]
    assert [target.bound for target in result.targets] == bounds
    assert [row.case for row in result.counts] == [
        f"{pool}, ranks: {ranks}" for pool in pools for ranks in ("1", "3", "2, going on from 3")
    ]
    for row in result.counts:
        assert row.counts["bytes a rank"] == math.ceil(row.counts["bytes"] / row.counts["ranks"])


def test_times_are_shared_by_the_draws() -> None:
    timings = Timings(("few", "many"), np.array([[4_000, 8_000], [8_000, 12_000]]))
    few, many = order._time_rows("a draw", "µs", timings, 1e3 * 2)
    assert (few.value, few.ratio) == (Spread.of([2, 4]), Spread(1, 1, 1))
    assert (many.value, many.ratio) == (Spread.of([4, 6]), Spread.of([2, 1.5]))
    assert order._worst([few, many], bound=5).figure == many.value


def test_a_steady_pool_has_turned_over() -> None:
    pool = EPISODES.pool(6)
    first = set(pool.resident)
    position = steady(EPISODES.order(6), EPISODES, 6)
    for _ in range(position.done * EPISODES.batch_size):
        next(pool)
    assert first.isdisjoint(pool.resident)
    moved = EPISODES.pool(6)
    position.move_pool(moved, EPISODES.batch_size)
    assert (moved.resident, list(moved)) == (pool.resident, list(pool))


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (6, "6 episodes don't turn a pool of 6 over"),
        (20, "20 episodes are too few for 2 rounds"),
    ],
)
def test_an_epoch_that_is_too_short_is_refused(count: int, said: str) -> None:
    episodes = dataclasses.replace(EPISODES, count=count)
    with pytest.raises(ValueError, match=said):
        time_draws(episodes, DrawSettings((6, 3), rounds=2, batches=60))


def a_frame_later(self: EpisodePool) -> tuple[Any, int]:
    number, frame = self._clocks.draw()
    return self._ids[number], (frame + 1) % EPISODES.total_frames


def reversed_batches(self: EpisodePoolSampler, number: int) -> Iterator[Any]:
    for batch in self.upcoming():
        yield batch[::-1]


@pytest.mark.parametrize(
    ("kind", "method", "wrong"),
    [
        (EpisodePool, "__next__", a_frame_later),
        (EpisodePoolSampler, "_handed_out", reversed_batches),
    ],
)
def test_draws_of_other_frames_are_refused(
    kind: type, method: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, method, wrong)
    with pytest.raises(WrongAnswerError, match=rf"block 0: {kind.__name__} draws other frames"):
        time_draws(EPISODES, DRAWS)


def test_a_frame_that_comes_twice_is_refused() -> None:
    seen = np.zeros(6, dtype=bool)
    order_draws._check_new(np.array([1, 3]), seen, "here")
    assert seen.tolist() == [False, True, False, True, False, False]
    for indices in ([4, 4], [5, 3]):
        with pytest.raises(WrongAnswerError, match="here: a frame is drawn twice"):
            order_draws._check_new(np.array(indices), seen, "here")


def test_every_block_is_checked_for_frames_that_come_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def zeros(self: Shuffles, number: int, start: int, stop: int) -> Any:
        return np.zeros(stop - start, np.int64)

    monkeypatch.setattr(Shuffles, "frames", zeros)
    with pytest.raises(WrongAnswerError, match="pool_size=3, block 0: a frame is drawn twice"):
        time_draws(EPISODES, DRAWS)


def test_times_are_given_by_way_and_pool_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(contenders: Any, *_: Any, **__: Any) -> Timings:
        named = tuple(one.name for one in contenders)
        return Timings(named, np.array([[100 + int(name.split("=")[1]) for name in named]]))

    monkeypatch.setattr(order_draws, "measure", measured)
    timings = time_draws(EPISODES, DRAWS)
    assert tuple(timings) == WAYS
    for of_way in timings.values():
        assert of_way.names == ("pool_size=3", "pool_size=6")
        assert of_way.nanoseconds.tolist() == [[103, 106]]


def test_skipping_that_loses_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    skip = Clocks.skip
    monkeypatch.setattr(Clocks, "skip", lambda self, count: skip(self, count + (count > 19)))
    with pytest.raises(ResumeError, match="as many frames are not left as it says"):
        reach(EPISODES, 3, STATES)


def test_skipping_that_leads_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = Clocks.state

    def later(self: Clocks) -> Any:
        found = state(self)
        found["residents"][0][1] += 1e-9
        return found

    monkeypatch.setattr(Clocks, "state", later)
    with pytest.raises(WrongAnswerError, match="drawing and passing over differ"):
        reach(EPISODES, 3, STATES)


def test_a_state_goes_on_where_it_was_saved() -> None:
    reached = reach(EPISODES, 3, STATES)
    assert {name: at.done for name, at in reached.positions.items()} == {
        "10% done": 40 + 5,
        "50% done": 200 + 5,
    }
    drawn = list(EPISODES.pool(3))
    for position in reached.positions.values():
        pool = EPISODES.pool(3)
        position.move_pool(pool, EPISODES.batch_size)
        assert list(pool) == drawn[position.done * EPISODES.batch_size :]


def test_a_state_that_goes_on_elsewhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    positions = reach(EPISODES, 3, STATES).positions
    load = EpisodePool.load_state_dict

    def load_and_lose(self: EpisodePool, state: Any) -> None:
        load(self, state)
        next(self)

    monkeypatch.setattr(EpisodePool, "load_state_dict", load_and_lose)
    with pytest.raises(WrongAnswerError, match=r"10% done: the sampler goes on with another"):
        time_states(EPISODES, 3, positions, rounds=1)


class Still:
    """Draws, and is where it was."""

    def load_state_dict(self, state: Any) -> None:
        pass

    def state_dict(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([1])


def test_draws_that_leave_the_state_as_it_was_are_refused() -> None:
    sources: dict[str, Any] = {"a": Still(), "b": Still()}
    with pytest.raises(WrongAnswerError, match="a draw leaves the state as it was"):
        order_states._time_saving(sources, {"a": 0, "b": 1}, rounds=1)
    assert order_states._time_saving(sources, {"a": 0, "b": 0}, rounds=1).rounds == 1


def test_answers_that_change_from_round_to_round_are_refused() -> None:
    rising = iter(range(9))
    contenders = [
        order_states._contender("steady", lambda _: 0, None),
        order_states._contender("rising", lambda _: next(rising), None),
    ]
    with pytest.raises(WrongAnswerError, match="rising, round 1: another answer"):
        order_states._timed(contenders, {"steady": 0, "rising": 0}, rounds=1)


def test_a_state_of_other_ranks_has_what_they_had_begun() -> None:
    sizes = state_sizes(EPISODES, 3, STATES)
    assert list(sizes) == ["ranks: 1", "ranks: 3", "ranks: 2, going on from 3"]
    assert sizes["ranks: 3"]["bytes"] > sizes["ranks: 1"]["bytes"]
    after = sizes["ranks: 2, going on from 3"]["bytes"]
    assert after != sizes["ranks: 3"]["bytes"]
    assert after > sizes["ranks: 1"]["bytes"]


def test_a_sampler_that_saves_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    move = Position.move_sampler

    def move_on(self: Position, sampler: EpisodePoolSampler) -> None:
        move(self, sampler)
        next(iter(sampler))

    monkeypatch.setattr(Position, "move_sampler", move_on)
    with pytest.raises(WrongAnswerError, match="ranks: 1: another state is saved"):
        state_sizes(EPISODES, 3, STATES)


def test_a_size_is_shared_by_the_ranks() -> None:
    size = len(pickle.dumps({"a": 1}))
    said = order_states._size({"a": 1}, size - 1)
    assert said == {"ranks": size - 1, "bytes": size, "bytes a rank": 2}


def test_ranks_that_go_on_with_other_batches_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    length = EpisodePoolSampler.__len__
    monkeypatch.setattr(EpisodePoolSampler, "__len__", lambda self: length(self) + 1)
    with pytest.raises(WrongAnswerError, match="2 ranks go on with"):
        state_sizes(EPISODES, 3, STATES)


@pytest.mark.parametrize("what", ["EpisodePool", "PoolOrder"])
def test_construction_says_what_it_took(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    order_build.main(what, count=80, total_frames=20, pool_size=3, seed=0)
    said = json.loads(capsys.readouterr().out)
    assert tuple(said["first"]) == next(EPISODES.pool(3))
    assert said["seconds"] > 0
    assert said.keys() == {"seconds", "peak_bytes", "first"}


def test_memory_is_what_construction_adds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(order_build, "_memory", {"VmRSS": 10, "VmHWM": 30}.get)
    order_build.main("PoolOrder", count=4, total_frames=20, pool_size=3, seed=0)
    assert json.loads(capsys.readouterr().out)["peak_bytes"] == 20


def test_memory_is_this_processs() -> None:
    size = 2**26
    before = order_build._memory("VmRSS")
    with mmap.mmap(-1, size) as held:  # not from the heap, whose freed pages are resident already
        held.write(b"\1" * size)
        during = order_build._memory("VmRSS")
    assert during - before > 0.9 * size
    assert order_build._memory("VmHWM") >= during


def test_constructions_that_begin_differently_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(what: str, pool_size: int, settings: order.Settings) -> dict[str, Any]:
        return {"seconds": 1.0, "peak_bytes": 2e6, "first": [what, 0]}

    monkeypatch.setattr(order, "_build", said)
    with pytest.raises(WrongAnswerError, match="pool_size=3: orders begin with"):
        order._building(SETTINGS)


def test_the_worst_construction_is_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def said(what: str, pool_size: int, settings: order.Settings) -> dict[str, Any]:
        seconds = pool_size + (what == "PoolOrder") / 2
        return {"seconds": seconds, "peak_bytes": 1e6 * (100 - pool_size), "first": ["a", 0]}

    monkeypatch.setattr(order, "_build", said)
    time, memory = order._building(SETTINGS).targets
    assert (time.figure.median, time.is_met) == (6.5, False)
    assert time.what.startswith("construction and a draw, pool_size=6, PoolOrder")
    assert (memory.figure.median, memory.is_met) == (97, True)


def test_mixing_is_compared_with_drawing_without_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = np.array([[4.0, 3.0, 1.0, 2.0], [4.0, 3.2, 1.0, 2.0]])
    monkeypatch.setattr(order, "mix", lambda _: order_mixing.Mixed(inner, inner / 2))
    answer = order._mixing(SETTINGS)
    (target,) = answer.targets
    assert (target.figure, target.is_met) == (Spread.of([0.75, 0.8]), False)
    assert [row.value.median for row in answer.figures[::4]] == [4, 2]


@pytest.mark.parametrize(
    ("kind", "wrong", "said"),
    [
        (DrawSettings, {"pool_sizes": (32,)}, "two pool sizes"),
        (StateSettings, {"shares": (0.5,)}, "two shares"),
        (StateSettings, {"pool_sizes": ()}, "two shares"),
        (StateSettings, {"fewer": 8}, "others than those before"),
        (MixingSettings, {"pool_sizes": (8, 1000)}, "smaller than all episodes"),
    ],
)
def test_settings_that_show_nothing_are_refused(
    kind: type, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        kind(**wrong)


def test_episodes_are_in_the_order_of_their_names() -> None:
    listed = EPISODES.frames_by_episode()
    assert len(listed) * EPISODES.total_frames == len(EPISODES) == 1600
    assert all(a < b for (a, _), (b, _) in pairwise(listed))
    with pytest.raises(RuntimeError, match="names and lengths alone"):
        EPISODES.open_each()


def test_rounds_are_an_option(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked: list[order.Settings] = []

    def measured(settings: order.Settings) -> Result:
        asked.append(settings)
        return Result("shapes", "Which?", {}, {}, (), (), ())

    monkeypatch.setattr(order, "measure_order", measured)
    main(["--results", str(tmp_path), "order", "--rounds", "3"])
    main(["--results", str(tmp_path), "order"])
    assert asked[0].draws.rounds == 3
    assert asked[1] == order.Settings()
