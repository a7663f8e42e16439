"""Steps between two rows: rotations that turn the shorter way, and what has nothing between."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrDataset
from egoloader.errors import BadFrameWarning, KeyMapError, ValueRangeError
from egoloader.interpolation import interpolate_rows
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, ramp
from tests.grid_oracle import slow_slerp

Rows = npt.NDArray[np.float64]


def slerped(rows: Rows, weight: float, **fields: Any) -> Rows:
    """Return one step between two rows, (2, D)."""
    spec = KeySpec(
        zarr_key="a", key_type="proprio_keys", dtype="float64",
        **{"latency_s": 0.01, "interpolation": "slerp", **fields},
    )  # fmt: skip
    asked, share = np.array([[4, 5]]), np.array([[weight]])
    return np.asarray(interpolate_rows(spec, rows[None], asked, share, episodes=["ep"])[0, 0])


quaternions = hnp.arrays(np.float64, (2, 4), elements=st.floats(-1, 1)).filter(
    lambda rows: (np.linalg.norm(rows, axis=1) > 1e-3).all()
)
weights = st.floats(0.001, 0.999)


def is_half_turn(rows: Rows) -> bool:
    a, b = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return abs(float(a @ b)) < 1e-3


@settings(deadline=None)
@given(rows=quaternions.filter(lambda rows: not is_half_turn(rows)), weight=weights)
def test_rotations_turn_the_shorter_way_whatever_norm_and_sign(rows: Rows, weight: float) -> None:
    wanted = slow_slerp(rows[0].tolist(), rows[1].tolist(), weight)
    for flip in (1, -1):
        found = slerped(rows * [[1], [flip]], weight)
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@settings(deadline=None)
@given(rows=quaternions, weight=weights)
def test_the_sign_is_that_of_the_row_before(rows: Rows, weight: float) -> None:
    found = slerped(rows, weight)
    assert float(found @ rows[0]) >= -1e-12
    np.testing.assert_allclose(np.linalg.norm(found), 1, atol=1e-12)


def test_two_signs_of_one_rotation_have_that_rotation_between_them() -> None:
    q = np.array([0.5, 0.5, -0.5, 0.5])
    np.testing.assert_allclose(slerped(np.array([q, -q]), 0.3), q, atol=1e-12)


def test_half_a_turn_is_halved_one_way_or_the_other() -> None:
    found = slerped(np.array([[1.0, 0, 0, 0], [0, 0, 0, 1.0]]), 0.5)
    np.testing.assert_allclose(np.abs(found), [np.sqrt(0.5), 0, 0, np.sqrt(0.5)], atol=1e-9)


@pytest.mark.parametrize("row", [None, ["xyz", "quaternion_wxyz"], [3, "quaternion_wxyz"]])
def test_poses_are_linear_in_position_and_turn(row: Any) -> None:
    a, b = [1.0, 0, 0, 0], [np.cos(0.4), np.sin(0.4), 0, 0]
    rows = np.array([[1.0, 2, 3, *a], [2.0, 4, 3, *b]])
    wanted = [1.25, 2.5, 3, np.cos(0.1), np.sin(0.1), 0, 0]
    np.testing.assert_allclose(slerped(rows, 0.25, row=row), wanted, atol=1e-12)


def test_the_parts_of_any_row_can_be_listed() -> None:
    angles = np.array([[0.2, 0.0, 0.0], [0.6, 0.0, 0.0]])
    q = np.array([[0, 0, 0, 1.0], [0, 0, 0.8, 0.6]])
    rows = np.concatenate([[[0.0], [1.0]], angles, q], axis=1)
    found = slerped(rows, 0.5, row=["scalar", "yaw_pitch_roll", "quaternion_xyzw"])
    half = np.arccos(0.6) / 2
    wanted = [0.5, 0.4, 0, 0, 0, 0, np.sin(half), np.cos(half)]
    np.testing.assert_allclose(found, wanted, atol=1e-9)


def test_yaw_passes_the_half_turn_the_shorter_way() -> None:
    rows = np.array([[3.0, 0, 0], [-3.0, 0, 0]])
    found = slerped(rows, 0.25, row=["yaw_pitch_roll"])
    np.testing.assert_allclose(found[0], 3.0 + 0.25 * (2 * np.pi - 6), atol=1e-9)


def test_rows_of_several_poses_are_taken_pose_by_pose() -> None:
    rows = np.zeros((2, 2, 7))
    rows[:, 0, 3], rows[0, 1, 3], rows[1, 1, 4] = 1, 1, 1
    found = slerped(rows, 0.5)
    assert found[0].tolist() == [0, 0, 0, 1, 0, 0, 0]
    np.testing.assert_allclose(found[1, 3:], [np.sqrt(0.5), np.sqrt(0.5), 0, 0], atol=1e-12)


def test_a_step_that_meets_a_row_is_that_row_bit_for_bit() -> None:
    rows = np.array([[3.0, 0, 0, 0.1], [np.nan, np.inf, 0, 0]])
    assert slerped(rows, 0.0).tolist() == rows[0].tolist()
    assert slerped(np.array([rows[0], np.zeros(4)]), 0.0).tolist() == rows[0].tolist()


@pytest.mark.parametrize("odd", [0.0, np.nan, np.inf, 1e300])
@pytest.mark.parametrize("form", ["quaternion_wxyz", "rotation_6d"])
def test_a_row_that_a_step_meets_is_left_alone_beside_steps_that_turn(
    odd: float, form: str
) -> None:
    size = {"quaternion_wxyz": 4, "rotation_6d": 6}[form]
    # 1 0 0 0, or the first two columns of the unit matrix.
    kept, turned = np.full(size, odd), np.eye(6)[0, :size]
    turned[4:5] = 1
    numbers = np.stack([kept, turned, kept, turned])[None]
    spec = KeySpec(
        zarr_key="a", key_type="proprio_keys", dtype="float64",
        latency_s=0.01, interpolation="slerp", row=(form,),
    )  # fmt: skip
    rows, weights = np.array([[4, 5, 4, 6]]), np.array([[0.0, 0.5]])
    found = interpolate_rows(spec, numbers, rows, weights, episodes=["ep"])
    np.testing.assert_array_equal(found[0, 0], kept)
    np.testing.assert_allclose(found[0, 1], turned, atol=1e-12)


def test_nan_stays_where_it_is() -> None:
    rows = np.array([[1.0, np.nan, 3.0], [2.0, 2.0, np.inf]])
    found = slerped(rows, 0.5, interpolation="linear")
    assert found[0] == 1.5
    assert np.isnan(found[1])
    assert found[2] == np.inf
    same = np.array([[np.inf, 1.0], [np.inf, 2.0]])
    assert slerped(same, 0.5, interpolation="linear").tolist() == [np.inf, 1.5]


# In a dataset.


def write(path: Path, rows: npt.NDArray[Any], total: int | None = None) -> Path:
    foreign_numbers(foreign_group(path, total or len(rows), fps=10), "a", rows)
    return path


def entry(**fields: Any) -> KeySpec:
    common = {"zarr_key": "a", "key_type": "action_keys", "rate_hz": 20, "horizon_s": 0.2}
    return KeySpec(**{**common, "mask": True, **fields})


def test_a_row_that_is_no_rotation_is_refused_by_name_where_a_step_needs_it(tmp_path: Path) -> None:
    rows = np.tile([0.0, 0, 0, 1, 0, 0, 0], (10, 1)).astype("f4")
    rows[[5, 9], 3] = 0
    keymap = KeyMap({"a": entry(interpolation="slerp")})
    write(tmp_path / "a.zarr", np.tile(rows[0], (10, 1)))
    write(tmp_path / "b.zarr", rows)
    ds = MultiDataset.from_folder(tmp_path, keymap)
    for index in (13, 14, 15):
        with pytest.raises(ValueRangeError, match=r"b\.zarr.*'a', frame 5.*quaternion_wxyz") as no:
            ds.__getitems__([0, index])
        assert (no.value.episode, no.value.key, no.value.frame) == ("b.zarr", "a", 5)
    assert ds[12]["a"].shape == (4, 7)
    # Rows that steps meet, and those that are repeated as padding, leave as they are stored.
    assert ds[19]["a"].tolist() == [rows[9].tolist()] * 4


@pytest.mark.parametrize("dtype", ["float16", "float64", "int16", "int64", "uint8"])
def test_any_numbers_are_interpolated(tmp_path: Path, dtype: str) -> None:
    rows = (10 * np.arange(10)[:, None] + np.arange(2)).astype(dtype)
    ds = ZarrDataset(
        write(tmp_path / "ep.zarr", rows), KeyMap({"a": entry(interpolation="linear")})
    )
    assert ds[3]["a"].dtype == torch.float32
    assert ds[3]["a"].tolist() == [[30, 31], [35, 36], [40, 41], [45, 46]]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_steps_leave_as_the_dtype_that_is_asked_for(tmp_path: Path, dtype: str) -> None:
    path = write(tmp_path / "ep.zarr", ramp(10, 2, "float64") / 8)
    ds = ZarrDataset(path, KeyMap({"a": entry(interpolation="linear", dtype=dtype)}))
    wanted = torch.tensor([3500.0, 3501.0], dtype=torch.float64) / 8
    assert ds[3]["a"].dtype == getattr(torch, dtype)
    assert torch.equal(ds[3]["a"][1], wanted.to(ds[3]["a"].dtype))


def test_whole_numbers_that_a_float_would_not_hold_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "ep.zarr", (2**24 + np.arange(10))[:, None])
    ds = ZarrDataset(path, KeyMap({"a": entry(interpolation="linear")}))
    with pytest.raises(ValueRangeError, match=r"frame 3.*dtype"):
        ds[3]


@pytest.mark.parametrize(
    ("rows", "fields", "words"),
    [
        (ramp(10, 6), {"interpolation": "slerp"}, r"\(6,\).*no poses.*row"),
        (ramp(10, 6)[:, 0], {"interpolation": "slerp"}, "no poses"),
        (ramp(10, 8), {"interpolation": "slerp", "row": ["quaternion_wxyz"]}, "4 long"),
        (ramp(10, 2) > 0, {"interpolation": "linear"}, "true and false"),
        (
            ramp(10, 2, "int32"),
            {"interpolation": "linear", "key_type": "metadata_keys"},
            "dtype: float32",
        ),
    ],
)
def test_what_can_not_be_interpolated_is_refused_at_open(
    tmp_path: Path, rows: npt.NDArray[Any], fields: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "ep.zarr", rows)
    with pytest.raises(KeyMapError, match=rf"entry 'state'.*ep\.zarr.*{words}"):
        ZarrDataset(path, KeyMap({"state": entry(**fields)}))


def test_rows_of_json_are_refused_at_open(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3)
    foreign_bytes(group, "a", [b"{}"] * 3)
    spec = entry(interpolation="linear", key_type="metadata_keys")
    with pytest.raises(KeyMapError, match="JSON rows can't be interpolated"):
        ZarrDataset(tmp_path / "ep.zarr", KeyMap({"state": spec}))


def test_rows_of_json_are_on_a_grid_by_the_nearest_frame(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 5, fps=10)
    foreign_bytes(group, "a", [b'{"t": %d}' % t for t in range(5)])
    ds = ZarrDataset(tmp_path / "ep.zarr", KeyMap({"a": entry(key_type="metadata_keys")}))
    assert ds[2]["a"] == [{"t": 2}, {"t": 2}, {"t": 3}, {"t": 3}]


def test_an_absent_array_is_zeros_of_the_grid(tmp_path: Path) -> None:
    path = write(tmp_path / "ep.zarr", ramp(10, 2))
    fields = {"zarr_key": "b", "optional": True, "shape": [7], "interpolation": "slerp"}
    sample = ZarrDataset(path, KeyMap({"a": entry(), "b": entry(**fields)}))[3]
    assert sample["b"].shape == (4, 7)
    assert not sample["b"].any()
    assert sample["b_is_pad"].tolist() == [True] * 4


def test_frames_whose_steps_need_what_is_no_rotation_can_be_skipped(tmp_path: Path) -> None:
    rows = np.tile([0.0, 0, 0, 1, 0, 0, 0], (40, 1)).astype("f4")
    rows[20, 3] = 0
    path = write(tmp_path / "ep.zarr", rows)
    keymap = KeyMap({"a": entry(interpolation="slerp")})
    ds = ZarrDataset(path, keymap, on_bad_frame="skip", max_bad_fraction=0.5)
    with pytest.warns(BadFrameWarning, match=r"ep\.zarr"):
        replaced = [bool(ds[frame]["is_replaced"]) for frame in range(40)]
    # Steps are 0, 50, 100 and 150 ms ahead, at 10 Hz: 0, half, 1 and one and a half frames.
    assert [frame for frame, is_other in enumerate(replaced) if is_other] == [18, 19, 20]
