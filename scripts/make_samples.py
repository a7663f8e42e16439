"""Make the packaged sample episodes with MetaWorld's scripted experts.

Run it through `scripts/make_samples`, which builds the environment that it needs. Each episode is
one run of a scripted expert on a simulated Sawyer arm, kept only if the expert succeeded. The
expert decides at the recorded rate and its action is held until the next recorded frame, so that
`cmd_ee_delta[t]` is the whole command between frames `t` and `t + 1`. Numbers and pictures of a
frame are taken from the same simulator state, before that frame's action is applied.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import numpy.typing as npt
from metaworld.env_dict import ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
from metaworld.policies import ENV_POLICY_MAP

from egoloader.writer import EpisodeWriter

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.uint8]
Annotation = tuple[str, int, int]

# Control steps per recorded frame: a control step is 12.5 ms, so frames are 50 ms apart (20 Hz).
HOLD_STEPS = 4
# Largest |dx|, |dy|, |dz| sent, in action units. 1 is 10 mm per control step, so this is 0.12 m/s
# an axis. Unlimited, the experts finish in about a second, shorter than many windows.
SPEED_LIMIT = 0.15
FRAMES_AFTER_SUCCESS = 8
# From here on the object is taken to be moved by the gripper, not settling.
MOVED_M = 0.01
HEIGHT, WIDTH = 120, 160
WRIST_CAMERA = "gripperPOV"
MAX_TOTAL_BYTES = 5_500_000
DEFAULT_OUT = Path(__file__).resolve().parent.parent / "egoloader" / "samples"

NAMES = {
    "obs_ee_pose": ["x", "y", "z", "qw", "qx", "qy", "qz"],
    "obs_gripper": ["opening"],
    "obs_joints": [f"right_j{i}" for i in range(7)],
    "cmd_ee_delta": ["dx", "dy", "dz", "gripper_effort"],
    "object_pos": ["x", "y", "z"],
}


@dataclass(frozen=True)
class FrontCamera:
    """The fixed camera beside the table.

    It looks at `lookat` (world frame, metres) from `distance` metres, along `azimuth` and
    `elevation` (degrees).
    """

    lookat: tuple[float, float, float] = (0.0, 0.68, 0.12)
    distance: float = 1.15
    azimuth: float = 140.0
    elevation: float = -35.0

    def build(self) -> mujoco.MjvCamera:
        """Return the simulator's camera object for this view."""
        camera = mujoco.MjvCamera()
        camera.lookat[:] = self.lookat
        camera.distance = self.distance
        camera.azimuth = self.azimuth
        camera.elevation = self.elevation
        return camera


@dataclass(frozen=True)
class Task:
    """One task: the environment, what to call it, the seeds, and how its phases are told apart."""

    name: str
    env: str
    description: str
    seeds: tuple[int, ...]
    # The hand counts as above the object once their horizontal distance (metres) falls below this.
    aligned_m: float
    # Texts of: moving above the object, lowering the gripper to it, moving it.
    phases: tuple[str, str, str]


TASKS = (
    Task(
        name="drawer_open",
        env="drawer-open-v3",
        description="Open the green drawer by its handle.",
        seeds=(11, 12, 13),
        aligned_m=0.06,
        phases=(
            "move above the drawer handle",
            "lower the gripper onto the handle",
            "pull the drawer open",
        ),
    ),
    Task(
        name="pick_place",
        env="pick-place-v3",
        description="Pick up the red puck and bring it to the blue marker.",
        seeds=(21, 23, 25),
        aligned_m=0.02,
        phases=(
            "move above the puck",
            "lower the gripper and grasp the puck",
            "carry the puck to the marker",
        ),
    ),
)


@dataclass
class Recording:
    """What was recorded so far: a list of rows per array, a list of pictures per camera."""

    numeric: dict[str, list[Floats]] = field(default_factory=lambda: {key: [] for key in NAMES})
    images: dict[str, list[Image]] = field(
        default_factory=lambda: {"images.front_1": [], "images.wrist": []}
    )
    successes: list[bool] = field(default_factory=list)

    def stack(self, key: str) -> Floats:
        """Return all rows of one array, (T, D) float64."""
        return np.stack(self.numeric[key])


def observe(env: Any, observation: Floats) -> dict[str, Floats]:
    """Return the numbers of the current simulator state: world frame, metres, radians.

    `observation` is the environment's own: hand position, gripper opening (0 closed, 1 open),
    object position, and more that isn't recorded.
    """
    hand = env.data.body("hand")
    return {
        "obs_ee_pose": np.concatenate([hand.xpos, hand.xquat]),
        "obs_gripper": observation[3:4].copy(),
        "obs_joints": np.array([env.data.joint(name).qpos[0] for name in NAMES["obs_joints"]]),
        "object_pos": observation[4:7].copy(),
    }


