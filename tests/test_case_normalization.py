"""Case 49: numbers are normalised once, and images by the scale of their statistics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from egoloader import KeyMap, KeySpec, MultiDataset, Normalizer, NormStats, collate
from egoloader.errors import SettingsError
from egoloader.imagestats import ImageStats
from egoloader.normalizer import NormalizerSettings
from egoloader.train.preparation import Preparation
from egoloader.train.spec import SampleSpec
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, jpegs, pictures, ramp

KEYMAP = KeyMap(
    {
        "camera": KeySpec(zarr_key="camera", key_type="camera_keys"),
        "state": KeySpec(zarr_key="state", key_type="proprio_keys", history=3),
        "action": KeySpec(zarr_key="state", key_type="action_keys", horizon=4, mask=True),
    }
)


def write(path: Path, rows: np.ndarray[tuple[int, ...], np.dtype[np.float32]], real: int) -> None:
    """Write an episode whose arrays are longer than it is."""
    group = foreign_group(path, real)
    foreign_numbers(group, "state", rows)
    foreign_bytes(group, "camera", jpegs(pictures(len(rows))))


def test_case_49_numbers_are_normalised_once(tmp_path: Path) -> None:
    write(tmp_path / "one.zarr", np.array([[0.0], [2.0]], dtype=np.float32), 2)
    data = MultiDataset.from_folder(tmp_path, KEYMAP)
    stats = NormStats.compute(data)
    state = stats["human"]["state"]
    assert (state.count, state.mean.tolist(), state.std.tolist()) == (2, [1.0], [1.0])
    normalizer = Normalizer(stats, NormalizerSettings(mode="zscore"))
    preparation = Preparation(
        {"human": SampleSpec({}, {"state": 3}, {"action": (4, 1)})}, normalizer, None, None
    )
    batch = collate([data[0], data[1]])
    prepared = preparation("human", batch)
    assert prepared["state"][:, -1, 0].tolist() == [-1.0, 1.0]
    assert batch["state"][:, -1, 0].tolist() == [0.0, 2.0]
    with pytest.raises(SettingsError, match="prepared"):
        preparation("human", prepared)


def test_case_49_rows_past_the_episode_have_no_part(tmp_path: Path) -> None:
    rows = ramp(300, 2)
    rows[250:] = 0
    write(tmp_path / "padded.zarr", rows, 250)
    stats = NormStats.compute(MultiDataset.from_folder(tmp_path, KEYMAP))["human"]
    for key in ("state", "action"):
        assert stats[key].count == 250
        np.testing.assert_allclose(stats[key].mean, rows[:250].astype(np.float64).mean(axis=0))


@pytest.mark.parametrize("scale", [1.0, 255.0])
def test_case_49_bytes_and_shares_of_white_are_the_same_images(scale: float) -> None:
    stats = ImageStats((0.5 * scale,) * 3, (0.2 * scale,) * 3, scale)
    preparation = Preparation(
        {"human": SampleSpec({"camera": 1}, {}, {"action": (4, 1)})}, None, stats, None
    )
    grey = torch.full((2, 3, 4, 6), 128, dtype=torch.uint8)
    others = {"fps": torch.full((2,), 30.0)}
    as_bytes = preparation("human", {**others, "camera": grey})["camera"]
    as_shares = preparation("human", {**others, "camera": grey / 255})["camera"]
    assert torch.equal(as_bytes, as_shares)
    torch.testing.assert_close(as_bytes, torch.full(grey.shape, (128 / 255 - 0.5) / 0.2))
