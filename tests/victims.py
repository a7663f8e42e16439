"""What stands for the work of processes that the system ends; imports little else."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from egoloader.convert.job import EpisodeJob, EpisodeResult, convert_episode
from egoloader.validate import Depth, Finding, validate_episode

__all__ = ["die_on_episode_1", "die_on_victims"]


def die_on_victims(path: Path, name: str, depth: Depth = "full") -> list[Finding]:
    """Look at an episode, or be killed; the others wait until that has come to pass."""
    dying = path.parent / "dying"
    if "victim" in name:
        dying.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + 60
    while not dying.exists() and time.monotonic() < end:
        time.sleep(0.01)
    return validate_episode(path, name, depth)


def die_on_episode_1(job: EpisodeJob, threads: int) -> EpisodeResult:
    """Convert an episode, or be killed."""
    if job.entry.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return convert_episode(job, threads)
