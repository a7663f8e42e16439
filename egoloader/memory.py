"""Who has this machine's memory: figures for a message about a process that the system ended.

Linux tells all of them; elsewhere, what is not known is left out.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Container", "Memory", "measure_memory"]

_PROC, _CONTROL_GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
#: By version of control groups: folder below theirs, and files of limit, use and events.
_FILES = {
    2: ("", "memory.max", "memory.current", "memory.events"),
    1: ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
}


@dataclass(frozen=True, slots=True)
class Container:
    """The control group with the tightest limit that holds this process.

    Attributes:
        limit: bytes that it may have.
        used: bytes that it has, the system's copies of files among them.
        kills: of its processes, those that the system has ended for want of memory so far.
    """

    limit: int
    used: int
    kills: int

    def __str__(self) -> str:
        return (
            f"its container has {_gib(self.used)} of {_gib(self.limit)} and lost {self.kills} "
            "processes for want of memory so far"
        )


@dataclass(frozen=True, slots=True)
class Memory:
    """Figures of one moment, in bytes.

    Attributes:
        total: of the machine; None where it is not known.
        available: of it, for programs; None where it is not known.
        container: None where none has a limit below the machine's memory.
        own: resident of this process; None where it is not known.
        children: resident of each child process that is alive.
        ended: the most that one child process had resident that has ended; 0 where none has.
    """

    total: int | None
    available: int | None
    container: Container | None
    own: int | None
    children: tuple[int, ...]
    ended: int

    def __str__(self) -> str:
        return ", ".join(self._parts()) or "no figures of memory are known"

    def _parts(self) -> Iterator[str]:
        if self.total is not None and self.available is not None:
            yield f"{_gib(self.available)} of {_gib(self.total)} are available"
        if self.container is not None:
            yield str(self.container)
        if self.own is not None:
            yield f"this process has {_gib(self.own)} resident"
        if self.children:
            largest = f", the largest {_gib(max(self.children))}" if self.children[1:] else ""
            yield f"its {len(self.children)} child processes {_gib(sum(self.children))}{largest}"
        if self.ended:
            yield f"of those that have ended the largest had {_gib(self.ended)}"


def measure_memory() -> Memory:
    """Take the figures now; child processes are those that `multiprocessing` has started."""
    # Asking for those alive also takes note of those that have ended.
    children = [_resident(str(one.pid)) for one in multiprocessing.active_children()]
    unit = 1 if sys.platform == "darwin" else 1024
    total, available = _machine()
    return Memory(
        total,
        available,
        _container(total),
        _resident("self"),
        tuple(size for size in children if size is not None),
        resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit,
    )


def _machine() -> tuple[int | None, int | None]:
    found = _numbers(_PROC / "meminfo")
    total, available = found.get("MemTotal:"), found.get("MemAvailable:")
    return (
        None if total is None else total * 1024,
        None if available is None else available * 1024,
    )


def _resident(process: str) -> int | None:
    with suppress(OSError, IndexError, ValueError):  # it has ended, or there is no such file
        pages = int((_PROC / process / "statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return None


def _container(total: int | None) -> Container | None:
    groups = [one for version, path in _groups() for one in _limited(version, path)]
    tightest = min(groups, key=lambda one: one.limit, default=None)
    if tightest is None or (total is not None and tightest.limit >= total):
        return None
    return tightest


def _groups() -> Iterator[tuple[int, Path]]:
    """Yield version and path of the control groups of this process that may limit memory."""
    with suppress(OSError):
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0" or "memory" in controllers.split(","):
                yield 2 if number == "0" else 1, Path(path.lstrip("/"))


def _limited(version: int, path: Path) -> Iterator[Container]:
    """Yield a group and those that it is in, as far as they have a limit and can be seen."""
    folder, limit_file, used_file, events_file = _FILES[version]
    for one in (path, *path.parents):
        group = _CONTROL_GROUPS / folder / one
        with suppress(OSError, ValueError):  # a container sees its own group only, as the root
            limit, used = (int((group / name).read_text()) for name in (limit_file, used_file))
            yield Container(limit, used, _numbers(group / events_file).get("oom_kill", 0))


def _numbers(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines `name number …`; none where there is no such file."""
    with suppress(OSError):
        lines = [line.split() for line in path.read_text().splitlines()]
        return {line[0]: int(line[1]) for line in lines if len(line) > 1 and line[1].isdigit()}
    return {}


def _gib(size: int) -> str:
    return f"{size / 2**30:.2f} GiB"
