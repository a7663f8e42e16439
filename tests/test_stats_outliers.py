"""Outliers: which frames, as a frame filter of samplers and data modules."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from egoloader import (
    EpisodeDataModule,
    EpisodePoolSampler,
    EpisodeWriter,
    KeyMap,
    MultiDataset,
    NormStats,
    ZarrEpisode,
)
from egoloader.errors import EpisodeFormatError, SampleError, SettingsError, StatisticsWarning
from egoloader.stats import OutlierFilter, Skip
from tests.statistics import ACTION, STATE, noise

#: So few frames lose a large share of them.
pytestmark = pytest.mark.filterwarnings("ignore:embodiment:egoloader.errors.StatisticsWarning")
LENGTHS = (300, 200)
#: By episode, the frames at which a number leaps, and which number.
LEAPS = {"a.zarr": {17: 0, 18: 2, 250: 1}, "b.zarr": {0: 3, 199: 0}}
KEYMAP = KeyMap.from_config({"state": STATE, "action": ACTION})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaps")
    for number, (name, leaps) in enumerate(LEAPS.items()):
        total = LENGTHS[number]
        pose = np.clip(noise(total, 4, number), -2, 8)
        for frame, dim in leaps.items():
            pose[frame, dim] = 1e4
        EpisodeWriter.write(
            folder / name,
            fps=30,
            embodiment="sawyer",
            numeric={"pose": pose, "command": np.zeros((total, 2), np.float32)},
        )
    return folder


def computed(folder: Path, **options: Any) -> NormStats:
    data = MultiDataset.from_folder(folder, KEYMAP)
    return NormStats.compute(data, outliers=("q0.01", "q99"), skip={"state": [3]}, **options)


def outside(folder: Path, stats: NormStats) -> dict[str, npt.NDArray[np.int64]]:
    """Return the frames whose windows hold a row outside the bounds, by the arrays themselves."""
    low = stats["sawyer"]["state"].quantile("q0.01")[:3]
    high = stats["sawyer"]["state"].quantile("q99")[:3]
    found = {}
    for name in LEAPS:
        episode = ZarrEpisode(folder / name)
        pose = np.asarray(episode.read({"pose": [(0, episode.total_frames)]})["pose"][0])[:, :3]
        is_out = ((pose < low) | (pose > high)).any(axis=1)
        held = [is_out[max(0, frame - 2) : frame + 1].any() for frame in range(len(pose))]
        found[name] = np.flatnonzero(held)
    return found


@pytest.mark.parametrize("workers", [1, 2])
def test_frames_outside_are_found_and_reported(folder: Path, workers: int) -> None:
    stats = computed(folder, workers=workers)
    wanted = outside(folder, stats)
    assert {17, 18, 250} <= set(wanted["a.zarr"].tolist())
    assert 199 in wanted["b.zarr"]
    found = stats.outliers
    assert found is not None
    for name, frames in wanted.items():
        kept = found(ZarrEpisode(folder / name))
        np.testing.assert_array_equal(np.flatnonzero(~kept), frames)
    assert found.by_episode == {name: len(frames) for name, frames in wanted.items()}
    assert found.num_outliers == sum(map(len, wanted.values())) == found.by_key["state"]
    assert set(found.by_key) == {"state"}


def test_what_is_left_out_makes_no_outlier(folder: Path) -> None:
    data = MultiDataset.from_folder(folder, KEYMAP)
    stats = NormStats.compute(data, outliers=("q0.01", "q99"), skip=["state"])
    assert stats.outliers is not None
    assert stats.outliers.num_outliers == 0
    assert len(EpisodePoolSampler(data, 10, 2, frame_filter=stats.outliers)) == 50


def test_embodiments_may_have_skips_of_their_own(tmp_path: Path) -> None:
    for name in ("human", "sawyer"):
        write_rows(tmp_path, name, noise(400, 2, 0))
    data = MultiDataset.from_folder(tmp_path, NOW)

    def counts(skip: Skip) -> dict[str, int]:
        found = NormStats.compute(data, outliers=("q0.01", "q99.99"), skip=skip).outliers
        assert found is not None
        return {name: outliers for name, (outliers, _) in found.by_embodiment.items()}

    assert counts({"state": [0]}) == {"human": 2, "sawyer": 2}
    assert counts({"state": [0], "human": {"state": "all"}}) == {"human": 0, "sawyer": 2}
    assert counts({"sawyer": {"state": [0, 1]}}) == {"human": 4, "sawyer": 0}
    with pytest.raises(SettingsError, match="did you mean 'human'"):
        counts({"humn": {"state": [0]}})
    with pytest.raises(SettingsError, match="rows of 'state' have 2 dimensions, and no 2"):
        counts({"sawyer": {"state": [2]}})


def test_samplers_draw_all_others_and_none_of_them(folder: Path) -> None:
    stats = computed(folder)
    data = MultiDataset.from_folder(folder, KEYMAP)
    sampler = EpisodePoolSampler(data, 8, 2, frame_filter=stats.outliers)
    drawn = {(record.name, frame) for batch in sampler for record, frame in map(data.locate, batch)}
    left = outside(folder, stats)
    assert drawn == {
        (name, frame)
        for name, total in zip(LEAPS, LENGTHS, strict=True)
        for frame in range(total)
        if frame not in left[name]
    }


def test_data_modules_take_it(folder: Path) -> None:
    stats = computed(folder)
    module = EpisodeDataModule(
        folder, KEYMAP, batch_size=8, valid_ratio=0, num_threads=1, frame_filter=stats.outliers
    )
    module.setup("fit")
    assert stats.outliers is not None
    drawn = sum(len(batch["sawyer"]["state"]) for batch in module.train_dataloader())
    assert drawn == sum(LENGTHS) - stats.outliers.num_outliers


def test_a_window_that_holds_one_is_one_where_samples_are_looked_at(folder: Path) -> None:
    data = MultiDataset.from_folder(folder, KEYMAP)
    stats = NormStats.compute(
        data, keys=["state"], per_step=["state"], outliers=("q0.01", "q99.99"), skip={"state": [3]}
    )
    assert stats.outliers is not None
    kept = stats.outliers(ZarrEpisode(folder / "a.zarr"))
    for step in range(3):
        bound = stats["sawyer"]["state"].quantile("q99.99")[step, :3]
        is_over = bound < 1e4
        leaps = [f for f, dim in LEAPS["a.zarr"].items() if is_over[dim]]
        assert not any(kept[f + 2 - step] for f in leaps)


def test_frames_that_do_not_count_are_left_out_with_them(folder: Path) -> None:
    stats = computed(folder, frame_filter=first_half)
    assert stats.outliers is not None
    kept = stats.outliers(ZarrEpisode(folder / "a.zarr"))
    assert not kept[150:].any()
    assert kept[:150].sum() == 150 - stats.outliers.by_episode["a.zarr"]


def first_half(episode: ZarrEpisode) -> npt.NDArray[np.bool_]:
    return np.arange(episode.total_frames) < episode.total_frames // 2


def test_it_survives_pickling_and_plain_values(folder: Path) -> None:
    found = computed(folder).outliers
    assert found is not None
    episode = ZarrEpisode(folder / "a.zarr")
    for again in (
        pickle.loads(pickle.dumps(found)),
        copy.deepcopy(found),
        OutlierFilter.from_plain(found.to_plain(), "a file"),
    ):
        assert again == found
        np.testing.assert_array_equal(again(episode), found(episode))
    assert repr(found) == "OutlierFilter(q0.01…q99)"


def test_other_episodes_are_refused(folder: Path, tmp_path: Path) -> None:
    found = computed(folder).outliers
    assert found is not None
    for name, total, message in (("c.zarr", 5, "was not there"), ("a.zarr", 5, "had 300 frames")):
        numbers = {"pose": noise(total, 4, 0), "command": noise(total, 2, 0)}
        path = tmp_path / name
        EpisodeWriter.write(path, numeric=numbers, fps=30, embodiment="sawyer")
        with pytest.raises(EpisodeFormatError, match=f"{message}.*compute the statistics again"):
            found(ZarrEpisode(path))
    data = MultiDataset.from_folder(tmp_path, KEYMAP)
    with pytest.raises((EpisodeFormatError, SampleError), match="compute the statistics again"):
        EpisodePoolSampler(data, 2, 2, frame_filter=found)


def write_rows(folder: Path, embodiment: str, rows: npt.NDArray[Any]) -> None:
    EpisodeWriter.write(
        folder / f"{embodiment}.zarr", numeric={"pose": rows}, fps=30, embodiment=embodiment
    )


NOW = KeyMap.from_config({"state": {"zarr_key": "pose", "key_type": "proprio_keys"}})


@pytest.mark.filterwarnings("error")
def test_an_embodiment_that_loses_many_frames_is_warned_of(tmp_path: Path) -> None:
    write_rows(tmp_path, "human", noise(2000, 1, 0))
    write_rows(tmp_path, "sawyer", noise(100, 20, 0))
    data = MultiDataset.from_folder(tmp_path, NOW)
    with pytest.warns(StatisticsWarning) as met:
        found = NormStats.compute(data, outliers=("q0.01", "q99.99")).outliers
    assert found is not None
    count = found.by_embodiment["sawyer"][0]
    assert 20 < count < 40
    assert found.by_embodiment == {"human": (2, 2000), "sawyer": (count, 100)}
    (said,) = [str(one.message) for one in met]
    assert f"embodiment 'sawyer': {count} of 100 frames ({count}.0%) hold numbers" in said
    assert f"by key 'state' {count}; the quantiles of 'state' are of 100 rows, of which" in said
    assert said.endswith("every dimension: leave numbers out with skip, or go without outliers")
    assert met[0].filename == __file__
    with pytest.warns(StatisticsWarning, match=r"take wider quantiles \(q0.01, q99.99\), leave"):
        NormStats.compute(data, outliers=("q1", "q99.99"))


def test_an_embodiment_that_would_lose_all_frames_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, "human", noise(2000, 1, 0))
    write_rows(tmp_path, "sawyer", np.arange(40, dtype=np.float32)[:, None] % 2)
    keymap = KeyMap.from_config(
        {
            "state": {"zarr_key": "pose", "key_type": "proprio_keys"},
            "action": {"zarr_key": "pose", "key_type": "action_keys", "offsets": [0, 1]},
        }
    )
    data = MultiDataset.from_folder(tmp_path, keymap)
    message = "'sawyer': 40 of 40 frames .*by key 'action' 40, 'state' 20; .* so that none would be"
    with pytest.raises(SettingsError, match=message):
        NormStats.compute(data, outliers=("q0.01", "q50"))
