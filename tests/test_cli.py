"""The command line: tables that say what is there, one sentence where something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from egoloader.cli import app, main
from egoloader.train.config import sample_folder
from tests.episodes import edit_attrs, write_human


def run(*arguments: str) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str
) -> str:
    """Run a command that must be refused, and return the one sentence."""
    monkeypatch.setattr(sys, "argv", ["egoloader", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("egoloader: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_inspect_shows_every_episode_and_array(tmp_path: Path) -> None:
    for number, total in enumerate((120, 7)):
        write_human(tmp_path / f"e{number}.zarr", total, task_name=f"task {number}")
    out = run("inspect", str(tmp_path))
    for text in ("2 episodes", "e0.zarr", "e1.zarr", "task 1", "120", "human", "30"):
        assert text in out
    row = next(line for line in out.splitlines() if "left.obs_keypoints" in line)
    for text in ("float32", "120 x 63", "100 x 63", "200 x 63", "bytes, zstd, crc32c", "kB"):
        assert text in row
    camera = next(line for line in out.splitlines() if "images.front_1" in line)
    assert "camera" in camera
    assert "120 x 16 x 24 x 3" in camera
    assert "e0.zarr (and 1 others alike)" in out


def test_inspect_takes_one_episode() -> None:
    out = run("inspect", f"{sample_folder()}/pick_place_0.zarr")
    assert "1 episodes" in out
    assert "Pick up the red puck" in out


def test_inspect_shows_what_is_broken_and_says_so_in_its_exit_code(tmp_path: Path) -> None:
    write_human(tmp_path / "good.zarr", 5)
    (write_human(tmp_path / "bad.zarr", 5) / "obs_head_pose" / "zarr.json").write_text("{")
    broken = write_human(tmp_path / "worse.zarr", 5) / "zarr.json"
    broken.write_text(broken.read_text().replace('"total_frames": 5', '"total_frames": "5"'))
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    assert "good.zarr" in result.output
    problems = [line for line in result.output.splitlines() if line.startswith("problem:")]
    assert len(problems) == 2
    assert any("bad.zarr" in line and "obs_head_pose" in line for line in problems)
    assert any("worse.zarr" in line and "total_frames" in line for line in problems)


def test_inspect_shows_what_a_copy_lost(tmp_path: Path) -> None:
    for name in ("good", "hole", "cut", "short", "none", "interrupted"):
        write_human(tmp_path / f"{name}.zarr", 50)
    (tmp_path / "hole.zarr/left.obs_ee_pose/c/0/0").unlink()
    shard = tmp_path / "cut.zarr/images.front_1/c/0"
    shard.write_bytes(shard.read_bytes()[:-900])
    edit_attrs(tmp_path / "short.zarr", total_frames=51)
    edit_attrs(tmp_path / "none.zarr", total_frames=0)
    (tmp_path / "interrupted.zarr/zarr.json").unlink()
    result = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert result.exit_code == 1
    problems = [line for line in result.output.splitlines() if line.startswith("problem:")]
    for name, word in [
        ("hole", "is missing"),
        ("cut", "index"),
        ("short", "50 rows, fewer than total_frames = 51"),
        ("none", "it has no frames"),
        ("interrupted", "was the copy interrupted"),
    ]:
        assert any(f"{name}.zarr" in line and word in line for line in problems), name
    assert not any("good" in line for line in problems)


def test_plan_shows_windows_groups_and_rows(tmp_path: Path) -> None:
    path = write_human(tmp_path / "e.zarr", 250)
    options = ["keymap=human", "keymap.proprio_history=4", "keymap.image_history_gap_s=2.0"]
    out = run("plan", str(path), *options, "--frame", "130")
    assert "frame 130 of 250, 30 Hz: 11 entries, 6 reads" in out
    cells = {
        line.split("│")[1].strip(): [cell.strip() for cell in line.split("│")[2:-1]]
        for line in out.splitlines()
        if line.startswith("│") and line.split("│")[1].strip()
    }
    front = "observations.images.front_img_1"
    assert cells["images.front_1"] == [front, "130:131", "70:71, 130:131", "2", "61", "1"]
    pose = ["left.action_keypoints", "130:160", "127:160", "33", "33", "100"]
    assert cells["left.obs_keypoints"] == pose
    late = run("plan", str(path), *options, "--frame", "240")
    assert "240:250 + 20 padded" in late


def test_plan_takes_the_first_episode_of_a_folder_and_its_middle_frame() -> None:
    out = run("plan", sample_folder())
    assert "episode drawer_open_0.zarr, frame 46 of 92" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inspect", "nowhere"], "there is nothing at this path"),
        (["inspect", "."], "the folder holds no episodes"),
        (["plan", "nowhere"], "there is no folder at this path"),
        (["plan", "SAMPLES", "keymap=sampels"], "did you mean 'samples'?"),
        (["plan", "SAMPLES", "--frame", "92"], "frame 92 is outside episode"),
        (["plan", "SAMPLES", "keymap=human"], "does not have"),
        (["convert", "lerobot", "nowhere", "out"], "nowhere"),
        (["convert", "lerobot", ".", "out", "--image-size", "240"], "HEIGHTxWIDTH"),
        (["convert", "lerobot", ".", "out", "--episodes", "a:b"], "a:b"),
    ],
)
def test_refusals_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [sample_folder() if text == "SAMPLES" else text for text in arguments]
    assert message in fail(monkeypatch, capsys, *given)


def test_the_module_runs_as_the_command() -> None:
    command = [sys.executable, "-m", "egoloader", "--help"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for verb in ("train", "convert", "inspect", "plan"):
        assert verb in out


@pytest.mark.real
def test_convert_lists_what_a_partial_download_lacks(real_data: Path, tmp_path: Path) -> None:
    source, options = str(real_data / "g1_pick_bottle"), ["--image-size", "24x32"]
    out = run("convert", "lerobot", source, str(tmp_path), *options, "--episodes", "28:31")
    assert "2 written, 0 there already, 1 missing, 0 failed" in out
    assert "missing in the source: episodes 28" in out
    again = run("convert", "lerobot", source, str(tmp_path), *options, "--episodes", "28:31")
    assert "0 written, 2 there already, 1 missing, 0 failed" in again
    assert "221" in run("inspect", str(tmp_path))
