"""A policy predicts what a robot takes: actions as they were recorded."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import (
    EpisodeWriter,
    KeyMap,
    MultiDataset,
    Normalizer,
    NormStats,
    collate,
)
from egoloader.errors import SettingsError
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.spec import RecordedAction, SampleSpec, describe
from tests.episodes import ramp

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "layers": 1}
SPEC = SampleSpec({}, {"pose": 3}, {"arm": (4, 2)}, {}, {"arm": RecordedAction((4, 2))})


def policy_of(specs: Mapping[str, SampleSpec], **options: Any) -> ActionChunkPolicy:
    torch.manual_seed(0)
    return ActionChunkPolicy(specs, **options, **SMALL).eval()


def reloaded(policy: ActionChunkPolicy) -> ActionChunkPolicy:
    """Return a policy of what a checkpoint keeps, read without executing any of it."""
    file = io.BytesIO()
    torch.save({"options": dict(policy.hparams), "weights": policy.state_dict()}, file)
    file.seek(0)
    kept = torch.load(file, weights_only=True)
    again = ActionChunkPolicy(**kept["options"])
    again.load_state_dict(kept["weights"])
    return again.eval()


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> MultiDataset:
    """Actions of several dtypes; `place` lies so far out that float32 tells few differences."""
    folder = tmp_path_factory.mktemp("far")
    EpisodeWriter.write(
        folder / "a.zarr",
        numeric={
            "pose": ramp(20, 3),
            "place": 1e3 + 1e-2 * np.random.default_rng(0).normal(size=(20, 2)),
            "count": np.arange(20, dtype=np.int32)[:, None],
            "is_open": (np.arange(20) % 2 == 0)[:, None],
        },
        fps=10,
        embodiment="arm",
    )
    entry = {"key_type": "action_keys", "horizon": 4, "mask": True}
    dtypes = {"place": "float64", "count": "int16", "is_open": "bool"}
    keymap: dict[str, Any] = {"pose": {"zarr_key": "pose", "key_type": "proprio_keys"}}
    keymap |= {key: {**entry, "zarr_key": key, "dtype": one} for key, one in dtypes.items()}
    keymap["plain"] = {**entry, "zarr_key": "place"}
    return MultiDataset.from_folder(folder, KeyMap.from_config(keymap))


def test_predictions_have_the_dtypes_of_samples(far: MultiDataset) -> None:
    specs = describe({"arm": far})
    assert specs["arm"].recorded == {
        "place": RecordedAction((4, 2), "float64"),
        "count": RecordedAction((4, 1), "int16"),
        "is_open": RecordedAction((4, 1), "bool"),
        "plain": RecordedAction((4, 2), "float32"),
    }
    normalizer = Normalizer(NormStats.compute(far))
    policy = policy_of(specs, normalizer=normalizer)
    batch = collate([far[3], far[18]])
    for one in (policy, reloaded(policy)):
        made = one.predict("arm", batch)
        assert {key: value.dtype for key, value in made.items()} == {
            key: batch[key].dtype for key in specs["arm"].recorded
        }
        raw = policy.network("arm", policy.preparation("arm", batch))
        stats = normalizer.stats["arm"]
        for key, off in (("place", 1e-8), ("plain", 1e-4)):
            wanted = raw[key].detach().double().numpy() * stats[key].std + stats[key].mean
            np.testing.assert_allclose(made[key].double().numpy(), wanted, rtol=0, atol=off)
        # Whole numbers and flags are learned as they are.
        assert torch.equal(made["count"], raw["count"].round().to(torch.int16))
        assert torch.equal(made["is_open"], raw["is_open"] > 0.5)


def test_a_spec_comes_back_from_its_plain_form(far: MultiDataset) -> None:
    plain = policy_of(describe({"arm": far})).hparams["specs"]["arm"]
    assert SampleSpec.from_plain(plain) == describe({"arm": far})["arm"]
    assert plain["recorded"]["place"] == {"shape": (4, 2), "dtype": "float64"}


@pytest.mark.parametrize("recorded", [(4, 2), {"shape": (4, 2)}, {"shape": (4, 2), "d": "int8"}, 3])
def test_a_spec_of_another_version_is_refused(recorded: Any) -> None:
    plain = policy_of({"arm": SPEC}).hparams["specs"]["arm"]
    for wrong in (
        {**plain, "recorded": {"arm": recorded}},
        {key: value for key, value in plain.items() if key != "recorded"},
        {**plain, "more": {}},
        3,
    ):
        with pytest.raises(SettingsError, match=r"is made of .*; a checkpoint of another version"):
            ActionChunkPolicy({"arm": wrong}, **SMALL)


@pytest.mark.parametrize("dtype", ["flaot32", "float32; import os", "load", ["int8"], None])
def test_only_dtypes_of_the_keymap_are_known(dtype: Any) -> None:
    plain = policy_of({"arm": SPEC}).hparams["specs"]["arm"]
    wrong = {**plain, "recorded": {"arm": {"shape": (4, 2), "dtype": dtype}}}
    with pytest.raises(SettingsError, match=r"unknown dtype .* of an action; "):
        ActionChunkPolicy({"arm": wrong}, **SMALL)
