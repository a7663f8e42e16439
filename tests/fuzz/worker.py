"""Processes that run cases, so that one that hangs, or ends its process, is seen and bounded."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from queue import SimpleQueue

from tests.fuzz.case import Case, Outcome, Workshop
from tests.fuzz.memory import limit_addresses
from tests.fuzz.outcomes import Judgement, Verdict
from tests.fuzz.probe import Probe, probe

__all__ = ["LIMIT", "Lane", "run_cases"]

#: Seconds that one case may take, a process to make its good episodes, and one to end.
LIMIT, _START, _PATIENCE = 20.0, 120.0, 10.0
# Of a process that has imported all and done nothing: a new one comes at once.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


class Lane:
    """A process that runs one case after the other; a new one where it had to be ended.

    Args:
        root: an empty folder.
        probe: reads an episode; importable by its name.
        limit: seconds that a case may take.
    """

    def __init__(self, root: Path, probe: Probe = probe, limit: float = LIMIT) -> None:
        self._root, self._probe, self._limit = root, probe, limit
        self._numbers = itertools.count()
        self._running: tuple[ForkServerProcess, Connection] | None = None

    def run(self, case: Case) -> Outcome:
        """Run a case."""
        process, connection = self._running or self._start()
        self._running = process, connection
        connection.send(case)
        if not connection.poll(self._limit):
            return self._lost(case, f"it takes more than {self._limit:g} s")
        try:
            outcome: Outcome = connection.recv()
        except EOFError:
            process.join()
            return self._lost(case, f"its process ends with status {process.exitcode}")
        return outcome

    def close(self) -> None:
        """Have the process end."""
        if self._running is not None:
            _, connection = self._running
            connection.send(None)
            self._end(_PATIENCE)

    def _end(self, patience: float) -> None:
        """Wait so many seconds for the process to end by itself, then end it."""
        if self._running is not None:
            process, connection = self._running
            self._running = None
            process.join(patience)
            process.kill()
            process.join()
            connection.close()

    def _start(self) -> tuple[ForkServerProcess, Connection]:
        ours, theirs = _CONTEXT.Pipe()
        root = self._root / str(next(self._numbers))
        process = _CONTEXT.Process(target=_serve, args=(theirs, root, self._probe), daemon=True)
        process.start()
        theirs.close()
        if not (ours.poll(_START) and ours.recv() == "ready"):
            raise RuntimeError(f"a process for cases did not start within {_START:g} s")
        return process, ours

    def _lost(self, case: Case, why: str) -> Outcome:
        self._end(0.0)
        return Outcome(case, "", Judgement(Verdict.WRONG, why), self._limit, 0)


def _serve(connection: Connection, root: Path, probe: Probe) -> None:
    root.mkdir(parents=True)
    workshop = Workshop(root, probe)
    limit_addresses()
    connection.send("ready")
    while (case := connection.recv()) is not None:
        connection.send(workshop.run(case))


def run_cases(root: Path, cases: Sequence[Case], lanes: int) -> Iterator[Outcome]:
    """Run cases in so many processes; yield what comes of each, as they come."""
    found: SimpleQueue[Outcome | None] = SimpleQueue()
    with ThreadPoolExecutor(lanes) as threads:
        running = [
            threads.submit(_run_part, root / f"lane{number}", cases[number::lanes], found)
            for number in range(lanes)
        ]
        left = lanes
        while left:
            outcome = found.get()
            if outcome is None:
                left -= 1
            else:
                yield outcome
        for one in running:
            one.result()


def _run_part(root: Path, cases: Iterable[Case], found: SimpleQueue[Outcome | None]) -> None:
    """Put what comes of each case into the queue, and None behind the last."""
    lane = Lane(root)
    try:
        for case in cases:
            found.put(lane.run(case))
    finally:
        lane.close()
        found.put(None)
