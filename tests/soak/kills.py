"""SIGKILLs a Lightning run at random moments, and has it go on from its newest checkpoint."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.soak.recordings import Shown, show_all, write_recordings
from tests.soak.victim import victims_data

__all__ = ["Kill", "KillReport", "SoakError", "kill_and_resume"]

_REPO = Path(__file__).parents[2]
#: A kill comes up to so many seconds behind the start of training.
_SPAN = 0.7
_LIMIT = 120


class SoakError(RuntimeError):
    """The run could not be watched as it was meant to be."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill.

    Attributes:
        epoch: that the run was in.
        done: its batches that the run had been shown.
        size: batches of the epoch.
        lost: batches that were shown behind the newest checkpoint.
        is_torn: whether the newest checkpoint was half written, so that one before it was taken.
    """

    epoch: int
    done: int
    size: int
    lost: int
    is_torn: bool

    @property
    def is_inside(self) -> bool:
        """Whether it came inside an epoch, not at a boundary of two."""
        return 0 < self.done < self.size


@dataclass(frozen=True, slots=True)
class KillReport:
    """What came of a run that was killed and went on.

    Attributes:
        kills: every kill.
        batches: that the runs showed together, up to the checkpoints that the next went on from.
        wrong: of all batches that were shown, those that an uninterrupted run would not have shown
            there.
        not_once: epochs of which not every frame was served exactly once, up to the checkpoints.
    """

    kills: tuple[Kill, ...]
    batches: int
    wrong: int
    not_once: int


def kill_and_resume(root: Path, count: int, seed: int) -> KillReport:
    """Kill a run `count` times, let it end then, and compare it with one that was not killed.

    Raises:
        SoakError: the run ended before it was killed often enough, or did not start.
    """
    moments = random.Random(seed)
    folder, saves = write_recordings(root / "recordings", "arm", [6] * 8), root / "checkpoints"
    epochs = 3 * count + 1
    whole, size = _uninterrupted(folder, epochs)
    kills, served, wrong = list[Kill](), list[Shown](), 0
    for number in range(count + 1):
        delay = None if number == count else moments.uniform(0.0, _SPAN)
        lines = _train(folder, saves, root / f"{number}.jsonl", epochs, delay)
        start = lines[0]["start"]
        shown = [[tuple(one) for one in line["shown"]] for line in lines[1:]]
        wrong += _count_wrong(start, lines[1:], whole, size)
        kept = start + len(shown) if delay is None else _step(_newest(saves))
        served += shown[: kept - start]
        if delay is not None:
            epoch, done = divmod(start + len(shown), size)
            is_torn = _newest(saves) != _last(saves)
            kills.append(Kill(epoch, done, size, start + len(shown) - kept, is_torn))
    wrong += sum(one != other for one, other in itertools.zip_longest(served, whole))
    return KillReport(tuple(kills), len(served), wrong, _count_not_once(served, size))


def _uninterrupted(folder: Path, epochs: int) -> tuple[list[Shown], int]:
    """Return what a run that nobody kills is shown, and how many batches an epoch has."""
    data = victims_data(folder)
    data.setup("fit")
    loader = data.train_dataloader()
    return [show_all(batch) for _ in range(epochs) for batch in loader], len(loader)


def _train(
    folder: Path, saves: Path, log: Path, epochs: int, delay: float | None
) -> list[dict[str, Any]]:
    """Train from the newest checkpoint on; kill the run so many seconds behind its start, if any.

    Returns:
        The lines of its log.
    """
    newest = _newest(saves)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "tests.soak.victim",
        folder,
        saves,
        log,
        str(epochs),
    ]
    output = log.with_suffix(".txt")
    with (
        output.open("wb") as sink,
        subprocess.Popen(
            [*command, *([] if newest is None else [newest])],
            cwd=_REPO,
            stdout=sink,
            stderr=subprocess.STDOUT,
        ) as run,
    ):
        try:
            end = time.monotonic() + _LIMIT
            while run.poll() is None and not (log.exists() and log.stat().st_size):
                if time.monotonic() > end:
                    raise SoakError(f"the run did not start within {_LIMIT} s; see {output}")
                time.sleep(0.005)
            if delay is None:
                run.wait(_LIMIT)
            else:
                time.sleep(delay)
        finally:
            run.kill()  # no harm where it is over
    if run.returncode != (0 if delay is None else -signal.SIGKILL):
        text = output.read_text()[-2000:]
        raise SoakError(f"the run ended by itself with status {run.returncode}:\n{text}")
    return [json.loads(line) for line in log.read_text().splitlines()]


def _count_wrong(
    start: int, lines: Sequence[Mapping[str, Any]], whole: Sequence[Shown], size: int
) -> int:
    """Count the batches of one run that an uninterrupted one would not have shown there."""
    wrong = 0
    for position, line in enumerate(lines, start):
        shown = [tuple(one) for one in line["shown"]]
        place = (line["epoch"], line["batch"], line["size"])
        is_right = position < len(whole) and shown == whole[position]
        wrong += not (is_right and place == (*divmod(position, size), size))
    return wrong


def _count_not_once(served: Sequence[Shown], size: int) -> int:
    """Count the epochs that do not have every frame exactly once."""
    epochs = [served[start : start + size] for start in range(0, len(served), size)]
    frames = [sorted(one[:2] for batch in epoch for one in batch) for epoch in epochs]
    return sum(one != sorted(set(frames[0])) for one in frames)


def _newest(saves: Path) -> Path | None:
    """Return the newest checkpoint that is whole; a kill may have come while one was written."""
    for checkpoint in sorted(saves.glob("*.ckpt"), key=_step, reverse=True):
        try:
            torch.load(checkpoint, weights_only=True)
        except (RuntimeError, EOFError, pickle.UnpicklingError):
            continue
        return checkpoint
    return None


def _last(saves: Path) -> Path | None:
    return max(saves.glob("*.ckpt"), key=_step, default=None)


def _step(checkpoint: Path | None) -> int:
    """Return how many steps had been taken when a checkpoint was saved."""
    return 0 if checkpoint is None else int(checkpoint.stem.partition("=")[2])
