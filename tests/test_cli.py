"""The command line: tables that say what is there, one sentence where something is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numcodecs
import pytest
from typer.testing import CliRunner

from egoloader.cli import app, main
from egoloader.train.config import sample_folder
from tests.episodes import edit_attrs, foreign_group, foreign_numbers, ramp, write_human


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
    for text in ("float32", "120 x 63", "100 x 63", "200 x 63", "bytes, crc32c", "kB"):
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


def cells(out: str) -> dict[str, list[str]]:
    """Return the cells of every table row by its first cell, lines of one row apart."""
    rows: dict[str, list[str]] = {}
    for line in out.splitlines():
        if line.startswith("│") and (name := line.split("│")[1].strip()):
            rows.setdefault(name, []).extend(cell.strip() for cell in line.split("│")[2:-1])
    return rows


def test_inspect_says_what_reads_each_array(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e.zarr", 20, zarr_format=2)
    foreign_numbers(group, "plain", ramp(20, 3))
    foreign_numbers(group, "delta", ramp(20, 3), filters=[numcodecs.Delta(dtype="<f4")])
    foreign_numbers(group, "long", ramp(20, 3), compressors=numcodecs.LZMA())
    rows = cells(run("inspect", str(tmp_path)))
    assert {key: rows[key][-2] for key in ("plain", "delta", "long")} == {
        "plain": "byte ranges",
        "delta": "zarr-python: codec delta",
        "long": "zarr-python: codec lzma",
    }


def test_inspect_tells_apart_episodes_that_are_read_in_other_ways(tmp_path: Path) -> None:
    for name, filters in (("a", []), ("b", [numcodecs.Delta(dtype="<f4")]), ("c", [])):
        group = foreign_group(tmp_path / f"{name}.zarr", 20, zarr_format=2)
        foreign_numbers(group, "state", ramp(20, 3), filters=filters)
    out = run("inspect", str(tmp_path))
    assert "a.zarr (and 1 others alike)" in out
    assert "arrays of b.zarr" in out


def test_plan_shows_windows_groups_and_costs(tmp_path: Path) -> None:
    path = write_human(tmp_path / "e.zarr", 250)
    options = ["keymap=human", "keymap.proprio_history=4", "keymap.image_history_gap_s=2.0"]
    out = run("plan", str(path), *options, "--frame", "130")
    assert "frame 130 of 250, 30 Hz: 11 entries, 6 reads" in out
    windows, costs = (cells(part) for part in out.split("read by"))
    front = "observations.images.front_img_1"
    assert windows["images.front_1"] == [front, "130:131", "70:71, 130:131", "1"]
    pose = ["left.action_keypoints", "130:160", "127:160", "100"]
    assert windows["left.obs_keypoints"] == pose
    frames = costs["images.front_1"]
    assert frames[:5] == ["byte ranges", "2", "2", "2", "2"]
    assert frames[5] == frames[6]
    assert frames[7:] == ["61 / 61", "2 / 2"]
    assert costs["left.obs_keypoints"][:5] == ["byte ranges", "33", "33", "1", "1"]
    assert costs["left.obs_keypoints"][7:] == ["33 / 1", "34 / 2"]
    assert costs["all"][:5] == ["", "135", "135", "7", "7"]
    late = run("plan", str(path), *options, "--frame", "240")
    assert "240:250 + 20 padded" in late


def test_plan_shows_a_batch(tmp_path: Path) -> None:
    for number in range(6):
        write_human(tmp_path / f"e{number}.zarr", 10, annotations=[("reach", 0, 5)])
    options = ["keymap=human", "keymap.mode=cartesian", "keymap.annotation_key=annotations"]
    out = run("plan", str(tmp_path), *options, "--batch", "50", "data.valid_ratio=0.34")
    # Four of the six episodes are left for training: all of their frames, and not one more.
    assert "batch of 40 frames, 4 episodes: 7 entries, 16 reads" in out
    assert cells(out)["obs_head_pose"][:5] == ["byte ranges", "40", "40", "4", "4"]
    assert "left out here: annotations" in out
    assert "windows" not in out
    one = run("plan", str(tmp_path / "e1.zarr"), *options, "--batch", "5")
    assert "batch of 5 frames, 1 episodes" in one


def test_plan_draws_a_batch_by_its_seed() -> None:
    drawn = [
        run("plan", sample_folder(), "--batch", "8", *options)
        for options in ([], ["--seed", "0"], ["--seed", "1"], ["seed=1"])
    ]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


def test_plan_says_what_zarr_python_reads(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e.zarr", 20, zarr_format=2)
    foreign_numbers(group, "plain", ramp(20, 3), chunks=(8, 3))
    foreign_numbers(group, "delta", ramp(20, 3), filters=[numcodecs.Delta(dtype="<f4")])
    keymap = ["keymap=state_action", "keymap.state=[plain]", "keymap.action=[delta]"]
    out = run("plan", str(tmp_path), *keymap, "keymap.horizon=4")
    rows = cells(out.split("read by")[1])
    assert rows["delta"][:5] == ["zarr-python: codec delta", "4", "4", "1", "?"]
    assert rows["all"][4] == "1 + ?"
    assert "zarr-python makes its own requests" in out
    assert "?" not in run("plan", sample_folder())


def test_plan_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    out = run("plan", sample_folder(), "--batch", "4", "--save", "plan.png")
    assert out.endswith("drawn to plan.png\n")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


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
        (["plan", "SAMPLES", "--batch", "0"], "batch_size must be a whole number from 1 on"),
        (["plan", "SAMPLES", "--batch", "2", "--frame", "1"], "keep one of them"),
        (["plan", "SAMPLES", "--batch", "2", "--seed", "-1"], "seed must be a whole number"),
        (["plan", "SAMPLES", "--batch", "2", "+data.filters.task=x"], "no episode has"),
        (["plan", "SAMPLES", "--save", "plan.xyz"], "pictures end in .png"),
        (["plan", "SAMPLES", "--save", "no/folder/plan.png"], "No such file"),
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
