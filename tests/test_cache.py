"""What is kept within a budget of bytes, by each process: the longest unused goes first."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

from egoloader import ZarrEpisode
from egoloader.cache import ENTRY_BYTES, ByteCache
from egoloader.errors import SettingsError
from tests.children import in_a_fork
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class AgainstModel(RuleBasedStateMachine):
    """Any operations, next to a plain list of what should be there, longest unused first."""

    @initialize(budget=st.integers(0, 40))
    def start(self, budget: int) -> None:
        self.cache = ByteCache(budget)
        self.model: OrderedDict[str, tuple[object, int]] = OrderedDict()

    @rule(key=st.sampled_from("abcdef"), size=st.integers(1, 50))
    def put(self, key: str, size: int) -> None:
        value = object()
        self.cache.put(key, value, size)
        self.model.pop(key, None)
        if size > self.cache.budget:
            return
        self.model[key] = (value, size)
        while sum(size for _, size in self.model.values()) > self.cache.budget:
            self.model.popitem(last=False)

    @rule(key=st.sampled_from("abcdef"))
    def get(self, key: str) -> None:
        wanted = self.model.get(key, (None, 0))[0]
        assert self.cache.get(key) is wanted
        if wanted is not None:
            self.model.move_to_end(key)

    @invariant()
    def bounded(self) -> None:
        assert self.cache.num_bytes == sum(size for _, size in self.model.values())
        assert self.cache.num_bytes <= self.cache.budget
        assert len(self.cache) == len(self.model)


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)


def test_the_longest_unused_goes_first() -> None:
    cache = ByteCache(3)
    for key in "abc":
        cache.put(key, key.upper(), 1)
    assert cache.get("a") == "A"
    cache.put("d", "D", 2)
    assert [cache.get(key) for key in "abcd"] == ["A", None, None, "D"]


@pytest.mark.parametrize("size", [0, 1, 10**9])
def test_a_budget_of_nothing_keeps_nothing(size: int) -> None:
    cache = ByteCache(0)
    cache.put("a", "A", size)
    assert (cache.get("a"), len(cache), cache.num_bytes) == (None, 0, 0)


def test_a_value_as_large_as_the_budget_is_kept_and_a_larger_one_is_not() -> None:
    cache = ByteCache(10)
    cache.put("a", "A", 10)
    cache.put("b", "B", 11)
    assert (cache.get("a"), cache.get("b"), cache.num_bytes) == ("A", None, 10)


@pytest.mark.parametrize("budget", [-1, 1.5, True, "1", None])
def test_a_budget_is_a_whole_number(budget: Any) -> None:
    with pytest.raises(SettingsError, match="from 0 on"):
        ByteCache(budget)


# Threads and processes.


def hammer(cache: ByteCache, seed: int, until: Callable[[], bool], wrong: list[str]) -> None:
    """Put and get at random; a value tells its key and its size."""
    rng = random.Random(seed)
    while not until():
        key = rng.randrange(40)
        found = cache.get(key)
        if found is not None and found != (key, key % 7 + 1):
            wrong.append(f"{key}: {found}")
        if cache.num_bytes > cache.budget + 7:  # a value comes in before others go
            wrong.append(f"{cache.num_bytes} bytes")
        cache.put(key, (key, key % 7 + 1), key % 7 + 1)


def hammered(
    cache: ByteCache, until: Callable[[], bool]
) -> tuple[list[threading.Thread], list[str]]:
    wrong: list[str] = []
    threads = [
        threading.Thread(target=hammer, args=(cache, seed, until, wrong)) for seed in range(6)
    ]
    for thread in threads:
        thread.start()
    return threads, wrong


def test_threads_find_what_they_put() -> None:
    cache, turns = ByteCache(50), iter(range(20_000))
    threads, wrong = hammered(cache, lambda: next(turns, None) is None)
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)
    found = [cache.get(key) for key in range(40)]
    assert cache.num_bytes == sum(one[1] for one in found if one) <= 50
    assert len(cache) == sum(one is not None for one in found)


def test_a_forked_child_starts_with_an_empty_one() -> None:
    cache = ByteCache(100)
    cache.put("a", "A", 10)

    def grandchild() -> None:
        assert len(cache) == 0

    def child() -> None:
        assert (len(cache), cache.num_bytes, cache.get("a")) == (0, 0, None)
        cache.put("b", "B", 100)
        assert (len(cache), cache.num_bytes, cache.get("b")) == (1, 100, "B")
        in_a_fork(grandchild)

    in_a_fork(child)
    assert (len(cache), cache.num_bytes, cache.get("a")) == (1, 10, "A")
    assert cache.get("b") is None


def test_a_child_forked_while_threads_hold_the_cache_does_not_wait_for_them() -> None:
    cache, is_over = ByteCache(50), threading.Event()
    threads, wrong = hammered(cache, is_over.is_set)

    def child() -> None:
        cache.put("a", "A", 10)
        assert cache.get("a") == "A"
        assert len(cache) == 1

    try:
        for _ in range(20):
            in_a_fork(child)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert wrong == []


def test_caches_pickle_as_their_budgets() -> None:
    cache = ByteCache(1000)
    cache.put("a", b"x" * 999, 999)
    again = pickle.loads(pickle.dumps(cache))
    assert (again.budget, len(again), again.num_bytes) == (1000, 0, 0)
    assert len(pickle.dumps(cache)) < 200


# What episodes keep in it.


def test_episodes_of_one_cache_stay_within_its_budget(tmp_path: Path) -> None:
    budget = 3 * (2800 + ENTRY_BYTES)  # three chunks of 100 rows of 7 numbers
    cache = ByteCache(budget)
    episodes = [
        ZarrEpisode(write_human(tmp_path / f"{n}.zarr", 120), cache=cache) for n in range(4)
    ]
    rng = random.Random(0)
    key, wanted = "left.obs_ee_pose", ramp(120, 7)
    for _ in range(60):
        start = rng.randrange(119)
        stop = rng.randrange(start + 1, 121)
        (found,) = rng.choice(episodes).read({key: [(start, stop)]})[key]
        assert (found == wanted[start:stop]).all()
        assert 0 < cache.num_bytes <= budget
    decoded = sum(episode.counts[key].chunks for episode in episodes)
    assert decoded < sum(episode.counts[key].reads for episode in episodes)


def test_a_changed_result_changes_nothing_that_is_kept(tmp_path: Path) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 120))
    for _ in range(3):
        (found,) = ep.read({"left.obs_ee_pose": [(0, 120)]})["left.obs_ee_pose"]
        assert (found == ramp(120, 7)).all()
        found[...] = -1
    assert ep.counts["left.obs_ee_pose"].chunks == 2


@pytest.mark.parametrize("codecs", [[BytesCodec()], [BytesCodec(), Crc32cCodec()]])
def test_what_is_kept_takes_the_memory_that_is_counted(tmp_path: Path, codecs: list[Any]) -> None:
    sharding = ShardingCodec(chunk_shape=(100, 100), codecs=codecs)
    options = {"chunks": (10_000, 100), "serializer": sharding, "compressors": None}
    foreign_numbers(foreign_group(tmp_path / "ep.zarr", 10_000), "a", ramp(10_000, 100), **options)
    budget = 3 * (40_000 + ENTRY_BYTES)
    cache = ByteCache(budget)
    ep = ZarrEpisode(tmp_path / "ep.zarr", cache=cache)
    ep.layout("a")
    tracemalloc.start()
    try:
        # Four megabytes, in one request; three chunks of a hundred stay.
        ep.read({"a": [(0, 10_000)]})
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cache.num_bytes == budget
    assert held < 400_000
