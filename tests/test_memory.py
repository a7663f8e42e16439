"""Figures of memory: the system's own, of this process, its children and its container."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from egoloader import memory
from egoloader.memory import Container, Memory, measure_memory

GIB, MIB = 2**30, 2**20


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the system's; `proc` and `cgroup` are in it."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CONTROL_GROUPS", tmp_path / "cgroup")
    return tmp_path


def fill(root: Path, **files: str) -> None:
    """Write files; in their names, `__` stands for `/` and a single `_` for itself."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = "MemTotal:       8388608 kB\nMemFree:  1 kB\nMemAvailable:    2097152 kB\nHugePages:  0\n"


def test_the_machines_and_this_processs_memory(system: Path) -> None:
    fill(system / "proc", meminfo=MEMINFO, self__statm="900 512 300 1 0 800 0\n")
    found = measure_memory()
    assert (found.total, found.available) == (8 * GIB, 2 * GIB)
    assert found.own == 512 * os.sysconf("SC_PAGE_SIZE")
    assert found.container is None


V2 = {"proc__self__cgroup": "0::/pod/box\n", "proc__meminfo": MEMINFO}
BOX = {
    "cgroup__pod__box__memory.max": f"{2 * GIB}\n",
    "cgroup__pod__box__memory.current": f"{GIB}\n",
    "cgroup__pod__box__memory.events": "low 0\noom 5\noom_kill 3\n",
}
POD = {"cgroup__pod__memory.max": f"{GIB}\n", "cgroup__pod__memory.current": "7\n"}
V1 = {
    "proc__meminfo": MEMINFO,
    "proc__self__cgroup": "9:name=systemd:/\n4:cpu,memory:/pod/box\n0::/\n",
    "cgroup__memory__pod__box__memory.limit_in_bytes": f"{2 * GIB}\n",
    "cgroup__memory__pod__box__memory.usage_in_bytes": f"{GIB}\n",
    "cgroup__memory__pod__box__memory.oom_control": "oom_kill_disable 0\noom_kill 3\n",
    # The root's, as the kernel writes that there is none.
    "cgroup__memory__memory.limit_in_bytes": "9223372036854771712\n",
    "cgroup__memory__memory.usage_in_bytes": "1\n",
}
ROOT = {name.replace("__pod__box", ""): text for name, text in BOX.items()}


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        (V2 | BOX, Container(2 * GIB, GIB, 3)),
        (V2 | BOX | POD, Container(GIB, 7, 0)),
        (V2 | ROOT, Container(2 * GIB, GIB, 3)),
        (V2 | BOX | {"cgroup__pod__box__memory.max": "max\n"}, None),
        (V2 | BOX | {"cgroup__pod__box__memory.max": f"{8 * GIB}\n"}, None),
        (V2, None),
        (V1, Container(2 * GIB, GIB, 3)),
        (V1 | {"cgroup__memory__pod__box__memory.limit_in_bytes": "9223372036854771712\n"}, None),
        (BOX, None),
    ],
    ids=["its own", "its parent's", "as root", "none", "all", "unseen", "v1", "v1 none", "unknown"],
)
def test_the_tightest_limit_of_a_container(
    system: Path, files: dict[str, str], wanted: Container | None
) -> None:
    fill(system, **files)
    assert measure_memory().container == wanted


def test_where_the_system_tells_nothing_there_are_no_figures(system: Path) -> None:
    found = dataclasses.replace(measure_memory(), ended=0)
    assert found == Memory(None, None, None, None, (), 0)
    assert str(found) == "no figures of memory are known"


def hold(size: int, pipe: Connection) -> None:
    held = b"x" * size
    pipe.send(len(held))
    pipe.recv()


def test_children_alive_and_ended_are_counted() -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=hold, args=(300 * MIB, theirs))
    child.start()
    try:
        assert ours.recv() == 300 * MIB
        alive = measure_memory()
    finally:
        ours.send(None)
        child.join()
    assert max(alive.children) >= 300 * MIB
    assert alive.own is not None
    assert alive.total is not None
    assert alive.available is not None
    assert 20 * MIB < alive.own < alive.total
    assert 0 < alive.available <= alive.total
    after = measure_memory()
    assert len(after.children) == len(alive.children) - 1
    assert 300 * MIB <= after.ended < after.total  # type: ignore[operator]


def test_figures_in_words() -> None:
    whole = Memory(8 * GIB, GIB, Container(4 * GIB, 3 * GIB, 1), GIB // 2, (GIB, 2 * GIB), 5 * GIB)
    assert str(whole) == (
        "1.00 GiB of 8.00 GiB are available, its container has 3.00 GiB of 4.00 GiB and lost 1 "
        "processes for want of memory so far, this process has 0.50 GiB resident, its 2 child "
        "processes 3.00 GiB, the largest 2.00 GiB, of those that have ended the largest had "
        "5.00 GiB"
    )
    assert str(Memory(None, GIB, None, GIB, (GIB,), 0)) == (
        "this process has 1.00 GiB resident, its 1 child processes 1.00 GiB"
    )
