"""Other numbers of steps, against interpolation by hand."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.errors import SettingsError, TransformError
from egoloader.transforms import PoseRotation, Resample, Stride
from tests.turns import matrices, seeds, slerped, some_poses

COUNTS = st.integers(1, 9)
WXYZ = "quaternion_wxyz"


def sources(given_: int, wanted: int) -> list[tuple[int, int, float]]:
    """Return for each new step the two that it lies between, and the share of the second."""
    found = []
    for step in range(wanted):
        at = Fraction(step * (given_ - 1), wanted - 1) if wanted > 1 else Fraction(0)
        left = math.floor(at)
        found.append((left, min(left + 1, given_ - 1), float(at - left)))
    return found


@settings(deadline=None)
@given(given_=COUNTS, wanted=COUNTS, batch=st.sampled_from([(), (2,)]))
def test_a_ramp_stays_a_ramp(given_: int, wanted: int, batch: tuple[int, ...]) -> None:
    chunk = (1000.0 * torch.arange(given_)[:, None] + torch.arange(3)).expand(*batch, given_, 3)
    made = Resample(keys=["a"], steps=wanted)({"a": chunk})["a"]
    ends = [(given_ - 1) * step / max(wanted - 1, 1) for step in range(wanted)]
    ramp = 1000 * np.array(ends)[:, None] + np.arange(3)
    np.testing.assert_allclose(made, np.broadcast_to(ramp, (*batch, wanted, 3)), rtol=1e-6)


@settings(deadline=None, max_examples=50)
@given(given_=COUNTS, wanted=COUNTS, seed=seeds)
def test_rotations_turn_on_the_shorter_way(given_: int, wanted: int, seed: int) -> None:
    poses = some_poses(np.random.default_rng(seed), (given_,), torch.float64)
    made = Resample(keys=["a"], steps=wanted, row=["xyz", WXYZ])({"a": poses})["a"]
    for found, (left, right, share) in zip(made, sources(given_, wanted), strict=True):
        a, b = poses[left].numpy(), poses[right].numpy()
        np.testing.assert_allclose(found[:3], a[:3] * (1 - share) + b[:3] * share, atol=1e-12)
        if share == 0:
            assert found.tolist() == a.tolist()
        elif abs(a[3:] @ b[3:]) > 1e-6:  # at half a turn, both ways are as short
            wanted_turn = slerped(a[3:], b[3:], share)
            np.testing.assert_allclose(matrices(found[3:], WXYZ), wanted_turn, atol=1e-6)
            if share <= 0.5:
                assert a[3:] @ found[3:].numpy() >= 0  # the sign goes on


@pytest.mark.parametrize("form", ["rotation_6d", "yaw_pitch_roll", "matrix", "quaternion_xyzw"])
def test_other_forms_turn_as_quaternions_do(form: str) -> None:
    poses = some_poses(np.random.default_rng(0), (2, 4), torch.float64)
    turn = PoseRotation(keys=["a"], target=["xyz", form])
    first = Resample(keys=["a"], steps=6, row=["xyz", form])(turn({"a": poses}))
    last = turn(Resample(keys=["a"], steps=6, row=["xyz", WXYZ])({"a": poses}))
    found, wanted = matrices(first["a"][..., 3:], form), matrices(last["a"][..., 3:], form)
    np.testing.assert_allclose(found, wanted, atol=1e-6)


@settings(deadline=None)
@given(mask=st.lists(st.booleans(), min_size=1, max_size=9), wanted=COUNTS, batched=st.booleans())
def test_a_step_is_padded_where_one_that_it_is_made_of_is(
    mask: list[bool], wanted: int, batched: bool
) -> None:
    pads, chunk = torch.tensor(mask), torch.zeros(len(mask), 2)
    sample = {"a": chunk, "a_is_pad": pads}
    if batched:
        sample = {key: torch.stack([one, one]) for key, one in sample.items()}
    made = Resample(keys=["a"], steps=wanted)(sample)
    found = [
        mask[left] or (share > 0 and mask[right])
        for left, right, share in sources(len(mask), wanted)
    ]
    assert made["a_is_pad"].tolist() == ([found, found] if batched else found)
    assert list(made) == ["a", "a_is_pad"]


def test_nan_is_where_it_is_part_of_a_step() -> None:
    poses = some_poses(np.random.default_rng(1), (5,))
    for row in (None, ["xyz", WXYZ]):
        transform = Resample(keys=["a"], steps=9, row=row)
        wanted = transform({"a": poses})["a"]
        broken = poses.clone()
        broken[2] = math.nan
        broken[4, 1] = math.inf
        made = transform({"a": broken})["a"]
        assert made.isnan().all(dim=1).tolist() == [step in (3, 4, 5) for step in range(9)]
        assert torch.equal(made[[0, 1, 2, 6]], wanted[[0, 1, 2, 6]])
        assert made[8, 1] == math.inf


def test_an_absent_array_stays_zero_and_a_zero_that_is_not_padded_is_named() -> None:
    transform = Resample(keys=["a"], steps=3, row=["xyz", WXYZ])
    absent = {"a": torch.zeros(4, 7), "a_is_pad": torch.ones(4, dtype=torch.bool)}
    made = transform(absent)
    assert not made["a"].any()
    assert made["a_is_pad"].tolist() == [True] * 3
    with pytest.raises(TransformError, match=r"Resample: .* no rotation .* key 'a', row \[0\]"):
        transform({"a": torch.zeros(4, 7)})


@settings(deadline=None)
@given(count=COUNTS, every=st.integers(1, 4), start=st.integers(0, 3))
def test_stride_takes_every_so_many_th_step(count: int, every: int, start: int) -> None:
    chunk = 1000 * torch.arange(count)[:, None] + torch.arange(2)
    sample = {"a": chunk, "a_is_pad": torch.arange(count) % 3 == 0, "b": torch.ones(1)}
    transform = Stride(keys=["a"], every=every, start=start)
    steps = list(range(start, count, every))
    if not steps:
        with pytest.raises(SettingsError, match=f"key 'a' has {count} steps, and none is left"):
            transform(sample)
        return
    made = transform(sample)
    assert made["a"].dtype == torch.int64
    assert made["a"][:, 1].tolist() == [1000 * step + 1 for step in steps]
    assert made["a_is_pad"].tolist() == [step % 3 == 0 for step in steps]


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (Resample, {"steps": 0}, "steps must be a whole number from 1"),
        (Resample, {"steps": 2, "row": ["xy"]}, "row has a part 'xy'; did you mean 'xyz'"),
        (Stride, {"every": 0}, "every must be a whole number from 1"),
        (Stride, {"every": 1, "start": -1}, "start must be a whole number from 0"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{kind.__name__}: .*{message}"):
        kind(keys=["a"], **options)
