"""The recipe, run as people run it: train, stop, resume; and on recorded episodes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from egoloader.convert import LeRobotSettings, convert_lerobot
from egoloader.errors import EgoloaderError
from egoloader.train.config import compose
from egoloader.train.recipe import fit

TINY = ["model.width=16", "model.heads=2", "model.layers=1", "callbacks.progress_bar=null"]


def train(cwd: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run `egoloader train` in a folder of its own."""
    command = [sys.executable, "-m", "egoloader", "train", *overrides]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


def epochs(output: Path) -> dict[int, dict[str, float]]:
    """Return the logged losses by epoch."""
    found: dict[int, dict[str, float]] = {}
    with (output / "logs" / "metrics.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            for column in ("train/loss_epoch", "val/loss", "samples/s"):
                if row.get(column):
                    found.setdefault(int(row["epoch"]), {})[column] = float(row[column])
    return found


def check_two_epochs_and_a_third(cwd: Path, *overrides: str) -> None:
    first = train(cwd, "output_dir=first", "trainer.max_epochs=2", *overrides)
    assert first.returncode == 0, first.stderr
    assert "checkpoints and logs are in first" in first.stdout
    assert set(epochs(cwd / "first")) == {0, 1}
    checkpoints = {path.name for path in (cwd / "first" / "checkpoints").iterdir()}
    assert checkpoints == {"epoch0.ckpt", "epoch1.ckpt", "last.ckpt"}
    second = train(
        cwd,
        "output_dir=second",
        "trainer.max_epochs=3",
        "resume=first/checkpoints/last.ckpt",
        *overrides,
    )
    assert second.returncode == 0, second.stderr
    assert set(epochs(cwd / "second")) == {2}
    losses = {**epochs(cwd / "first"), **epochs(cwd / "second")}
    assert all({"train/loss_epoch", "val/loss", "samples/s"} <= set(one) for one in losses.values())
    assert losses[2]["train/loss_epoch"] < losses[0]["train/loss_epoch"]
    done, resumed = (
        torch.load(cwd / path, weights_only=True)
        for path in ("first/checkpoints/last.ckpt", "second/checkpoints/last.ckpt")
    )
    assert resumed["global_step"] == done["global_step"] * 3 // 2
    state = resumed["EpisodeDataModule"]
    assert (state["epoch"], state["done"]) == (3, 0)


def test_two_epochs_a_checkpoint_and_a_third(tmp_path: Path) -> None:
    check_two_epochs_and_a_third(tmp_path, *TINY)


@pytest.mark.real
def test_recorded_episodes_train(real_data: Path, tmp_path: Path) -> None:
    report = convert_lerobot(
        real_data / "g1_pick_bottle",
        tmp_path / "g1",
        LeRobotSettings(image_size=(60, 80), workers=1),
    )
    assert (len(report.written), len(report.missing)) == (3, 97)
    check_two_epochs_and_a_third(
        tmp_path,
        "data=folder",
        f"data.folder={tmp_path / 'g1'}",
        "data.valid_ratio=0.34",
        "keymap=lerobot",
        "keymap.image_history_gap_s=0.1",
        *TINY,
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.folder=nowhere"], "episode 'nowhere': there is no folder at this path"),
        (["keymap.image_histroy_gap_s=0.1"], "did you mean 'image_history_gap_s'?"),
        (["trainer.accelerator=cpu", "trainer.devices=2"], "the trainer runs 2 processes"),
    ],
)
def test_what_is_wrong_ends_in_one_sentence(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    result = train(tmp_path, "output_dir=out", *TINY, *overrides)
    assert result.returncode == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    said = [line for line in result.stderr.splitlines() if line.startswith("egoloader: ")]
    assert len(said) == 1


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.folder=."], "the folder holds no episodes"),
        (["keymap.state=[obs_ee_pos]"], "did you mean 'obs_ee_pose'?"),
        (["keymap.masks=false"], "padded steps would be learned as actions"),
        (["keymap.horizon=0"], "horizon must be a whole number of at least 1, got 0"),
        (["resume=nothing.ckpt"], "resume=nothing.ckpt: there is no such checkpoint"),
        (["resume=."], "is a folder; give the path of a .ckpt file in it"),
        (["resume=last.ckpt"], "resume=last.ckpt: there is no such checkpoint"),
    ],
)
def test_what_the_recipe_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.ckpt").symlink_to("last.ckpt")  # a link to itself
    with pytest.raises(EgoloaderError) as caught:
        fit(compose(["output_dir=out", *TINY, *overrides]))
    assert message in str(caught.value)
