"""What a run normalises by: its training episodes, and the frames that it draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from egoloader import EpisodeDataModule, EpisodeWriter, KeyMap, ZarrEpisode
from egoloader.errors import EgoloaderError, SettingsError
from egoloader.train.normalization import Normalization

#: So few frames lose a large share of them.
pytestmark = pytest.mark.filterwarnings("ignore:embodiment:egoloader.errors.StatisticsWarning")
KEYMAP = KeyMap.from_config(
    {
        "state": {"zarr_key": "state", "key_type": "proprio_keys"},
        "action": {"zarr_key": "action", "key_type": "action_keys", "horizon": 3, "mask": True},
    }
)


@pytest.fixture(scope="module")
def arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four episodes; frame 7 of the first lies far outside."""
    folder = tmp_path_factory.mktemp("arms")
    for place in range(4):
        rows = np.random.default_rng(place).normal(size=(40, 2)).astype(np.float32)
        rows[7] = 1000.0 if place == 0 else rows[7]
        good = np.ones(40, dtype=np.bool_)
        good[30:] = False
        EpisodeWriter.write(
            folder / f"{place}.zarr",
            numeric={"state": rows, "action": rows, "good": good},
            fps=10,
            embodiment="arm",
        )
    return folder


def module(folder: Path, **options: Any) -> EpisodeDataModule:
    return EpisodeDataModule(folder, KEYMAP, batch_size=4, num_threads=1, **options)


def drawn(data: EpisodeDataModule) -> set[tuple[str, int]]:
    """Return the episodes and frames that an epoch draws."""
    data.setup("fit")
    batches = [step["arm"] for step in data.train_dataloader()]
    return {
        one
        for batch in batches
        for one in zip(batch["episode"], batch["frame_index"].tolist(), strict=True)
    }


def test_validation_episodes_are_not_counted(arms: Path) -> None:
    data = module(arms, valid_ratio=0.5)
    stats = Normalization(mode="zscore").fit(data).stats["arm"]["state"]
    assert stats.count == 80
    assert data.frame_filter is None
    rows = np.concatenate(
        [
            episode.read({"state": [(0, 40)]})["state"][0]
            for episode in data.training_episodes.open_each()
        ]
    )
    assert np.allclose(stats.mean, rows.mean(axis=0))


def test_outliers_are_neither_drawn_nor_are_frames_that_were_left_out(arms: Path) -> None:
    data = module(arms, frame_filter="good", valid_ratio=0.0)
    normalizer = Normalization(outliers=["q1", "q99"]).fit(data)
    assert normalizer.stats["arm"]["state"].count == 4 * 30
    frames = drawn(data)
    assert ("0.zarr", 7) not in frames
    assert 80 < len(frames) < 120
    assert max(frame for _, frame in frames) < 30


@pytest.mark.parametrize("frame_filter", [None, "good"])
def test_frames_that_are_never_drawn_do_not_count(arms: Path, frame_filter: str | None) -> None:
    def weights(episode: ZarrEpisode) -> npt.NDArray[np.float64]:
        at = np.arange(episode.total_frames)
        return np.where(at == 7, 0.0, 1.0 + at) * (not episode.name.startswith("3"))

    data = module(arms, frame_filter=frame_filter, frame_weights=weights, valid_ratio=0.0)
    stats = Normalization(mode="zscore").fit(data).stats["arm"]["state"]
    stop = 40 if frame_filter is None else 30
    rows = [
        np.delete(episode.read({"state": [(0, stop)]})["state"][0], 7, axis=0)
        for episode in data.training_episodes.open_each()
        if not episode.name.startswith("3")
    ]
    assert stats.count == 3 * (stop - 1)
    np.testing.assert_allclose(stats.mean, np.concatenate(rows).mean(axis=0), atol=1e-6)
    assert stats.max.max() < 1000


def test_outliers_and_weights_go_together(arms: Path) -> None:
    data = module(arms, frame_weights="good", valid_ratio=0.0)
    Normalization(outliers=["q1", "q99"]).fit(data)
    frames = drawn(data)
    assert max(frame for _, frame in frames) < 30
    assert ("0.zarr", 7) not in frames


def test_frames_can_be_left_out_until_the_order_is_made(arms: Path) -> None:
    data = module(arms)
    drawn(data)
    with pytest.raises(SettingsError, match="ahead of setup"):
        Normalization(outliers=["q1", "q99"]).fit(data)


def test_no_outliers_leave_all_frames(arms: Path) -> None:
    data = module(arms)
    Normalization().fit(data)
    assert len(drawn(data)) == 3 * 40


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "quantil"}, "did you mean 'quantile'"),
        ({"modes": {"acton": "zscore"}}, "did you mean 'action'"),
        ({"skip": ["acton"]}, "did you mean 'action'"),
        ({"per_step": ["acton"]}, "there are no statistics of 'acton'"),
        ({"outliers": ["q99", "q1"]}, "q99 must lie below q1"),
        ({"workers": 0}, "workers must be a whole number from 1 on"),
    ],
)
def test_what_does_not_fit_is_refused(arms: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(EgoloaderError, match=message):
        Normalization(**options).fit(module(arms))


def test_nothing_given_is_nothing_chosen(arms: Path) -> None:
    settings = Normalization(modes=None, skip=None).fit(module(arms)).settings
    assert settings.to_plain() == {"mode": "quantile", "modes": {}, "skip": {}}
