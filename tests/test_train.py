"""The recipe, run as people run it: train, stop, resume; and on recorded episodes."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import EpisodeWriter
from egoloader.convert import LeRobotSettings, convert_lerobot
from egoloader.errors import (
    ConfigError,
    EgoloaderError,
    NonFiniteWarning,
    SettingsError,
    TrainingError,
)
from egoloader.train import recipe
from egoloader.train.config import compose
from egoloader.train.recipe import fit
from egoloader.transforms import Rename
from tests.episodes import ramp

TINY = [
    *("model.width=16", "model.heads=2", "model.layers=1"),
    *("callbacks.progress_bar=null", "augment=none"),
]
ONE_STEP = [
    *TINY,
    "trainer.accelerator=cpu",
    "trainer.max_epochs=1",
    "trainer.limit_train_batches=1",
    "trainer.limit_val_batches=1",
    "data.batch_size=2",
    "+trainer.enable_progress_bar=false",
]
QUIET = [
    # Lightning's own, and its advice about runs as small as these.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*is deprecated"),
    pytest.mark.filterwarnings("ignore:The .*dataloader.* does not have many workers"),
    pytest.mark.filterwarnings("ignore:The number of training batches"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
]


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


def quietly(test: Any) -> Any:
    """Mark a test that trains in this process."""
    for mark in QUIET:
        test = mark(test)
    return test


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


def test_what_is_wrong_ends_in_one_sentence(tmp_path: Path) -> None:
    result = train(tmp_path, "output_dir=out", *TINY, "data.folder=nowhere")
    assert result.returncode == 1
    assert "folder 'nowhere': there is no folder at this path" in result.stderr
    assert "Traceback" not in result.stderr + result.stdout
    said = [line for line in result.stderr.splitlines() if line.startswith("egoloader: ")]
    assert len(said) == 1


@quietly
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.folder=."], "the folder holds no episodes"),
        (["keymap=humna"], "there is no keymap=humna; did you mean 'human'?"),
        (["keymap.image_histroy_gap_s=0.1"], "did you mean 'image_history_gap_s'?"),
        (
            [
                "trainer.accelerator=cpu",
                "trainer.devices=2",
                "trainer.use_distributed_sampler=true",
            ],
            "make it with Trainer(use_distributed_sampler=False)",
        ),
        (["logger=null"], "logger=null: a group can't be null; ~logger"),
        (
            ["norm=5"],
            "norm=5: norm is chosen by name, as one of cotraining, default, none, samples",
        ),
        (["trainer=[1]"], "trainer=[1]: trainer is chosen by name, as one of default"),
        (["logger.csv=null"], "Cannot use `LearningRateMonitor` callback with `Trainer` that has"),
        (["seed=abc"], "seed must be a whole number from 0 to 4294967295, got 'abc'"),
        (["keymap.state=[obs_ee_pos]"], "did you mean 'obs_ee_pose'?"),
        (["keymap.masks=false"], "padded steps would be learned as actions"),
        (["keymap.horizon=0"], "horizon must be a whole number of at least 1, got 0"),
        (["resume=nothing.ckpt"], "resume=nothing.ckpt: there is no such checkpoint"),
        (["resume=."], "last.ckpt is a link to 'last.ckpt', which leads back to itself; give"),
        (
            ["resume=last.ckpt"],
            "last.ckpt is a link to 'last.ckpt', which leads back to itself; give",
        ),
        (["resume=junk.ckpt"], "junk.ckpt can't be read as a checkpoint"),
        (["resume=weights.ckpt"], "it lacks optimizer_states, lr_schedulers, loops, epoch"),
        (["resume=numbers.ckpt"], "it lacks state_dict, optimizer_states"),
        (["resume=5"], "resume must be a path, got 5"),
        (["output_dir=null"], "output_dir is not set"),
        (["output_dir=5"], "output_dir must be a path, got 5"),
        (["seed=-1"], "seed must be a whole number from 0 to 4294967295, got -1"),
        (["seed=1.5"], "got 1.5"),
        (["trainer.max_epochs=abc"], "max_epochs must be a whole number from -1 on, got 'abc'"),
        (["trainer.max_steps=1.5"], "trainer.max_steps must be a whole number from -1 on, got 1.5"),
        (["trainer.accumulate_grad_batches=0"], "must be a whole number from 1 on, got 0"),
        (["trainer.val_check_interval=0"], "must be a share of an epoch in (0, 1], a number"),
        (["trainer.val_check_interval=1.5"], "a number of batches from 1 on, or a time, got 1.5"),
        (
            ["trainer.val_check_interval=9", "trainer.limit_train_batches=2"],
            "trainer.val_check_interval = 9 batches are more than an epoch has",
        ),
        (["keymap.camera=null"], "camera must be the name of an array, a list of names, or"),
        (["model._partial_=null"], "_partial_ flag must be a bool, got"),
        (["model._partial_=false"], "model: ActionChunkPolicy needs the option 'specs'"),
        (["norm.images=5"], "norm.images must describe ImageStats, as in {_target_: …, …}; got 5"),
        (
            ["~norm.images", "+norm.images={_target_: egoloader.augment.Grayscale}"],
            "norm.images must describe ImageStats, as in {_target_: …, …}; egoloader.augment."
            "Grayscale makes Grayscale",
        ),
        (
            ["model._target_=builtins.dict"],
            "model must make an ActionChunkPolicy, and builtins.dict makes dict",
        ),
        (["~data"], "data must describe EpisodeDataModule, as in {_target_: …, …}; got None"),
        (["callbacks.progress_bar=[a]"], "callbacks.progress_bar must describe Callback"),
        (["trainer.gradient_clip_val=-1"], "gradient_clip_val must be a number from 0 on, got -1"),
        (["trainer.use_distributed_sampler=abc"], "must be true or false, got 'abc'"),
        (["trainer.max_steps=null"], "trainer.max_steps must be a whole number, got None"),
        (["callbacks.checkpoint.save_top_k=abc"], "save_top_k must be a whole number, got 'abc'"),
        (["resume=''"], "resume must be a path, got ''; resume=null starts anew"),
        (["trainer.limit_train_batches=abc"], "must be a number or null, got 'abc'"),
        (["model.dropout=abc"], "model.dropout must be a number, got 'abc'"),
        (["+model.widht=8"], "model has no option 'widht'; did you mean 'width'?"),
        (["data.image_dtype=jpeg"], "set data.image_dtype=uint8 or data.image_dtype=float32"),
        (["~logger"], "Cannot use `LearningRateMonitor` callback"),
    ],
)
def test_what_the_recipe_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "last.ckpt").symlink_to("last.ckpt")  # a link to itself
    (tmp_path / "junk.ckpt").write_bytes(b"no checkpoint at all")
    torch.save({"state_dict": {}}, tmp_path / "weights.ckpt")
    torch.save([1, 2], tmp_path / "numbers.ckpt")
    with pytest.raises(EgoloaderError) as caught:
        fit(compose(["output_dir=out", *TINY, *overrides]))
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one step."""
    output = tmp_path_factory.mktemp("one") / "run"
    fit(compose([f"output_dir={output}", *ONE_STEP]))
    return output


