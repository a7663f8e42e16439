"""Fixtures that every test file may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPO = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of recorded episodes; the test is skipped where there is none."""
    folder = Path(os.environ.get("EGOLOADER_REAL", REPO.parent / "shared" / "real"))
    if not (folder / "g1_pick_bottle").is_dir():
        pytest.skip(f"no recorded episodes at {folder} (set EGOLOADER_REAL)")
    return folder
