"""What writers that were killed while they replaced an episode leave, and what becomes of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import EpisodeWriter
from egoloader.errors import EpisodeExistsError
from tests.writing import HEAD, same_bytes, stored


def write_number(path: Path, number: int, **options: Any) -> None:
    EpisodeWriter.write(path, numeric={"x": np.full((150, 2), number)}, **options, **HEAD)


def assert_only(path: Path, number: int) -> None:
    assert same_bytes(stored(path, "x"), np.full((150, 2), number))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ep.zarr"


def step_aside(path: Path) -> None:
    """Do what a writer does just before it takes an old episode's place."""
    write_number(path, 1)
    path.rename(path.with_name(".ep.zarr.partial.old0"))
    write_number(path.with_name("new"), 2)
    path.with_name("new").rename(path.with_name(".ep.zarr.partial"))


def half_removed(path: Path) -> None:
    """Do what a writer does that has taken it, and was killed in removing the old one."""
    step_aside(path)
    (path.parent / ".ep.zarr.partial").rename(path)
    old = path.parent / ".ep.zarr.partial.old0"
    (old / "zarr.json").unlink()
    shutil.rmtree(old / "x" / "c")


@pytest.mark.parametrize("leave", [step_aside, half_removed])
def test_the_same_again_leaves_one_new_episode(path: Path, leave: Callable[[Path], None]) -> None:
    leave(path)
    write_number(path, 2, overwrite=True)
    assert_only(path, 2)


def test_an_old_episode_that_had_stepped_aside_comes_back(path: Path) -> None:
    step_aside(path)
    with pytest.raises(EpisodeExistsError, match="pass overwrite=True"):
        write_number(path, 3)
    assert_only(path, 1)


def test_it_stays_where_the_next_writer_fails(path: Path) -> None:
    step_aside(path)
    writer = EpisodeWriter(path, overwrite=True, **HEAD)
    writer.add_frame(numeric={"x": 3})
    writer.discard()
    assert_only(path, 1)


def test_what_was_no_whole_episode_does_not_come_back(path: Path) -> None:
    half_removed(path)
    shutil.rmtree(path)
    write_number(path, 3)
    assert_only(path, 3)


def test_several_old_ones_go(path: Path) -> None:
    half_removed(path)
    for number in (1, 2):
        write_number(path.with_name(f".ep.zarr.partial.old{number}"), number)
    write_number(path, 4, overwrite=True)
    assert_only(path, 4)


def test_another_writer_may_publish_as_one_begins(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir, late = Path.mkdir, list[Path]()

    def make(self: Path, *arguments: Any, **options: Any) -> None:
        if self.name == ".ep.zarr.partial" and not late:
            late.append(self)
            raise FileExistsError(17, "File exists", str(self))  # and is renamed right after
        mkdir(self, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", make)
    write_number(path, 1)
    assert late
    assert_only(path, 1)


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_what_is_no_folder_is_not_taken_for_it(path: Path, tmp_path: Path, kind: str) -> None:
    partial, other = path.with_name(".ep.zarr.partial"), tmp_path / "other"
    if kind == "file":
        partial.touch()
    else:
        partial.symlink_to(other)
    if kind == "link":
        other.mkdir()
        (other / "kept").touch()
    with pytest.raises(OSError, match=r"\.ep\.zarr\.partial"):
        write_number(path, 1)
    assert not other.exists() or (other / "kept").exists()


@pytest.mark.parametrize("ends", ["discard", "close"])
def test_group_metadata_is_the_first_to_go(
    path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """Whatever is left where a removal is cut short must not look like an episode."""
    write_number(path, 1)
    writer = EpisodeWriter(path, overwrite=True, **HEAD)
    writer.add_frame(numeric={"x": 3})
    writer._finish()
    partial, remove = path.with_name(".ep.zarr.partial"), shutil.rmtree
    removed: list[str] = []

    def look(folder: Path, **options: Any) -> None:
        removed.append(folder.name)
        assert not os.path.lexists(folder / "zarr.json")
        remove(folder, **options)

    assert (partial / "zarr.json").is_file()
    monkeypatch.setattr(shutil, "rmtree", look)
    if ends == "discard":
        writer.discard()
        assert removed == [".ep.zarr.partial"]
        return
    writer._finish = lambda: None  # type: ignore[method-assign]
    writer.close()
    assert removed == [".ep.zarr.partial.old0", ".ep.zarr.partial"]
