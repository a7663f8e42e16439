"""The forms of rotations, against formulas."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.errors import SettingsError, TransformError
from egoloader.transforms import CanonicalQuaternion, PoseRotation
from tests.turns import SIZES, TRICKY, coordinates, leads, matrices, poses, quaternions

PAIRS = list(itertools.permutations(SIZES, 2))
WXYZ = "quaternion_wxyz"


def turned(source: str, target: str) -> PoseRotation:
    return PoseRotation(keys=("a",), source=(source,), target=(target,))


def form_of(numbers: torch.Tensor, form: str) -> torch.Tensor:
    """Return quaternions wxyz, (…, 4), in another form, from their matrices."""
    r = torch.from_numpy(matrices(numbers, WXYZ))
    if form == "matrix":
        return r.flatten(-2)
    if form == "rotation_6d":
        return torch.cat([r[..., :, 0], r[..., :, 1]], dim=-1)
    if form == "quaternion_xyzw":
        return numbers[..., [1, 2, 3, 0]].double()
    return numbers.double()


@pytest.mark.parametrize(("source", "target"), PAIRS)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_every_form_is_the_same_rotation_and_comes_back(
    source: str, target: str, data: st.DataObject
) -> None:
    lead = data.draw(leads)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    if source == "yaw_pitch_roll":
        angle = st.one_of(
            st.floats(-math.pi, math.pi),
            st.sampled_from([math.pi, -math.pi, math.pi / 2, -math.pi / 2, 0.0, 1e-9]),
        )
        count = math.prod(lead) * 3
        angles = data.draw(st.lists(angle, min_size=count, max_size=count))
        given_ = torch.tensor(angles, dtype=torch.float64).reshape(*lead, 3).to(dtype)
    else:
        given_ = form_of(data.draw(poses(lead))[..., 3:], source).to(dtype)
    transform = turned(source, target)
    made = transform({"a": given_})["a"]
    assert (made.dtype, made.shape) == (dtype, (*lead, SIZES[target]))
    wanted = matrices(given_, source)
    np.testing.assert_allclose(matrices(made, target), wanted, atol=2e-6)
    back = transform.inverse()({"a": made})["a"]
    assert (back.dtype, back.shape) == (given_.dtype, given_.shape)
    np.testing.assert_allclose(matrices(back, source), wanted, atol=1e-5)


@settings(deadline=None)
@given(first=quaternions, second=quaternions)
def test_6d_is_the_first_two_columns_behind_one_another(first: Any, second: Any) -> None:
    given_ = torch.tensor([first, second], dtype=torch.float64)
    made = turned(WXYZ, "rotation_6d")({"a": given_})["a"]
    columns = matrices(given_, WXYZ)
    np.testing.assert_allclose(made[:, :3], columns[:, :, 0], atol=1e-12)
    np.testing.assert_allclose(made[:, 3:], columns[:, :, 1], atol=1e-12)


def test_a_matrix_is_row_by_row_and_a_quarter_turn_is_what_it_says() -> None:
    quarter = torch.tensor([math.cos(math.pi / 4), 0.0, 0.0, math.sin(math.pi / 4)])
    found = {form: turned(WXYZ, form)({"a": quarter})["a"] for form in SIZES if form != WXYZ}
    torch.testing.assert_close(
        found["matrix"], torch.tensor([0.0, -1, 0, 1, 0, 0, 0, 0, 1]), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(
        found["yaw_pitch_roll"], torch.tensor([math.pi / 2, 0.0, 0.0]), atol=1e-6, rtol=0
    )
    torch.testing.assert_close(found["quaternion_xyzw"], quarter[[1, 2, 3, 0]], atol=0, rtol=0)


@settings(deadline=None)
@given(quaternion=quaternions, scale=st.sampled_from([1e-20, 0.3, 1.0, 7.0, 1e18]))
def test_quaternions_that_come_out_have_norm_1_and_the_canonical_sign(
    quaternion: Any, scale: float
) -> None:
    given_ = torch.tensor([quaternion, [-number for number in quaternion]], dtype=torch.float64)
    for transform in (CanonicalQuaternion(keys=("a",), row=(WXYZ,)), _through_a_matrix):
        made = transform({"a": given_ * scale})["a"]
        np.testing.assert_allclose(np.linalg.norm(made, axis=-1), 1, atol=1e-9)
        for row in made.tolist():
            assert next(number for number in row if number != 0) > 0
        np.testing.assert_allclose(matrices(made, WXYZ), matrices(given_, WXYZ), atol=1e-7)
    canonical = CanonicalQuaternion(keys=("a",), row=(WXYZ,))({"a": given_})["a"]
    assert torch.equal(canonical[0], canonical[1])


def _through_a_matrix(sample: dict[str, Any]) -> dict[str, Any]:
    transform = turned(WXYZ, "matrix")
    return transform.inverse()(transform(sample))


@settings(deadline=None)
@given(given_=poses((3,)))
def test_between_quaternions_only_the_order_changes(given_: torch.Tensor) -> None:
    transform = PoseRotation(keys=("a",), target=("xyz", "quaternion_xyzw"))
    doubled = given_ * torch.tensor([1, 1, 1, 2, 2, 2, 2])
    made = transform({"a": doubled})["a"]
    assert torch.equal(made, doubled[:, [0, 1, 2, 4, 5, 6, 3]])
    assert torch.equal(transform.inverse()({"a": made})["a"], doubled)


@settings(deadline=None)
@given(
    yaw=st.floats(-3, 3), roll=st.floats(-3, 3), pitch=st.sampled_from([math.pi / 2, -math.pi / 2])
)
def test_at_gimbal_lock_the_angles_are_the_rotation_still(
    yaw: float, roll: float, pitch: float
) -> None:
    for slip in (0.0, 1e-12, 1e-9, 1e-7, 1e-5, 1e-3):
        angles = torch.tensor([yaw, pitch - math.copysign(slip, pitch), roll], dtype=torch.float64)
        quaternion = turned("yaw_pitch_roll", WXYZ)({"a": angles})["a"]
        found = turned(WXYZ, "yaw_pitch_roll")({"a": quaternion})["a"]
        assert abs(float(found[1])) <= math.pi / 2
        wanted = matrices(angles, "yaw_pitch_roll")
        np.testing.assert_allclose(matrices(found, "yaw_pitch_roll"), wanted, atol=1e-7)


def test_a_matrix_that_is_not_quite_one_is_taken_as_the_nearest() -> None:
    quaternion = torch.tensor(TRICKY[8], dtype=torch.float64)
    given_ = form_of(quaternion, "matrix")
    rough = given_ + torch.tensor([1e-4, -1e-4, 0, 0, 1e-4, 0, 0, 0, -1e-4])
    found = turned("matrix", WXYZ)({"a": rough})["a"]
    np.testing.assert_allclose(matrices(found, WXYZ), given_.reshape(3, 3), atol=2e-4)
    spread = form_of(quaternion, "rotation_6d") * torch.tensor([3.0, 3, 3, 0.2, 0.2, 0.2])
    spread[3:] += 0.7 * spread[:3]
    found = turned("rotation_6d", WXYZ)({"a": spread})["a"]
    np.testing.assert_allclose(matrices(found, WXYZ), given_.reshape(3, 3), atol=1e-9)


NO_ROTATION = {
    "quaternion_wxyz": [0.0] * 4,
    "quaternion_xyzw": [0.0] * 4,
    "rotation_6d": [1.0, 2.0, 3.0, -2.0, -4.0, -6.0],
    "matrix": [1.0, 0, 0, 0, 1, 0, 0, 0, -1],
}


@pytest.mark.parametrize("form", NO_ROTATION)
@pytest.mark.parametrize("numbers", ["zeros", "wrong"])
def test_what_is_no_rotation_is_named(form: str, numbers: str) -> None:
    target = "yaw_pitch_roll"
    transform = PoseRotation(keys=("a",), source=("xyz", form), target=("xyz", target))
    good = form_of(torch.tensor(TRICKY[9]), form)
    rows = torch.cat([torch.zeros(2, 3, 3), good.expand(2, 3, -1)], dim=-1)
    rows[1, 2, 3:] = torch.tensor(NO_ROTATION[form] if numbers == "wrong" else [0.0] * len(good))
    wanted = rf"PoseRotation: .* is no rotation as {form}, in key 'a', row \[1, 2\], dims 3 to"
    with pytest.raises(TransformError, match=wanted):
        transform({"a": rows})
    is_pad = torch.zeros(2, 3, dtype=torch.bool)
    is_pad[1, 2] = True
    padded = {"a": rows, "a_is_pad": is_pad}
    if rows[1, 2, 3:].any():
        with pytest.raises(TransformError, match=wanted):
            transform(padded)
        return
    made = transform(padded)["a"]
    assert not made[1, 2].any()
    assert torch.equal(made[:, :2], transform({"a": rows[:, :2]})["a"])


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_nan_stays_in_its_row(source: str, target: str, broken: float) -> None:
    angles = torch.tensor([[0.3, 0.2, 0.1], [1.3, -0.2, 0.1], [2.0, 0.5, 3.0]])
    given_ = (
        angles
        if source == "yaw_pitch_roll"
        else turned("yaw_pitch_roll", source)({"a": angles})["a"]
    )
    wanted = turned(source, target)({"a": given_})["a"]
    given_[1, 2] = broken
    made = turned(source, target)({"a": given_})["a"]
    assert torch.equal(made[[0, 2]], wanted[[0, 2]])
    if not source.startswith("quaternion") or not target.startswith("quaternion"):
        assert made[1].isnan().all()


@settings(deadline=None)
@given(where=st.tuples(coordinates, coordinates, coordinates), turn=quaternions)
def test_several_poses_and_other_numbers_stand_side_by_side(where: Any, turn: Any) -> None:
    pose = torch.tensor([*where, *turn], dtype=torch.float32)
    other = torch.tensor([5.0, 6.0, 7.0])
    transform = PoseRotation(
        keys=("a",),
        source=("xyz", WXYZ, 1, WXYZ, "2 x scalar"),
        target=("xyz", "rotation_6d", 1, "matrix", "2 x scalar"),
    )
    row = torch.cat([pose, other[:1], pose[3:], other[1:]])
    made = transform({"a": row})["a"]
    assert made.shape == (3 + 6 + 1 + 9 + 2,)
    assert torch.equal(made[[0, 1, 2, 9, 19, 20]], torch.cat([pose[:3], other]))
    assert torch.equal(made[3:9], turned(WXYZ, "rotation_6d")({"a": pose[3:]})["a"])
    assert torch.equal(made[10:19], turned(WXYZ, "matrix")({"a": pose[3:]})["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": ["xyz", "rotation_6D"]}, "target has a part 'rotation_6D'; did you mean"),
        ({"target": "rotation_6d"}, "target lists the parts of a row"),
        ({"target": []}, "target lists the parts of a row"),
        ({"target": ["xyz", 0, "rotation_6d"]}, "target has a part 0"),
        ({"target": ["0 x xyz", "rotation_6d"]}, "target has a part '0 x xyz'"),
        ({"target": ["xyz", "rotation_6d", 1]}, "must differ in the forms of rotations alone"),
        ({"target": ["rotation_6d", "xyz"]}, "must differ in the forms of rotations alone"),
        ({"target": ["xyz", WXYZ]}, "nothing changes"),
        ({"keys": "a", "target": ["xyz", "matrix"]}, "keys must list sample keys, got 'a'"),
        ({"keys": [], "target": ["xyz", "matrix"]}, "keys must list sample keys"),
        ({"keys": ["a", "b", "a"], "target": ["xyz", "matrix"]}, "keys lists 'a' twice"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(options: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=rf"^PoseRotation: .*{message}"):
        PoseRotation(**{"keys": ["a"], **options})


def test_canonical_quaternions_need_one_and_have_no_way_back() -> None:
    with pytest.raises(SettingsError, match="there is no quaternion in"):
        CanonicalQuaternion(keys=("a",), row=("xyz", "rotation_6d"))
    with pytest.raises(SettingsError, match="CanonicalQuaternion: there is no inverse: which of q"):
        CanonicalQuaternion(keys=("a",)).inverse()
