"""The recipes that use all of it, trained for a step and used as a robot would."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.spatial.transform import Rotation

from egoloader import ByteTokenizer, EpisodeWriter, TextCollate, ZarrEpisode, collate
from egoloader.assembly import make_sample
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.train.config import compose, config_dir, make, sample_folder
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.predictionpicture import Rollout, draw_predictions, roll_out
from egoloader.train.recipe import _build, fit
from tests.episodes import pictures
from tests.test_readme import blocks, run
from tests.test_train import ONE_STEP, quietly

STEP = [*ONE_STEP, "augment=default"]
RECIPES = sorted(path.stem for path in (config_dir() / "recipe").glob("*.yaml"))


def train_and_load(folder: Path, *overrides: str) -> ActionChunkPolicy:
    """Train for a step, and make the policy of the checkpoint, of nothing else."""
    fit(compose([f"output_dir={folder / 'run'}", *STEP, *overrides]))
    checkpoint = folder / "run" / "checkpoints" / "last.ckpt"
    policy: ActionChunkPolicy = ActionChunkPolicy.load_from_checkpoint(
        checkpoint, map_location="cpu", weights_only=True
    )
    return policy.eval()


def predictions(policy: ActionChunkPolicy, path: Path, *overrides: str) -> dict[str, Rollout]:
    config = compose([*overrides])
    episode = ZarrEpisode(path)
    keymap = make(config.keymap)
    keymap = keymap[episode.embodiment] if isinstance(keymap, dict) else keymap
    maker = SampleMaker(episode, keymap, SampleSettings())
    return roll_out(policy, maker, [0, 5, 11])


@quietly
def test_the_samples_recipe_predicts_as_it_was_recorded(tmp_path: Path) -> None:
    policy = train_and_load(tmp_path, "recipe=samples")
    spec = policy.specs["sawyer"]
    assert spec.states == {"obs_ee_pose": 4 * 9, "obs_gripper": 4}
    assert spec.texts == {"task": 259}
    assert (tmp_path / "run" / "stats.json").is_file()
    found = predictions(policy, Path(sample_folder()) / "pick_place_0.zarr", "recipe=samples")
    rollout = found["cmd_ee_delta"]
    assert rollout.recorded.shape == rollout.predicted.shape == (3, 16, 4)
    assert rollout.times[1].tolist() == pytest.approx([0.25 + step / 10 for step in range(16)])
    stored = ZarrEpisode(Path(sample_folder()) / "pick_place_0.zarr").read(
        {"cmd_ee_delta": [(5, 36)]}
    )["cmd_ee_delta"][0]
    assert np.array_equal(rollout.recorded[1], stored[::2].astype(np.float64))
    # A step of training leaves predictions near the middle of what is normalised, in real units.
    stats = policy.preparation.normalizer.stats["sawyer"]["cmd_ee_delta"]  # type: ignore[union-attr]
    assert (np.abs(rollout.predicted - stats.mean) < 8 * stats.std).all()
    draw_predictions(found, "pick_place_0.zarr", tmp_path / "predictions.png")
    assert (tmp_path / "predictions.png").stat().st_size > 10_000


@quietly
@pytest.mark.parametrize("precision", ["64-true", "bf16-true", "bf16-mixed"])
def test_a_trainer_of_any_precision(tmp_path: Path, precision: str) -> None:
    policy = train_and_load(tmp_path, "recipe=samples", f"trainer.precision={precision}")
    assert all(weights.isfinite().all() for weights in policy.parameters())


ROBOT = """
import sys
import torch
from egoloader.train.policy import ActionChunkPolicy

