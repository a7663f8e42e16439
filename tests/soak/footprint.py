"""What this process and its children hold, as the system lists it (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

__all__ = ["Counts", "Footprint", "UnsettledError", "settled"]

_PROC, _SHARED = Path("/proc"), "/dev/shm/"
#: Looks in a row that must agree, seconds between two, and seconds that it may take.
_LOOKS, _PAUSE, _LIMIT = 4, 0.02, 20.0


class UnsettledError(RuntimeError):
    """What a process holds goes on changing though nothing is asked of it."""


@dataclass(frozen=True, slots=True)
class Counts:
    """What one process holds.

    Attributes:
        files: open file descriptors.
        threads: of the process.
        segments: of shared memory, mapped or open.
    """

    files: int
    threads: int
    segments: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What this process and its children hold.

    Attributes:
        counts: by process id.
        resident: bytes of this process (RSS).
        proportional: bytes of all that are no file's, what several share divided among them (the
            part of PSS that does not depend on who else has the same libraries loaded).
        regions: of memory that are mapped, of all.
    """

    counts: Mapping[int, Counts]
    resident: int
    proportional: int
    regions: int

    def differences(self, other: Footprint) -> list[str]:
        """Return in words what another footprint has more or fewer of; memory left out."""
        if self.counts.keys() != other.counts.keys():
            return [f"processes {sorted(self.counts)}, then {sorted(other.counts)}"]
        return [
            f"process {pid}: {before} {field.name}, then {after}"
            for pid in self.counts
            for field in fields(Counts)
            if (before := getattr(self.counts[pid], field.name))
            != (after := getattr(other.counts[pid], field.name))
        ]


def settled() -> Footprint:
    """Return what is held when nothing changes any more: threads end, and workers let go, late.

    Raises:
        UnsettledError: it goes on changing.
    """
    end = time.monotonic() + _LIMIT
    looks = [_counts()]
    while len(looks) < _LOOKS or any(one != looks[-1] for one in looks[-_LOOKS:]):
        if time.monotonic() > end:
            raise UnsettledError(f"in {_LIMIT:g} s it is never the same: {looks[-_LOOKS:]}")
        time.sleep(_PAUSE)
        looks.append(_counts())
    memory = {pid: _memory(pid) for pid in looks[-1]}
    return Footprint(
        looks[-1],
        memory[os.getpid()]["Rss"],
        sum(one["Pss_Anon"] + one["Pss_Shmem"] for one in memory.values()),
        sum(len(_maps(pid)) for pid in looks[-1]),
    )


def _counts() -> dict[int, Counts]:
    found = {}
    for pid in [os.getpid(), *_children()]:
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            found[pid] = _counts_of(pid)
    return found


def _counts_of(pid: int) -> Counts:
    folder = _PROC / str(pid)
    files = list(_open_files(pid))
    mapped = {line.split(maxsplit=5)[-1] for line in _maps(pid) if _SHARED in line}
    segments = mapped.union(path for path in files if path.startswith(_SHARED))
    return Counts(len(files), len(list((folder / "task").iterdir())), len(segments))


def _open_files(pid: int) -> Iterator[str]:
    folder = _PROC / str(pid) / "fd"
    for link in list(folder.iterdir()):
        with suppress(FileNotFoundError):  # that of the listing itself
            yield str(link.readlink())


def _maps(pid: int) -> list[str]:
    return (_PROC / str(pid) / "maps").read_text().splitlines()


def _memory(pid: int) -> dict[str, int]:
    """Return bytes by the system's name for them; a child that has ended has none."""
    found = {"Rss": 0, "Pss_Anon": 0, "Pss_Shmem": 0}
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = (_PROC / str(pid) / "smaps_rollup").read_text().splitlines()[1:]
        found |= {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return found


def _children() -> list[int]:
    """Return the processes that this one is the parent of, zombies too."""
    own, found = str(os.getpid()), []
    for path in _PROC.iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if path.name.isdigit() and _parent(path) == own:
                found.append(int(path.name))
    return sorted(found)


def _parent(process: Path) -> str:
    # The name in parentheses may hold spaces.
    return (process / "stat").read_text().rpartition(")")[2].split()[1]
