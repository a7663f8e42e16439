"""The order of frames: every one once a pass, a pure function of its settings."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egoloader.errors import SettingsError
from egoloader.sampler import ShuffledBatches


def passes(order: ShuffledBatches, start: int, batches: int) -> list[list[int]]:
    run = order.run(start, batches)
    assert len(run) == batches
    drawn = list(run)
    assert drawn == list(run) == list(itertools.islice(order.from_batch(start), batches))
    return drawn


@given(st.integers(1, 60), st.integers(1, 20), st.integers(0, 5))
def test_every_frame_once_a_pass(frames: int, batch_size: int, seed: int) -> None:
    order = ShuffledBatches("arm", frames, batch_size, seed)
    for number in range(3):
        drawn = passes(order, number * len(order), len(order))
        assert sorted(itertools.chain(*drawn)) == list(range(frames))
        assert all(len(batch) == batch_size for batch in drawn[:-1])
        assert 1 <= len(drawn[-1]) <= batch_size


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 30))
def test_starting_late_continues_the_same_order(frames: int, batch_size: int, start: int) -> None:
    order = ShuffledBatches("arm", frames, batch_size, seed=1)
    whole = passes(order, 0, start + 7)
    assert passes(order, start, 7) == whole[start:]


def test_passes_and_seeds_differ() -> None:
    order = ShuffledBatches("arm", 100, 10, seed=0)
    assert passes(order, 0, 10) != passes(order, 10, 10)
    assert passes(order, 0, 10) != passes(ShuffledBatches("arm", 100, 10, seed=1), 0, 10)
    assert passes(order, 0, 10) == passes(ShuffledBatches("arm", 100, 10, seed=0), 0, 10)


def test_sources_of_one_length_have_orders_of_their_own() -> None:
    one, other = (passes(ShuffledBatches(name, 50, 5, 0), 0, 10) for name in ("arm", "leg"))
    assert one != other


@pytest.mark.parametrize(("frames", "batch_size"), [(0, 4), (10, 0), (10, 2.5), (10, True)])
def test_wrong_settings(frames: int, batch_size: int) -> None:
    with pytest.raises(SettingsError):
        ShuffledBatches("arm", frames, batch_size, seed=0)
