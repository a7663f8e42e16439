"""Loaders in an interpreter that exits, is interrupted, or forks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import REPO
from tests.threads import LIMIT

#: Batches of one frame, each of which takes 0.1 s to make, in one thread.
SCRIPT = """
import atexit, os, signal, sys, threading, time

begun = []
at = {}  # what happens while a frame is being made
atexit.register(lambda: say("begun", len(begun)))  # the last of all, as it is the first here

from egoloader import EpisodeLoader, KeyMap, KeySpec, ZarrDataset
from egoloader.errors import LoaderError

def say(*words):
    os.write(1, (" ".join(map(str, words)) + chr(10)).encode())  # whole lines, from any thread

def slow(sample):
    begun.append(int(sample["frame_index"]))
    at.pop(begun[-1], lambda: None)()
    time.sleep(0.1)
    return sample

def left():
    return [thread for thread in threading.enumerate() if thread.name.startswith("egoloader")]

keymap = KeyMap({"pose": KeySpec(zarr_key="obs_head_pose", key_type="proprio_keys")})
ds = ZarrDataset(sys.argv[1], keymap, transforms=[slow])
batches = [[k % len(ds)] for k in range(99)]
loader = EpisodeLoader(ds, batch_sampler=batches, num_threads=1, look_ahead=int(sys.argv[2]))
"""
HALF_USED = """
walk = iter(loader)
next(walk)
"""
IN_THE_LOOP = """
for batch in loader:
    say("ready")
    time.sleep(20)
"""
WAITING = """
walk = iter(loader)
next(walk)
threading.Timer(0.05, say, args=["ready"]).start()
for batch in walk:
    pass
"""
CAUGHT_WAITING = """
def interrupt():
    main = threading.main_thread().ident
    while sys._current_frames()[main].f_code is not threading.Condition.wait.__code__:
        time.sleep(0.001)
    signal.pthread_kill(main, signal.SIGINT)

at[2] = interrupt
try:
    for batch in loader:
        pass
except KeyboardInterrupt:
    say(len(left()), "left, again", int(next(iter(loader))["frame_index"]))
"""
CAUGHT = """
try:
    for batch in loader:
        if int(batch["frame_index"]) == 1:
            say("ready")
except KeyboardInterrupt:
    pass
for thread in left():
    thread.join(20)
say(len(left()), "left, again", int(next(iter(loader))["frame_index"]))
"""
FORKED = """
walk = iter(loader)
next(walk)
child = os.fork()
if child == 0:
    try:
        next(walk)
    except LoaderError:
        sys.exit(7 + int(next(iter(loader))["frame_index"]))
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
say("child", status, "frame", int(next(walk)["frame_index"]))
"""


def run(human: Path, code: str, look_ahead: int, *, interrupt: bool) -> tuple[int, str, str]:
    """Run a script, and interrupt it once it says that it is ready."""
    command = [sys.executable, "-c", SCRIPT + code, str(human), str(look_ahead)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=REPO, **pipes) as process:
        try:
            if interrupt:
                assert "ready\n" in iter(process.stdout.readline, "")  # type: ignore[union-attr]
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=2 * LIMIT)
        finally:
            process.kill()  # no harm where it is over
    return process.returncode, out, err


def num_begun(out: str) -> int:
    return int(out.rpartition("begun ")[2])


@pytest.mark.parametrize("look_ahead", [2, 50])
def test_a_half_used_iterator_does_not_hold_up_the_interpreters_exit(
    human: Path, look_ahead: int
) -> None:
    code, out, err = run(human, HALF_USED, look_ahead, interrupt=False)
    assert (code, err) == (0, "")
    assert num_begun(out) < 20  # and not all of those ahead


@pytest.mark.parametrize("script", [IN_THE_LOOP, WAITING], ids=["in the loop", "waiting"])
def test_an_interrupt_ends_the_process(human: Path, script: str) -> None:
    code, out, err = run(human, script, 50, interrupt=True)
    assert code == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert num_begun(out) < 20


def test_an_interrupt_while_it_waits_has_its_threads_ended_when_it_is_caught(human: Path) -> None:
    code, out, err = run(human, CAUGHT_WAITING, 50, interrupt=False)
    assert (code, err) == (0, "")
    assert "0 left, again 0\n" in out


def test_an_interrupt_anywhere_that_is_caught_leaves_a_loader_that_works(human: Path) -> None:
    code, out, err = run(human, CAUGHT, 50, interrupt=True)
    assert (code, err) == (0, "")
    assert "0 left, again 0\n" in out


def test_a_forked_interpreter_exits_as_any_other(human: Path) -> None:
    code, out, err = run(human, FORKED, 3, interrupt=False)
    assert (code, err) == (0, "")
    assert "child 7 frame 1\n" in out
