from __future__ import annotations

import re
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
import simplejpeg

from egoloader.convert import (
    ConversionEvent,
    ConversionReport,
    LeRobotSettings,
    convert_lerobot,
    lerobot,
)
from egoloader.errors import ConversionError
from tests.lerobot_folders import (
    TOP,
    VIDEO,
    Folder,
    coded,
    convert,
    episode,
    ramp,
    rows_of,
    write_video,
)
from tests.victims import die_on_episode_1

Image = npt.NDArray[np.uint8]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "episodes"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "set")


class TestLeftOut:
    def test_strings_and_depth_videos_are_listed(self, folder: Folder, target: Path) -> None:
        depth = {**VIDEO, "info": {"video.is_depth_map": True}}
        old_depth = {**VIDEO, "video_info": {"video.is_depth_map": True}}
        folder.features = {
            "note": {"dtype": "string", "shape": [1], "names": None},
            "observation.images.depth": depth,
            "observation.images.old_depth": old_depth,
        }
        report = convert(folder, target, {"note": ["a"] * 12, "unlisted": ["b"] * 12})
        left_out = {
            "note": "of dtype string, not numbers",
            "observation.images.depth": "a depth video, not colours",
            "observation.images.old_depth": "a depth video, not colours",
            "unlisted": "of parquet type string, not numbers",
        }
        assert report.failed == {}
        assert report.left_out == left_out
        assert episode(target).attrs["lerobot"]["left_out"] == left_out
        assert not set(left_out) & set(episode(target).keys)

    def test_what_the_writer_warns_of_is_reported(self, folder: Folder, target: Path) -> None:
        action = ramp(12, 2)
        action[4, 1] = np.nan
        report = convert(folder, target, {"action": action.tolist()})
        assert report.written == (0,)
        assert "action" in " ".join(report.warnings[0])


class TestMissing:
    def test_missing_files_are_listed(self, folder: Folder, target: Path) -> None:
        folder.lengths = {0: 12, 1: 12, 2: 12}
        root = folder.build()
        folder.parquet(0).unlink()
        folder.video(0, TOP).unlink()
        # The stub that stands for a large file.
        folder.video(2, TOP).write_text("version https://git-lfs\noid sha256:0\nsize 100\n")
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert report.written == (1,)
        video = "videos/chunk-000/observation.images.top/episode_000002.mp4"
        assert report.missing == {
            0: (
                "data/chunk-000/episode_000000.parquet",
                "videos/chunk-000/observation.images.top/episode_000000.mp4",
            ),
            2: (video,),
        }

    def test_all_missing_is_an_error(self, folder: Folder, target: Path) -> None:
        folder.lengths = {0: 12, 1: 12}
        root = folder.build()
        folder.parquet(1).unlink()
        with pytest.raises(
            ConversionError, match=r"every episode .*\(1\).*episode_000001\.parquet"
        ):
            convert_lerobot(root, target, LeRobotSettings(workers=1, episodes=(1,)))
        assert not target.exists()


class TestRefusals:
    @pytest.mark.parametrize("version", ["v3.0", "v1.6", None])
    def test_other_versions(self, folder: Folder, target: Path, version: str | None) -> None:
        folder.info = {"codebase_version": version}
        with pytest.raises(ConversionError, match=f"version {version!r}; v2.0 and v2.1"):
            convert(folder, target)

    def test_wrong_paths(self, tmp_path: Path, target: Path) -> None:
        with pytest.raises(ConversionError, match="nowhere is not a folder"):
            convert_lerobot(tmp_path / "nowhere", target)
        with pytest.raises(ConversionError, match=r"holds no meta/info\.json"):
            convert_lerobot(tmp_path, target)

    def test_broken_metadata(self, folder: Folder, target: Path) -> None:
        root = folder.build()
        path = root / "meta/episodes.jsonl"
        path.write_text(path.read_text() + "{half a li")
        with pytest.raises(ConversionError, match=r"line 2 of meta/episodes\.jsonl is not JSON"):
            convert_lerobot(root, target)
        path.unlink()
        with pytest.raises(ConversionError, match=r"holds no meta/episodes\.jsonl"):
            convert_lerobot(root, target)

    def test_an_episode_that_is_not_listed(self, folder: Folder, target: Path) -> None:
        with pytest.raises(ConversionError, match="lists no episode 7; it lists 1, from 0 to 0"):
            convert(folder, target, episodes=(0, 7))

    @pytest.mark.parametrize("robot", [None, "", "unknown"])
    def test_no_embodiment(self, folder: Folder, target: Path, robot: str | None) -> None:
        folder.info = {"robot_type": robot}
        with pytest.raises(ConversionError, match="pass the embodiment's name"):
            convert(folder, target)
        convert(folder, target, embodiment="arm")
        assert episode(target).embodiment == "arm"


