"""Which checkpoint a run goes on from: never a silent start from scratch (case 45)."""

from __future__ import annotations

from pathlib import Path

import pytest

from egoloader.errors import ConfigError
from egoloader.train.checkpoint import find_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).write_bytes(b"weights")


def test_a_file_a_link_and_a_folder_with_a_last_one(folder: Path) -> None:
    write(folder, "epoch0.ckpt", "epoch1.ckpt")
    (folder / "last.ckpt").symlink_to("epoch1.ckpt")
    newest = (folder / "epoch1.ckpt").resolve()
    assert find_checkpoint(str(folder / "epoch0.ckpt")) == (folder / "epoch0.ckpt").resolve()
    assert find_checkpoint(str(folder / "last.ckpt")) == newest
    assert find_checkpoint(str(folder)) == newest


def test_only_an_empty_folder_starts_anew(folder: Path) -> None:
    assert find_checkpoint(str(folder)) is None
    (folder / "notes.txt").write_text("no checkpoint")
    with pytest.raises(ConfigError, match=r"no last.ckpt to go on from; give the path of a .ckpt"):
        find_checkpoint(str(folder))
    (folder / "checkpoints").mkdir()
    write(folder / "checkpoints", "last.ckpt")
    with pytest.raises(ConfigError, match=r"did you mean .*run/checkpoints\?"):
        find_checkpoint(str(folder))
    with pytest.raises(ConfigError, match="there is no such checkpoint"):
        find_checkpoint(str(folder / "nowhere"))


@pytest.mark.parametrize("asked", ["run", "run/last.ckpt"])
def test_a_link_to_itself_is_refused_with_the_way_out(folder: Path, asked: str) -> None:
    write(folder, "epoch3.ckpt", "epoch4.ckpt")
    (folder / "last.ckpt").symlink_to("last.ckpt")
    with pytest.raises(ConfigError) as caught:
        find_checkpoint(str(folder.parent / asked))
    assert "last.ckpt is a link to 'last.ckpt', which leads back to itself" in str(caught.value)
    assert "there are epoch3.ckpt, epoch4.ckpt" in str(caught.value)


def test_links_in_a_ring_are_refused(folder: Path) -> None:
    (folder / "last.ckpt").symlink_to("other.ckpt")
    (folder / "other.ckpt").symlink_to("last.ckpt")
    with pytest.raises(ConfigError, match=r"leads back to itself; give the path of a .ckpt file"):
        find_checkpoint(str(folder))


def test_a_link_that_dangles_is_refused(folder: Path) -> None:
    write(folder, "epoch3.ckpt")
    (folder / "last.ckpt").symlink_to("gone.ckpt")
    with pytest.raises(ConfigError, match=r"'gone.ckpt', which is not there; .* epoch3.ckpt"):
        find_checkpoint(str(folder))


def test_a_last_one_that_is_missing_beside_others_is_refused(folder: Path) -> None:
    write(folder, "epoch3.ckpt", "epoch4.ckpt")
    with pytest.raises(ConfigError, match=r"no last.ckpt to go on from; .* epoch3.ckpt, epoch4"):
        find_checkpoint(str(folder))


def test_a_folder_by_a_checkpoints_name_is_none(folder: Path) -> None:
    (folder / "last.ckpt").mkdir()
    with pytest.raises(ConfigError, match=r"last.ckpt is no file"):
        find_checkpoint(str(folder))
