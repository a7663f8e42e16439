"""How the bench of the pool's order counts episodes of a batch, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from bench import order_mixing
from bench.order_mixing import WITHOUT, MixingSettings, expected_unique, mix
from bench.pairing import WrongAnswerError
from egoloader.order import Draws
from egoloader.poolorder import PoolOrder

MIXING = MixingSettings(episodes=12, frames=(10, 30), batch_size=4, pool_sizes=(2, 6), epochs=2)


def test_episodes_of_a_batch_are_counted() -> None:
    numbers = np.array([0, 1, 0, 1, 5, 5, 5, 5, 3, 2, 1, 0, 7, 8])
    assert order_mixing._unique(numbers, 4).tolist() == [2, 1, 4]


def test_what_is_expected_without_a_pool() -> None:
    # Two frames of each of three episodes, drawn in pairs: of the same with probability 1/5.
    assert expected_unique(np.array([2, 2, 2]), 2) == pytest.approx(1 / 5 + 2 * 4 / 5)
    # Lengths 1 and 3: both episodes in half of the pairs.
    assert expected_unique(np.array([1, 3]), 2) == pytest.approx(1.5)
    assert expected_unique(np.array([2, 5]), 7) == pytest.approx(2)


def test_larger_pools_mix_better() -> None:
    settings = MixingSettings(
        episodes=60, frames=(20, 60), batch_size=8, pool_sizes=(4, 16), epochs=2
    )
    mixed = mix(settings)
    assert list(settings.names) == [WITHOUT, "pool_size=60, all", "pool_size=4", "pool_size=16"]
    without, whole, few, some = mixed.inner.mean(axis=0)
    assert few < some < whole == pytest.approx(without, rel=0.05)
    assert mixed.inner.shape == mixed.last.shape == (2, 4)
    assert few <= 4


def test_an_epochs_ends_are_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    # Ten batches: one episode in the first, two in those between, four in the last.
    numbers = np.array([0] * 4 + [0, 1, 0, 1] * 8 + [0, 1, 2, 3])
    monkeypatch.setattr(order_mixing, "_drawn", lambda *_: numbers)
    monkeypatch.setattr(order_mixing, "_drawn_without", lambda *_: numbers)
    monkeypatch.setattr(order_mixing, "_check_mean", lambda *_: None)
    mixed = mix(MIXING)
    assert (mixed.inner == 2).all()
    assert (mixed.last == 4).all()


def test_orders_that_depend_on_the_listing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def first_listed(listed: list[tuple[str, int]], *_: Any) -> Any:
        return np.full(1000, int(listed[0][0][-2:]))

    monkeypatch.setattr(order_mixing, "Roster", list)
    monkeypatch.setattr(order_mixing, "_drawn", first_listed)
    with pytest.raises(WrongAnswerError, match="pool_size=12, all: another order of listing"):
        mix(MIXING)


def test_a_shuffle_that_favours_episodes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        order_mixing, "_drawn_without", lambda lengths, *_: np.repeat(np.arange(12), lengths)
    )
    with pytest.raises(WrongAnswerError, match=r"without a pool, epoch 0: .* episodes a batch"):
        mix(MIXING)


def test_an_epoch_that_lacks_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = PoolOrder.batches

    def with_a_repeat(self: PoolOrder, epoch: int, done: int) -> Iterator[Draws]:
        drawn = list(batches(self, epoch, done))
        yield from [*drawn[:-1], drawn[0]]

    monkeypatch.setattr(PoolOrder, "batches", with_a_repeat)
    with pytest.raises(WrongAnswerError, match="epoch 0: not every frame comes once"):
        mix(MIXING)


def test_lengths_differ_and_are_the_seeds() -> None:
    lengths = MIXING.lengths
    assert len(Counter(lengths.tolist())) > 3
    assert np.array_equal(lengths, MIXING.lengths)
    assert 10 <= lengths.min() < lengths.max() <= 30
    assert not np.array_equal(lengths, dataclasses.replace(MIXING, seed=1).lengths)
