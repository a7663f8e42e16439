"""What was there and is gone: arrays, chunks, whole episodes. None of it is ever 'absent'."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import MultiDataset, ZarrDataset, ZarrEpisode
from egoloader.cache import ByteCache
from egoloader.catalog import split_episodes
from egoloader.errors import (
    EpisodeFormatError,
    EpisodeNotFoundError,
    MissingChunkError,
    MissingChunkWarning,
    MissingKeyError,
    ReadError,
    SampleError,
    SettingsError,
    WriterError,
)
from egoloader.files import open_files
from tests.entries import POSE, camera, entry, keymap
from tests.episodes import (
    edit_attrs,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
    write_human,
)

TOTAL = 130


@pytest.fixture
def human(tmp_path: Path) -> Path:
    return write_human(tmp_path / "ep.zarr", TOTAL, annotations=[("reach", 0, 60)])


@pytest.mark.parametrize(
    ("lost", "entries", "options"),
    [
        (POSE, {"pose": entry()}, {}),
        (POSE, {"pose": entry(optional=True, shape=(7,))}, {}),
        ("annotations", {"text": entry("annotations", "annotation_keys", optional=True)}, {}),
        ("annotations", {"a": entry("obs_head_pose", "action_keys", horizon=9)}, {"cut": True}),
    ],
)
def test_a_declared_array_that_is_gone_is_lost_not_absent(
    human: Path, lost: str, entries: dict[str, Any], options: dict[str, Any]
) -> None:
    shutil.rmtree(human / lost)
    with pytest.raises(EpisodeFormatError, match="the copy is incomplete") as caught:
        ZarrDataset(human, keymap(**entries), annotation_cutoff=bool(options))[55]
    assert caught.value.key == lost


def test_a_declared_timestamp_that_is_gone_is_lost(human: Path) -> None:
    features = {**ZarrEpisode(human).attrs["features"]}
    features["timestamp"] = {"dtype": "float64", "shape": []}
    edit_attrs(human, features=features)
    with pytest.raises(EpisodeFormatError, match=r"timestamp.*the copy is incomplete"):
        ZarrDataset(human, keymap(pose=entry()))


def test_what_was_never_declared_is_absent(human: Path) -> None:
    ds = ZarrDataset(human, keymap(left=entry("left.gripper", optional=True, shape=(1,))))
    assert bool(ds[3]["left_is_pad"])
    with pytest.raises(MissingKeyError):
        ZarrDataset(human, keymap(left=entry("left.gripper")))


def test_a_group_is_no_array(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 5)
    foreign_numbers(group, "left/pose", ramp(5, 2))
    group.require_group("left")
    with pytest.raises(MissingKeyError, match=r"did you mean 'left/pose'|there are: 'left/pose'"):
        ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("left")))


def foreign(path: Path) -> Path:
    """Write an unsharded array whose first chunk holds zeros and is left out by zarr-python."""
    values = ramp(TOTAL, 7)
    values[:50] = 0
    group = foreign_group(path, TOTAL)
    layout = {"chunks": (50, 7), "config": {"write_empty_chunks": False}}
    foreign_numbers(group, POSE, values, **layout)
    return path


@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
@pytest.mark.parametrize("make", [foreign, lambda path: write_human(path, TOTAL)])
def test_an_episode_out_of_reach_is_never_missing(
    tmp_path: Path, make: Any, missing_chunks: Any
) -> None:
    path = make(tmp_path / "ep.zarr")
    episode = ZarrEpisode(path, missing_chunks=missing_chunks, cache=ByteCache(0))
    episode.read({POSE: [(60, 61)]})
    path.rename(tmp_path / "gone")
    open_files().forget()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ReadError, match="was the episode moved") as caught:
            episode.read({POSE: [(0, 1)]})
        assert not isinstance(caught.value, MissingChunkError)
        with pytest.raises(EpisodeNotFoundError, match="was it moved"):
            episode.read({"obs_head_pose": [(0, 1)]})


def test_changing_the_folder_loses_nothing(human: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(human.parent)
    ds = ZarrDataset(human.name, keymap(pose=entry()))
    md = MultiDataset.from_folder(".", keymap(pose=entry()))
    monkeypatch.chdir(os.sep)
    assert float(ds[7]["pose"][0]) == float(md[7]["pose"][0]) == 7000


def test_a_folder_in_the_place_of_a_chunk_is_a_hole(tmp_path: Path) -> None:
    path = foreign(tmp_path / "ep.zarr")
    chunk = path / POSE / "c/1/0"
    chunk.unlink()
    chunk.mkdir()
    episode = ZarrEpisode(path)
    with pytest.raises(MissingChunkError, match="missing_chunks: fill"):
        episode.read({POSE: [(60, 61)]})


def test_fill_warns_once_a_key_for_all_episodes_of_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        foreign(tmp_path / f"{name}.zarr")
    monkeypatch.setattr("egoloader.dataset.MAX_OPEN_EPISODES", 2)
    md = MultiDataset.from_folder(tmp_path, keymap(pose=entry()), missing_chunks="fill")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = [float(md[number * TOTAL + 3]["pose"][2]) for number in (0, 1, 2, 3) * 2]
    assert found == [0.0] * 8
    assert [warning.category for warning in caught] == [MissingChunkWarning]


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


def run_together(count: int, work: Any) -> None:
    barrier, failures = threading.Barrier(count), []

    def body(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=body, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not failures


@pytest.mark.usefixtures("eager_switching")
def test_threads_on_a_fresh_episode_lose_no_counts(human: Path) -> None:
    for _ in range(20):
        episode = ZarrEpisode(human)
        run_together(6, lambda number, ep=episode: ep.read({POSE: [(number, number + 2)]}))
        assert (episode.counts[POSE].reads, episode.counts[POSE].rows) == (6, 12)


@pytest.mark.usefixtures("eager_switching")
def test_threads_share_the_open_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcde":
        write_human(tmp_path / f"{name}.zarr", 6)
    monkeypatch.setattr("egoloader.dataset.MAX_OPEN_EPISODES", 2)
    md = MultiDataset.from_folder(tmp_path, keymap(pose=entry()))
    found: dict[int, list[float]] = {}

    def work(number: int) -> None:
        order = np.random.default_rng(number).permutation(30).tolist()
        samples = {index: md[index] for index in order}
        found[number] = [float(samples[index]["pose"][0]) for index in range(30)]

    run_together(4, work)
    assert list(found.values()) == [[1000.0 * (index % 6) for index in range(30)]] * 4


def test_timestamps_are_one_row_of_the_one_read(tmp_path: Path) -> None:
    times = np.cumsum(np.random.default_rng(0).uniform(0.02, 0.05, 20_000))
    path = tmp_path / "ep.zarr"
    group = foreign_group(path, 20_000)
    foreign_numbers(group, "timestamp", times, chunks=(100,))
    foreign_numbers(group, "pose", ramp(20_000, 2), chunks=(100, 2))
    entries = keymap(pose=entry("pose"), clock=entry("timestamp", dtype="float64", history=3))
    ds = ZarrDataset(path, entries)
    sample = ds[15_150]
    assert float(sample["timestamp"]) == times[15_150]
    assert sample["clock"].ravel().tolist() == times[15_148:15_151].tolist()
    counts = ds.episode.counts["timestamp"]
    assert (counts.reads, counts.rows, counts.chunks) == (1, 3, 1)


def test_a_transform_that_returns_nothing_is_named(human: Path) -> None:
    def forgets(sample: dict[str, Any]) -> None:
        sample["x"] = 1

    ds = ZarrDataset(human, keymap(pose=entry()), transforms=[forgets])  # type: ignore[list-item]
    with pytest.raises(SampleError, match=r"frame 4.*forgets.*must return the sample"):
        ds[4]


def test_an_optional_camera_has_the_shape_of_its_entry(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3)
    foreign_bytes(group, "images.front_1", jpegs(pictures(3, size=(8, 8))))
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera(optional=True, shape=(16, 24, 3))))
    with pytest.raises(ValueError, match="the JPEG is 8 x 8 pixels"):
        ds[0]


def test_absent_optional_rows_of_json_are_none(human: Path) -> None:
    now = entry("notes", "metadata_keys", optional=True)
    past = entry("notes", "metadata_keys", optional=True, history=2)
    sample = ZarrDataset(human, keymap(now=now, past=past))[5]
    assert (sample["now"], sample["past"]) == (None, [None, None])
    assert sample["past_is_pad"].tolist() == [True, True]


def test_a_filter_on_what_only_the_other_split_has_is_no_typo(tmp_path: Path) -> None:
    for number in range(5):
        attrs = {"attrs": {"success": True}} if number else {}
        write_human(tmp_path / f"{number}.zarr", 3, **attrs)
    names = [f"{number}.zarr" for number in range(5)]
    seeds = range(8)
    assert any(
        split_episodes(names, split="valid", valid_ratio=0.2, seed=seed) == ["0.zarr"]
        for seed in seeds
    )
    for seed in seeds:
        for split in ("train", "valid"):
            options: Any = {"split": split, "seed": seed, "filters": {"success": True}}
            valid = split_episodes(names, split=split, valid_ratio=0.2, seed=seed)
            if valid == ["0.zarr"]:
                with pytest.raises(SettingsError, match="none of the 5 episodes"):
                    MultiDataset.from_folder(tmp_path, keymap(pose=entry()), **options)
            else:
                found = MultiDataset.from_folder(tmp_path, keymap(pose=entry()), **options)
                assert len(found) == 3 * len(set(valid) - {"0.zarr"})
    with pytest.raises(SettingsError, match="did you mean 'success'"):
        MultiDataset.from_folder(tmp_path, keymap(pose=entry()), filters={"succes": True})


def test_an_episode_can_not_be_written_into_another(human: Path) -> None:
    with pytest.raises(WriterError, match="which is an episode itself"):
        write_human(human / "inner.zarr", 3)
