"""Child processes by `os.fork` alone, and what a process holds open."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

__all__ = ["in_a_fork", "open_below"]


def in_a_fork(task: Callable[[], object], *, limit_s: float = 60.0) -> None:
    """Run a task in a forked child; fail if it raises, or is not done within the limit."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            task()
            status = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, f"the child ended with status {status}"
            return
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail(f"the child is not done after {limit_s} s")


def open_below(folder: Path) -> list[str]:
    """Return the files below a folder that this process has open, as the system lists them."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of the listing itself
            target = link.readlink()
            if target.is_relative_to(folder):
                found.append(target.relative_to(folder).as_posix())
    return sorted(found)
