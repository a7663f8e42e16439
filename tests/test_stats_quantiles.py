"""Sketches of quantiles, held to the error that is stated, and moments that merge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.stats.moments import merge_moments, moments_of
from egoloader.stats.quantiles import QUANTILES, Digests, exact_quantiles, rank_error

Rows = npt.NDArray[np.float64]
EPISODES, FRAMES = 120, 1500
RNG = np.random.default_rng(0)


def rounded(_: int) -> Rows:
    return np.round(RNG.normal(size=FRAMES))


#: By name, what an episode's numbers are.
KINDS: dict[str, Callable[[int], Rows]] = {
    "normal": lambda _: RNG.normal(size=FRAMES),
    "heavy tails": lambda _: RNG.standard_cauchy(FRAMES),
    "far off zero": lambda _: 1e6 + RNG.normal(size=FRAMES),
    "each episode higher": lambda e: 10 * e + RNG.normal(size=FRAMES),
    "each episode lower, backwards": lambda e: -FRAMES * e - np.arange(FRAMES, dtype=float),
    "all episodes the same ramp": lambda _: np.arange(FRAMES, dtype=float),
    "few values": rounded,
    "constant but one": lambda e: np.where(np.arange(FRAMES) == e, 5.0, 1.0),
    "unequal lengths": lambda e: RNG.exponential(size=1 + 25 * e),
}


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_are_within_the_stated_error(kind: str) -> None:
    episodes = [KINDS[kind](number) for number in range(EPISODES)]
    merged = Digests(1)
    for rows in episodes:
        digest = Digests(1)
        for part in np.array_split(rows, 3):
            digest.add(part[:, None])
        merged.merge(digest.to_bytes())
    ordered = np.sort(np.concatenate(episodes))
    for share, (value,) in zip(QUANTILES.values(), merged.quantiles(), strict=True):
        error = rank_error(share, len(ordered))
        low = np.searchsorted(ordered, value, "left") / len(ordered)
        high = np.searchsorted(ordered, value, "right") / len(ordered)
        assert low - error <= share <= high + error


def test_the_stated_error_is_small_where_it_matters() -> None:
    assert rank_error(0.0001, 10**9) == pytest.approx(2e-6, rel=1e-2)
    assert rank_error(0.5, 10**9) == pytest.approx(0.005, rel=1e-2)


def test_digests_are_the_same_each_time() -> None:
    rows = RNG.normal(size=(30_000, 2))
    made = []
    for _ in range(2):
        merged = Digests(2)
        for part in np.array_split(rows, 7):
            one = Digests(2)
            one.add(part)
            merged.merge(one.to_bytes())
        made.append(merged.quantiles())
    np.testing.assert_array_equal(*made)


def test_what_is_no_number_is_left_out() -> None:
    rows = np.array([[1.0, np.nan, np.nan], [3.0, np.nan, 5.0]])
    np.testing.assert_array_equal(exact_quantiles(rows)[2], [2, 0, 5])
    digests = Digests(3)
    digests.add(rows)
    assert digests.quantiles()[2, 1:].tolist() == [0, 5]
    moments = moments_of(rows)
    assert moments.counts.tolist() == [2, 0, 1]
    assert moments.mean.tolist() == [2, 0, 5]
    assert moments.squares.tolist() == [2, 0, 0]


numbers = st.lists(st.floats(-1e9, 1e9), max_size=30)


@settings(max_examples=200, deadline=None)
@given(parts=st.lists(numbers, min_size=1, max_size=5))
def test_merged_moments_are_those_of_all(parts: list[list[float]]) -> None:
    merged = moments_of(np.empty((0, 1)))
    for part in parts:
        merged = merge_moments(merged, moments_of(np.array(part, dtype=float)[:, None]))
    everything = np.array([number for part in parts for number in part])
    assert merged.counts.tolist() == [len(everything)]
    if len(everything):
        span = np.abs(everything).max()
        np.testing.assert_allclose(merged.mean[0], everything.mean(), atol=1e-9 * span)
        squares = ((everything - everything.mean()) ** 2).sum()
        np.testing.assert_allclose(merged.squares[0], squares, rtol=1e-6, atol=1e-12 * span**2)
        assert merged.low[0] == everything.min()
        assert merged.high[0] == everything.max()
