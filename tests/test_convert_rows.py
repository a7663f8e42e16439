from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader.convert.feature import parse_features
from egoloader.errors import ConversionError
from tests.lerobot_folders import TOP, Folder, convert, episode, ramp, rows_of


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "episodes"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "set")


class TestNumbers:
    def test_arrays_names_and_attributes_are_kept(self, folder: Folder, target: Path) -> None:
        folder.lengths, folder.info = {3: 12}, {"fps": 12.5}
        report = convert(folder, target, {"timestamp": np.arange(12) / 12.5})
        assert (report.written, report.failed, report.left_out) == ((3,), {}, {})
        ep = episode(target, 3)
        assert (ep.total_frames, ep.fps, ep.embodiment) == (12, 12.5, "testbot")
        assert set(ep.keys) - {"annotations"} == {"observation.state", "action", TOP}
        state, action = rows_of(ep, "observation.state"), rows_of(ep, "action")
        np.testing.assert_array_equal(state, ramp(12, 3))
        assert state.dtype == np.float32
        np.testing.assert_array_equal(action, ramp(12, 2) + 0.5)
        assert ep.attrs["task_name"] == ep.attrs["task_description"] == "push the block"
        assert ep.attrs["features"]["observation.state"]["names"] == ["x", "y", "z"]
        assert ep.attrs["features"]["action"]["names"] == ["left", "right"]
        origin = ep.attrs["lerobot"]
        assert (origin["codebase_version"], origin["robot_type"]) == ("v2.1", "testbot")
        assert (origin["dataset"], origin["episode_index"]) == ("set", 3)
        assert origin["channel_order"] == "rgb"

    def test_v2_0_converts(self, folder: Folder, target: Path) -> None:
        folder.info = {"codebase_version": "v2.0"}
        assert convert(folder, target).written == (0,)

    def test_scalars_booleans_integers_and_matrices(self, folder: Folder, target: Path) -> None:
        folder.features = {
            "next.reward": {"dtype": "float32", "shape": [1], "names": None},
            "next.done": {"dtype": "bool", "shape": [1], "names": None},
            "gear": {"dtype": "int64", "shape": [], "names": None},
            "pose": {"dtype": "float64", "shape": [2, 2], "names": None},
        }
        poses = np.arange(48.0).reshape(12, 2, 2)
        columns = {
            "next.reward": np.arange(12, dtype=np.float32),
            "next.done": np.arange(12) == 11,
            "gear": np.arange(12) + 2**40,
            "pose": poses.tolist(),
            "unlisted": np.arange(12, dtype=np.int16),
        }
        convert(folder, target, columns)
        ep = episode(target)
        assert rows_of(ep, "next.reward").tolist() == [[t] for t in range(12)]
        done = rows_of(ep, "next.done")
        assert done.dtype == bool
        assert done[:, 0].tolist() == [False] * 11 + [True]
        assert rows_of(ep, "gear").tolist() == [t + 2**40 for t in range(12)]
        np.testing.assert_array_equal(rows_of(ep, "pose"), poses)
        assert rows_of(ep, "unlisted").tolist() == list(range(12))

    @pytest.mark.parametrize(
        ("names", "flat"),
        [
            (None, None),
            (["a", "b"], ("a", "b")),
            ([["a"], ["b"]], ("a", "b")),
            ({"left": ["a"], "right": ["b"]}, ("a", "b")),
            ({"b": 1, "a": 0}, ("a", "b")),
            (["only one"], None),
        ],
    )
    def test_names_are_flattened(self, names: Any, flat: tuple[str, ...] | None) -> None:
        raw = {"s": {"dtype": "float32", "shape": [2], "names": names}}
        assert parse_features(raw, Path("set"))[0].names == flat

    @pytest.mark.parametrize(
        ("columns", "text"),
        [
            ({"action": None}, "'action', and the file has no such column"),
            ({"action": [[1.0, 2.0]] * 11 + [[1.0]]}, "2 lengths, from 1 to 2"),
            ({"action": [[1.0, 2.0]] * 11 + [None]}, "1 values are null"),
            ({"action": [[1.0, 2.0, 3.0]] * 12}, r"\(3,\), and meta/info.json lists \(2,\)"),
            ({"frame_index": np.arange(12)[::-1]}, "row 0 has frame_index 11"),
            ({"episode_index": np.full(12, 4)}, "row 0 has episode_index 4"),
            ({"task_index": np.full(12, 9)}, "no task_index 9"),
            ({"timestamp": np.r_[np.arange(6), np.arange(6)] / 30}, "do not increase at row 6"),
        ],
    )
    def test_contradictory_rows_fail_the_episode(
        self, folder: Folder, target: Path, columns: dict[str, Any], text: str
    ) -> None:
        report = convert(folder, target, columns)
        assert report.written == ()
        assert re.search(text, report.failed[0])
        assert list(target.iterdir()) == []


class TestTime:
    def test_regular_timestamps_follow_from_fps(self, folder: Folder, target: Path) -> None:
        # Ten hours in, float32 can't name i / fps to a millisecond.
        fps = 0.0003
        times = (np.arange(12) / fps).astype(np.float32)
        assert np.abs(times - np.arange(12) / fps).max() > 1e-3
        folder.info = {"fps": fps}
        convert(folder, target, {"timestamp": times})
        assert "timestamp" not in episode(target).keys

    def test_irregular_timestamps_are_kept(self, folder: Folder, target: Path) -> None:
        times = np.arange(12) / 30
        times[5] += 0.002
        convert(folder, target, {"timestamp": times.astype(np.float32)})
        kept = rows_of(episode(target), "timestamp")
        assert kept.dtype == np.float64
        np.testing.assert_array_equal(kept, times.astype(np.float32))

    @pytest.mark.parametrize("fps", [None, 0, -30, "30", True])
    def test_an_fps_that_is_none_is_refused(
        self, folder: Folder, target: Path, fps: object
    ) -> None:
        folder.info = {"fps": fps}
        with pytest.raises(ConversionError, match=r"fps in meta/info\.json is"):
            convert(folder, target)


class TestTasks:
    def test_runs_of_a_task_become_annotations(self, folder: Folder, target: Path) -> None:
        folder.tasks = ("pick", "place")
        convert(folder, target, {"task_index": np.array([1] * 5 + [0] * 4 + [1] * 3)})
        ep = episode(target)
        assert list(ep.annotations()) == [("place", 0, 5), ("pick", 5, 9), ("place", 9, 12)]
        assert ep.attrs["task_description"] == "place; pick"

    def test_one_task_is_no_annotation(self, folder: Folder, target: Path) -> None:
        folder.tasks = ("pick", "place")
        convert(folder, target, {"task_index": np.ones(12, np.int64)})
        ep = episode(target)
        assert list(ep.annotations()) == []
        assert ep.attrs["task_name"] == "place"
