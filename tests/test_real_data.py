"""Without the recorded episodes, tests of them skip by name, or fail where they must run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPO

TEST = "tests/test_convert_lerobot.py::TestReal::test_three_found_and_the_rest_missing"


def run_real_test(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run a test on recorded episodes in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rsfE", TEST]
    kept = {name: value for name, value in os.environ.items() if "EGOLOADER" not in name}
    return subprocess.run(
        command, cwd=REPO, env=kept | environment, capture_output=True, text=True, timeout=120
    )


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    return str(tmp_path / "nowhere")


def test_real_tests_skip_by_name_where_there_are_no_episodes(nowhere: str) -> None:
    result = run_real_test(EGOLOADER_REAL=nowhere)
    assert result.returncode == 0, result.stdout
    assert "1 skipped" in result.stdout
    assert f"no recorded episodes at {nowhere} (set EGOLOADER_REAL)" in result.stdout


def test_real_tests_fail_where_they_are_required(nowhere: str) -> None:
    result = run_real_test(EGOLOADER_REAL=nowhere, EGOLOADER_REAL_REQUIRED="1")
    assert result.returncode == 1, result.stdout
    assert "1 error" in result.stdout
    assert f"no recorded episodes at {nowhere} (set EGOLOADER_REAL)" in result.stdout
    assert "skipped" not in result.stdout
