"""What is killed: writers and converters at work; imports little else."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av.subtitles.stream
import av.video.reformatter
import numpy as np
import numpy.ma
import pyarrow.compute
import pyarrow.parquet

from egoloader import EpisodeWriter
from egoloader.convert import LeRobotSettings, convert_lerobot
from tests.lerobot_folders import coded, ramp
from tests.soak.forks import Task

__all__ = [
    "Converting",
    "Leaving",
    "Operations",
    "StoppedBefore",
    "Writing",
    "kill_all",
    "kill_main",
    "kill_worker",
]

# Imported when they are first needed, which would be in the middle of what is watched.
_NEEDED = (av.subtitles.stream, av.video.reformatter, numpy.ma, pyarrow.compute, pyarrow.parquet)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_EVENTS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock"})


@dataclass(frozen=True)
class Writing:
    """Writes `ep.zarr`: numbers, pixels and annotations, frame by frame.

    Attributes:
        folder: where.
        total: frames.
        options: of the writer.
    """

    folder: Path
    total: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> None:
        """Write it."""
        state, action = ramp(self.total, 14), ramp(self.total, 7) + np.float32(0.5)
        spans = [("reach", 0, self.total // 2), ("grasp", self.total // 3, self.total)]
        with EpisodeWriter(
            self.folder / "ep.zarr",
            fps=30,
            embodiment="arm",
            annotations=spans,
            chunk_rows=20,
            **self.options,
        ) as writer:
            for t in range(self.total):
                writer.add_frame(
                    numeric={"obs/state": state[t], "action": action[t]},
                    images={"images.top": coded(t % 64, 96, 128)},
                )


@dataclass(frozen=True)
class Leaving:
    """Leaves what a writer leaves that is killed as it replaces an episode.

    Attributes:
        folder: where.
        totals: frames of the old episode and of the new one.
    """

    folder: Path
    totals: tuple[int, int]

    def __call__(self) -> None:
        """Write both, and hide them as the writer does."""
        names = (".ep.zarr.partial.old0", ".ep.zarr.partial")
        for total in self.totals:
            Writing(self.folder, total)()
            (self.folder / "ep.zarr").rename(self.folder / f"{total}")
        for total, name in zip(self.totals, names, strict=True):
            (self.folder / f"{total}").rename(self.folder / name)


@dataclass(frozen=True)
class Converting:
    """Converts a LeRobot folder; an episode's failure is its own.

    Attributes:
        folder: where to.
        source: the LeRobot folder.
        settings: of the conversion.
    """

    folder: Path
    source: Path
    settings: LeRobotSettings

    def __call__(self) -> None:
        """Convert it."""
        report = convert_lerobot(self.source, self.folder, self.settings)
        if report.failed:
            raise SystemExit(f"failed: {dict(report.failed)}")


@dataclass(frozen=True)
class Operations:
    """Does a task, and writes how many operations changed a folder.

    Attributes:
        folder: those below it, and all whose path can't be told, count.
        task: what is done.
    """

    folder: Path
    task: Task

    def __call__(self) -> None:
        """Do it."""
        seen = _Seen(self.folder)
        sys.addaudithook(seen)
        self.task()
        print(f"operations: {seen.count}")


@dataclass(frozen=True)
class StoppedBefore:
    """Does a task, and is killed before an operation that changes a folder.

    Attributes:
        number: which, from 1.
        folder: as for `Operations`.
        task: what is done.
    """

    number: int
    folder: Path
    task: Task

    def __call__(self) -> None:
        """Do it."""
        sys.addaudithook(_Seen(self.folder, self.number))
        self.task()


class _Seen:
    """An audit hook that counts, and kills its process before operation `last`."""

    def __init__(self, folder: Path, last: int = 0) -> None:
        self.count, self._last, self._folder = 0, last, str(folder)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in _EVENTS or not self._concerns(event, arguments):
            return
        self.count += 1
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)

    def _concerns(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "fcntl.flock" or (event in ("os.remove", "os.rmdir") and arguments[-1] != -1):
            return True  # by handles of files and folders
        if event == "open" and not arguments[2] & _WRITES:
            return False
        return any(str(one).startswith(self._folder) for one in arguments[:2])


def kill_all(child: int) -> None:
    """Kill a child and all that it started."""
    os.killpg(child, signal.SIGKILL)


def kill_main(child: int) -> None:
    """Kill a child alone, without what it started."""
    os.kill(child, signal.SIGKILL)


def kill_worker(child: int) -> None:
    """Kill one of the processes that a child started; where there is none, the child."""
    listed = Path(f"/proc/{child}/task/{child}/children")
    workers = [int(one) for one in listed.read_text().split()] if listed.exists() else []
    os.kill(random.choice(workers) if workers else child, signal.SIGKILL)
