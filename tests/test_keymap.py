"""KeySpec and KeyMap: what is taken, what is refused, and with which words."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Mapping
from typing import Any

import pytest
from omegaconf import DictConfig, ListConfig, OmegaConf

from egoloader import KeyMap, KeySpec
from egoloader.errors import KeyMapError
from egoloader.keymap import RESERVED_NAMES


def spec(**fields: Any) -> KeySpec:
    return KeySpec(**{"zarr_key": "left.obs_ee_pose", "key_type": "proprio_keys", **fields})


def camera(**fields: Any) -> KeySpec:
    return spec(zarr_key="images.front_1", key_type="camera_keys", **fields)


def test_defaults_are_the_current_frame_without_mask() -> None:
    plain = spec()
    for name in ("horizon", "history", "stride_s", "lag_s", "offsets", "offsets_s"):
        assert getattr(plain, name) is None
    assert (plain.mask, plain.optional, plain.dtype, plain.size) == (False, False, None, None)


def test_specs_are_frozen_hashable_and_compare_by_value() -> None:
    one = spec(history=4)
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.history = 5  # type: ignore[misc]
    assert one == spec(history=4)
    assert hash(one) == hash(spec(history=4))
    assert one != spec(history=5)


@pytest.mark.parametrize(
    "fields",
    [
        {"horizon": 1},
        {"horizon": 30},
        {"history": 1},
        {"history": 4, "stride_s": 0.1},
        {"history": 1, "stride_s": 0.1},
        {"lag_s": 0.5},
        {"lag_s": 1},
        {"offsets": (0,)},
        {"offsets": [-9, -6, -3, 0]},
        {"offsets_s": [-0.5, 0, 0.5]},
        {"mask": True},
        {"horizon": 3, "mask": True},
        {"dtype": "float64"},
        {"dtype": "int64"},
        {"optional": True, "shape": [7]},
        {"optional": True, "shape": []},
    ],
)
def test_every_field_of_the_table_is_taken(fields: dict[str, Any]) -> None:
    made = spec(**fields)
    for name, value in fields.items():
        assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    "key_type", ["camera_keys", "proprio_keys", "action_keys", "annotation_keys", "metadata_keys"]
)
def test_every_key_type_is_taken(key_type: str) -> None:
    assert spec(key_type=key_type).key_type == key_type


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"horizon": 0}, "horizon"),
        ({"horizon": -1}, "horizon"),
        ({"horizon": 2.0}, "horizon"),
        ({"horizon": True}, "horizon"),
        ({"horizon": "30"}, "horizon"),
        ({"history": 0}, "history"),
        ({"history": 1.5}, "history"),
        ({"history": True}, "history"),
        ({"lag_s": 0}, "lag_s"),
        ({"lag_s": -0.5}, "lag_s"),
        ({"lag_s": float("nan")}, "lag_s"),
        ({"lag_s": float("inf")}, "lag_s"),
        ({"lag_s": True}, "lag_s"),
        ({"lag_s": "1"}, "lag_s"),
        ({"history": 4, "stride_s": 0}, "stride_s"),
        ({"history": 4, "stride_s": -1}, "stride_s"),
        ({"history": 4, "stride_s": float("nan")}, "stride_s"),
        ({"stride_s": 0.1}, "stride_s needs history"),
        ({"horizon": 4, "stride_s": 0.1}, "stride_s"),
        ({"horizon": 4, "history": 4}, "horizon and history"),
        ({"history": 4, "lag_s": 0.5}, "history and lag_s"),
        ({"offsets": [0], "offsets_s": [0.0]}, "offsets and offsets_s"),
        ({"horizon": 1, "offsets": [0]}, "horizon and offsets"),
        ({"offsets": []}, "offsets"),
        ({"offsets": [0.5]}, "offsets"),
        ({"offsets": [True]}, "offsets"),
        ({"offsets": "12"}, "offsets"),
        ({"offsets": 3}, "offsets"),
        ({"offsets_s": []}, "offsets_s"),
        ({"offsets_s": [float("nan")]}, "offsets_s"),
        ({"offsets_s": ["a"]}, "offsets_s"),
        ({"lag_s": 1e30}, "lag_s"),
        ({"offsets": [2**63]}, "offsets"),
        ({"horizon": 10**12}, "horizon"),
        ({"history": 10**7}, "history"),
        ({"mask": 1}, "mask"),
        ({"mask": "yes"}, "mask"),
        ({"optional": True}, "shape"),
        ({"optional": True, "shape": [7], "key_type": "metadata_keys"}, "need shape and dtype"),
        ({"optional": "yes", "shape": [7]}, "optional"),
        ({"shape": [7]}, "optional"),
        ({"optional": True, "shape": [0]}, "shape"),
        ({"optional": True, "shape": [7.0]}, "shape"),
        ({"size": [8, 8]}, "size"),
        ({"dtype": "flaot32"}, "did you mean 'float32'"),
        ({"dtype": "object"}, "dtype"),
        ({"zarr_key": ""}, "zarr_key"),
        ({"zarr_key": None}, "zarr_key"),
        ({"zarr_key": "../other.zarr/left.obs_ee_pose"}, "zarr_key"),
        ({"zarr_key": "/left.obs_ee_pose"}, "zarr_key"),
        ({"key_type": "camera_key"}, "did you mean 'camera_keys'"),
        ({"key_type": "obs"}, "key_type"),
    ],
)
def test_wrong_fields_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        spec(**fields)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": [8]}, "size"),
        ({"size": [8, 8, 3]}, "size"),
        ({"size": [0, 8]}, "size"),
        ({"size": [8.0, 8]}, "size"),
        ({"size": 8}, "size"),
        ({"dtype": "float32"}, "dtype"),
        ({"optional": True, "shape": [8, 8]}, "shape"),
        ({"optional": True, "shape": [8, 8, 4]}, "3 channels"),
    ],
)
def test_wrong_camera_fields_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        camera(**fields)


@pytest.mark.parametrize("fields", [{"horizon": 3}, {"history": 2}, {"mask": True}, {"lag_s": 1}])
def test_annotation_entries_take_no_window(fields: dict[str, Any]) -> None:
    with pytest.raises(KeyMapError, match="annotation"):
        spec(zarr_key="annotations", key_type="annotation_keys", **fields)


def test_camera_sizes_and_shapes_are_taken() -> None:
    assert camera(size=[8, 12]).size == (8, 12)
    assert camera(optional=True, shape=[8, 12, 3]).shape == (8, 12, 3)


@pytest.mark.parametrize(
    "name", ["observation.state", "a/b/c", "0_first", "left.obs_ee_pose", "with space", "ünï"]
)
def test_names_with_dots_slashes_and_leading_digits_work(name: str) -> None:
    keymap = KeyMap({name: spec(zarr_key=name)})
    assert keymap[name].zarr_key == name


def test_keymaps_are_ordered_mappings() -> None:
    keymap = KeyMap({"b": spec(), "a": spec(history=4)})
    assert isinstance(keymap, Mapping)
    assert list(keymap) == ["b", "a"]
    assert len(keymap) == 2
    assert keymap["a"].history == 4
    assert keymap == KeyMap({"b": spec(), "a": spec(history=4)})
    assert keymap != KeyMap({"b": spec(), "a": spec(history=5)})
    assert hash(keymap) == hash(KeyMap(dict(keymap)))


def test_a_keymap_does_not_follow_the_dict_that_it_was_made_from() -> None:
    entries = {"a": spec()}
    keymap = KeyMap(entries)
    entries["b"] = spec()
    assert list(keymap) == ["a"]


def test_keymaps_pickle_and_copy_by_value() -> None:
    keymap = KeyMap({"a": spec(offsets=[-1, 0], mask=True), "cam": camera(size=[4, 6])})
    assert pickle.loads(pickle.dumps(keymap)) == keymap
    assert copy.deepcopy(keymap) == keymap


def test_each_array_is_named_once() -> None:
    keymap = KeyMap({"state": spec(history=4), "next": spec(horizon=3), "cam": camera()})
    assert keymap.zarr_keys == ("left.obs_ee_pose", "images.front_1")


def test_sample_keys_list_masks_behind_their_entries() -> None:
    keymap = KeyMap(
        {"a": spec(horizon=3, mask=True), "b": spec(), "c": spec(optional=True, shape=[7])}
    )
    assert keymap.sample_keys == ("a", "a_is_pad", "b", "c", "c_is_pad")


@pytest.mark.parametrize(
    "name",
    [
        "fps",
        "embodiment",
        "episode",
        "frame_index",
        "timestamp",
        "sample_seed",
        "is_replaced",
        "is_repeat",
    ],
)
def test_reserved_names_are_refused(name: str) -> None:
    assert name in RESERVED_NAMES
    with pytest.raises(KeyMapError, match=name):
        KeyMap({name: spec()})


def test_an_entry_that_clashes_with_a_mask_is_refused() -> None:
    with pytest.raises(KeyMapError, match="state_is_pad"):
        KeyMap({"state": spec(history=2, mask=True), "state_is_pad": spec()})
    with pytest.raises(KeyMapError, match="state_is_pad"):
        KeyMap({"state_is_pad": spec(), "state": spec(optional=True, shape=[7])})


def test_an_array_is_not_both_camera_and_numbers() -> None:
    with pytest.raises(KeyMapError, match=r"left\.obs_ee_pose"):
        KeyMap({"a": spec(), "b": spec(key_type="camera_keys")})


@pytest.mark.parametrize("entries", [{}, None, [("a", spec())], {"a": {"zarr_key": "x"}}])
def test_what_is_no_keymap_is_refused(entries: Any) -> None:
    with pytest.raises(KeyMapError):
        KeyMap(entries)


@pytest.mark.parametrize("key", ["", 3, None])
def test_sample_keys_are_strings(key: Any) -> None:
    with pytest.raises(KeyMapError):
        KeyMap({key: spec()})


STATE = {"zarr_key": "left.obs_ee_pose", "key_type": "proprio_keys", "history": 4}
WANTED = KeyMap({"observation.state": spec(history=4)})


def test_from_config_takes_plain_mappings() -> None:
    assert KeyMap.from_config({"observation.state": STATE}) == WANTED


def test_from_config_takes_a_list_with_keys() -> None:
    assert KeyMap.from_config([{"key": "observation.state", **STATE}]) == WANTED


@pytest.mark.parametrize(
    "entries",
    [{"observation.state": STATE}, [{"key": "observation.state", **STATE}]],
    ids=["mapping", "list"],
)
def test_from_config_takes_hydra_containers(entries: Any) -> None:
    assert KeyMap.from_config(OmegaConf.create(entries)) == WANTED


def test_case_36_no_config_types_stay_inside_a_keymap() -> None:
    entries = {
        "state": {**STATE, "history": None, "offsets": [-3, 0], "optional": True, "shape": [7]},
        "cam": {"zarr_key": "images.front_1", "key_type": "camera_keys", "size": [8, 8]},
    }
    keymap = KeyMap.from_config(OmegaConf.create(entries))
    assert keymap["state"].offsets == (-3, 0)
    for entry in keymap.values():
        for field in dataclasses.fields(entry):
            value = getattr(entry, field.name)
            assert not isinstance(value, DictConfig | ListConfig)
            assert value is None or type(value) in (str, int, float, bool, tuple)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"state": {**STATE, "histroy": 4}}, "did you mean 'history'"),
        ({"state": {**STATE, "history": 0}}, "'state'.*history"),
        ({"state": {"zarr_key": "x"}}, "key_type"),
        ({"state": {"key_type": "proprio_keys"}}, "zarr_key"),
        ({"state": "left.obs_ee_pose"}, "state"),
        ({"state": None}, "state"),
        ({"observation": {"state": STATE}}, "observation.*quote"),
        ([STATE], "key"),
        ([{"key": "a", **STATE}, {"key": "a", **STATE}], "twice"),
        ({}, "at least one"),
        ([], "at least one"),
        (None, "NoneType"),
        ("left", "str"),
    ],
)
def test_wrong_configs_are_refused_with_the_near_miss(entries: Any, words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        KeyMap.from_config(entries)
