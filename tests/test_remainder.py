"""What a checkpoint says is left of an epoch, and what it can't say."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import EpisodePool
from egoloader.errors import ResumeError
from egoloader.remainder import pack, unpack
from egoloader.shuffles import Items
from tests.orders import KINDS, frames_in, job, rest, resumed, sampler, saved, served_by
from tests.soak.recordings import write_recordings
from tests.soak.training import recorded

LENGTHS = (5, 0, 1, 9, 3, 4)
Path_ = tuple[Any, ...]


@st.composite
def remainders(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the lengths of episodes, and parts of them that don't overlap."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=20))
    parts = []
    for number, length in enumerate(lengths):
        bounds = draw(st.lists(st.integers(0, length), max_size=6, unique=True).map(sorted))
        pairs = zip(bounds[::2], bounds[1::2], strict=False)
        parts += [(number, start, stop) for start, stop in pairs]
    return lengths, draw(st.permutations(parts))


def items_of(parts: list[tuple[int, int, int]]) -> Items:
    return Items(*np.array(parts, dtype=np.int64).reshape(-1, 3).T)


def parts_of(items: Items) -> list[tuple[int, ...]]:
    return sorted(map(tuple, np.stack(items, axis=1).tolist()))


@settings(deadline=None, max_examples=300)
@given(remainders())
def test_what_is_packed_comes_back(remainder: tuple[list[int], list[Any]]) -> None:
    lengths, parts = remainder
    state = json.loads(json.dumps(pack(items_of(parts), np.array(lengths))))
    assert parts_of(unpack(state, np.array(lengths))) == sorted(parts)


def test_what_a_part_takes() -> None:
    count = 24_000
    lengths = np.full(count, 1000)
    whole = Items(np.arange(count), np.zeros(count, np.int64), lengths)
    state = pack(whole, lengths)
    assert len(state["whole"]) == count / 8 * 4 / 3  # a bit an episode, as text
    assert [state[name] for name in ("gaps", "starts", "pieces")] == [[], [], []]
    every = np.arange(0, count, 7)
    begun = Items(every, np.full_like(every, 200), np.full_like(every, 1000))
    state = pack(begun, lengths)
    assert state["gaps"] == [0] + [7] * (len(every) - 1)
    assert not state["pieces"]


@pytest.mark.parametrize(
    "parts",
    [
        [(0, 0, 0)],
        [(0, 2, 1)],
        [(0, -1, 2)],
        [(0, 1, 6)],
        [(2, 0, 1)],
        [(-1, 0, 1)],
        [(0, 0, 3), (0, 2, 4)],
        [(0, 1, 2), (0, 1, 2)],
    ],
)
def test_parts_that_can_not_be_left(parts: list[tuple[int, int, int]]) -> None:
    state = {"whole": "AA==", "gaps": [], "starts": [], "pieces": [list(part) for part in parts]}
    with pytest.raises(ResumeError, match="can't resume: the state is broken: what is left has"):
        unpack(state, np.array([5, 3]))


def leaves(state: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every value of a state that holds no others, and of every list."""
    if isinstance(state, dict):
        for name, value in state.items():
            if name != "fingerprint":
                yield from leaves(value, (*path, name))
        return
    yield path
    if isinstance(state, list):
        for place, value in enumerate(state):
            yield from leaves(value, (*path, place))


def mutated(state: Any, path: Path_) -> Iterator[Any]:
    """Yield copies of a state with something else at a path, or nothing."""
    value: Any = state
    for step in path:
        value = value[step]
    others: list[Any] = [None, "x", -1, 10**6, float("nan"), True, []]
    if isinstance(value, list):
        others += [value[:-1], [*value, 0], [*value, *value[-1:]]]
    elif isinstance(value, int):
        others += [value + 1, value - 1, value * 2 + 1]
    for other in others:
        changed = copy.deepcopy(state)
        inner = changed
        for step in path[:-1]:
            inner = inner[step]
        inner[path[-1]] = other
        yield copy.deepcopy(changed)
    if isinstance(path[-1], str):
        del inner[path[-1]]
        yield changed


def is_refused(one: Any, state: Any) -> bool:
    """Return whether a state is refused, which is the only other thing that may happen to it."""
    try:
        one.load_state_dict(state)
    except ResumeError:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_that_was_changed_is_refused_or_draws_no_frame_twice(
    kind: str, world_size: int
) -> None:
    pair = job(kind, LENGTHS, 2)
    served_by(pair, 2)
    (one,) = resumed(kind, LENGTHS, 1, saved(pair[0]))
    served_by([one], 2)
    state = saved(one)
    refused = kept = 0
    for path in leaves(state):
        if path == ("epoch",):
            continue
        for changed in mutated(state, path):
            other = sampler(kind, LENGTHS, 0, world_size)
            if is_refused(other, changed):
                assert (other.epoch, other.done) == (0, 0)
                refused += 1
                continue
            kept += 1
            if kind != "weights" and world_size == 1:
                assert max(Counter(frames_in(rest(other))).values()) == 1, (path, changed)
    assert refused > 50
    assert kept < refused


def test_a_state_of_a_pool_that_was_changed_is_refused_or_draws_no_frame_twice() -> None:
    pairs = [("a", 9), ("b", 4), ("c", 7), ("d", 6)]
    one = EpisodePool(pairs, 2, 1)
    drawn = [next(one) for _ in range(12)]
    state = json.loads(json.dumps(one.state_dict()))
    refused = 0
    for path in leaves(state):
        for changed in mutated(state, path):
            other = EpisodePool(pairs, 2, 1)
            if is_refused(other, changed):
                refused += 1
                continue
            found = list(other)
            assert len(set(found)) == len(found)
    assert refused > 40
    one.load_state_dict(state)
    assert sorted([*drawn, *one]) == sorted(
        (name, n) for name, total in pairs for n in range(total)
    )


def test_a_state_of_a_mixture_that_was_changed_is_refused_and_it_begins_anew(
    tmp_path: Path,
) -> None:
    write_recordings(tmp_path, "arm", (5, 3))
    write_recordings(tmp_path, "human", (4, 6))
    data = recorded(tmp_path)
    data.setup("fit")
    loader = data.train_dataloader()
    begun = json.loads(json.dumps(data.state_dict()))
    for _, _ in zip(range(2), loader, strict=False):
        pass
    state = json.loads(json.dumps(data.state_dict()))
    assert state != begun
    refused = 0
    for path in leaves(state):
        for changed in mutated(state, path):
            if is_refused(data, changed):
                assert json.loads(json.dumps(data.state_dict())) == begun
                refused += 1
    assert refused > 100
    data.load_state_dict(state)
    assert json.loads(json.dumps(data.state_dict())) == state
