"""Writers that do what a kill must not find them doing; imports little else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from egoloader.header import STAMP
from egoloader.scratch import ScratchFolder
from tests.soak.forks import Task

__all__ = ["Careless", "Hasty", "Open"]

_BEGIN = ScratchFolder.__init__


@dataclass(frozen=True)
class Hasty:
    """Does a task whose writer publishes before it has written anything."""

    task: Task

    def __call__(self) -> None:
        """Do it, in a process that does nothing else."""
        ScratchFolder.__init__ = _begin_in_the_open  # type: ignore[method-assign]
        ScratchFolder.publish = ScratchFolder._unlock  # type: ignore[method-assign]
        self.task()


def _begin_in_the_open(self: ScratchFolder, target: Path, *, overwrite: bool) -> None:
    _BEGIN(self, target, overwrite=overwrite)
    self.path.rename(target)
    self.path = target


@dataclass(frozen=True)
class Open:
    """Does a task whose writer says first that its episode is complete."""

    task: Task

    def __call__(self) -> None:
        """Do it, in a process that does nothing else."""
        ScratchFolder.__init__ = _begin_complete  # type: ignore[method-assign]
        self.task()


def _begin_complete(self: ScratchFolder, target: Path, *, overwrite: bool) -> None:
    _BEGIN(self, target, overwrite=overwrite)
    attributes = {"total_frames": 1, "embodiment": "arm", STAMP: {"complete": True}}
    group = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
    (self.path / "zarr.json").write_text(json.dumps(group))


@dataclass(frozen=True)
class Careless:
    """Does a task whose writer leaves as it is what one that was killed has left."""

    task: Task

    def __call__(self) -> None:
        """Do it, in a process that does nothing else."""
        ScratchFolder._clear = _leave  # type: ignore[method-assign]
        self.task()


def _leave(self: ScratchFolder) -> None:
    """Leave it."""