@quietly
@pytest.mark.parametrize(
    ("overrides", "differing"),
    [
        (["model.width=32"], ["model.width was 16 and is 32"]),
        (["model.learning_rate=1e-4"], ["model.learning_rate was 0.001 and is 0.0001"]),
        (["keymap.horizon=8"], ["sawyer actions cmd_ee_delta was (16, 4) and is (8, 4)"]),
        (
            ["keymap.state=[obs_joints]"],
            [
                "sawyer states obs_ee_pose was 28 and is not there",
                "sawyer states obs_joints was not there and is 28",
            ],
        ),
    ],
)
def test_a_checkpoint_of_another_policy_is_refused_with_what_differs(
    run: Path, tmp_path: Path, overrides: list[str], differing: list[str]
) -> None:
    resume = run / "checkpoints" / "last.ckpt"
    with pytest.raises(ConfigError, match="is of another policy than this run's") as caught:
        fit(compose([f"output_dir={tmp_path / 'out'}", f"resume={resume}", *ONE_STEP, *overrides]))
    assert all(what in str(caught.value) for what in differing)
    assert not (tmp_path / "out").exists()


@quietly
def test_a_checkpoint_of_another_embodiment_is_refused(run: Path, tmp_path: Path) -> None:
    write_scalars(tmp_path / "own")
    with pytest.raises(ConfigError) as caught:
        fit(
            compose(
                [
                    f"output_dir={tmp_path / 'out'}",
                    f"resume={run / 'checkpoints' / 'last.ckpt'}",
                    *ONE_STEP,
                    *own_data(tmp_path / "own"),
                ]
            )
        )
    assert "sawyer cameras images.front_1 was 1 and is not there" in str(caught.value)


