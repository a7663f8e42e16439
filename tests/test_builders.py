"""The builders' table of DESIGN section 4, written out entry by entry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import (
    EpisodeWriter,
    KeyMap,
    KeySpec,
    ZarrDataset,
    eva_keymap,
    human_keymap,
    state_action_keymap,
)
from egoloader.errors import KeyMapError

FRONT = "observations.images.front_img_1"
#: Each builder with each of its modes, as a function of the options.
BUILDERS: dict[str, Callable[..., KeyMap]] = {
    "human-keypoints": lambda **options: human_keymap(mode="keypoints", **options),
    "human-cartesian": lambda **options: human_keymap(mode="cartesian", **options),
    "eva-cartesian": lambda **options: eva_keymap(mode="cartesian", **options),
    "eva-joints": lambda **options: eva_keymap(mode="joints", **options),
    "state-action": lambda **options: state_action_keymap(
        state="observation.state", action="action", camera={FRONT: "cam"}, **options
    ),
}


def camera(array: str, **fields: Any) -> KeySpec:
    return KeySpec(zarr_key=array, key_type="camera_keys", **fields)


def action(array: str, horizon: int = 30, **fields: Any) -> KeySpec:
    return KeySpec(zarr_key=array, key_type="action_keys", horizon=horizon, **fields)


def proprio(array: str, history: int | None = 1, **fields: Any) -> KeySpec:
    return KeySpec(zarr_key=array, key_type="proprio_keys", history=history, **fields)


def test_human_cartesian_is_the_table_row() -> None:
    assert dict(human_keymap(mode="cartesian")) == {
        "observations.images.front_img_1": camera("images.front_1"),
        "left.action_ee_pose": action("left.obs_ee_pose"),
        "right.action_ee_pose": action("right.obs_ee_pose"),
        "left.obs_ee_pose": proprio("left.obs_ee_pose"),
        "right.obs_ee_pose": proprio("right.obs_ee_pose"),
        "obs_head_pose": proprio("obs_head_pose", history=None),
    }


def test_human_keypoints_is_the_table_row() -> None:
    assert dict(human_keymap(mode="keypoints")) == {
        "observations.images.front_img_1": camera("images.front_1"),
        "left.action_keypoints": action("left.obs_keypoints"),
        "right.action_keypoints": action("right.obs_keypoints"),
        "left.action_wrist_pose": action("left.obs_wrist_pose"),
        "right.action_wrist_pose": action("right.obs_wrist_pose"),
        "left.obs_keypoints": proprio("left.obs_keypoints"),
        "right.obs_keypoints": proprio("right.obs_keypoints"),
        "left.obs_wrist_pose": proprio("left.obs_wrist_pose"),
        "right.obs_wrist_pose": proprio("right.obs_wrist_pose"),
        "obs_head_pose": proprio("obs_head_pose", history=None),
    }


@pytest.mark.parametrize(("mode", "what"), [("cartesian", "ee_pose"), ("joints", "joints")])
def test_eva_is_the_table_row(mode: Any, what: str) -> None:
    wanted = {
        "observations.images.front_img_1": camera("images.front_1"),
        "observations.images.right_wrist_img": camera("images.right_wrist"),
        "observations.images.left_wrist_img": camera("images.left_wrist"),
    }
    for side in ("left", "right"):
        wanted[f"{side}.cmd_{what}"] = action(f"{side}.cmd_{what}")
        wanted[f"{side}.cmd_gripper"] = action(f"{side}.cmd_gripper")
        wanted[f"{side}.obs_{what}"] = proprio(f"{side}.obs_{what}")
        wanted[f"{side}.obs_gripper"] = proprio(f"{side}.obs_gripper")
    assert dict(eva_keymap(mode=mode)) == wanted


def test_the_default_modes() -> None:
    assert human_keymap() == human_keymap(mode="keypoints")
    assert eva_keymap() == eva_keymap(mode="cartesian")


def test_keypoints_at_history_4_are_ten_entries_over_six_arrays() -> None:
    keymap = human_keymap(mode="keypoints", proprio_history=4)
    assert len(keymap) == 10
    assert len(keymap.zarr_keys) == 6


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_takes_the_same_options_with_the_same_defaults(name: str) -> None:
    defaults = {
        "horizon": 30,
        "proprio_history": 1,
        "history_stride_s": None,
        "image_history_gap_s": None,
        "image_memory": None,
        "image_memory_stride_s": 1.0,
        "annotation_key": None,
        "masks": False,
        "norm_mode": False,
    }
    builder = {"human": human_keymap, "eva": eva_keymap, "state": state_action_keymap}[
        name.split("-")[0]
    ]
    parameters = inspect.signature(builder).parameters
    assert {option: parameters[option].default for option in defaults} == defaults
    assert BUILDERS[name](**defaults) == BUILDERS[name]()


@pytest.mark.parametrize("name", BUILDERS)
def test_horizon_and_history_reach_every_entry_that_has_one(name: str) -> None:
    keymap = BUILDERS[name](horizon=7, proprio_history=4, history_stride_s=0.1)
    for key, entry in keymap.items():
        if entry.key_type == "action_keys":
            assert entry.horizon == 7
        elif key == "obs_head_pose" or entry.is_camera:
            assert (entry.history, entry.stride_s) == (None, None)
        else:
            assert (entry.history, entry.stride_s) == (4, 0.1)


@pytest.mark.parametrize("name", BUILDERS)
def test_image_history_adds_a_lagged_copy_of_the_front_camera(name: str) -> None:
    plain, keymap = BUILDERS[name](), BUILDERS[name](image_history_gap_s=0.5)
    added = {key: keymap[key] for key in keymap if key not in plain}
    assert added == {f"{FRONT}_hist": camera(plain[FRONT].zarr_key, lag_s=0.5)}
    assert {key: keymap[key] for key in plain} == dict(plain)


@pytest.mark.parametrize("name", BUILDERS)
def test_image_memory_adds_strided_steps_of_the_front_camera_with_a_mask(name: str) -> None:
    plain, keymap = BUILDERS[name](), BUILDERS[name](image_memory=4, image_memory_stride_s=2.0)
    (key,) = [key for key in keymap if key not in plain]
    assert key == f"{FRONT}_mem"
    assert f"{FRONT}_mem_is_pad" in keymap.sample_keys
    assert (keymap[key].history, keymap[key].stride_s, keymap[key].mask) == (4, 2.0, True)
    assert keymap[key].zarr_key == plain[FRONT].zarr_key


def test_image_memory_strides_by_a_second_unless_told() -> None:
    assert human_keymap(image_memory=3)[f"{FRONT}_mem"].stride_s == 1.0


def test_an_image_memory_of_one_keeps_its_axis() -> None:
    entry = human_keymap(image_memory=1)[f"{FRONT}_mem"]
    assert (entry.offsets, entry.mask) == ((0,), True)


@pytest.mark.parametrize("name", BUILDERS)
def test_norm_mode_drops_every_camera_history_and_memory_too(name: str) -> None:
    keymap = BUILDERS[name](norm_mode=True, image_history_gap_s=0.5, image_memory=3)
    plain = BUILDERS[name]()
    assert not any(entry.is_camera for entry in keymap.values())
    assert dict(keymap) == {key: entry for key, entry in plain.items() if not entry.is_camera}


@pytest.mark.parametrize("name", BUILDERS)
def test_masks_cover_every_window_and_lag_and_nothing_else(name: str) -> None:
    keymap = BUILDERS[name](proprio_history=4, image_history_gap_s=0.5, image_memory=2, masks=True)
    for key, entry in keymap.items():
        has_window = any(w is not None for w in (entry.horizon, entry.history, entry.lag_s))
        assert entry.mask == has_window, key


@pytest.mark.parametrize("name", BUILDERS)
def test_without_masks_only_the_memory_is_masked(name: str) -> None:
    keymap = BUILDERS[name](proprio_history=4, image_history_gap_s=0.5, image_memory=2)
    assert [key for key, entry in keymap.items() if entry.mask] == [f"{FRONT}_mem"]


@pytest.mark.parametrize("name", BUILDERS)
def test_annotation_key_names_the_text_entry(name: str) -> None:
    keymap = BUILDERS[name](annotation_key="language")
    assert keymap["language"] == KeySpec(zarr_key="annotations", key_type="annotation_keys")
    assert len(keymap) == len(BUILDERS[name]()) + 1


def test_state_action_takes_names_lists_and_mappings() -> None:
    assert dict(state_action_keymap(state="s", action=["a", "b"], camera={"img": "cam"})) == {
        "img": camera("cam"),
        "a": action("a"),
        "b": action("b"),
        "s": proprio("s"),
    }


def test_state_action_renames_where_state_and_action_share_an_array() -> None:
    keymap = state_action_keymap(state="pose", action={"next": "pose"}, horizon=3)
    assert dict(keymap) == {"next": action("pose", 3), "pose": proprio("pose")}
    assert keymap.zarr_keys == ("pose",)
    with pytest.raises(KeyMapError, match="'pose'"):
        state_action_keymap(state="pose", action="pose")


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: human_keymap(mode="keypoint"), "did you mean 'keypoints'"),  # type: ignore[arg-type]
        (lambda: human_keymap(mode="joints"), "joints"),  # type: ignore[arg-type]
        (lambda: eva_keymap(mode="keypoints"), "keypoints"),  # type: ignore[arg-type]
        (lambda: human_keymap(horizon=0), "horizon"),
        (lambda: human_keymap(proprio_history=0), "proprio_history must"),
        (lambda: human_keymap(proprio_history=4, history_stride_s=-1.0), "history_stride_s must"),
        (lambda: human_keymap(image_history_gap_s=0.0), "image_history_gap_s must"),
        (lambda: human_keymap(image_memory=0), "image_memory must"),
        (
            lambda: human_keymap(image_memory=2, image_memory_stride_s=0.0),
            "memory_stride_s must",
        ),
        (
            lambda: human_keymap(image_history_gap_s=-1.0, norm_mode=True),
            "image_history_gap_s must",
        ),
        (lambda: human_keymap(annotation_key="obs_head_pose"), "obs_head_pose"),
        (lambda: human_keymap(annotation_key="fps"), "fps"),
        (lambda: state_action_keymap(), "at least one"),
        (lambda: state_action_keymap(state="s", image_memory=2), "camera"),
        (lambda: state_action_keymap(state=["s", "s"]), "twice"),
        (lambda: state_action_keymap("s", horizon=None), "horizon must .* got None; only with"),  # type: ignore[arg-type]
        (lambda: human_keymap(proprio_history=None, rate_hz=10, horizon_s=1), "proprio_history"),  # type: ignore[arg-type]
        (lambda: human_keymap(image_memory_stride_s="far"), "image_memory_stride_s must"),  # type: ignore[arg-type]
        (lambda: human_keymap(norm_mode="yes"), "norm_mode must be true or false, got 'yes'"),  # type: ignore[arg-type]
        (lambda: human_keymap(masks=1), "masks must be true or false, got 1"),  # type: ignore[arg-type]
        (lambda: human_keymap(annotation_key=""), "annotation_key must be the sample key"),
        (lambda: human_keymap(annotation_key=["a"]), "annotation_key must be the sample key"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused(build: Callable[[], KeyMap], words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        build()


@pytest.mark.parametrize("option", ["state", "action", "camera"])
@pytest.mark.parametrize("names", [None, 5, ["a", None], [["a"]], {"a": 1}, {1: "a"}, "", [""]])
def test_arrays_are_listed_by_name(option: str, names: Any) -> None:
    words = rf"{option} must be the name of an array, a list of names, or .*, got "
    with pytest.raises(KeyMapError, match=words + re.escape(repr(names))):
        state_action_keymap(**{"state": "s", option: names})


def test_a_window_in_frames_may_be_null_where_one_in_seconds_is_in_its_place() -> None:
    made = state_action_keymap(
        "s",
        "a",
        horizon=None,
        proprio_history=None,
        rate_hz=10,
        horizon_s=1,
        proprio_history_s=1,  # type: ignore[arg-type]
    )
    assert made == state_action_keymap("s", "a", rate_hz=10, horizon_s=1, proprio_history_s=1)


@pytest.mark.parametrize(
    ("text", "is_optional"), [("annotation", False), ("task", False), ("annotation_or_task", True)]
)
def test_the_text_may_be_the_task(text: Any, is_optional: bool) -> None:
    for made in (
        human_keymap(annotation_key="words", annotation_text=text),
        eva_keymap(annotation_key="words", annotation_text=text),
        state_action_keymap(["s"], annotation_key="words", annotation_text=text),
    ):
        assert (made["words"].text, made["words"].optional) == (text, is_optional)
    if text != "annotation":
        with pytest.raises(KeyMapError, match="annotation_text needs annotation_key"):
            human_keymap(annotation_text=text)
    with pytest.raises(KeyMapError, match="unknown text 'tsk'; did you mean 'task'"):
        human_keymap(annotation_key="words", annotation_text="tsk")  # type: ignore[arg-type]


GRID: dict[str, Any] = {"rate_hz": 10, "horizon_s": 1.6, "proprio_history_s": 0.4}


@pytest.mark.parametrize("name", BUILDERS)
def test_windows_in_seconds_take_the_place_of_those_in_frames(name: str) -> None:
    plain, timed = BUILDERS[name](masks=True), BUILDERS[name](masks=True, **GRID)
    assert list(plain) == list(timed)
    for key, spec in plain.items():
        fields: dict[str, Any] = {"zarr_key": spec.zarr_key, "key_type": spec.key_type}
        if spec.horizon is not None:
            wanted = KeySpec(rate_hz=10, horizon_s=1.6, mask=True, **fields)
        elif spec.history is not None:
            wanted = KeySpec(rate_hz=10, history_s=0.4, mask=True, **fields)
        else:
            wanted = spec
        assert timed[key] == wanted


def test_one_of_two_windows_may_be_in_seconds() -> None:
    keymap = state_action_keymap("s", "a", rate_hz=10, horizon_s=1.6, history_stride_s=0.1)
    assert keymap["a"] == KeySpec(zarr_key="a", key_type="action_keys", rate_hz=10, horizon_s=1.6)
    assert keymap["s"] == proprio("s", 1, stride_s=0.1)


@pytest.mark.parametrize("between", ["linear", "slerp"])
@pytest.mark.parametrize(
    ("build", "mode", "turning"),
    [
        (human_keymap, "keypoints", "_wrist_pose"),
        (human_keymap, "cartesian", "_ee_pose"),
        (eva_keymap, "cartesian", "_ee_pose"),
        (eva_keymap, "joints", "none of them"),
    ],
)
def test_poses_turn_and_all_else_is_linear(
    build: Callable[..., KeyMap], mode: str, turning: str, between: str
) -> None:
    keymap = build(mode, interpolation=between, **GRID)
    timed = {key: spec.interpolation for key, spec in keymap.items() if spec.rate_hz}
    assert timed == {key: "slerp" if key.endswith(turning) else "linear" for key in timed}
    assert len(timed) in (4, 8)


@pytest.mark.parametrize(("between", "of_poses"), [("nearest",) * 2, ("linear", "slerp")])
def test_an_episodes_own_poses_are_known_by_name(between: Any, of_poses: str) -> None:
    poses, others = ["a_pose", "pose", "left.pose"], ["s", "a_pose_error", "repose"]
    keymap = state_action_keymap(others, poses, interpolation=between, **GRID)
    found = {key: spec.interpolation for key, spec in keymap.items()}
    assert found == dict.fromkeys(others, between) | dict.fromkeys(poses, of_poses)


def test_all_of_an_episodes_own_arrays_turn_where_asked_for() -> None:
    keymap = state_action_keymap("s", "a_pose", interpolation="slerp", **GRID)
    assert {spec.interpolation for spec in keymap.values()} == {"slerp"}


def test_between_a_quaternion_and_its_negative_there_is_the_same_rotation(tmp_path: Path) -> None:
    poses = np.tile(np.array([0, 0, 0, 0.6, 0.8, 0, 0], np.float32), (20, 1))
    poses[:, 0] = np.arange(20)
    poses[1::2, 3:] *= -1
    arrays = dict.fromkeys(("left.obs_ee_pose", "right.obs_ee_pose", "obs_head_pose"), poses)
    path = tmp_path / "one.zarr"
    EpisodeWriter.write(path, numeric=arrays, fps=10, embodiment="human")
    options: dict[str, Any] = {"interpolation": "linear", "rate_hz": 20, "horizon_s": 0.3}
    own = state_action_keymap((), "left.obs_ee_pose", **options)
    human = human_keymap("cartesian", norm_mode=True, **options)
    for keymap, key in ((own, "left.obs_ee_pose"), (human, "left.action_ee_pose")):
        made = ZarrDataset(path, keymap)[4][key].numpy()
        assert np.allclose(made[:, 0], 4 + np.arange(6) / 2)
        assert np.allclose(np.abs(made[:, 3:]), np.abs(poses[0, 3:]), atol=1e-6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rate_hz": 10}, "rate_hz needs horizon_s or proprio_history_s"),
        ({"horizon_s": 1.6}, "horizon_s needs rate_hz"),
        ({"proprio_history_s": 1.6}, "history_s needs rate_hz"),
        ({"interpolation": "linear"}, "interpolation needs rate_hz"),
        ({**GRID, "history_stride_s": 0.1}, "history_stride_s needs proprio_history"),
        ({**GRID, "interpolation": "liner"}, "did you mean 'linear'"),
    ],
)
@pytest.mark.parametrize("name", BUILDERS)
def test_options_of_a_grid_go_together(name: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        BUILDERS[name](**options)
