"""`egoloader stats`: what is printed, the file it writes, and how it fails."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from egoloader import EpisodeWriter, MultiDataset, NormStats, state_action_keymap
from egoloader.cli import app, main
from egoloader.errors import ConfigError, EgoloaderError, FolderNotFoundError, SettingsError
from tests.episodes import ramp
from tests.statistics import check_against_numpy, joined, noise, write_folder

ENTRIES = (
    "keymap=state_action",
    "keymap.state=[pose]",
    "keymap.action=[command]",
    "keymap.horizon=5",
    "keymap.proprio_history=3",
)
KEYMAP = state_action_keymap(state=["pose"], action=["command"], horizon=5, proprio_history=3)
ALONE = ("--workers", "1")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["stats", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def failed(*arguments: str) -> EgoloaderError:
    result = CliRunner().invoke(app, ["stats", *arguments])
    assert isinstance(result.exception, EgoloaderError), result.output
    return result.exception


def test_it_writes_what_compute_finds(tmp_path: Path) -> None:
    written = write_folder(tmp_path / "data", [30, 12])
    EpisodeWriter.write(
        tmp_path / "data/human.zarr",
        fps=30,
        embodiment="human",
        numeric={"pose": ramp(5, 4), "command": noise(5, 2, 9)},
    )
    path = tmp_path / "stats.json"
    output = run(str(tmp_path / "data"), *ENTRIES, *ALONE, "--output", str(path))
    found = NormStats.load(path)
    assert found == NormStats.compute(MultiDataset.from_folder(tmp_path / "data", KEYMAP))
    check_against_numpy(found["sawyer"]["pose"], joined(written, "pose"))
    titles = [line.strip() for line in output.splitlines() if re.fullmatch(r" *[a-z]+ *", line)]
    assert titles == ["human", "sawyer"]
    row = next(line for line in output.splitlines() if line.startswith("│ pose    │   0 │    42"))
    assert f"{found['sawyer']['pose'].mean[0]:.5g}" in row


def test_options_reach_the_computation(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [300, 120])
    path, cache = tmp_path / "stats.json", tmp_path / "cache"
    output = run(
        str(tmp_path / "data"), *ENTRIES, *ALONE, "--output", str(path), "--cache", str(cache),
        "--per-step", "command", "--outliers", "q1,q99",
        "--skip", "command", "--skip", "pose:1,2,3",
    )  # fmt: skip
    data = MultiDataset.from_folder(tmp_path / "data", KEYMAP)
    wanted = NormStats.compute(
        data,
        per_step=["command"],
        outliers=("q1", "q99"),
        skip={"command": "all", "pose": [1, 2, 3]},
    )
    assert NormStats.load(path) == wanted
    assert wanted.outliers is not None
    count = wanted.outliers.num_outliers
    assert f"sawyer: {count} of 420 frames hold numbers outside q1 to q99" in output
    assert len(list(cache.iterdir())) == 2


@pytest.mark.filterwarnings("ignore:embodiment:egoloader.errors.StatisticsWarning")
def test_norm_numbers_are_those_of_the_config(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [300, 120])
    path = tmp_path / "stats.json"
    cache = tmp_path / "cache"
    arguments = [
        str(tmp_path / "data"), *ENTRIES, *ALONE, "--output", str(path),
        "norm.numbers.per_step=[command]", "norm.numbers.outliers=[q1,q99]",
        "norm.numbers.skip={pose: [1, 2], command: [0]}", f"norm.numbers.cache={cache}",
    ]  # fmt: skip
    run(*arguments, "--skip", "pose:3", "--skip", "pose:1", "--skip", "command")
    data = MultiDataset.from_folder(tmp_path / "data", KEYMAP)
    skip = {"command": "all", "pose": [1, 2, 3]}
    wanted = NormStats.compute(data, per_step=["command"], outliers=("q1", "q99"), skip=skip)
    assert NormStats.load(path) == wanted
    assert len(list(cache.iterdir())) == 2
    # What an option says goes ahead of it.
    run(*arguments, "--skip", "pose:3", "--skip", "command", "--outliers", "q0.01,q99.99")
    wanted = NormStats.compute(data, per_step=["command"], outliers=("q0.01", "q99.99"), skip=skip)
    assert NormStats.load(path) == wanted
    own = "+norm.numbers.skip.sawyer={pose: [0]}"
    run(*arguments, own, "--skip", "pose:3")
    its = {"pose": [1, 2, 3], "command": [0], "sawyer": {"pose": [0, 3]}}
    wanted = NormStats.compute(data, per_step=["command"], outliers=("q1", "q99"), skip=its)
    assert NormStats.load(path) == wanted
    run(str(tmp_path / "data"), *ENTRIES, *ALONE, "--output", str(path), "norm=none")
    assert NormStats.load(path) == NormStats.compute(data)


def test_weights_are_those_of_the_config(tmp_path: Path) -> None:
    for name, weight in {"a": 0.0, "b": 2.0}.items():
        numeric = {"pose": ramp(9, 4), "command": noise(9, 2, 0), "w": np.full((9, 1), weight)}
        path = tmp_path / f"data/{name}.zarr"
        EpisodeWriter.write(path, fps=30, embodiment="sawyer", numeric=numeric)
    output = tmp_path / "stats.json"
    weights = "data.frame_weights=w"
    run(str(tmp_path / "data"), *ENTRIES, *ALONE, "--output", str(output), weights)
    assert NormStats.load(output)["sawyer"]["pose"].count == 9


def test_the_split_is_that_of_training(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [10, 20, 30, 40, 50])
    path = tmp_path / "stats.json"
    run(str(tmp_path / "data"), *ENTRIES, *ALONE, "--split", "train", "--output", str(path))
    data = MultiDataset.from_folder(tmp_path / "data", KEYMAP, split="train")
    assert NormStats.load(path) == NormStats.compute(data)


def test_transforms_are_those_of_the_config(tmp_path: Path) -> None:
    write_folder(tmp_path / "data", [10])
    path = tmp_path / "stats.json"
    rename = "data.transforms=[{_target_: egoloader.transforms.Rename, keys: [pose], to: [s]}]"
    run(str(tmp_path / "data"), *ENTRIES, rename, *ALONE, "--output", str(path))
    assert sorted(NormStats.load(path)["sawyer"]) == ["command", "s"]


def test_constant_numbers_are_marked(tmp_path: Path) -> None:
    pose = ramp(9, 4)
    pose[:, 2] = 5
    EpisodeWriter.write(
        tmp_path / "a.zarr",
        fps=30,
        embodiment="sawyer",
        numeric={"pose": pose, "command": noise(9, 2, 0)},
    )
    lines = [line for line in run(str(tmp_path), *ENTRIES, *ALONE).splitlines() if "const" in line]
    assert [line.split("│")[1:3] for line in lines] == [[" pose    ", "   2 "]]


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (("keymap=humn",), ConfigError, "did you mean 'human'"),
        (("--key", "pos"), SettingsError, "did you mean 'pose'"),
        (("--split", "tran"), SettingsError, "did you mean 'train'"),
        (("--outliers", "q1"), SettingsError, "two quantiles"),
        (("--outliers", "q1,q9"), SettingsError, "no quantile 'q9'"),
        (
            ("--outliers", "q1,q99", "--skip", "state:x"),
            ConfigError,
            "--skip is KEY, or KEY:3,4,5,6",
        ),
        (("--skip", "pose"), ConfigError, "--outliers q0.01,q99.99 as well"),
        (("--workers", "-1"), SettingsError, "workers must be"),
        (("--workers", "0"), SettingsError, "workers must be"),
        (("--output", "no/such/stats.json"), ConfigError, "there is no folder 'no/such'"),
        (("--output", "."), ConfigError, "'.' is a folder"),
        (("--key", "pose", "--per-step", "command"), SettingsError, "of 'command'; there are: 'p"),
    ],
)
def test_wrong_options_end_in_a_sentence(
    tmp_path: Path, arguments: tuple[str, ...], kind: type[EgoloaderError], message: str
) -> None:
    write_folder(tmp_path, [10])
    options = (*ENTRIES, *arguments) if "keymap=humn" not in arguments else arguments
    error = failed(str(tmp_path), *options)
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_folder_without_episodes_exits_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(failed(str(tmp_path), *ENTRIES), FolderNotFoundError)
    monkeypatch.setattr(sys, "argv", ["egoloader", "stats", str(tmp_path), *ENTRIES])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert "the folder holds no episodes" in capsys.readouterr().err
