"""What is no fault raises no alarm: good recordings, and what is odd about them only."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
import zarr

from egoloader import EpisodeWriter
from egoloader.convert import LeRobotSettings, convert_lerobot
from egoloader.train.config import sample_folder
from egoloader.validate import Depth, quarantine_spans, validate_episode, validate_paths
from tests.episodes import edit_attrs, foreign_bytes, foreign_numbers
from tests.faults import places
from tests.jpegs import PROGRESSIVE, RGB_STORED
from tests.recordings import (
    CAMERA,
    FPS,
    GRIPPER,
    HEAD,
    JOINTS,
    POSE,
    TIMES,
    TOTAL,
    VELOCITY,
    change,
    frames,
    numbers,
    turned,
    write_by_us,
    write_by_zarr,
    write_numbers,
)

DEPTHS: tuple[Depth, ...] = ("metadata", "sampled", "full")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two good recordings, `us` and `zarr`; not to be changed."""
    folder = tmp_path_factory.mktemp("recordings")
    write_by_us(folder / "us")
    write_by_zarr(folder / "zarr")
    return folder


@pytest.fixture(params=["us", "zarr"])
def good(request: pytest.FixtureRequest, recordings: Path, tmp_path: Path) -> Path:
    """A good recording, to be changed."""
    return Path(shutil.copytree(recordings / request.param, tmp_path / "good"))


def signs(good: Path) -> None:
    for rows in (20, slice(50, 70)):
        change(good, POSE, rows, lambda poses: poses * [1, 1, 1, -1, -1, -1, -1])


def begins_level(good: Path) -> None:
    level = turned(np.array([0, 0, 0, 1, 0, 0, 0]), 0)
    change(good, HEAD, slice(None), [turned(level, 0.01 * t) for t in range(TOTAL)])


def still_for_a_second(good: Path) -> None:
    change(good, CAMERA, slice(7, 7 + FPS), frames()[7])
    change(good, CAMERA, slice(TOTAL - FPS, None), frames()[-1])


def all_twice(good: Path) -> None:
    for row in range(0, TOTAL, 2):
        change(good, CAMERA, row + 1, frames()[row])


def other_jpegs(good: Path) -> None:
    gray = simplejpeg.encode_jpeg(np.zeros((16, 24, 1), np.uint8), colorspace="GRAY")
    for row, jpeg in ((0, RGB_STORED), (9, PROGRESSIVE), (TOTAL - 1, gray)):
        change(good, CAMERA, row, jpeg)


def at_rest(good: Path) -> None:
    change(good, VELOCITY, slice(None), 0)
    change(good, GRIPPER, slice(None), 0)
    change(good, JOINTS, slice(None), 0.25)


def taken_back(good: Path) -> None:
    """A command that is steady, and then zero."""
    change(good, VELOCITY, slice(None), lambda rows: rows * 0 + [0.2, 0, 0.1])
    change(good, VELOCITY, slice(70, None), 0)


def touches(good: Path) -> None:
    """Forces, which are there and gone at once."""
    change(good, VELOCITY, slice(None), lambda rows: rows + 5)
    for start, stop in ((10, 20), (70, None)):
        change(good, VELOCITY, slice(start, stop), 0)


def one_row_of_zeros(good: Path) -> None:
    change(good, JOINTS, TOTAL - 1, 0)


def nothing_declared(good: Path) -> None:
    edit_attrs(good, features=...)


def clocks(good: Path) -> None:
    """Frames come late by up to half a frame, one is left out, and the first is not at 0."""
    late = np.random.default_rng(3).uniform(0, 0.5, TOTAL) / FPS
    change(good, TIMES, slice(None), lambda times: times + late + 1e4)
    change(good, TIMES, slice(60, None), lambda times: times + 1 / FPS)


HARMLESS = [
    signs,
    begins_level,
    still_for_a_second,
    all_twice,
    other_jpegs,
    at_rest,
    taken_back,
    touches,
]
HARMLESS += [one_row_of_zeros, nothing_declared, clocks]