class TestAgain:
    def test_finished_episodes_are_skipped(self, folder: Folder, target: Path) -> None:
        folder.lengths = {0: 12, 1: 12}
        root = folder.build()
        first = convert_lerobot(root, target, LeRobotSettings(workers=1, episodes=(0,)))
        before = snapshot(target)
        second = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert (first.written, first.skipped) == ((0,), ())
        assert (second.written, second.skipped) == ((1,), (0,))
        assert before.items() <= snapshot(target).items()

    def test_other_settings_need_overwrite(self, folder: Folder, target: Path) -> None:
        convert(folder, target)
        with pytest.raises(ConversionError, match=r"other settings \(quality 85, now 50\).*overwr"):
            convert(folder, target, quality=50)
        report = convert(folder, target, quality=50, overwrite=True)
        assert report.written == (0,)
        assert episode(target).attrs["lerobot"]["conversion"]["quality"] == 50

    def test_another_data_set_at_the_destination(
        self, folder: Folder, tmp_path: Path, target: Path
    ) -> None:
        convert(folder, target)
        with pytest.raises(ConversionError, match="episode 0 of 'set', not of 'other'"):
            convert(Folder(tmp_path / "other"), target)
        folder.lengths = {0: 13}
        with pytest.raises(ConversionError, match="it has 12 frames and the source 13"):
            convert(folder, target)

    def test_something_else_at_the_destination(self, folder: Folder, target: Path) -> None:
        (target / "episode_000000.zarr").mkdir(parents=True)
        with pytest.raises(ConversionError, match="is not a finished episode"):
            convert(folder, target)
        file = target.parent / "file"
        file.touch()
        with pytest.raises(ConversionError, match="file is a file; give a folder"):
            convert(folder, file)


