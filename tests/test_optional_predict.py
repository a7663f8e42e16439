"""A policy of episodes that lack arrays: what a robot that lacks them, too, gives and gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from egoloader import EpisodeWriter, KeyMap, MultiDataset, Normalizer, NormStats, collate
from egoloader.errors import SettingsError
from egoloader.train.deployment import predict_recorded
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.spec import RecordedAction, SampleSpec, describe
from egoloader.transforms import Concatenate, Drop, Rename, Split, Stride, Transform
from tests.episodes import ramp

KEYMAP = KeyMap.from_config(
    {
        "arm": {"zarr_key": "arm", "key_type": "proprio_keys", "mask": True, "history": 2},
        "hand": {
            "zarr_key": "hand",
            "key_type": "proprio_keys",
            "history": 2,
            "optional": True,
            "shape": [3],
        },
        "goal": {"zarr_key": "goal", "key_type": "action_keys", "horizon": 4, "mask": True},
    }
)
OBSERVED = ("fps", "arm", "arm_is_pad", "hand", "hand_is_pad")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes of one robot, of which the first lacks the hand."""
    root = tmp_path_factory.mktemp("optional")
    numbers = {"arm": ramp(20, 2), "goal": ramp(20, 2)}
    for name, more in (("a", {}), ("b", {"hand": ramp(20, 3)})):
        EpisodeWriter.write(
            root / f"{name}.zarr", numeric=numbers | more, fps=10, embodiment="robot"
        )
    return root


def source_of(folder: Path, *transforms: Transform, keymap: KeyMap = KEYMAP) -> MultiDataset:
    return MultiDataset.from_folder(folder, keymap, transforms=transforms)


def policy_of(source: MultiDataset, normalizer: Normalizer | None) -> ActionChunkPolicy:
    torch.manual_seed(0)
    return ActionChunkPolicy(
        describe({"robot": source}),
        normalizer=normalizer,
        transforms={"robot": source.settings.transforms_of("robot")},
        **{"width": 16, "heads": 2, "layers": 1},
    ).eval()


def fitted(source: MultiDataset) -> Normalizer:
    return Normalizer(NormStats.compute(source))


def observed(folder: Path, *frames: int) -> dict[str, Any]:
    """Return what a robot has at some frames: those of the episode without a hand are 0…19."""
    plain = source_of(folder)
    batch = collate([plain[frame] for frame in frames])
    return {key: batch[key] for key in OBSERVED}


WAYS: dict[str, list[Transform]] = {
    "none": [],
    "renamed": [Rename(keys=["hand"], to=["grip"])],
    "fewer steps": [Stride(keys=["hand"], every=2)],
    "apart": [Split(keys=["thumb", "rest"], sizes=[1, 2], whole="hand")],
    "joined": [Concatenate(keys=["arm", "hand"], sizes=[2, 3], whole="body", optional=["hand"])],
    "swapped": [
        Rename(keys=["hand", "arm"], to=["arm", "hand"]),
        Concatenate(keys=["arm", "hand"], sizes=[3, 2], whole="body", optional=["arm"]),
    ],
}


@pytest.mark.parametrize("way", WAYS)
def test_states_that_a_robot_may_lack_come_with_their_masks(folder: Path, way: str) -> None:
    source = source_of(folder, *WAYS[way])
    policy, given = policy_of(source, fitted(source)), observed(folder, 3, 25)
    trained = policy("robot", collate([source[3], source[25]]))["goal"]
    made = policy.predict("robot", given)["goal"]
    torch.testing.assert_close(made, trained.detach())
    del given["hand_is_pad"]
    with pytest.raises(SettingsError, match=r"takes 'hand_is_pad', .*'hand', and the batch lacks"):
        policy.predict("robot", given)


def test_batches_of_samples_come_with_masks_too(folder: Path) -> None:
    source = source_of(folder, Rename(keys=["hand"], to=["grip"]))
    batch = collate([source[3]])
    del batch["grip_is_pad"]
    with pytest.raises(SettingsError, match="takes 'grip_is_pad', and the batch lacks it"):
        policy_of(source, fitted(source))("robot", batch)


