"""Files that are none, folders without end and names that no path has: errors, and no waiting."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from egoloader import ZarrEpisode
from egoloader.catalog import find_episodes
from egoloader.entryfields import is_array_name
from egoloader.errors import (
    MissingKeyError,
    SettingsError,
)
from egoloader.overview import overview
from egoloader.validate import validate_paths
from tests.episodes import edit_attrs
from tests.hostile import (
    CAMERA,
    KEY,
    bounded,
    everything,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

# What stands in the place of a file.


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


STAND_INS = [pipe, device, loop]
FILES = ["zarr.json", f"{KEY}/zarr.json", f"{KEY}/c/0/0", f"{CAMERA}/c/0"]


@pytest.mark.parametrize("stand_in", STAND_INS)
@pytest.mark.parametrize("file", FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(
    copied: Path, stand_in: Callable[[Path], None], file: str
) -> None:
    (copied / file).unlink()
    stand_in(copied / file)
    refused(everything(copied), "ep.zarr", file.rpartition("/")[2])


@pytest.mark.parametrize("stand_in", STAND_INS)
def test_pipes_and_devices_keep_nobody_from_the_other_episodes(
    copied: Path, stand_in: Callable[[Path], None]
) -> None:
    bad = shutil.copytree(copied, copied.parent / "bad.zarr")
    (bad / "zarr.json").unlink()
    stand_in(bad / "zarr.json")
    stand_in(copied.parent / "beside")

    def look() -> None:
        found = validate_paths([copied.parent], workers=1)
        assert {one.episode for one in found.findings if one.harm == "frames"} == {"bad.zarr"}
        assert [one.name for one in overview(copied.parent)[0]] == ["ep.zarr"]

    bounded(look)


def test_a_huge_file_in_the_place_of_metadata_is_not_read_whole(copied: Path) -> None:
    (copied.parent / "array" / "a").mkdir(parents=True)
    for file in (copied / "zarr.json", copied.parent / "array/zarr.json"):
        file.touch()
        os.truncate(file, 2**40)
    (copied.parent / "array/a/zarr.json").touch()
    os.truncate(copied.parent / "array/a/zarr.json", 2**40)
    refused(lambda: ZarrEpisode(copied), "zarr.json is larger than")

    def look() -> None:
        assert find_episodes(copied.parent) == ["ep.zarr"]

    bounded(look)


# Folders without end.


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * 200).mkdir(parents=True)
    with pytest.raises(SettingsError, match="more than 64 folders lead to"):
        find_episodes(tmp_path)


def test_links_that_lead_on_in_two_ways_each_are_refused(copied: Path) -> None:
    folders = copied.parent.parent / "folders"
    for number in range(50):
        (folders / str(number)).mkdir(parents=True)
        for name in "ab":
            target = folders / str(number + 1) if number < 49 else copied.parent
            (folders / str(number) / name).symlink_to(target)
    refused(lambda: find_episodes(folders / "0"), "ways by links")


def test_arrays_are_listed_however_deep_the_folders_are(copied: Path) -> None:
    edit_attrs(copied, features=...)
    copied.joinpath(*["d"] * 400).mkdir(parents=True)

    def look() -> None:
        sys.setrecursionlimit(300)
        assert CAMERA in ZarrEpisode(copied).keys

    bounded(look)


# Names.

NAMES = ["a\0b", "x" * 300, "\ud800", "a/../../b", "/etc", "..", "a\\b", "", "a//b", "a/", "./a"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_path_in_the_episode_is_that_of_no_array(copied: Path, name: str) -> None:
    assert not is_array_name(name)
    edit_attrs(copied, features={name: {"dtype": "float32", "shape": [7]}})
    episode = ZarrEpisode(copied)
    with pytest.raises(MissingKeyError):
        episode.read({name: [(0, 1)]})
    assert overview(copied)[0][0].problems
    assert not validate_paths([copied], workers=1).is_good
