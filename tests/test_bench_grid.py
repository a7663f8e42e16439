"""What the bench of time grids times, counts and refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import simplejpeg

from bench import grid
from bench.__main__ import main
from bench.grid_truth import Truth
from bench.pairing import WrongAnswerError
from bench.result import Result
from egoloader import KeySpec, MultiDataset
from egoloader.counts import KeyCounter, KeyCounts
from tests.grid_oracle import Clock, exact, slow_steps, slow_values
from tests.motions import write_motion

TINY = grid.Settings(
    episodes=2,
    total_frames=120,
    batch_size=5,
    in_a_row=2,
    rounds=2,
    image_rounds=1,
    size=(24, 40),
    jpeg_bytes=(500, 5000),
)
WAYS = ["frames", "nearest", "linear", "slerp"]
CONTENDERS = [*WAYS, *(f"uneven, {way}" for way in WAYS)]


@pytest.fixture(scope="module")
def result() -> Result:
    return grid.measure_grid(TINY)


def test_every_way_is_timed_in_every_case(result: Result) -> None:
    cases = [
        "a sample of numbers",
        "a batch of 5, numbers",
        "a sample of numbers and a picture",
        "a batch of 5, numbers and a picture",
    ]
    found = [(row.case, row.contender, row.n) for row in result.figures]
    rounds = zip(cases, [2, 2, 1, 1], strict=True)
    assert found == [(case, name, n) for case, n in rounds for name in CONTENDERS]


def test_ways_differ_by_what_lies_between_rows(tmp_path: Path) -> None:
    ways = {way.name: way.keymap(norm_mode=True) for way in grid._ways(tmp_path, TINY)}
    pose, points = "left.action_wrist_pose", "left.action_keypoints"
    kinds = {
        name: (its[pose].interpolation, its[points].interpolation) for name, its in ways.items()
    }
    assert kinds["nearest"] == ("nearest", "nearest")
    assert kinds["linear"] == kinds["uneven, linear"] == ("linear", "linear")
    assert kinds["slerp"] == kinds["uneven, slerp"] == ("slerp", "linear")


def test_counts_are_those_of_the_rows_around_the_steps(result: Result) -> None:
    assert [(row.case, row.contender) for row in result.counts] == [
        (case, name)
        for case in ("the frame in the middle", "5 frames of one episode")
        for name in CONTENDERS
    ]
    frames, nearest, linear = (row.arrays for row in result.counts[:3])
    # Of frame 60: 57 to 89, and from 3.6 frames back to 34.8 ahead: 56 to 95, both of chunk 0.
    read = KeyCounts(reads=1, rows=33, chunks=1, requests=1, bytes=100 * 7 * 4 + 4)
    assert frames["left.obs_wrist_pose"] == dataclasses.asdict(read)
    read = dataclasses.replace(read, rows=40)
    assert nearest["left.obs_wrist_pose"] == dataclasses.asdict(read)
    assert linear["left.obs_wrist_pose"] == dataclasses.asdict(read)
    assert frames["obs_head_pose"]["rows"] == 1
    assert {row.counts["reads"] for row in result.counts[:4]} == {5}
    assert result.counts[4].arrays["timestamp"]["rows"] == 1


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "slerp"])
@pytest.mark.parametrize("is_uneven", [False, True])
def test_the_truth_is_that_of_fractions(
    tmp_path: Path, interpolation: Any, is_uneven: bool
) -> None:
    total, rng = 50, np.random.default_rng(0)
    times = np.round(np.arange(total) / 30 + rng.uniform(-0.005, 0.005, total), 6)
    rows = write_motion(tmp_path / "a.zarr", total, fps=30, times=times if is_uneven else None)
    seconds = [exact(time) for time in times.tolist()] if is_uneven else None
    clock, frames = Clock(exact(30.0), total, seconds), [0, 3, 17, 44, 49]
    common: dict[str, Any] = {"zarr_key": "a", "rate_hz": 25, "interpolation": interpolation}
    for spec in (
        KeySpec(key_type="action_keys", horizon_s=0.4, **common),
        KeySpec(key_type="proprio_keys", history_s=0.16, **common),
        KeySpec(key_type="action_keys", zarr_key="a", horizon=9),
        KeySpec(key_type="proprio_keys", zarr_key="a", history=3),
    ):
        found = Truth(tmp_path / "a.zarr", 30.0).window(spec, frames)
        for place, frame in enumerate(frames):
            steps = slow_steps(spec, clock, frame)
            np.testing.assert_allclose(
                found.values[place], slow_values(spec, rows, steps), atol=1e-9
            )
            assert found.is_pad[place].tolist() == [step.is_pad for step in steps]


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("left.action_wrist_pose", "'frames' holds something else in 'left.action_wrist_pose'"),
        ("right.obs_keypoints_is_pad", "'frames' .* in 'right.obs_keypoints_is_pad'"),
        ("frame_index", "'frames' .* in 'frame_index'"),
    ],
)
def test_a_wrong_answer_is_refused(monkeypatch: pytest.MonkeyPatch, key: str, message: str) -> None:
    make = MultiDataset.__getitem__

    def wrong(self: MultiDataset, index: int) -> dict[str, Any]:
        sample = make(self, index)
        sample[key] = ~sample[key] if key.endswith("_is_pad") else sample[key] + 1
        return sample

    monkeypatch.setattr(MultiDataset, "__getitem__", wrong)
    with pytest.raises(WrongAnswerError, match=message):
        grid.measure_grid(TINY)


def test_a_wrong_picture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(decode_jpeg=lambda jpeg: simplejpeg.decode_jpeg(jpeg) ^ 1)
    monkeypatch.setattr(grid, "simplejpeg", other)
    with pytest.raises(WrongAnswerError, match=r"in 'observations\.images\.front_img_1'"):
        grid.measure_grid(TINY)


def test_rows_that_nothing_asks_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    add = KeyCounter.add_read
    monkeypatch.setattr(KeyCounter, "add_read", lambda self, rows, n: add(self, rows + 1, n))
    with pytest.raises(WrongAnswerError, match=r"'frames' costs .* is asked for"):
        grid.measure_grid(TINY)


def test_the_command_takes_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def stop(settings: grid.Settings) -> Result:
        asked.append((settings.rounds, settings.image_rounds))
        return Result("grid", "", {}, {}, (), (), ())

    monkeypatch.setattr(grid, "measure_grid", stop)
    for rounds in ([], ["--rounds", "3"]):
        main(["--results", str(tmp_path), "grid", *rounds])
    assert asked == [(96, 32), (3, 3)]