class OwnRename(Rename):
    """A transform of somebody's own."""


def test_own_transforms_train_and_predictions_are_refused() -> None:
    target = "{_target_: tests.test_train.OwnRename, keys: [cmd_ee_delta], to: [target]}"
    config = compose(["output_dir=nowhere", *ONE_STEP, "norm=none", f"data.transforms=[{target}]"])
    _, policy = recipe._build(config)
    assert policy.specs["sawyer"].actions == {"target": (16, 4)}
    assert policy.hparams["transforms"] == {"sawyer": None}
    with pytest.raises(SettingsError, match=r"none of egoloader\.transforms"):
        policy.predict("sawyer", {})


def test_without_norm_and_augment_numbers_and_images_stay() -> None:
    _, policy = recipe._build(compose(["output_dir=nowhere", *ONE_STEP, "~norm", "~augment"]))
    assert policy.preparation.to_plain() == {"normalizer": None, "images": None}


@quietly
def test_a_checkpoint_with_other_weights_is_refused(run: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    checkpoint["state_dict"]["network.rate.0.bias"] = torch.zeros(3)
    torch.save(checkpoint, tmp_path / "other.ckpt")
    overrides = [f"output_dir={tmp_path / 'out'}", f"resume={tmp_path / 'other.ckpt'}", *ONE_STEP]
    with pytest.raises(
        ConfigError, match=r"shape of network\.rate\.0\.bias was \(3,\) and is \(16,\)"
    ):
        fit(compose(overrides))


@quietly
def test_a_run_that_has_had_its_epochs_is_refused(run: Path, tmp_path: Path) -> None:
    resume = run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(resume, weights_only=True)
    checkpoint["epoch"] = 3
    checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["completed"] = 3
    checkpoint["loops"]["fit_loop"]["epoch_progress"]["current"]["processed"] = 3
    torch.save(checkpoint, tmp_path / "late.ckpt")
    overrides = [f"output_dir={tmp_path / 'out'}", f"resume={tmp_path / 'late.ckpt'}", *ONE_STEP]
    with pytest.raises(ConfigError, match="You restored a checkpoint with current_epoch=3"):
        fit(compose(overrides))


@quietly
def test_a_folder_that_holds_a_run_is_not_written_to(run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    resume = f"resume={run / 'checkpoints' / 'last.ckpt'}"
    for overrides in ([], [resume, "trainer.max_epochs=2"]):
        with pytest.raises(ConfigError, match="holds a run; give another output_dir"):
            fit(compose([f"output_dir={run}", *ONE_STEP, *overrides]))
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@quietly
def test_what_was_refused_can_be_tried_again_in_the_same_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in ("data.folder=nowhere", "~logger"):
        with pytest.raises(EgoloaderError, match=r"there is no folder|has no logger"):
            fit(compose(["output_dir=out", *ONE_STEP, wrong]))
    fit(compose(["output_dir=out", *ONE_STEP]))
    assert (tmp_path / "out" / "checkpoints" / "last.ckpt").is_file()


def test_each_job_of_a_multirun_has_a_folder_of_its_own(tmp_path: Path) -> None:
    result = train(tmp_path, "output_dir=sweep", "model.width=16,32", *ONE_STEP[1:], "--multirun")
    assert result.returncode == 0, result.stderr
    for job, width in (("0", 16), ("1", 32)):
        folder = tmp_path / "sweep" / job
        names = {path.name for path in (folder / "checkpoints").iterdir()}
        assert names == {"epoch0.ckpt", "last.ckpt"}
        assert (folder / "logs" / "metrics.csv").is_file()
        checkpoint = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
        assert checkpoint["hyper_parameters"]["width"] == width
        assert f"output_dir: {folder}\n" in (folder / "config.yaml").read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"sweep"}
    assert not (tmp_path / "sweep" / "checkpoints").exists()


def write_scalars(folder: Path) -> None:
    """Write two episodes whose state and action are one number a frame, as (T,) arrays."""
    for name in ("a", "b"):
        with EpisodeWriter(folder / f"{name}.zarr", fps=30, embodiment="arm") as writer:
            for frame in range(20):
                writer.add_frame(
                    numeric={"state": np.float32(frame), "action": np.float32(-frame)},
                    images={"images.front": np.full((16, 24, 3), 10 * frame, np.uint8)},
                )


def own_data(folder: Path) -> list[str]:
    return [
        "data=folder",
        f"data.folder={folder}",
        "data.valid_ratio=0.5",
        "keymap=state_action",
        "keymap.state=[state]",
        "keymap.action=[action]",
        "keymap.camera=[images.front]",
        "keymap.horizon=4",
    ]


@quietly
@pytest.mark.parametrize("history", [1, 3])
def test_arrays_of_one_number_a_frame_train(tmp_path: Path, history: int) -> None:
    write_scalars(tmp_path / "own")
    overrides = [*ONE_STEP, *own_data(tmp_path / "own"), f"keymap.proprio_history={history}"]
    fit(compose([f"output_dir={tmp_path / 'out'}", *overrides]))
    checkpoint = torch.load(tmp_path / "out" / "checkpoints" / "last.ckpt", weights_only=True)
    spec = checkpoint["hyper_parameters"]["specs"]["arm"]
    assert (spec["states"], spec["actions"]) == ({"state": history}, {"action": (4,)})
    assert {"train/loss_epoch", "val/loss"} <= set(epochs(tmp_path / "out")[0])


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec.*is deprecated")
def test_a_loss_that_is_no_number_stops_the_run_before_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = ramp(20, 3)
    rows[7] = np.nan
    for name in "ab":
        with pytest.warns(NonFiniteWarning):
            EpisodeWriter.write(
                tmp_path / f"episodes/{name}.zarr",
                numeric={"state": rows, "action": ramp(20, 2)},
                fps=10,
                embodiment="arm",
            )
    own = ["data=folder", "data.folder=episodes", "data.valid_ratio=0", "keymap=state_action"]
    own += ["keymap.state=[state]", "keymap.action=[action]", "keymap.horizon=3", "norm=none"]
    with pytest.raises(TrainingError, match="the training loss is nan in epoch 0"):
        fit(compose(["output_dir=out", *TINY, *own]))
    assert not list((tmp_path / "out").rglob("*.ckpt"))


@pytest.mark.filterwarnings("ignore::UserWarning:lightning", "ignore:.*LeafSpec.*is deprecated")
@pytest.mark.parametrize("option", ["trainer.max_epochs=0", "trainer.limit_train_batches=0"])
def test_a_run_that_takes_no_step_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TrainingError, match="no step was taken"):
        fit(compose(["output_dir=out", *TINY, option]))
