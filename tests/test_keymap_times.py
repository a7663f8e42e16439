"""Entries that are read by time: which fields go together, and which do not."""

from __future__ import annotations

from typing import Any

import pytest

from egoloader import KeyMap, KeySpec
from egoloader.errors import KeyMapError
from tests.entries import camera, entry

GRID = {"rate_hz": 10, "horizon_s": 1.6}


@pytest.mark.parametrize(
    ("seconds", "rate", "steps"),
    [(1.6, 10, 16), (0.35, 10, 4), (0.25, 10, 2), (0.1, 29.97, 3), (0.1, 5.1, 1), (1, 0.6, 1)],
)
@pytest.mark.parametrize("window", ["horizon_s", "history_s"])
def test_steps_are_seconds_times_rate_rounded_to_even(
    window: str, seconds: float, rate: float, steps: int
) -> None:
    assert entry(rate_hz=rate, **{window: seconds}).grid_steps == steps


def test_which_entries_are_read_by_time() -> None:
    assert entry(**GRID).is_timed
    assert entry(latency_s=0.01).is_timed
    assert entry(latency_s=-0.01, horizon=3).is_timed
    assert not entry(horizon=3).is_timed
    assert not entry(latency_s=0).is_timed
    assert entry(latency_s=0.01, interpolation="linear").is_interpolated
    assert not entry(latency_s=0.01).is_interpolated
    assert not entry(latency_s=0.0, interpolation="linear").is_interpolated


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rate_hz": 10}, "rate_hz needs horizon_s or history_s"),
        ({"rate_hz": 10, "horizon": 16}, "rate_hz needs horizon_s.*in the place of horizon"),
        ({"horizon_s": 1.6}, "horizon_s needs rate_hz.*horizon counts frames"),
        ({"history_s": 1.6}, "history_s needs rate_hz.*history counts frames"),
        ({"history_s": 1, **GRID}, "horizon_s and history_s exclude each other"),
        ({"horizon": 16, **GRID}, "horizon and horizon_s exclude each other"),
        ({"history": 4, **GRID}, "history and horizon_s"),
        ({"lag_s": 0.5, **GRID}, "lag_s and horizon_s"),
        ({"offsets": [0], **GRID}, "offsets and horizon_s"),
        ({"offsets_s": [0], **GRID}, "offsets_s and horizon_s"),
        ({"stride_s": 0.5, **GRID}, "stride_s needs history"),
        ({**GRID, "rate_hz": 0}, "rate_hz must be a number of steps a second above 0"),
        ({**GRID, "rate_hz": -1}, "rate_hz"),
        ({**GRID, "rate_hz": float("nan")}, "rate_hz"),
        ({**GRID, "rate_hz": True}, "rate_hz"),
        ({**GRID, "rate_hz": "10"}, "rate_hz"),
        ({**GRID, "rate_hz": 2e9}, "rate_hz.*limit"),
        ({**GRID, "horizon_s": 0}, "horizon_s must be a number of seconds above 0"),
        ({**GRID, "horizon_s": float("inf")}, "horizon_s"),
        ({**GRID, "horizon_s": 0.05}, "0.05 s at rate_hz: 10 are 0 steps"),
        ({**GRID, "horizon_s": 1e6}, "10000000 steps.*1000000 at most"),
        ({"latency_s": float("nan")}, "latency_s must be a number of seconds"),
        ({"latency_s": "0.1"}, "latency_s"),
        ({"latency_s": True}, "latency_s"),
        ({"latency_s": -2e9}, "latency_s"),
        ({**GRID, "interpolation": "liner"}, "'liner'; did you mean 'linear'"),
        ({**GRID, "interpolation": None}, "interpolation"),
        ({**GRID, "interpolation": ["linear"]}, "interpolation"),
        ({"interpolation": "linear"}, "needs rate_hz or latency_s"),
        ({"interpolation": "slerp", "horizon": 3}, "needs rate_hz or latency_s"),
        ({**GRID, "interpolation": "linear", "dtype": "int64"}, "'int64' can't hold"),
        ({**GRID, "interpolation": "linear", "dtype": "bool"}, "'bool' can't hold"),
        ({**GRID, "row": ["xyz", "quaternion_wxyz"]}, "row.*needs interpolation: slerp"),
        ({**GRID, "interpolation": "linear", "row": ["xyz"]}, "needs interpolation: slerp"),
        ({**GRID, "interpolation": "slerp", "row": ["xyz", 4]}, "no rotation"),
        ({**GRID, "interpolation": "slerp", "row": []}, "row lists the parts"),
        ({**GRID, "interpolation": "slerp", "row": "xyz"}, "row must be a list"),
        ({**GRID, "interpolation": "slerp", "row": ["rotation_6"]}, "'rotation_6d'"),
    ],
)
def test_wrong_fields_are_refused_by_name(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(KeyMapError, match=words):
        entry(**fields)


@pytest.mark.parametrize("interpolation", ["linear", "slerp"])
def test_pictures_are_not_interpolated(interpolation: str) -> None:
    with pytest.raises(KeyMapError, match="camera_keys can't be interpolated"):
        camera(**GRID, interpolation=interpolation)
    assert camera(**GRID).grid_steps == 16


@pytest.mark.parametrize(
    "fields", [GRID, {"latency_s": 0.1}, {"latency_s": 0}, {"interpolation": "linear"}]
)
def test_annotations_are_of_now(fields: dict[str, Any]) -> None:
    with pytest.raises(KeyMapError, match="annotation_keys"):
        KeySpec(zarr_key="annotations", key_type="annotation_keys", **fields)


def test_from_config_takes_grids_and_rows() -> None:
    fields = {"zarr_key": "a", "key_type": "action_keys", "interpolation": "slerp", **GRID}
    keymap = KeyMap.from_config({"a": {**fields, "row": ["xyz", "quaternion_wxyz", 1]}})
    assert keymap["a"].row == ("xyz", "quaternion_wxyz", 1)
    assert keymap["a"] == KeySpec(**{**fields, "row": ("xyz", "quaternion_wxyz", 1)})
    with pytest.raises(KeyMapError, match="did you mean 'horizon_s'"):
        KeyMap.from_config({"a": {**fields, "horizons": 1}})
