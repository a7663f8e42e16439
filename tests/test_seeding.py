"""Random numbers by place and key: those published, evenly spread, and never others."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import seeding
from egoloader.seeding import (
    exponentials,
    permutation,
    sample_seeds,
    stream_key,
    uniforms,
    words,
)
from tests.orders import slow_exponential, slow_shuffle, slow_word, surprise

keys = st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1))


def test_the_published_numbers() -> None:
    # The first numbers of SplitMix64 from seed 0, and from 1234567, as in its authors' code.
    wanted = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert words(0, 4).tolist() == wanted
    assert words(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]


def test_keys_never_change() -> None:
    # What a checkpoint of years ago goes on from.
    assert stream_key("frames", 0, 0, 7) == 8583499858717011461
    assert stream_key() != stream_key(0) != stream_key("0") != stream_key(0, 0)
    assert stream_key("a", 1) != stream_key("a1") != stream_key("a", "1")
    assert all(0 <= stream_key("x", n) < 2**64 for n in range(100))
    assert len({stream_key("x", n, m) for n in range(50) for m in range(50)}) == 2500


@settings(deadline=None)
@given(keys, st.integers(0, 40), st.integers(0, 2**40))
def test_a_place_in_a_stream(key: int, count: int, start: int) -> None:
    found = words(key, count, start)
    assert found.dtype == np.uint64
    assert found.tolist() == [slow_word(key, start + n) for n in range(count)]
    even = uniforms(key, count, start)
    assert even.dtype == np.float64
    assert even.tolist() == [(slow_word(key, start + n) >> 11) / 2**53 for n in range(count)]
    assert ((even >= 0) & (even < 1)).all()
    waits = exponentials(key, count, start)
    wanted = [slow_exponential(key, start + n) for n in range(count)]
    np.testing.assert_allclose(waits, wanted, rtol=1e-14, atol=0)


ENDS = (0.0, 2.0**-53, 2.0**-30, 0.25, 1 - math.sqrt(0.5), 0.5, 0.75, 1 - 2.0**-53)
NEAR_ENDS = {float(np.nextafter(end, to)) for end in ENDS for to in (-1, end, 2)}


@pytest.mark.parametrize("uniform", sorted(end for end in NEAR_ENDS if 0 <= end < 1))
def test_waiting_times_at_the_ends(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeding, "uniforms", lambda key, count, start: np.full(count, uniform))
    found = exponentials(0, 2)
    np.testing.assert_allclose(found, -math.log(1.0 - uniform), rtol=1e-15, atol=0)
    assert (found >= 0).all()


def test_waiting_times_are_exponential() -> None:
    # Each of 50 stretches that one of 50 waiting times should fall in.
    waits = exponentials(stream_key("waits"), 50_000)
    counts, _ = np.histogram(1 - np.exp(-waits), bins=50, range=(0, 1))
    assert abs(surprise([(counts.tolist(), [1000.0] * 50)])) < 5


@settings(deadline=None)
@given(keys, st.integers(0, 60))
def test_a_shuffle_has_each_number_once(key: int, count: int) -> None:
    found = permutation(key, count)
    assert found.dtype == np.int64
    assert found.tolist() == slow_shuffle(key, count)
    assert sorted(found.tolist()) == list(range(count))


def test_every_shuffle_is_as_likely() -> None:
    orders = dict.fromkeys(itertools.permutations(range(4)), 0)
    for n in range(12_000):
        orders[tuple(permutation(stream_key("shuffles", n), 4).tolist())] += 1
    assert abs(surprise([(list(orders.values()), [500.0] * 24)])) < 5


@settings(deadline=None)
@given(st.lists(st.tuples(keys, st.integers(0, 2**40)), max_size=20))
def test_sample_seeds_are_the_streams(places: list[tuple[int, int]]) -> None:
    found = sample_seeds([key for key, _ in places], [frame for _, frame in places])
    assert found.dtype == np.int64
    assert found.tolist() == [slow_word(key, frame) >> 1 for key, frame in places]
    assert (found >= 0).all()


def test_sample_seeds_differ() -> None:
    # By epoch, by episode and by frame.
    keys = [stream_key("sample", 0, e, n) for e in range(4) for n in ("a", "b", "c")]
    found = [sample_seeds([key] * 500, range(500)).tolist() for key in keys]
    assert len(set(itertools.chain(*found))) == 12 * 500


@settings(deadline=None)
@given(st.integers(1, 9))
def test_one_key_a_frame(count: int) -> None:
    with pytest.raises(ValueError):
        sample_seeds([0] * count, range(count - 1))