def limit_speed(action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the action with its motion scaled down to the speed limit, direction kept."""
    limited = np.clip(action, -1.0, 1.0)
    largest = float(np.abs(action[:3]).max())
    limited[:3] = action[:3] * min(1.0, SPEED_LIMIT / max(largest, SPEED_LIMIT))
    return limited


def start(env: Any) -> Floats:
    """Reset, and return the first observation.

    A reset leaves body positions one simulator step behind the joints: they are brought up to date.
    """
    env.reset()
    mujoco.mj_forward(env.model, env.data)
    return np.asarray(env._get_obs())


def simulate(env: Any, policy: Any, render: Callable[[], dict[str, Image]]) -> Recording:
    """Run the expert until a few frames after it succeeded."""
    recording = Recording()
    observation = start(env)
    for _ in range(env.max_path_length // HOLD_STEPS):
        action = limit_speed(policy.get_action(observation))
        numbers = observe(env, observation) | {"cmd_ee_delta": action.astype(np.float64)}
        for key, row in numbers.items():
            recording.numeric[key].append(row)
        for camera, picture in render().items():
            recording.images[camera].append(picture)
        for _ in range(HOLD_STEPS):
            observation, _, _, _, info = env.step(action)
        recording.successes.append(bool(info["success"]))
        if sum(recording.successes) > FRAMES_AFTER_SUCCESS:
            break
    return recording


def record(task: Task, seed: int) -> tuple[Recording, float]:
    """Record a successful episode; return it and its fps. The seed sets object and goal."""
    make_env: Any = ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE[f"{task.env}-goal-observable"]
    expert: Any = ENV_POLICY_MAP[task.env]
    env = make_env(seed=seed)
    views = {"images.front_1": FrontCamera().build(), "images.wrist": WRIST_CAMERA}
    with mujoco.Renderer(env.model, HEIGHT, WIDTH) as renderer:

        def render() -> dict[str, Image]:
            pictures = {}
            for key, view in views.items():
                renderer.update_scene(env.data, camera=view)
                pictures[key] = renderer.render().copy()
            return pictures

        recording = simulate(env, expert(), render)
    held = recording.successes[-FRAMES_AFTER_SUCCESS - 1 :]
    if len(held) <= FRAMES_AFTER_SUCCESS or not all(held):
        raise SystemExit(
            f"make_samples: the expert of {task.env} did not keep success with seed {seed}"
            f" in {len(recording.successes)} frames; choose another seed in TASKS."
        )
    return recording, 1.0 / (HOLD_STEPS * env.dt)


def first_true(flags: npt.NDArray[np.bool_], what: str) -> int:
    """Return the first frame where `flags` holds, and give up if it never does."""
    if not flags.any():
        raise SystemExit(f"make_samples: no frame where {what}; the phases can't be told apart.")
    return int(flags.argmax())


def annotate(task: Task, recording: Recording) -> list[Annotation]:
    """Cover the episode with three spans [start, end), from the hand's and object's positions."""
    hand, thing = recording.stack("obs_ee_pose")[:, :3], recording.stack("object_pos")
    aligned = np.linalg.norm((hand - thing)[:, :2], axis=1) < task.aligned_m
    moved = np.linalg.norm(thing - thing[0], axis=1) > MOVED_M
    lower = first_true(aligned, "the hand is above the object")
    act = first_true(moved, "the object has moved")
    if not 0 < lower < act:
        raise SystemExit(f"make_samples: {task.name}: phases out of order ({lower}, {act}).")
    bounds = (0, lower, act, len(thing))
    return list(zip(task.phases, bounds[:-1], bounds[1:], strict=True))


def attributes(task: Task, seed: int) -> dict[str, Any]:
    """Describe where the episode is from, for its attributes."""
    versions = {name: importlib.metadata.version(name) for name in ("metaworld", "mujoco")}
    view = FrontCamera()
    return {
        "simulated": True,
        "simulator": f"MetaWorld {versions['metaworld']}, MuJoCo {versions['mujoco']}",
        "environment": task.env,
        "seed": seed,
        "policy": "MetaWorld's scripted expert, motion scaled down to the speed limit",
        "speed_limit": SPEED_LIMIT,
        "camera": {
            "images.front_1": {
                "lookat": list(view.lookat),
                "distance": view.distance,
                "azimuth": view.azimuth,
                "elevation": view.elevation,
            },
            "images.wrist": WRIST_CAMERA,
        },
    }


def write(task: Task, seed: int, path: Path) -> int:
    """Record one episode into `path` and return its length in frames."""
    recording, fps = record(task, seed)
    EpisodeWriter.write(
        path,
        numeric={key: recording.stack(key).astype(np.float32) for key in NAMES},
        images={key: np.stack(pictures) for key, pictures in recording.images.items()},
        fps=fps,
        embodiment="sawyer",
        task_name=task.name,
        task_description=task.description,
        annotations=annotate(task, recording),
        attrs=attributes(task, seed),
        names=NAMES,
        overwrite=True,
    )
    return len(recording.successes)


def folder_bytes(path: Path) -> int:
    """Sum the sizes of all files below `path`, in bytes."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main() -> None:
    """Write every episode of every task, and say what was written."""
    parser = argparse.ArgumentParser(description="Make the packaged sample episodes (simulated).")
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="folder of the episodes")
    out = parser.parse_args().out
    # The experts ask for more than full speed on purpose; the speed limit deals with it.
    warnings.filterwarnings("ignore", message="Constant.s. may be too high")
    out.mkdir(parents=True, exist_ok=True)
    total = 0
    for task in TASKS:
        for number, seed in enumerate(task.seeds):
            path = out / f"{task.name}_{number}.zarr"
            frames = write(task, seed, path)
            size = folder_bytes(path)
            total += size
            print(f"{path.name}: seed {seed}, {frames} frames, {size / 1e6:.2f} MB", flush=True)
    print(f"{total / 1e6:.2f} MB in all")
    if total > MAX_TOTAL_BYTES:
        raise SystemExit(f"make_samples: {total} bytes, more than {MAX_TOTAL_BYTES}; record less.")


if __name__ == "__main__":
    main()
