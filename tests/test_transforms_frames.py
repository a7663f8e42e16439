"""Frames of reference and differences, against 4 x 4 matrices."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeyMap, MultiDataset, NormStats
from egoloader.errors import SettingsError, TransformError
from egoloader.transforms import (
    AbsoluteActions,
    AccumulatedActions,
    Chain,
    Concatenate,
    DeltaActions,
    FixedFrame,
    IntoFrame,
    PoseRotation,
    RelativeActions,
    RelativeToFirst,
    Rename,
)
from tests.episodes import foreign_group, foreign_numbers, ramp
from tests.transform_samples import EXTRINSIC
from tests.turns import Matrix, frame, frames, leads, matrices, poses, seeds, some_poses

ROTATION = "quaternion_wxyz"
NONE = torch.tensor([0.0, 0, 0, 1, 0, 0, 0])


def check(found: torch.Tensor, wanted: Matrix) -> None:
    """Hold poses to matrices T, (…, 4, 4)."""
    np.testing.assert_allclose(frames(found), wanted, atol=1e-5)


@settings(deadline=None, max_examples=50)
@given(lead=leads, seed=seeds)
def test_into_the_frame_of_another_key_and_out_of_it(lead: tuple[int, ...], seed: int) -> None:
    rng = np.random.default_rng(seed)
    sample = {"hand": some_poses(rng, lead), "head": some_poses(rng, lead[:-1])}
    transform = IntoFrame(keys=["hand"], reference="head")
    made = transform(sample)
    head = frames(sample["head"])
    above = np.linalg.inv(head)
    above = above if lead == () else above[..., None, :, :]
    check(made["hand"], above @ frames(sample["hand"]))
    assert made["head"] is sample["head"]
    check(transform.inverse()(made)["hand"], frames(sample["hand"]))


@settings(deadline=None, max_examples=30)
@given(seed=seeds, form=st.sampled_from(["quaternion_xyzw", "rotation_6d", "matrix"]))
def test_the_step_of_the_reference_and_its_row(seed: int, form: str) -> None:
    rng = np.random.default_rng(seed)
    heads, hand = some_poses(rng, (3,)), some_poses(rng, ())
    turned = PoseRotation(keys=["a"], target=["xyz", form])({"a": heads})["a"]
    sample = {"hand": hand, "head": torch.cat([torch.full((3, 2), 9.0), turned], dim=1)}
    for step in (0, 1, -1):
        transform = IntoFrame(
            keys=["hand"], reference="head", step=step, reference_row=[2, "xyz", form]
        )
        check(transform(sample)["hand"], np.linalg.inv(frame(heads[step])) @ frame(hand))


@settings(deadline=None, max_examples=30)
@given(seed=seeds, batch=st.sampled_from([(), (2,)]))
def test_points_are_moved_and_turned_and_other_numbers_stay(
    seed: int, batch: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(seed)
    head, points = some_poses(rng, batch), torch.from_numpy(rng.uniform(-1, 1, (*batch, 4, 7)))
    row = ["2 x xyz", 1]
    found = IntoFrame(keys=["a"], reference="head", row=row)({"a": points, "head": head})["a"]
    inverse = np.linalg.inv(frames(head))
    for place in (slice(0, 3), slice(3, 6)):
        wanted = np.einsum("...ij,...nj->...ni", inverse[..., :3, :3], points[..., place])
        np.testing.assert_allclose(found[..., place], wanted + inverse[..., None, :3, 3], atol=1e-6)
    assert torch.equal(found[..., 6], points[..., 6])


@settings(deadline=None, max_examples=30)
@given(given_=poses((2, 3)))
def test_a_fixed_frame_is_the_matrix_times_the_pose(given_: torch.Tensor) -> None:
    transform = FixedFrame(keys=["a"], matrix=EXTRINSIC)
    made = transform({"a": given_})
    check(made["a"], np.array(EXTRINSIC) @ frames(given_))
    check(transform.inverse()(made)["a"], frames(given_))
    inverse = np.array(transform.inverse().matrix)
    np.testing.assert_allclose(inverse, np.linalg.inv(np.array(EXTRINSIC)), atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(lead=st.sampled_from([(1,), (4,), (2, 3)]), seed=seeds)
def test_relative_to_the_first_step_whose_pose_is_kept(lead: tuple[int, ...], seed: int) -> None:
    given_ = some_poses(np.random.default_rng(seed), lead)
    transform = RelativeToFirst(keys=["a"])
    made = transform({"a": given_, "b": 1})
    assert list(made) == ["a", "a_origin", "b"]
    assert torch.equal(made["a_origin"], given_[..., 0, :])
    wanted = frames(given_)
    check(made["a"], np.linalg.inv(wanted[..., :1, :, :]) @ wanted)
    np.testing.assert_allclose(made["a"][..., 0, :], NONE.expand(*lead[:-1], 7), atol=1e-6)
    back = transform.inverse()(made)
    assert list(back) == ["a", "b"]
    check(back["a"], wanted)


def test_the_first_step_is_no_data_of_its_own_behind_a_join(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "a.zarr", 9)
    foreign_numbers(group, "a", ramp(9, 3))
    foreign_numbers(group, "b", ramp(9, 1))
    window = {"key_type": "action_keys", "horizon": 3, "mask": True}
    keymap = KeyMap.from_config(
        {"a": {"zarr_key": "a", **window}, "b": {"zarr_key": "b", **window}}
    )
    chain = [
        Chain([RelativeToFirst(keys=["a"], row=["xyz"]), Rename(keys=["a"], to=["c"])]),
        Concatenate(keys=["c", "b"], sizes=[3, 1], whole="action"),
    ]
    data = MultiDataset.from_folder(tmp_path, keymap, transforms=chain)
    assert data[4]["c_origin"].tolist() == ramp(9, 3)[4].tolist()
    assert list(NormStats.compute(data)["human"]) == ["action"]
    back = Chain(chain).inverse()(data[4])
    assert back["a"].tolist() == ramp(9, 3)[4:7].tolist()
    assert "c_origin" not in back


def test_two_poses_of_a_row_are_each_relative_to_their_own_first() -> None:
    both = some_poses(np.random.default_rng(1), (2, 4))
    row = ["xyz", ROTATION, 1, "xyz", ROTATION]
    joined = torch.cat([both[0], torch.arange(4.0)[:, None], both[1]], dim=1)
    found = RelativeToFirst(keys=["a"], row=row)({"a": joined})["a"]
    alone = RelativeToFirst(keys=["a"])
    for place, one in ((slice(0, 7), both[0]), (slice(8, 15), both[1])):
        assert torch.equal(found[:, place], alone({"a": one})["a"])
    assert found[:, 7].tolist() == [0, 1, 2, 3]


# Absent arrays and NaN.


def test_an_absent_frame_is_an_error_unless_the_pose_is_absent_too() -> None:
    hand = some_poses(np.random.default_rng(2), (3,))
    absent = {"head": torch.zeros(7), "head_is_pad": torch.tensor(True)}
    transform = IntoFrame(keys=["hand"], reference="head")
    with pytest.raises(TransformError, match=r"IntoFrame: key 'hand' is there, and its frame"):
        transform({"hand": hand, **absent})
    pads = {"hand_is_pad": torch.ones(3, dtype=torch.bool)}
    for row, size in ((["xyz", ROTATION], 7), (["3 x xyz"], 9), (["xyz", "yaw_pitch_roll"], 6)):
        both = {"hand": torch.zeros(3, size), **pads, **absent}
        moved = IntoFrame(keys=["hand"], reference="head", row=row)
        assert not moved(both)["hand"].any()
        assert not moved.inverse()(both)["hand"].any()
    with pytest.raises(TransformError, match="no rotation as quaternion_wxyz, in key 'head', dims"):
        transform({"hand": hand, "head": torch.zeros(7)})


def test_an_absent_pose_stays_zero_in_any_frame() -> None:
    sample = {
        "hand": torch.zeros(3, 7),
        "hand_is_pad": torch.ones(3, dtype=torch.bool),
        "head": some_poses(np.random.default_rng(3), ()),
    }
    for transform in (
        IntoFrame(keys=["hand"], reference="head"),
        FixedFrame(keys=["hand"], matrix=EXTRINSIC),
        RelativeToFirst(keys=["hand"]),
        RelativeActions(keys=["hand"], reference="head"),
        DeltaActions(keys=["hand"], reference="head"),
    ):
        made = transform(sample)
        assert not made["hand"].any()
        assert not transform.inverse()(made)["hand"].any()


def test_nan_of_a_frame_touches_its_own_sample_alone() -> None:
    rng = np.random.default_rng(4)
    sample = {"hand": some_poses(rng, (3, 4)), "head": some_poses(rng, (3,))}
    transform = IntoFrame(keys=["hand"], reference="head")
    wanted = transform(sample)["hand"]
    sample["head"][1, 5] = math.nan
    sample["hand"][2, 3, 0] = math.inf
    found = transform(sample)["hand"]
    assert found[1].isnan().all()
    assert found[2, 3, :3].isnan().all()
    assert torch.equal(found[2, 3, 3:], wanted[2, 3, 3:])
    assert torch.equal(found[0], wanted[0])
    assert torch.equal(found[2, :3], wanted[2, :3])


# Differences.

ROW = ["xyz", ROTATION, "2 x scalar", 1]


def rows(seed: int, *lead: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    others = torch.from_numpy(rng.uniform(-2, 2, (*lead, 3))).float()
    return torch.cat([some_poses(rng, lead), others], dim=-1)


def check_difference(found: torch.Tensor, action: torch.Tensor, base: torch.Tensor) -> None:
    """Hold one row of differences to what is between an action and its base."""
    for place in (slice(0, 3), slice(7, 9)):
        np.testing.assert_allclose(found[place], action[place] - base[place], atol=1e-6)
    turn = matrices(base[3:7], ROTATION).T @ matrices(action[3:7], ROTATION)
    np.testing.assert_allclose(matrices(found[3:7], ROTATION), turn, atol=1e-5)
    assert found[9] == action[9]


@settings(deadline=None, max_examples=30)
@given(seed=seeds, step=st.sampled_from([None, 0, -1]))
def test_relative_actions_take_the_state_off_each_step(seed: int, step: int | None) -> None:
    state = rows(seed + 1) if step is None else rows(seed + 1, 3)
    sample = {"action": rows(seed, 4), "state": state}
    transform = RelativeActions(keys=["action"], reference="state", row=ROW, step=step)
    made = transform(sample)
    base = state if step is None else state[step]
    for found, action in zip(made["action"], sample["action"], strict=True):
        check_difference(found, action, base)
    check_back(
        AbsoluteActions(keys=["action"], reference="state", row=ROW, step=step), made, sample
    )


@pytest.mark.parametrize("batch", [(), (4,)])
@pytest.mark.parametrize("step", [None, -1])
def test_a_state_with_as_many_steps_as_the_action_is_not_taken_step_by_step(
    batch: tuple[int, ...], step: int | None
) -> None:
    chunks = torch.arange(8.0).reshape(4, 2).expand(*batch, 4, 2)
    sample: dict[str, torch.Tensor] = {
        "a": chunks,
        "s": 10 * chunks,
        "frame_index": torch.zeros(batch),
    }
    transform = RelativeActions(keys=["a"], reference="s", row=["2 x scalar"], step=step)
    if step is None:
        with pytest.raises(SettingsError, match=r"reference 's', .*, has steps: set step"):
            transform(sample)
        return
    assert torch.equal(transform(sample)["a"], chunks - 10 * chunks[..., -1:, :])
    sample["s"] = sample["s"][..., 0, :]
    with pytest.raises(SettingsError, match=r"reference 's', .*, has no steps: leave step out"):
        transform(sample)


@settings(deadline=None, max_examples=30)
@given(seed=seeds)
def test_deltas_take_the_step_before_off_each_step(seed: int) -> None:
    sample = {"action": rows(seed, 5), "state": rows(seed + 1)}
    made = DeltaActions(keys=["action"], reference="state", row=ROW)(sample)
    before = [sample["state"], *sample["action"][:-1]]
    for found, action, base in zip(made["action"], sample["action"], before, strict=True):
        check_difference(found, action, base)
    check_back(AccumulatedActions(keys=["action"], reference="state", row=ROW), made, sample)


def check_back(inverse: Any, made: dict[str, Any], sample: dict[str, Any]) -> None:
    back, wanted = inverse(made)["action"], sample["action"]
    others = [0, 1, 2, 7, 8, 9]
    np.testing.assert_allclose(back[:, others], wanted[:, others], atol=1e-5)
    turns = matrices(wanted[:, 3:7], ROTATION)
    np.testing.assert_allclose(matrices(back[:, 3:7], ROTATION), turns, atol=1e-5)


def test_ramps_differ_by_their_slope() -> None:
    action = 1000.0 * torch.arange(4)[:, None] + torch.arange(3)
    sample = {"a": action, "s": torch.tensor([-1000.0, -999.0, -998.0])}
    row = ["2 x scalar", 1]
    relative = RelativeActions(keys=["a"], reference="s", row=row)(sample)["a"]
    assert relative[:, :2].tolist() == [[1000.0 * step] * 2 for step in range(1, 5)]
    deltas = DeltaActions(keys=["a"], reference="s", row=row)(sample)["a"]
    assert deltas[:, :2].tolist() == [[1000.0, 1000.0]] * 4
    assert torch.equal(relative[:, 2], action[:, 2])
    assert torch.equal(deltas[:, 2], action[:, 2])


def test_an_absent_state_is_an_error_and_a_padded_step_differs_by_nothing() -> None:
    hand = some_poses(np.random.default_rng(5), (3,))
    hand[2] = hand[1]
    sample = {"a": hand, "a_is_pad": torch.tensor([False, False, True]), "s": hand[0]}
    deltas = DeltaActions(keys=["a"], reference="s")(sample)["a"]
    np.testing.assert_allclose(deltas[[0, 2]], NONE.expand(2, 7), atol=1e-6)
    sample |= {"s": torch.zeros(7), "s_is_pad": torch.tensor(True)}
    for transform, base in ((RelativeActions, "s"), (DeltaActions, "a")):
        with pytest.raises(TransformError, match=f"key 'a' is there, and '{base}' is not"):
            transform(keys=["a"], reference="s")(sample)


def test_a_step_behind_one_that_is_absent_has_no_difference_to_it() -> None:
    hand = some_poses(np.random.default_rng(6), (3,))
    hand[0] = 0
    sample = {"a": hand, "a_is_pad": torch.tensor([True, False, False]), "s": hand[1]}
    with pytest.raises(TransformError, match="key 'a' is there, and 'a' is not: zeros, padded"):
        DeltaActions(keys=["a"], reference="s")(sample)


# Options.


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (IntoFrame, {"reference": "a"}, "key 'a' can't be its own reference"),
        (IntoFrame, {"reference": ""}, "reference must list sample keys"),
        (IntoFrame, {"reference": "b", "step": True}, "step must be a whole number, got True"),
        (IntoFrame, {"reference": "b", "row": ["2 x scalar"]}, "no position and no rotation"),
        (
            IntoFrame,
            {"reference": "b", "reference_row": ["xyz", 4]},
            r"reference_row must hold one pose, and is \[xyz, 4\]",
        ),
        (RelativeActions, {"reference": "b", "row": [3]}, r"\[3\] leaves all numbers as they are"),
        (FixedFrame, {"matrix": EXTRINSIC[:3]}, "matrix must be 4 x 4 numbers"),
        (FixedFrame, {"matrix": "I"}, "matrix must be 4 x 4 numbers"),
        (
            FixedFrame,
            {"matrix": [[2, 0, 0, 0], *EXTRINSIC[1:]]},
            "the rotation of matrix is none",
        ),
        (
            FixedFrame,
            {"matrix": [*EXTRINSIC[:3], [0, 0, 0, 2]]},
            "the last row of matrix must be",
        ),
        (RelativeToFirst, {"row": [7]}, "no position and no rotation"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(kind: Any, options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{kind.__name__}: .*{message}"):
        kind(keys=["a"], **options)


def test_what_would_take_a_keys_place_or_lacks_its_origin_is_refused() -> None:
    transform = RelativeToFirst(keys=["a"])
    with pytest.raises(SettingsError, match="there is a key 'a_origin' already"):
        transform.shapes({"a": (3, 7), "a_origin": (7,)})
    with pytest.raises(SettingsError, match="FromFirst: there is no key 'a_origin'"):
        transform.inverse().shapes({"a": (3, 7)})
    with pytest.raises(SettingsError, match="key 'a_origin' is no row of key 'a'"):
        transform.inverse().shapes({"a": (3, 7), "a_origin": (3, 7)})
    with pytest.raises(SettingsError, match=r"key 'a', of the shape \[2, 7\], can't be reckoned"):
        IntoFrame(keys=["a"], reference="b")({"a": torch.ones(2, 7), "b": torch.ones(3, 7)})
