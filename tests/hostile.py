"""Episodes made to do harm: what they are made with, and what their reading is held to.

What could hang, or take all memory, runs in a child with bounds on both.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egoloader import ZarrEpisode
from egoloader.errors import (
    EgoloaderError,
)
from tests.children import in_a_fork
from tests.entries import entry, keymap

Change = Callable[[dict[str, Any]], object]

KEY, CAMERA = "left.obs_ee_pose", "images.front_1"
#: What a child may take in memory beyond what it has when it starts.
SLACK_BYTES = 512 * 2**20


def bounded(task: Callable[[], object], *, extra_bytes: int = SLACK_BYTES) -> None:
    """Run a task in a child that has a minute, and so much memory more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])

    def limited() -> None:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        task()

    in_a_fork(limited)


def refused(task: Callable[[], object], *words: str, extra_bytes: int = SLACK_BYTES) -> None:
    """Assert, in a bounded child, that a task ends in an error of the project's with such words."""

    def attempt() -> None:
        with pytest.raises(EgoloaderError) as caught:
            task()
        message = str(caught.value)
        assert len(message) < 5000
        assert "MemoryError" not in message
        assert all(word in message for word in words), message

    bounded(attempt, extra_bytes=extra_bytes)


def everything(path: Path) -> Callable[[], object]:
    """Return what reads all rows of all arrays of an episode."""

    def read() -> object:
        episode = ZarrEpisode(path)
        return [episode.read({key: [(0, episode.total_frames)]}) for key in episode.keys]

    return read


NEXT = keymap(next=entry(KEY, "action_keys", horizon=4))