checkpoint, observed, actions = sys.argv[1:]
policy = ActionChunkPolicy.load_from_checkpoint(
    checkpoint, map_location="cpu", weights_only=True
).eval()
torch.save(policy.predict("sawyer", torch.load(observed, weights_only=True)), actions)
"""


@quietly
def test_a_checkpoint_is_all_that_a_robot_needs(tmp_path: Path) -> None:
    recipe = ["recipe=samples", f"data.folder={tmp_path / 'episodes'}"]
    shutil.copytree(sample_folder(), tmp_path / "episodes")
    policy = train_and_load(tmp_path, *recipe)
    config = compose(recipe)
    maker = SampleMaker(
        ZarrEpisode(tmp_path / "episodes" / "pick_place_0.zarr"),
        make(config.keymap),
        SampleSettings(),
    )
    samples = [make_sample(maker, frame) for frame in (0, 5, 11)]
    with_tokens = make(config.data.collate_fn)(samples)
    wanted = policy.predict("sawyer", with_tokens)["cmd_ee_delta"]
    observed = collate(samples)
    del observed["cmd_ee_delta"], observed["cmd_ee_delta_is_pad"]  # as a robot has it
    assert not any("tokens" in key for key in observed)
    torch.save(observed, tmp_path / "observed.pt")
    shutil.rmtree(tmp_path / "episodes")

    (tmp_path / "elsewhere").mkdir()
    checkpoint = (tmp_path / "run" / "checkpoints" / "last.ckpt").resolve()
    checkpoint.rename(tmp_path / "elsewhere" / "arm.ckpt")
    shutil.rmtree(tmp_path / "run")
    words = ["elsewhere/arm.ckpt", "observed.pt", "actions.pt"]
    command = [sys.executable, "-c", ROBOT, *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    made = torch.load(tmp_path / "actions.pt", weights_only=True)
    assert torch.allclose(made["cmd_ee_delta"], wanted, atol=1e-6)

    block = next(block for block in blocks("python") if "load_from_checkpoint" in block)
    now = {key: value[1:2] for key, value in observed.items()}
    found = run(block, checkpoint=tmp_path / "elsewhere" / "arm.ckpt", observed=now)
    assert found["actions"]["cmd_ee_delta"].shape == (1, 16, 4)
    said = TextCollate(tokenizer=ByteTokenizer(max_length=64), keys=["task"])
    tokens = said([{"task": "put the puck on the shelf"}])
    again = policy.predict("sawyer", now | tokens)["cmd_ee_delta"]
    assert torch.allclose(found["actions"]["cmd_ee_delta"], again, atol=1e-6)
    assert not torch.allclose(again, wanted[1:2], atol=1e-6)


def poses(total: int, fps: float, seed: int) -> npt.NDArray[np.float32]:
    """Return a smooth motion, xyz and wxyz: (total, 7)."""
    times, phase = np.arange(total) / fps, seed * 0.7
    turns = Rotation.from_euler("xyz", np.stack([0.3 * np.sin(times + phase)] * 3, axis=1))
    places = np.stack([np.sin(times + phase), np.cos(times), 0.1 * times], axis=1)
    rows = np.concatenate([places, turns.as_quat(canonical=True, scalar_first=True)], axis=1)
    return rows.astype(np.float32)


def write_both(folder: Path) -> None:
    """Write people at 10 and 30 Hz, and a robot at 50 Hz, two episodes each."""
    cameras = ("images.front_1", "images.right_wrist", "images.left_wrist")
    for number, fps in enumerate((10, 30)):
        arrays = ("left.obs_ee_pose", "right.obs_ee_pose", "obs_head_pose")
        EpisodeWriter.write(
            folder / f"human_{number}.zarr",
            numeric={key: poses(3 * fps, fps, seed) for seed, key in enumerate(arrays)},
            images={"images.front_1": pictures(3 * fps)},
            fps=fps,
            embodiment="human",
            task_description="Fold the towel.",
        )
    for number in range(2):
        numeric: dict[str, Any] = {}
        for seed, side in enumerate(("left", "right")):
            for what in ("obs", "cmd"):
                numeric[f"{side}.{what}_ee_pose"] = poses(100, 50, seed + number)
                grip = np.sin(np.arange(100) / 20 + seed)[:, None]
                numeric[f"{side}.{what}_gripper"] = grip.astype(np.float32)
        EpisodeWriter.write(
            folder / f"eva_{number}.zarr",
            numeric=numeric,
            images={camera: pictures(100) for camera in cameras},
            fps=50,
            embodiment="eva",
            task_name="fold",
        )


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of episodes of people and of a robot."""
    folder = tmp_path_factory.mktemp("both")
    write_both(folder)
    return folder


@pytest.mark.parametrize("is_recipe_first", [True, False])
@pytest.mark.parametrize(
    "turned_off", [["norm=none"], ["augment=none"], ["norm=none", "augment=none"]]
)
@pytest.mark.parametrize("choice", RECIPES)
def test_every_recipe_builds_with_parts_turned_off(
    both: Path, tmp_path: Path, choice: str, turned_off: list[str], is_recipe_first: bool
) -> None:
    words = [f"recipe={choice}", *turned_off]
    needed = {"cotraining": [f"data.folder={both}", "data.valid_ratio=0"]}.get(choice, [])
    words = [*(words if is_recipe_first else words[::-1]), *needed]
    small = ["model.width=16", "model.heads=2", "model.layers=1", "data.batch_size=2"]
    data, policy = _build(compose([f"output_dir={tmp_path}", *small, *words]))
    made = policy.preparation
    assert (made.normalizer is None, made.images is None) == ("norm=none" in turned_off,) * 2
    assert (made._augment is None) == ("augment=none" in turned_off)
    for name, batch in next(iter(data.train_dataloader())).items():
        for actions in policy(name, batch).values():
            assert actions.isfinite().all()


@quietly
@pytest.mark.filterwarnings("ignore:Total length of `list` across ranks is zero")
def test_people_and_a_robot_train_together_on_one_grid(both: Path, tmp_path: Path) -> None:
    recipe = ["recipe=cotraining", f"data.folder={both}"]
    policy = train_and_load(tmp_path, *recipe, "data.valid_ratio=0")
    specs = policy.specs
    assert {name: spec.actions for name, spec in specs.items()} == {
        "human": {"action": (16, 20)},
        "eva": {"action": (16, 20)},
    }
    assert {name: spec.states for name, spec in specs.items()} == {
        "human": {"state": 4 * 18},
        "eva": {"state": 4 * 20},
    }
    for name, keys in (("human", ("action_ee_pose",)), ("eva", ("cmd_ee_pose", "cmd_gripper"))):
        found = predictions(policy, both / f"{name}_1.zarr", *recipe)
        assert set(found) == {f"{side}.{key}" for side in ("left", "right") for key in keys}
        for key, rollout in found.items():
            assert rollout.predicted.shape == (3, 16, 1 if "gripper" in key else 7)
            assert np.isfinite(rollout.predicted).all()
            if "pose" in key:  # quaternions again
                norms = np.linalg.norm(rollout.predicted[..., 3:], axis=-1)
                assert norms == pytest.approx(1.0, abs=1e-5)