def test_states_that_are_always_there_need_no_mask(folder: Path) -> None:
    policy, given = policy_of(source_of(folder), None), observed(folder, 3)
    wanted = policy.predict("robot", given)["goal"]
    del given["arm_is_pad"]
    assert torch.equal(policy.predict("robot", given)["goal"], wanted)


def test_masks_that_no_sample_has_are_not_asked_for(folder: Path) -> None:
    source = source_of(folder, Drop(keys=["hand"]))
    policy, given = policy_of(source, fitted(source)), observed(folder, 3)
    wanted = policy.predict("robot", given)["goal"]
    del given["hand_is_pad"]
    assert torch.equal(policy.predict("robot", given)["goal"], wanted)


def test_masks_that_a_transform_drops_are_not_asked_for_behind_it(folder: Path) -> None:
    source = source_of(folder, Drop(keys=["hand_is_pad"]))
    policy = policy_of(source, None)
    trained = policy("robot", collate([source[3], source[25]]))["goal"]
    made = policy.predict("robot", observed(folder, 3, 25))["goal"]
    torch.testing.assert_close(made, trained.detach())


def test_a_missing_state_is_named_ahead_of_its_mask(folder: Path) -> None:
    policy, given = policy_of(source_of(folder), None), observed(folder, 3)
    del given["hand"], given["hand_is_pad"]
    with pytest.raises(SettingsError, match="takes 'hand', and the batch lacks it"):
        policy.predict("robot", given)


def test_a_spec_tells_what_is_optional_and_comes_back_from_its_plain_form(folder: Path) -> None:
    policy = policy_of(source_of(folder, *WAYS["apart"]), None)
    spec = policy.specs["robot"]
    assert spec.optional == {"thumb": ("hand",), "rest": ("hand",)}
    assert SampleSpec.from_plain(policy.hparams["specs"]["robot"]) == spec


# Actions that no episode has.

GRIP = {"key_type": "action_keys", "horizon": 4, "optional": True, "shape": [3]}
JOIN = Concatenate(keys=["grip", "goal"], sizes=[3, 2], whole="all", optional=["grip"])


def with_grip(zarr_key: str) -> KeyMap:
    return KeyMap({**KEYMAP, **KeyMap.from_config({"grip": {**GRIP, "zarr_key": zarr_key}})})


@pytest.mark.parametrize("transforms", [[], [JOIN]], ids=["alone", "joined"])
@pytest.mark.parametrize(("array", "made"), [("no", ["goal"]), ("hand", ["goal", "grip"])])
def test_actions_that_no_episode_has_are_not_predicted(
    folder: Path, transforms: list[Transform], array: str, made: list[str]
) -> None:
    source = source_of(folder, *transforms, keymap=with_grip(array))
    # Alone, it has no statistics, which would be refused.
    policy = policy_of(source, fitted(source) if transforms else None)
    spec = policy.specs["robot"]
    assert spec.recorded == {
        "goal": RecordedAction((4, 2)),
        "grip": RecordedAction((4, 3), is_absent=array == "no"),
    }
    assert SampleSpec.from_plain(policy.hparams["specs"]["robot"]) == spec
    predicted = policy.predict("robot", observed(folder, 3, 25))
    assert {key: tuple(chunk.shape) for key, chunk in predicted.items()} == {
        key: (2, *spec.recorded[key].shape) for key in made
    }
    behind = policy("robot", collate([source[3], source[25]]))
    wanted = behind["all"][..., 3:] if transforms else behind["goal"]
    torch.testing.assert_close(predicted["goal"], wanted.detach())


def test_what_is_absent_needs_no_inverse() -> None:
    recorded = {"goal": RecordedAction((4, 2)), "grip": RecordedAction((4, 2), is_absent=True)}
    goal = torch.arange(8.0).reshape(1, 4, 2)
    made = predict_recorded(
        {"fps": torch.ones(1)},
        recorded,
        [Rename(keys=["grip"], to=["open"]), Stride(keys=["open"], every=2)],
        lambda batch: {"goal": goal, "open": torch.full_like(batch["open"], torch.nan)},
    )
    assert made.keys() == {"goal"}
    assert torch.equal(made["goal"], goal)
