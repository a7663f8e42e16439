"""Workers end with the process that started them, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from egoloader import EpisodeWriter
from egoloader.lifeline import end_with_parent
from tests.lerobot_folders import Folder
from tests.writing import HEAD, child_environment

KILLED = """
import os, signal, sys
from egoloader.convert import LeRobotSettings, convert_lerobot
from egoloader.validate import validate_paths

def die(*_):
    # The workers hold this open for as long as they live.
    os.write(1, b"dying")
    os.kill(os.getpid(), signal.SIGKILL)

def die_when_written(event):
    if event.status == "written":
        die()

"""
CODES = {
    "convert": "convert_lerobot('set', 'out', LeRobotSettings(workers=2), "
    "on_progress=die_when_written)",
    "validate": "validate_paths(['episodes'], workers=2, on_progress=die)",
}


def outcome(code: str, folder: Path) -> tuple[int, bytes]:
    """Run code; return its status and what it wrote once all that it started has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED + code],
        cwd=folder,
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            written, _ = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, written


@pytest.mark.parametrize("name", CODES)
def test_a_killed_process_takes_its_workers_along(tmp_path: Path, name: str) -> None:
    Folder(tmp_path / "set", cameras=(), lengths=dict.fromkeys(range(6), 12)).build()
    for number in range(6):
        path = tmp_path / "episodes" / f"{number}.zarr"
        EpisodeWriter.write(path, numeric={"x": np.arange(12)}, **HEAD)
    assert outcome(CODES[name], tmp_path) == (-signal.SIGKILL, b"dying")


def test_the_first_process_has_none_to_end_with() -> None:
    assert multiprocessing.parent_process() is None
    end_with_parent()
