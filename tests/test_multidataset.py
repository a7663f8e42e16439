"""Datasets over folders of episodes: choosing episodes, and serving their frames."""

from __future__ import annotations

import pickle
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import EpisodeWriter, KeyMap, KeySpec, MultiDataset, ZarrDataset, collate
from egoloader.errors import (
    AssumedFpsWarning,
    EgoloaderError,
    EpisodeFormatError,
    EpisodeNotFoundError,
    FrameIndexError,
    SampleError,
    SettingsError,
)
from tests.episodes import edit_attrs, edit_json

#: Names and lengths; values tell episodes and frames apart.
EPISODES = {"a/one.zarr": 5, "a/two.zarr": 7, "b/three.zarr": 4}
STATE = KeyMap(
    {
        "state": KeySpec(zarr_key="pose", key_type="proprio_keys", history=3, mask=True),
        "now": KeySpec(zarr_key="pose", key_type="proprio_keys", offsets=[0], mask=True),
        "next": KeySpec(zarr_key="pose", key_type="action_keys", horizon=3, mask=True),
    }
)


def write(path: Path, number: int, total: int, **options: Any) -> Path:
    """Write an episode with pose[t] = 1000 * number + t."""
    pose = (1000 * number + np.arange(total)).astype(np.float32)
    options = {"fps": 30, "embodiment": "human", "task_name": f"task {number}", **options}
    EpisodeWriter.write(path, numeric={"pose": pose}, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number, (name, total) in enumerate(EPISODES.items()):
        write(tmp_path / name, number, total)
    return tmp_path


def names(md: MultiDataset) -> list[str]:
    return [record.name for record in md.episodes]


def test_frames_follow_each_other_episode_by_episode(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    assert len(md) == 16
    assert names(md) == list(EPISODES)
    wanted = [
        (name, frame, 1000.0 * number + frame)
        for number, (name, total) in enumerate(EPISODES.items())
        for frame in range(total)
    ]
    found = [(s["episode"], int(s["frame_index"]), float(s["now"][0])) for s in md]  # type: ignore[attr-defined]
    assert found == wanted


def test_windows_stay_inside_their_episode(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    last, first = md[4], md[5]
    assert last["next"].tolist() == [4, 4, 4]
    assert last["next_is_pad"].tolist() == [False, True, True]
    assert first["state"].tolist() == [1000, 1000, 1000]
    assert first["state_is_pad"].tolist() == [True, True, False]


def test_samples_are_those_of_the_episodes_own_dataset(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    own = ZarrDataset(folder / "a/two.zarr", STATE)
    for frame in range(7):
        sample, wanted = md[5 + frame], own[frame]
        assert list(sample) == list(wanted)
        for key, value in wanted.items():
            if torch.is_tensor(value) and key != "sample_seed":
                assert torch.equal(sample[key], value)
        assert sample["sample_seed"] != wanted["sample_seed"]  # it goes by the episode's name
        assert (sample["episode"], wanted["episode"]) == ("a/two.zarr", "two.zarr")


def test_many_indices_over_many_episodes_keep_order_and_repeats(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    indices = [15, 0, 6, 6, -1, 4, 5]
    found = [float(sample["now"][0]) for sample in md.__getitems__(indices)]
    assert found == [2003, 0, 1001, 1001, 2003, 4, 1000]
    assert list(md.__getitems__([])) == []


@pytest.mark.parametrize("index", [16, -17, 10**9])
def test_only_indices_outside_are_index_errors(folder: Path, index: int) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    with pytest.raises(FrameIndexError, match="16 frames"):
        md[index]
    with pytest.raises(FrameIndexError):
        md.locate(index)


def test_locate_names_episode_and_frame(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    located = [(record.name, frame) for record, frame in map(md.locate, (0, 4, 5, 11, 12, -1))]
    assert located == [
        ("a/one.zarr", 0),
        ("a/one.zarr", 4),
        ("a/two.zarr", 0),
        ("a/two.zarr", 6),
        ("b/three.zarr", 0),
        ("b/three.zarr", 3),
    ]


def test_case_07_one_episode_of_three_by_a_filter(folder: Path) -> None:
    whole = MultiDataset.from_folder(folder, STATE)
    md = MultiDataset.from_folder(folder, STATE, filters={"task_name": "task 1"})
    assert names(md) == ["a/two.zarr"]
    assert len(md) == 7
    for frame in range(7):
        sample, wanted = md[frame], whole[5 + frame]
        assert not sample["now_is_pad"].any()
        for key in STATE.sample_keys:
            assert torch.equal(sample[key], wanted[key])
        assert int(sample["frame_index"]) == frame


def test_case_07_first_and_last_of_three_by_a_filter(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE, filters={"task_name": ["task 0", "task 2"]})
    assert names(md) == ["a/one.zarr", "b/three.zarr"]
    assert [float(sample["now"][0]) for sample in md] == [0, 1, 2, 3, 4, 2000, 2001, 2002, 2003]  # type: ignore[attr-defined]
    assert md[5]["state"].tolist() == [2000, 2000, 2000]


# Choosing.


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    for number in range(10):
        task = "fold" if number % 2 else "pick"
        write(tmp_path / f"ep{number}.zarr", number, 2, task_name=task)
    return tmp_path


def test_case_37_splits_are_disjoint_and_defaults_are_fresh(ten: Path) -> None:
    def choose(**options: Any) -> set[str]:
        return set(names(MultiDataset.from_folder(ten, STATE, **options)))

    train = choose(split="train", valid_ratio=0.2, seed=3)
    valid = choose(split="valid", valid_ratio=0.2, seed=3)
    assert (len(train), len(valid)) == (8, 2)
    assert not train & valid
    assert len(choose(filters={"task_name": "fold"})) == 5
    assert len(choose()) == 10
    assert choose(split="train", seed=3) == train


def test_case_37_a_filter_never_moves_an_episode_between_splits(ten: Path) -> None:
    def choose(**options: Any) -> set[str]:
        return set(names(MultiDataset.from_folder(ten, STATE, valid_ratio=0.5, seed=1, **options)))

    for split in ("train", "valid"):
        whole = choose(split=split)
        for task in ("fold", "pick"):
            kept = choose(split=split, filters={"task_name": task})
            assert kept == {name for name in whole if (int(name[2]) % 2 == 1) == (task == "fold")}


def test_percent_keeps_a_share_of_what_is_left(ten: Path) -> None:
    def choose(**options: Any) -> set[str]:
        return set(names(MultiDataset.from_folder(ten, STATE, split="train", **options)))

    left = choose(filters={"task_name": "fold"})
    kept = choose(filters={"task_name": "fold"}, percent=50)
    assert kept < left
    assert len(kept) == round(0.5 * len(left))
    assert choose(filters={"task_name": "fold"}, percent=50) == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"filters": {"task_name": "sew"}}, "sew"),
        ({"filters": {"task_nam": "fold"}}, "did you mean 'task_name'"),
        ({"split": "test"}, "split"),
        ({"valid_ratio": 1.0}, "valid_ratio"),
        ({"percent": 0}, "percent"),
        ({"image_dtype": "int"}, "image_dtype"),
        ({"missing_chunks": "zero"}, "missing_chunks"),
        ({"split": "valid", "valid_ratio": 0.0}, "valid"),
    ],
)
def test_wrong_options_are_refused_by_name(ten: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        MultiDataset.from_folder(ten, STATE, **options)


def test_a_wrong_folder_is_one_clear_error(tmp_path: Path, folder: Path) -> None:
    for path in (tmp_path / "nothing", folder / "a/one.zarr"):
        with pytest.raises(EpisodeNotFoundError):
            MultiDataset.from_folder(path, STATE)


# Wrong episodes among right ones.


def test_a_broken_episode_is_refused_at_open_by_its_path(folder: Path) -> None:
    edit_attrs(folder / "a/two.zarr", fps=None)
    with pytest.raises(EpisodeFormatError, match=r"a/two\.zarr.*fps"):
        MultiDataset.from_folder(folder, STATE)


def test_a_half_written_episode_is_refused_at_open(folder: Path) -> None:
    edit_attrs(folder / "b/three.zarr", egoloader={"version": 1, "complete": False})
    with pytest.raises(EpisodeFormatError, match=r"b/three\.zarr.*half-written"):
        MultiDataset.from_folder(folder, STATE)


def test_an_episode_without_an_array_is_refused_at_open(folder: Path) -> None:
    write(folder / "c.zarr", 9, 3)
    (folder / "c.zarr/pose").rename(folder / "c.zarr/poze")
    with pytest.raises(EpisodeFormatError, match=r"c\.zarr.*pose.*the copy is incomplete"):
        MultiDataset.from_folder(folder, STATE)


def test_a_short_array_is_refused_at_open(folder: Path) -> None:
    edit_attrs(folder / "a/two.zarr", total_frames=9)
    with pytest.raises(ValueError, match=r"a/two\.zarr.*pose.*7 rows.*9"):
        MultiDataset.from_folder(folder, STATE)


def test_broken_array_metadata_is_refused_at_open(folder: Path) -> None:
    edit_json(folder / "a/two.zarr/pose/zarr.json", lambda metadata: metadata.pop("codecs"))
    with pytest.raises(EpisodeFormatError, match=r"a/two\.zarr.*pose.*codecs"):
        MultiDataset.from_folder(folder, STATE)


def test_a_filtered_out_episode_may_lack_arrays(folder: Path) -> None:
    write(folder / "c.zarr", 9, 3, embodiment="sawyer")
    (folder / "c.zarr/pose").rename(folder / "c.zarr/poze")
    md = MultiDataset.from_folder(folder, STATE, filters={"embodiment": "human"})
    assert len(md) == 16


def test_absent_fps_is_one_warning_a_dataset_whatever_the_number(folder: Path) -> None:
    for name in ("a/one.zarr", "b/three.zarr"):
        edit_attrs(folder / name, fps=...)
    with pytest.warns(AssumedFpsWarning, match="2 episodes.*30") as caught:
        md = MultiDataset.from_folder(folder, STATE)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert {float(sample["fps"]) for sample in md} == {30.0}  # type: ignore[attr-defined]


def test_episodes_of_several_rates_keep_their_own(tmp_path: Path) -> None:
    lag = KeyMap({"past": KeySpec(zarr_key="pose", key_type="proprio_keys", lag_s=0.2)})
    for number, fps in enumerate((10, 30, 50)):
        write(tmp_path / f"{number}.zarr", number, 20, fps=fps)
    md = MultiDataset.from_folder(tmp_path, lag)
    found = [(float(md[20 * n + 15]["past"]), float(md[20 * n + 15]["fps"])) for n in range(3)]
    assert found == [(13, 10), (1009, 30), (2005, 50)]


# Embodiments.


@pytest.fixture
def mixed(folder: Path) -> Path:
    EpisodeWriter.write(
        folder / "arm.zarr",
        numeric={"joints": np.arange(6, dtype=np.float32)[:, None]},
        fps=20,
        embodiment="sawyer",
    )
    return folder


JOINTS = KeyMap({"joints": KeySpec(zarr_key="joints", key_type="proprio_keys")})


def test_each_embodiment_has_its_own_keymap(mixed: Path) -> None:
    md = MultiDataset.from_folder(mixed, {"human": STATE, "sawyer": JOINTS})
    assert md.embodiments == ("human", "sawyer")
    keys = {sample["embodiment"]: set(sample) for sample in md}  # type: ignore[attr-defined]
    assert "joints" in keys["sawyer"]
    assert "state" in keys["human"]
    arm = md.of_embodiment("sawyer")
    assert [float(sample["joints"][0]) for sample in arm] == list(range(6))  # type: ignore[attr-defined]
    with pytest.raises(SettingsError, match="did you mean 'sawyer'"):
        md.of_embodiment("sawyr")


def test_an_embodiment_without_a_keymap_is_refused_by_name(mixed: Path) -> None:
    with pytest.raises(SettingsError, match="'sawyer'"):
        MultiDataset.from_folder(mixed, {"human": STATE})
    md = MultiDataset.from_folder(mixed, {"human": STATE}, filters={"embodiment": "human"})
    assert md.embodiments == ("human",)


@pytest.mark.parametrize("wrong", [{}, {"human": {}}, None, {"state": STATE["state"]}])
def test_what_is_no_keymap_is_refused(folder: Path, wrong: Any) -> None:
    with pytest.raises(SettingsError):
        MultiDataset.from_folder(folder, wrong)


def test_an_optional_array_that_some_episodes_lack_batches(mixed: Path) -> None:
    keymap = KeyMap(
        {
            "pose": KeySpec(
                zarr_key="pose", key_type="action_keys", horizon=2, optional=True, shape=()
            ),
            "joints": KeySpec(
                zarr_key="joints", key_type="proprio_keys", optional=True, shape=(1,)
            ),
        }
    )
    md = MultiDataset.from_folder(mixed, keymap)
    batch = collate(md.__getitems__([0, 12, 21]))
    by_name = {name: n for n, name in enumerate(batch["episode"])}
    assert batch["pose"].shape == (3, 2)
    arm = by_name["arm.zarr"]
    assert not batch["pose"][arm].any()
    assert batch["pose_is_pad"].all(dim=1).tolist() == [n == arm for n in range(3)]
    assert batch["joints_is_pad"].tolist() == [n != arm for n in range(3)]


# Settings, pickling, handles.


def at_frame_3(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["frame_index"]) == 3:
        [][3]
    return sample


def test_case_29_an_index_error_inside_names_episode_and_frame(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE, transforms=[at_frame_3])
    walk = iter(md)
    assert [int(next(walk)["frame_index"]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SampleError, match=r"a/one\.zarr.*frame 3"):
        next(walk)
    with pytest.raises(IndexError):
        md[len(md)]


def test_datasets_pickle_as_paths_and_settings(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE, transforms=[at_frame_3])
    fresh = len(pickle.dumps(md))
    md.__getitems__([0, 5, 14])
    assert len(pickle.dumps(md)) == fresh
    again = pickle.loads(pickle.dumps(md))
    assert names(again) == names(md)
    assert [float(sample["now"][0]) for sample in again.__getitems__([0, 5, 14])] == [0, 1000, 2002]
    with pytest.raises(SampleError):
        again[3]


def test_at_most_so_many_episodes_stay_open(ten: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("egoloader.dataset.MAX_OPEN_EPISODES", 3)
    md = MultiDataset.from_folder(ten, STATE)
    for indices in ([0, 2, 4, 6, 8, 10], [1, 19, 7], list(range(20))):
        found = [float(sample["now"][0]) for sample in md.__getitems__(indices)]
        assert found == [1000 * (i // 2) + i % 2 for i in indices]
        assert [len(handles) for handles in md._handles.values()] == [3]


def test_an_episode_that_goes_away_is_an_error_of_ours(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, STATE)
    (folder / "a/two.zarr").rename(folder / "gone.zarr")
    assert float(md[0]["now"][0]) == 0
    with pytest.raises(EgoloaderError, match=r"a/two\.zarr"):
        md[6]