def snapshot(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def test_processes_write_what_one_process_writes(folder: Folder, tmp_path: Path) -> None:
    folder.cameras = ()
    folder.lengths = {0: 250, 1: 101}
    root = folder.build()
    serial, parallel = tmp_path / "serial", tmp_path / "parallel"
    convert_lerobot(root, serial, LeRobotSettings(workers=1))
    report = convert_lerobot(root, parallel, LeRobotSettings(workers=2))
    assert report.written == (0, 1)
    np.testing.assert_array_equal(rows_of(episode(parallel), "observation.state"), ramp(250, 3))

    def contents(target: Path) -> dict[str, bytes]:
        return {str(Path(p).relative_to(target)): d for p, (_, d) in snapshot(target).items()}

    assert contents(serial) == contents(parallel)


def test_a_process_that_is_killed_is_reported_with_the_memory(
    folder: Folder, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.cameras = ()
    folder.lengths = {0: 12, 1: 12}
    root, settings = folder.build(), LeRobotSettings(workers=2)
    with monkeypatch.context() as patch:
        patch.setattr(lerobot, "convert_episode", die_on_episode_1)
        report = convert_lerobot(root, target, settings)
    assert re.match(r"episode 1: a worker process .* Memory now: .* avail", report.failed[1])
    again = convert_lerobot(root, target, settings)
    assert sorted(again.written + again.skipped) == [0, 1]
    assert 1 in again.written
    for index in (0, 1):
        np.testing.assert_array_equal(
            rows_of(episode(target, index), "observation.state"), ramp(12, 3)
        )


def test_progress_tells_every_episode(folder: Folder, target: Path) -> None:
    folder.lengths = {0: 12, 1: 12, 2: 10}
    root = folder.build()
    folder.parquet(1).unlink()
    write_video(folder.video(2, TOP), [coded(0)])
    events: list[ConversionEvent] = []
    convert_lerobot(root, target, LeRobotSettings(workers=1), on_progress=events.append)
    told = [
        (event.status, event.episode, event.done_episodes, event.done_frames) for event in events
    ]
    assert told == [
        ("planned", None, 0, 0),
        ("missing", 1, 0, 0),
        ("written", 0, 1, 12),
        ("failed", 2, 2, 22),
    ]
    assert {(event.total_episodes, event.total_frames) for event in events} == {(2, 22)}
    assert "episode_000001.parquet" in events[1].text
    assert "1 frames and the parquet file 10 rows" in events[3].text


def test_an_error_of_the_callback_ends_the_run(folder: Folder, target: Path) -> None:
    folder.lengths = {0: 12, 1: 12, 2: 12}
    root = folder.build()

    def stop(event: ConversionEvent) -> None:
        if event.status == "written":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        convert_lerobot(root, target, LeRobotSettings(workers=1), on_progress=stop)
    assert [path.name for path in target.iterdir()] == ["episode_000000.zarr"]


Converted = tuple[Path, ConversionReport]


@pytest.fixture(scope="module")
def source(real_data: Path) -> Path:
    return real_data / "g1_pick_bottle"


@pytest.fixture(scope="module")
def converted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Converted:
    target = tmp_path_factory.mktemp("g1")
    return target, convert_lerobot(source, target, LeRobotSettings(workers=2))


@pytest.mark.real
class TestReal:
    """Three recorded episodes of a set that lists a hundred."""

    KEY = "observation.images.cam_high"

    def test_three_found_and_the_rest_missing(self, converted: Converted) -> None:
        target, report = converted
        assert report.written == (29, 30, 82)
        assert len(report.missing) == 97
        assert (report.failed, report.left_out, report.warnings) == ({}, {}, {})
        assert len(list(target.iterdir())) == 3

    @pytest.mark.parametrize(("index", "frames"), [(29, 221), (30, 277), (82, 260)])
    def test_numbers_and_pictures_are_the_recorded_ones(
        self,
        source: Path,
        converted: Converted,
        index: int,
        frames: int,
    ) -> None:
        ep = episode(converted[0], index)
        assert (ep.total_frames, ep.fps, ep.embodiment) == (frames, 30, "Unitree_G1_Inspire")
        assert ep.attrs["task_name"] == "Pick up the yellow bottle on the table."
        table = pq.read_table(source / f"data/chunk-000/episode_{index:06d}.parquet")
        for key in ("observation.state", "action"):
            stored = np.array(table[key].to_pylist(), np.float32)
            np.testing.assert_array_equal(rows_of(ep, key), stored)
            assert len(ep.attrs["features"][key]["names"]) == 26
        path = source / f"videos/chunk-000/{self.KEY}/episode_{index:06d}.mp4"
        with av.open(str(path)) as container:
            video = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        assert len(video) == frames
        for place in (0, frames // 2, frames - 1):
            moved = first_after_a_move(video, place)
            assert abs(moved - place) <= 10
            for row, other in ((place, None), (moved - 1, moved), (moved, moved - 1)):
                data = ep.read({self.KEY: [(row, row + 1)]})[self.KEY][0][0]
                stored = simplejpeg.decode_jpeg(data)
                assert psnr(stored, video[row]) > 30
                if other is not None:
                    assert psnr(stored, video[row]) > psnr(stored, video[other]) + 0.5


def first_after_a_move(video: list[Image], place: int) -> int:
    """Return the frame nearest to `place` that visibly differs from the one before it."""
    nearest = sorted(range(1, len(video)), key=lambda frame: abs(frame - place))
    return next(frame for frame in nearest if psnr(video[frame], video[frame - 1]) < 45)


def psnr(first: Image, second: Image) -> float:
    error = np.mean((first.astype(np.float32) - second) ** 2)
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))
