"""Processes that have imported all they need before they begin, to be killed at any moment.

`python -m tests.soak.forks` forks a child for every task that comes in on its standard input, and
tells on its standard output, one JSON object a line, when the child begins, when it is done, and
how it ended once all that it had started has ended, too.
"""

from __future__ import annotations

import base64
import gc
import json
import multiprocessing.resource_tracker
import os
import pickle
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["LEAD", "Ending", "ForkError", "Forks", "Strike", "Task"]

#: Seconds between a child's word that it begins and its task, and between that and its end.
LEAD = 0.01
_REPO = Path(__file__).parents[2]
_LIMIT = 120

#: Is pickled; what it raises ends the child with status 1.
Task = Callable[[], object]
#: Kills a child, or some of its processes, by its process id, which is also that of their group.
Strike = Callable[[int], None]


class ForkError(RuntimeError):
    """A child could not be watched as it was meant to be."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a child ended.

    Attributes:
        status: the exit status, negative where a signal ended it.
        seconds: from its start to the end of its task; None where it was not done.
        text: what its processes wrote, to either output.
    """

    status: int
    seconds: float | None
    text: str


class Forks:
    """Forks children one after the other; a context manager."""

    def __enter__(self) -> Forks:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.forks"],
            cwd=_REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._left = b""
        return self

    def __exit__(self, *_: object) -> None:
        # What killed children left of their semaphores is cleared up, and told of, at its end.
        self._process.communicate(timeout=_LIMIT)

    def run(self, task: Task) -> Ending:
        """Run a task, undisturbed."""
        return self.kill(task, _LIMIT, _spare)

    def kill(self, task: Task, delay: float, strike: Strike) -> Ending:
        """Run a task, and strike so many seconds behind the start of its child.

        Raises:
            ForkError: there was no sign of life for too long.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(base64.b64encode(pickle.dumps(task)) + b"\n")
        self._process.stdin.flush()
        start = self._tell()
        moment, seconds = start["at"] + delay, None
        while (told := self._hear(moment)) is not None and "status" not in told:
            seconds = told["at"] - start["at"]
        if told is None:
            with suppress(ProcessLookupError, FileNotFoundError):  # it is just ending
                strike(start["pid"])
            told = self._tell()
        if "status" not in told:
            told, seconds = self._tell(), told["at"] - start["at"]
        return Ending(told["status"], seconds, told["text"])

    def _tell(self) -> dict[str, Any]:
        """Return the next line that is told."""
        told = self._hear(time.monotonic() + _LIMIT)
        if told is None:
            raise ForkError(f"nothing was heard of a child for {_LIMIT} s")
        return told

    def _hear(self, moment: float) -> dict[str, Any] | None:
        """Return the next line that is told; None where there is none until some moment."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        while b"\n" not in self._left:
            if not select.select([handle], [], [], max(0.0, moment - time.monotonic()))[0]:
                return None
            part = os.read(handle, 1 << 16)
            if not part:
                raise ForkError("the process that forks the children has ended")
            self._left += part
        line, _, self._left = self._left.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        return told


def _spare(child: int) -> None:
    raise ForkError(f"child {child} is not done within {_LIMIT} s")


def _serve() -> None:
    # It is to outlive the children, whose semaphores it knows.
    multiprocessing.resource_tracker.ensure_running()
    import tests.soak.casualties  # noqa: F401 (what children need, before they begin)

    gc.freeze()  # or children would begin with copying it all
    for line in sys.stdin.buffer:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            _be_child(line, writer)
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            text = output.read().decode(errors="replace")  # ends with the last that holds it
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        _write(1, {"status": status, "text": text})


def _be_child(line: bytes, output: int) -> None:
    """Do a task; never returns."""
    status = 1
    try:
        os.setsid()
        out = os.dup(1)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.close(output)
        task = pickle.loads(base64.b64decode(line))
        _write(out, {"pid": os.getpid(), "at": time.monotonic()})
        time.sleep(LEAD)
        task()
        _write(out, {"at": time.monotonic()})
        time.sleep(LEAD)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _write(handle: int, told: dict[str, Any]) -> None:
    os.write(handle, json.dumps(told).encode() + b"\n")


if __name__ == "__main__":
    _serve()
