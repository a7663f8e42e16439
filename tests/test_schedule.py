"""Which sources a step takes: by weight, the same for all who ask, and when one ends."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import schedule
from egoloader.errors import SettingsError
from egoloader.schedule import Schedule
from tests.orders import surprise

SOURCES = ("arm", "hand", "leg")
WEIGHTS = {"arm": 3, "hand": 0.5, "leg": 1.5}


def picks(one: Schedule, start: int, count: int, sources: tuple[str, ...] = SOURCES) -> list[Any]:
    return list(itertools.islice(one.steps(sources, start), count))


@pytest.mark.parametrize("start", [0, 1, 5000])
def test_all_takes_of_every_source(start: int) -> None:
    assert picks(Schedule(), start, 5) == [SOURCES] * 5
    assert picks(Schedule("all", seed=4), start, 3, ("leg",)) == [("leg",)] * 3


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        (WEIGHTS, [6000, 1000, 3000]),
        ({"leg": 1.0, "hand": 1.0, "arm": 8.0}, [8000, 1000, 1000]),
        ({"arm": 1e-6, "hand": 5e-7, "leg": 5e-7}, [5000, 2500, 2500]),
        (None, [10000 / 3] * 3),
    ],
)
def test_picks_match_the_weights(weights: Any, expected: list[float]) -> None:
    for seed in range(3):
        found = picks(Schedule("weighted", weights=weights, seed=seed), 0, 10_000)
        assert all(len(names) == 1 for names in found)
        counts = [found.count((name,)) for name in SOURCES]
        assert abs(surprise([(counts, expected)])) < 5


def test_picks_do_not_depend_on_those_before() -> None:
    found = [name for (name,) in picks(Schedule("weighted", weights=WEIGHTS), 0, 20_000)]
    share = {"arm": 0.6, "hand": 0.1, "leg": 0.3}
    for lag in (1, 2, 1024):
        pairs = list(zip(found, found[lag:], strict=False))
        cells = list(itertools.product(SOURCES, repeat=2))
        expected = [share[a] * share[b] * len(pairs) for a, b in cells]
        assert abs(surprise([([pairs.count(cell) for cell in cells], expected)])) < 5


@settings(deadline=None)
@given(st.integers(0, 5000), st.integers(0, 3))
def test_they_are_a_function_of_the_step(start: int, seed: int) -> None:
    # The same on every rank, and from a position on as from the beginning.
    one = Schedule("weighted", weights=WEIGHTS, seed=seed)
    again = Schedule("weighted", weights=dict(reversed(WEIGHTS.items())), seed=seed)
    assert picks(again, start, 1100) == picks(one, 0, start + 1100)[start:]


def test_picks_never_change() -> None:
    # A checkpoint of years ago goes on with them.
    found = picks(Schedule("weighted", weights=WEIGHTS, seed=5), 1020, 30)
    assert "".join(name[0] for (name,) in found) == "ahaaallllalalaallaaaaaalhhlllh"


def test_shares_begin_where_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "uniforms", lambda key, count, at: np.arange(count) % 4 / 4)
    one = Schedule("weighted", weights={"a": 1, "b": 2, "c": 1})
    assert picks(one, 0, 5, ("a", "b", "c")) == [("a",), ("b",), ("b",), ("c",), ("a",)]


def test_seeds_and_weights_make_other_picks() -> None:
    options: list[dict[str, Any]] = [{}, {"seed": 1}, {"weights": WEIGHTS}]
    found = [tuple(picks(Schedule("weighted", **one), 0, 100)) for one in options]
    assert len(set(found)) == 3


@settings(deadline=None, max_examples=100)
@given(
    st.sampled_from(["all", "weighted"]),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=1),
    st.integers(0, 3000),
    st.integers(1, 50),
    st.booleans(),
)
def test_steps_until_a_source_ends(
    combine: Any, left: dict[str, int], start: int, block: int, has_weights: bool
) -> None:
    weights = {name: 1 + 5 * n for n, name in enumerate(left)}
    one = Schedule(combine, weights=weights if has_weights and combine == "weighted" else None)
    with pytest.MonkeyPatch.context() as patch:
        # However many picks are drawn at once.
        wanted = one.steps_left(left, start)
        patch.setattr(schedule, "_BLOCK", block)
        assert one.steps_left(left, start) == wanted
    taken = picks(one, start, wanted, tuple(left))
    assert any(sum(name in names for names in taken) == count for name, count in left.items())
    before = taken[:-1]
    assert all(sum(name in names for names in before) < count for name, count in left.items())


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 40), min_size=1))
def test_all_end_with_the_shortest(left: dict[str, int]) -> None:
    assert Schedule(at_end="ends").steps_left(left, 17) == min(left.values())


def test_the_fingerprint_has_what_fixes_the_mixture() -> None:
    one = Schedule("weighted", weights=WEIGHTS)
    same = Schedule("weighted", weights=dict(reversed(WEIGHTS.items())))
    assert list(same.fingerprint()["weights"]) == list(one.fingerprint()["weights"])
    assert json.loads(json.dumps(one.fingerprint())) == same.fingerprint()
    others = [
        Schedule("weighted", weights={**WEIGHTS, "leg": 2}),
        Schedule("weighted"),
        Schedule("weighted", "ends", WEIGHTS),
        Schedule(),
        one,
    ]
    assert len({json.dumps(other.fingerprint()) for other in others}) == 5


def test_it_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Schedule().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"combine": "every"}, "combine is 'every'"),
        ({"combine": "weigthed"}, "did you mean 'weighted'"),
        ({"combine": None}, "combine is None"),
        ({"at_end": "cycles"}, "did you mean 'cycle'"),
        ({"seed": -1}, "seed must be a whole number from 0 on, got -1"),
        ({"seed": True}, "seed .* got True"),
        ({"seed": 1.0}, "seed .* got 1.0"),
        ({"weights": {"arm": 1}}, "weights are for combine: weighted"),
        ({"combine": "weighted", "weights": [1, 2]}, "weights map embodiments to numbers"),
        ({"combine": "weighted", "weights": {1: 2}}, "weights map embodiments to numbers, got 1"),
        *(
            ({"combine": "weighted", "weights": {"arm": 1, "leg": weight}}, f"of 'leg' .* {shown}")
            for weight, shown in [
                (0, "got 0"),
                (-1, "got -1"),
                (True, "got True"),
                (float("nan"), "got nan"),
                (float("inf"), "got inf"),
                (1e308, r"up to 1e\+100, got 1e\+308"),
                ("1", "got '1'"),
                (None, "got None"),
            ]
        ),
    ],
)
def test_what_can_not_be_meant(options: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        Schedule(**options)


def test_weights_and_sources_go_together() -> None:
    one = Schedule("weighted", weights=WEIGHTS)
    one.check_sources(SOURCES)
    Schedule("weighted").check_sources(SOURCES)
    Schedule().check_sources(())
    with pytest.raises(SettingsError, match="a weight for 'leg'"):
        one.check_sources(("arm", "hand"))
    with pytest.raises(SettingsError, match=r"a weight for 'arm'; did you mean 'arms'"):
        one.check_sources(("arms", "hand", "leg"))
    with pytest.raises(SettingsError, match="embodiment 'head' has no weight"):
        one.check_sources((*SOURCES, "head"))