@pytest.mark.parametrize("edit", HARMLESS, ids=lambda edit: edit.__name__)
def test_there_is_no_false_alarm(good: Path, edit: Callable[[Path], None]) -> None:
    edit(good)
    for depth in DEPTHS:
        assert validate_episode(good, "e", depth) == []


def test_padding_is_no_fault(tmp_path: Path) -> None:
    rows = {key: np.zeros((100, *one.shape[1:]), one.dtype) for key, one in numbers(60).items()}
    for key, values in numbers(60).items():
        rows[key][:60] = values
    path = write_numbers(tmp_path / "e", **rows)
    foreign_bytes(zarr.open_group(path), CAMERA, [*frames(60), *[frames(60)[-1]] * 40])
    assert validate_episode(path, "e") == []


def test_not_all_that_is_called_a_pose_is_one(tmp_path: Path) -> None:
    joints = numbers()[JOINTS][:60]
    body = np.stack([joints, joints], axis=2)
    whole = (np.arange(60 * 7) // 7).reshape(60, 7)
    path = write_numbers(tmp_path / "e", hand_pose=joints, body_pose=body, pose_ids=whole)
    assert validate_episode(path, "e") == []


def test_chunks_of_zeros_may_be_left_out_of_foreign_shards(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "e", **{POSE: numbers()[POSE][:60]})
    speed = numbers()[VELOCITY][:60].copy()
    speed[16:32] = 0
    layout = {"chunks": (16, 3), "shards": (64, 3), "config": {"write_empty_chunks": False}}
    foreign_numbers(zarr.open_group(path), VELOCITY, speed, **layout)
    (shard,) = (path / VELOCITY / "c").rglob("0/0")
    assert (2**64 - 1).to_bytes(8, "little") * 2 in shard.read_bytes()[-68:]
    for depth in DEPTHS:
        assert validate_episode(path, "e", depth) == []


def test_names_may_hold_slashes(tmp_path: Path) -> None:
    rows = {f"arm/left/{key}": one for key, one in numbers().items()}
    EpisodeWriter.write(tmp_path / "e", numeric=rows, fps=FPS, embodiment="arm")
    assert (tmp_path / "e/arm/left/zarr.json").exists()
    assert validate_episode(tmp_path / "e", "e") == []


def test_short_episodes_are_no_fault(tmp_path: Path) -> None:
    for total in (1, 2, 3, FPS):
        path = tmp_path / str(total)
        numeric = {key: rows[:total] for key, rows in numbers().items()}
        images = {CAMERA: [frames()[0]] * total}
        EpisodeWriter.write(path, numeric=numeric, images=images, fps=FPS, embodiment="arm")
        for depth in DEPTHS:
            assert validate_episode(path, "e", depth) == []
    assert (
        EpisodeWriter.write(
            tmp_path / "still",
            images={CAMERA: [frames()[0]] * (FPS + 1)},
            fps=FPS,
            embodiment="arm",
        )
        is None
    )
    assert places(validate_episode(tmp_path / "still", "e")) == [
        ("frozen camera", CAMERA, None, None, "content")
    ]


@pytest.mark.parametrize("total", [4, 7, 12, 20, 40])
def test_a_jump_stands_out_in_short_episodes(tmp_path: Path, total: int) -> None:
    for row in range(total):
        poses = numbers()[POSE][:total].copy()
        poses[row, 1] += 0.36  # 10.8 m/s
        turns = numbers()[HEAD][:total].copy()
        turns[row] = turned(turns[row], 1.05)  # 31.5 rad/s
        path = write_numbers(tmp_path / str(row), total, **{POSE: poses, HEAD: turns})
        jumps = [("jump", key, row, row + 1, "frames") for key in (POSE, HEAD)]
        assert places(validate_episode(path, "e")) == jumps


def test_fast_motion_is_no_jump(tmp_path: Path) -> None:
    poses = numbers()[POSE][:60].copy()
    poses[:, 0] = np.arange(60) * 0.5  # 15 m/s, steadily: a vehicle, or other units
    fast = numbers()[HEAD][:60].copy()
    fast[30:] += [0.28, 0, 0, 0, 0, 0, 0]  # 9 m/s, for one frame
    fast[40:] = turned(fast[40:], 0.9)  # 27 rad/s
    path = write_numbers(tmp_path / "e", **{POSE: poses, HEAD: fast})
    assert validate_episode(path, "e") == []


def test_what_rests_at_zero_alone_is_no_padding(tmp_path: Path) -> None:
    t = np.arange(60) / FPS
    slowing = np.clip(1 - t / 1.5, 0, None)[:, None] * [0.2, 0.1, 0.4]
    path = write_numbers(tmp_path / "rest", speed=slowing, grip=np.where(t < 1.0, 0.08, 0.0))
    assert validate_episode(path, "e") == []
    for start in (51, 58):
        state = np.stack([np.cos(t), np.sin(t) + 2], axis=1)
        state[start:] = 0
        path = write_numbers(tmp_path / str(start), state=state, action=state * 1.1)
        tails = [("zero tail", key, start, 60, "frames") for key in ("action", "state")]
        assert places(validate_episode(path, "e")) == tails
    # Of one narrow array, nothing can be told.
    assert validate_episode(write_numbers(tmp_path / "one", state=state), "e") == []


def test_the_sample_episodes_are_good() -> None:
    for depth in DEPTHS:
        found = validate_paths([sample_folder()], depth=depth, workers=1)
        assert (len(found.episodes), found.findings) == (6, ())


@pytest.mark.real
@pytest.mark.parametrize(("size", "episodes"), [((24, 32), None), ((120, 160), (29,))])
def test_recorded_episodes_are_good(
    real_data: Path, tmp_path: Path, size: tuple[int, int], episodes: tuple[int, ...] | None
) -> None:
    settings = LeRobotSettings(workers=2, image_size=size, episodes=episodes)
    convert_lerobot(real_data / "g1_pick_bottle", tmp_path, settings)
    for depth in DEPTHS:
        found = validate_paths([tmp_path], depth=depth, workers=1)
        assert (len(found.episodes), found.findings) == (1 if episodes else 3, ())


@pytest.mark.parametrize(("hold", "rate"), [(5, 30), (25, 50), (15, 30), (6, 200)])
def test_targets_that_are_held_are_no_jumps(tmp_path: Path, hold: int, rate: int) -> None:
    rng = np.random.default_rng(hold)
    total = 40 * hold
    targets = np.cumsum(rng.uniform(0.1, 0.6, size=(40, 3)), axis=0)
    poses = np.repeat(np.c_[targets, np.tile([1.0, 0, 0, 0], (40, 1))], hold, axis=0)
    poses[:, 3:] = [np.cos(0.1), np.sin(0.1), 0, 0]
    numeric = {POSE: poses.astype(np.float32)}
    EpisodeWriter.write(tmp_path / "e", numeric=numeric, fps=rate, embodiment="arm")
    assert len(poses) == total
    assert validate_episode(tmp_path / "e", "e") == []


def test_a_few_waypoints_are_told_of_and_served(tmp_path: Path) -> None:
    poses = np.tile(np.array([0, 0, 0, np.cos(0.1), np.sin(0.1), 0, 0], np.float32), (90, 1))
    poses[30:, 0], poses[60:, 1] = 1, 1
    EpisodeWriter.write(tmp_path / "e", numeric={POSE: poses}, fps=30, embodiment="arm")
    findings = validate_episode(tmp_path / "e", "e")
    assert {(one.check, one.harm) for one in findings} == {("jump", "content")}
    assert quarantine_spans(findings) == []
