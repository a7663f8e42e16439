"""Which episodes an order is over, however they are listed; and what can't be meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.errors import SettingsError
from egoloader.roster import Roster, check_fingerprint

idents = st.one_of(st.integers(-20, 20), st.text("ab1 é", max_size=3))
listings = st.dictionaries(idents, st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=8)


def told(roster: Roster) -> tuple[Any, ...]:
    assert roster.lengths.dtype == roster.sizes.dtype == np.int64
    listed = (roster.ids, roster.lengths.tolist(), roster.sizes.tolist())
    return (*listed, roster.num_frames, roster.digest())


@settings(deadline=None)
@given(listings, st.data())
def test_the_order_of_listing_makes_no_difference(
    listing: dict[Any, tuple[int, int]], data: st.DataObject
) -> None:
    frames = {ident: n for ident, (n, _) in listing.items()}
    sizes = {ident: size for ident, (_, size) in listing.items()}
    wanted = told(Roster(frames, sizes))
    assert set(wanted[0]) == {ident for ident in frames if frames[ident]}
    assert list(wanted[1]) == [frames[ident] for ident in wanted[0]]
    assert list(wanted[2]) == [sizes[ident] for ident in wanted[0]]
    assert wanted[3] == sum(frames.values())
    order = data.draw(st.permutations(list(frames)))
    pairs = [(ident, frames[ident]) for ident in order]
    listed_sizes = [sizes[ident] for ident in order]
    for episodes in (pairs, dict(pairs), (list(pair) for pair in pairs)):
        assert told(Roster(episodes, listed_sizes)) == wanted
    assert told(Roster(iter(pairs), dict(zip(order, listed_sizes, strict=True)))) == wanted
    assert told(Roster(pairs, np.array(listed_sizes, dtype=np.int64))) == wanted  # type: ignore[arg-type]


def test_numbers_and_texts_of_numpy_are_the_same_episodes() -> None:
    # As they come out of an array of names or of lengths.
    wanted = told(Roster([(1, 4), (2, 5)]))
    assert told(Roster([(np.int64(2), np.int32(5)), (np.uint8(1), np.int64(4))])) == wanted
    names = np.array(["b", "a"])
    assert told(Roster([(names[0], 5), (names[1], 4)])) == told(Roster({"a": 4, "b": 5}))


def test_a_number_and_its_text_are_two_episodes() -> None:
    wanted = told(Roster([(1, 4), ("1", 5), (10, 1), ("2", 1)]))
    assert wanted[0] == (1, 10, "1", "2")
    assert told(Roster([("2", 1), ("1", 5), (10, 1), (1, 4)])) == wanted


def test_without_sizes_there_are_none() -> None:
    roster = Roster({"a": 3, "b": 0, "c": 1})
    assert (roster.ids, roster.sizes.tolist()) == (("a", "c"), [0, 0])


def test_no_episodes_at_all() -> None:
    for episodes in ({}, [], {"a": 0}, [("a", 0), (7, 0)]):
        assert told(Roster(episodes))[:4] == ((), [], [], 0)


def test_the_digest_tells_sets_apart() -> None:
    rosters = [
        Roster({"a": 3, "b": 4}),
        Roster({"a": 4, "b": 3}),
        Roster({"a": 3, "c": 4}),
        Roster({"a": 3, "b": 4, "c": 1}),
        Roster({"a": 3, "b": 4}, [1, 0]),
        Roster({"a": 3, "b": 4}, [0, 1]),
        Roster({"1": 3}),
        Roster({1: 3}),
    ]
    assert len({roster.digest() for roster in rosters}) == len(rosters)
    assert Roster({"a": 3, "b": 4}).digest() == Roster({"b": 4, "z": 0, "a": 3}).digest()


def listed_twice() -> None:
    Roster([("a", 3), ("b", 1), ("a", 3)])


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "twice": (listed_twice, "episode 'a' is listed twice"),
    "twice, empty": (lambda: Roster([("a", 0), ("a", 3)]), "'a' is listed twice"),
    "twice, numpy": (lambda: Roster([(1, 2), (np.int64(1), 2)]), "1.* is listed twice"),
    "id bool": (lambda: Roster([(True, 3)]), "id is a text or a whole number, got True"),
    "id float": (lambda: Roster({1.0: 3}), "got 1.0"),
    "id none": (lambda: Roster([(None, 3)]), "got None"),
    "id pair": (lambda: Roster([(("a", 1), 3)]), r"got \('a', 1\)"),
    "no pair": (lambda: Roster([3, 4]), r"pairs or a mapping, got 3"),  # type: ignore[list-item]
    "text": (lambda: Roster(["ab"]), "got 'ab'"),  # type: ignore[list-item]
    "triple": (lambda: Roster([("a", 1, 2)]), "got"),  # type: ignore[list-item]
    "negative": (lambda: Roster({"a": 3, "b": -1}), "episode 'b': frames .* got -1"),
    "frames bool": (lambda: Roster({"b": True}), "episode 'b': frames .* got True"),
    "frames float": (lambda: Roster({"b": 3.0}), "episode 'b': frames .* got 3.0"),
    "frames nan": (lambda: Roster({"b": float("nan")}), "'b': frames .* got nan"),
    "frames none": (lambda: Roster({"b": None}), "'b': frames .* got None"),  # type: ignore[dict-item]
    "frames too many": (lambda: Roster({"a": 2**62, "b": 2**62}), "9223372036854775808 frames"),
    "size too large": (
        lambda: Roster({"a": 3, "b": 4}, [1, 2**62]),
        "'b': .* got 4611686018427387904",
    ),
    "size missing": (lambda: Roster({"a": 3, "b": 4}, {"a": 1}), "'b' is missing from byte_sizes"),
    "size none": (lambda: Roster({"a": 3}, {"a": None}), "'a' is missing"),  # type: ignore[dict-item]
    "size negative": (lambda: Roster({"a": 3, "b": 4}, [1, -1]), "'b': byte_sizes .* got -1"),
    "size nan": (lambda: Roster({"a": 3}, [float("nan")]), "'a': byte_sizes .* got nan"),  # type: ignore[list-item]
    "size float": (lambda: Roster({"a": 3}, [2.0]), "'a': byte_sizes .* got 2.0"),  # type: ignore[list-item]
    "size bool": (lambda: Roster({"a": 3}, [True]), "'a': byte_sizes .* got True"),
    "size of an empty one": (lambda: Roster({"a": 3, "b": 0}, {"a": 1}), "'b' is missing"),
    "sizes, a number": (lambda: Roster({"a": 3}, 5), "byte_sizes is a mapping or a list"),  # type: ignore[arg-type]
    "too few sizes": (lambda: Roster({"a": 3, "b": 4}, [1]), "lists 1 sizes for 2 episodes"),
    "too many sizes": (lambda: Roster({"a": 3}, [1, 2]), "lists 2 sizes for 1 episodes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_listing(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(SettingsError, match=message):
        make()


@pytest.mark.parametrize("budget", [0, -1, True, 2.5, 10.0, float("nan"), float("inf"), "9"])
def test_what_is_no_budget(budget: Any) -> None:
    with pytest.raises(SettingsError, match=r"byte_budget must be a whole number from 1 on, got"):
        Roster({"a": 3}, [1]).check_budget(budget)


def test_an_episode_above_the_budget() -> None:
    roster = Roster({"a": 3, "b": 4, "c": 0}, [5, 7, 99])
    roster.check_budget(7)
    roster.check_budget(None)
    with pytest.raises(SettingsError, match=r"episode 'b' has 7 bytes, .* byte_budget = 6"):
        roster.check_budget(6)


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), min_size=1))
def test_a_fingerprint_of_the_same(fingerprint: dict[str, int]) -> None:
    check_fingerprint(dict(reversed(fingerprint.items())), fingerprint)


@pytest.mark.parametrize(
    ("saved", "name"),
    [
        ({"seed": 2, "tail": "drop"}, "seed was 2 and is 1 now"),
        ({"seed": 1, "tail": "spread"}, "tail was 'spread' and is 'drop' now"),
        ({"seed": 1}, "tail was None and is 'drop' now"),
        ({"seed": 1, "tail": "drop", "more": 3}, "more was 3 and is None now"),
    ],
)
def test_a_fingerprint_of_others(saved: dict[str, Any], name: str) -> None:
    with pytest.raises(SettingsError, match=f"can't resume: {name}"):
        check_fingerprint(saved, {"seed": 1, "tail": "drop"})


@pytest.mark.parametrize("saved", [None, "x", 3, ["seed"]])
def test_no_fingerprint(saved: Any) -> None:
    with pytest.raises(SettingsError, match="the state holds no fingerprint"):
        check_fingerprint(saved, {"seed": 1})
