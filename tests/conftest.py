"""Fixtures that every test file may use."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.episodes import HUMAN_FRAMES, write_human

REPO = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode of the human arrays at 10 Hz, with two spans that overlap; not to be changed."""
    path = tmp_path_factory.mktemp("human") / "ep.zarr"
    spans = [("reach", 0, 20), ("grasp", 10, 30)]
    return write_human(path, HUMAN_FRAMES, fps=10, annotations=spans)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of recorded episodes; where there is none, the test skips, or fails in CI."""
    folder = Path(os.environ.get("EGOLOADER_REAL", REPO.parent / "shared" / "real"))
    if not (folder / "g1_pick_bottle").is_dir():
        give_up = pytest.fail if os.environ.get("EGOLOADER_REAL_REQUIRED") else pytest.skip
        give_up(f"no recorded episodes at {folder} (set EGOLOADER_REAL)")
    return folder


@pytest.fixture
def copied(human: Path, tmp_path: Path) -> Path:
    """A good episode, to be changed; its folder holds no other."""
    return Path(shutil.copytree(human, tmp_path / "all" / "ep.zarr"))
