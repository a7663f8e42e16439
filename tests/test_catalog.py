"""Which episodes a folder holds, and how they are split, filtered and thinned out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrEpisode
from egoloader.catalog import find_episodes, keep_share, matches, split_episodes
from egoloader.errors import EpisodeNotFoundError, FolderNotFoundError, SettingsError
from egoloader.validate import validate_paths
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human

names_of_episodes = st.lists(
    st.text("abcdef/0123456789", min_size=1, max_size=8), min_size=1, max_size=40, unique=True
)


def bare(path: Path, *, zarr_format: int = 3) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    group = foreign_group(path, 3, zarr_format=zarr_format)
    foreign_numbers(group, "a", ramp(3, 1))


# Finding.


def test_episodes_are_found_at_any_depth_sorted(tmp_path: Path) -> None:
    for name in ("b/deep/er/ep.zarr", "a/two.zarr", "a/one.zarr", "plain_name"):
        bare(tmp_path / name)
    bare(tmp_path / "v2.zarr", zarr_format=2)
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "no episodes here").mkdir()
    assert find_episodes(tmp_path) == [
        "a/one.zarr",
        "a/two.zarr",
        "b/deep/er/ep.zarr",
        "plain_name",
        "v2.zarr",
    ]


def test_hidden_folders_are_passed_over(tmp_path: Path) -> None:
    bare(tmp_path / "ep.zarr")
    bare(tmp_path / ".ep.zarr.x.partial")
    bare(tmp_path / ".cache/ep.zarr")
    assert find_episodes(tmp_path) == ["ep.zarr"]


def test_a_group_of_episodes_is_no_episode_itself(tmp_path: Path) -> None:
    zarr.create_group(tmp_path)
    bare(tmp_path / "ep.zarr")
    assert find_episodes(tmp_path) == ["ep.zarr"]


def test_an_episode_whose_arrays_lie_in_subgroups_is_one_episode(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3)
    foreign_numbers(group, "left/pose", ramp(3, 1))
    assert find_episodes(tmp_path) == ["ep.zarr"]


def test_a_link_to_a_folder_above_is_not_walked_for_ever(tmp_path: Path) -> None:
    bare(tmp_path / "a/ep.zarr")
    (tmp_path / "a/loop").symlink_to(tmp_path, target_is_directory=True)
    assert find_episodes(tmp_path) == ["a/ep.zarr"]


def test_where_nothing_is_found_the_error_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    write_human(tmp_path / "one/ep.zarr", 3)
    for path, words in [
        (tmp_path / "nothing", "no folder"),
        (tmp_path / "file", "no folder"),
        (tmp_path / "empty", "no episodes"),
        (tmp_path / "one/ep.zarr", "one episode"),
    ]:
        with pytest.raises(EpisodeNotFoundError, match=words) as caught:
            find_episodes(path)
        assert str(path) in str(caught.value)


def test_an_interrupted_copy_is_named(tmp_path: Path) -> None:
    bare(tmp_path / "whole.zarr")
    write_human(tmp_path / "cut.zarr", 3)
    (tmp_path / "cut.zarr/zarr.json").unlink()
    assert find_episodes(tmp_path) == ["cut.zarr", "whole.zarr"]
    with pytest.raises(EpisodeNotFoundError, match=r"cut\.zarr.*was the copy interrupted"):
        ZarrEpisode(tmp_path / "cut.zarr")
    shutil.rmtree(tmp_path / "cut.zarr")
    assert find_episodes(tmp_path) == ["whole.zarr"]


# Splitting.


@settings(deadline=None, max_examples=50)
@given(
    names=names_of_episodes,
    ratio=st.floats(0, 0.99),
    seed=st.integers(0, 2**31),
    data=st.data(),
)
def test_splits_are_disjoint_complete_seeded_and_blind_to_order(
    names: list[str], ratio: float, seed: int, data: st.DataObject
) -> None:
    def split(listed: list[str], which: Any) -> list[str]:
        return split_episodes(listed, split=which, valid_ratio=ratio, seed=seed)

    train, valid = split(names, "train"), split(names, "valid")
    assert len(valid) == round(ratio * len(names))
    assert set(train) | set(valid) == set(names)
    assert not set(train) & set(valid)
    assert split(names, "all") == sorted(names)
    shuffled = data.draw(st.permutations(names))
    assert split(shuffled, "train") == train == sorted(train)
    assert split(shuffled, "valid") == valid == sorted(valid)


def test_another_seed_splits_otherwise() -> None:
    names = [f"ep{n}" for n in range(40)]
    splits = {
        tuple(split_episodes(names, split="valid", valid_ratio=0.25, seed=seed))
        for seed in range(5)
    }
    assert len(splits) == 5


@pytest.mark.parametrize("ratio", [-0.1, 1.0, 1.5, float("nan"), True, "0.2", None])
def test_a_valid_ratio_outside_0_to_1_is_refused(ratio: Any) -> None:
    with pytest.raises(SettingsError, match="valid_ratio"):
        split_episodes(["a"], split="train", valid_ratio=ratio, seed=0)


@pytest.mark.parametrize("split", ["training", "", None, "Train"])
def test_an_unknown_split_is_refused(split: Any) -> None:
    with pytest.raises(SettingsError, match="split"):
        split_episodes(["a"], split=split, valid_ratio=0.2, seed=0)
    with pytest.raises(SettingsError, match="did you mean 'train'"):
        split_episodes(["a"], split="trian", valid_ratio=0.2, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [None, 0.5, "0", True])
def test_a_seed_is_a_whole_number(seed: Any) -> None:
    with pytest.raises(SettingsError, match="seed"):
        split_episodes(["a"], split="train", valid_ratio=0.2, seed=seed)
    with pytest.raises(SettingsError, match="seed"):
        keep_share(["a"], percent=50, seed=seed)


# A share of what is left.


@settings(deadline=None, max_examples=50)
@given(
    names=names_of_episodes,
    percents=st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)).map(sorted),
    seed=st.integers(0, 99),
)
def test_shares_are_seeded_and_grow_into_each_other(
    names: list[str], percents: list[float], seed: int
) -> None:
    small, large = (keep_share(names, percent=percent, seed=seed) for percent in percents)
    assert len(small) == max(1, round(percents[0] / 100 * len(names)))
    assert set(small) <= set(large) <= set(names)
    assert keep_share(names[::-1], percent=percents[0], seed=seed) == small == sorted(small)
    assert keep_share(names, percent=100, seed=seed) == sorted(names)


@pytest.mark.parametrize("percent", [0, -1, 100.1, float("nan"), True, "50", None])
def test_a_percent_outside_0_to_100_is_refused(percent: Any) -> None:
    with pytest.raises(SettingsError, match="percent"):
        keep_share(["a"], percent=percent, seed=0)


# Filters.


@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, True),
        ({"embodiment": "sawyer"}, True),
        ({"embodiment": "human"}, False),
        ({"embodiment": ["human", "sawyer"]}, True),
        ({"embodiment": ("human",)}, False),
        ({"embodiment": []}, False),
        ({"embodiment": "sawyer", "lab": 3}, True),
        ({"embodiment": "sawyer", "lab": 4}, False),
        ({"embodiment": "saw"}, False),
        ({"lab": [1, 2, 3]}, True),
        ({"operator": "a"}, False),
        ({"setup": {"table": 1}}, True),
    ],
)
def test_filters_are_equality_and_a_list_means_any_of(
    filters: dict[str, Any], wanted: bool
) -> None:
    attrs = {"embodiment": "sawyer", "lab": 3, "setup": {"table": 1}}
    assert matches(attrs, filters) is wanted


def test_what_an_interrupted_copy_leaves_is_found_whatever_it_is_called(tmp_path: Path) -> None:
    for name in ("good", "half"):
        write_human(tmp_path / name, 3)
    (tmp_path / "half/zarr.json").unlink()  # copies in the order of names bring it last
    (tmp_path / "gone.zarr").symlink_to(tmp_path / "nowhere")
    (tmp_path / "stub.zarr").write_text("a large file is kept elsewhere")
    (tmp_path / "notes.txt").write_text("")
    names = ["gone.zarr", "good", "half", "stub.zarr"]
    assert find_episodes(tmp_path) == names
    found = validate_paths([tmp_path], workers=1, depth="metadata")
    assert {one.episode for one in found.findings if one.is_bad} == set(names) - {"good"}
    keymap = KeyMap({"pose": KeySpec(zarr_key="left.obs_ee_pose", key_type="proprio_keys")})
    with pytest.raises(EpisodeNotFoundError, match=r"gone\.zarr"):
        MultiDataset.from_folder(tmp_path, keymap)


def test_a_file_is_no_folder_of_episodes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(FolderNotFoundError, match="this is a file, and no folder"):
        find_episodes(tmp_path / "notes.txt")
