"""Predicted against recorded actions: in the recording's units, padding left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import EpisodeWriter, KeyMap, MultiDataset
from egoloader.errors import SettingsError
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.predictionpicture import Rollout, draw_predictions, roll_out
from egoloader.train.spec import describe
from egoloader.transforms import Rename
from tests.episodes import ramp

TOTAL = 12


class Oracle(ActionChunkPolicy):
    """Predicts what is recorded, and 0.5 more."""

    def predict(self, embodiment: str, observed: Any) -> dict[str, torch.Tensor]:
        assert embodiment == "arm"
        return {key: observed[key].float() + 0.5 for key in self.specs["arm"].recorded}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> MultiDataset:
    folder = tmp_path_factory.mktemp("arms")
    numbers = {"state": ramp(TOTAL, 2), "action": ramp(TOTAL, 3), "points": ramp(TOTAL, 6)}
    numbers["points"] = numbers["points"].reshape(TOTAL, 3, 2)
    EpisodeWriter.write(folder / "a.zarr", numeric=numbers, fps=10, embodiment="arm")
    keymap = KeyMap.from_config(
        {
            "state": {"zarr_key": "state", "key_type": "proprio_keys"},
            **{
                key: {"zarr_key": key, "key_type": "action_keys", "horizon": 4, "mask": True}
                for key in ("action", "points")
            },
        }
    )
    return MultiDataset.from_folder(folder, keymap)


def maker_of(source: MultiDataset, **settings: Any) -> SampleMaker:
    return SampleMaker(next(source.open_each()), source.keymaps["arm"], SampleSettings(**settings))


def test_a_rollout_holds_what_is_recorded_and_predicted(source: MultiDataset) -> None:
    policy = Oracle(describe({"arm": source}), width=8, heads=2, layers=1).eval()
    made = roll_out(policy, maker_of(source), [0, 5, 10])
    assert set(made) == {"action", "points"}
    one = made["points"]
    assert one.recorded.shape == one.predicted.shape == (3, 4, 6)
    assert np.allclose(one.times, np.array([0, 5, 10])[:, None] / 10 + np.arange(4) / 10)
    assert np.array_equal(np.isnan(one.recorded[2, :, 0]), [False, False, True, True])
    assert np.array_equal(one.recorded[1], ramp(TOTAL, 6)[5:9])
    assert np.allclose(made["action"].error, 0.5)


def test_times_are_those_of_the_recording(tmp_path: Path) -> None:
    # Frames 0.1 s apart, then 0.3 s.
    gaps = np.where(np.arange(TOTAL) < 6, 0.1, 0.3)
    stamps = 5.0 + np.cumsum(gaps)
    numbers = {"state": ramp(TOTAL, 2), "action": ramp(TOTAL, 3), "timestamp": stamps}
    EpisodeWriter.write(tmp_path / "a.zarr", numeric=numbers, fps=10, embodiment="arm")
    action = {"zarr_key": "action", "key_type": "action_keys", "mask": True}
    keymap = KeyMap.from_config(
        {
            "state": {"zarr_key": "state", "key_type": "proprio_keys"},
            "counted": {**action, "horizon": 4},
            "late": {**action, "horizon": 4, "latency_s": 0.2},
            "timed": {**action, "rate_hz": 5, "horizon_s": 0.8},
            "spread": {**action, "offsets_s": [-0.2, 0.3]},
        }
    )
    counted = KeyMap({"state": keymap["state"], "counted": keymap["counted"]})
    for one in (counted, keymap):
        source = MultiDataset.from_folder(tmp_path, one)
        policy = Oracle(describe({"arm": source}), width=8, heads=2, layers=1).eval()
        made = roll_out(policy, maker_of(source), [4, 10])
        beyond = stamps[-1] + np.array([0.1, 0.2])  # padded, at the fps of the episode
        wanted = np.stack([stamps[4:8], [*stamps[10:12], *beyond]])
        assert np.allclose(made["counted"].times, wanted, atol=1e-12)
    assert np.allclose(made["late"].times, wanted, atol=1e-12)
    grid = stamps[[4, 10], None] + np.arange(4) / 5
    assert np.allclose(made["timed"].times, grid, atol=1e-12)
    assert np.allclose(made["spread"].times[0], stamps[[2, 7]], atol=1e-12)


def test_padded_steps_are_no_error() -> None:
    recorded = np.array([[[1.0], [np.nan]], [[3.0], [np.nan]]])
    predicted = np.array([[[2.0], [99.0]], [[6.0], [99.0]]])
    assert Rollout(np.zeros((2, 2)), recorded, predicted).error.tolist() == [2.0]


def test_the_picture_is_drawn(source: MultiDataset, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    policy = Oracle(describe({"arm": source}), width=8, heads=2, layers=1).eval()
    draw_predictions(roll_out(policy, maker_of(source), [0, 8]), "arm", tmp_path / "made.png")
    assert (tmp_path / "made.png").read_bytes().startswith(b"\x89PNG")


def test_samples_that_are_transformed_already_are_refused(source: MultiDataset) -> None:
    policy = Oracle(describe({"arm": source}), width=8, heads=2, layers=1).eval()
    maker = maker_of(source, transforms=[Rename(keys=("state",), to=("pose",))])
    with pytest.raises(SettingsError, match="make them without transforms"):
        roll_out(policy, maker, [0])
