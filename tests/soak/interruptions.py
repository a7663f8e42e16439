"""SIGKILLs writers and converters at random moments, and before each of their file operations."""

from __future__ import annotations

import random
import re
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.result import CountRow, Result, Target
from tests.soak.casualties import Operations, StoppedBefore
from tests.soak.forks import Ending, Forks
from tests.soak.victims import CONVERTER, WRITER, Victim, victims
from tests.soak.wholeness import (
    Contents,
    contents_of,
    differences,
    episodes_aside,
    episodes_in,
    find_faults,
    stamps_of,
)

__all__ = [
    "Landing",
    "Toll",
    "Trial",
    "interrupt",
    "interruptions_report",
    "stop_everywhere",
]

_LIBRARIES = ("egoloader", "numpy", "av", "pyarrow")
_SEED = 11
_QUESTION = """\
Does SIGKILL ever leave an episode that is not whole, and does the same once more finish it?

Random moments are uniform from just before a run to just behind its end; the other kills come
before each operation that changes the folder: a file opened, a folder made, renamed, removed or
locked. What a kill left: nothing new (*before*), a hidden folder (*mid-write*), some of the
episodes and nothing else (*between*), or all of them (*after*).

*Wrong* is whatever is found then and is not, byte for byte, an episode of an undisturbed run, or
one that was there before; a hidden folder that opens and is neither; and whatever the same command,
run once more, leaves otherwise than an undisturbed run, or writes again though it was whole.\
"""
#: Undisturbed runs, whose median says how long one takes.
_RUNS = 5
#: What a conversion whose worker is killed says of the episodes that it could not write.
_LOST = "a worker process ended abruptly"

Landing = Literal["before", "mid-write", "between", "after"]


@dataclass(frozen=True)
class Toll:
    """What came of a victim's kills.

    Attributes:
        who: the victim.
        case: the victim's.
        landings: how many kills landed where.
        faults: all that was wrong, in words.
    """

    who: str
    case: str
    landings: Mapping[Landing, int]
    faults: tuple[str, ...]

    @property
    def kills(self) -> int:
        """How many there were."""
        return sum(self.landings.values())


class Trial:
    """One victim's undisturbed run, and what kills are held against it.

    Args:
        forks: runs the victim.
        victim: what is killed.
        root: an empty folder.

    Attributes:
        seconds: that an undisturbed run takes.
    """

    def __init__(self, forks: Forks, victim: Victim, root: Path) -> None:
        self._forks, self._victim = forks, victim
        self._folder, self._start = root / "episodes", root / "start"
        self._start.mkdir(parents=True)
        if victim.before is not None:
            _check(forks.run(victim.before(self._start)))
        self._old, self._aside = episodes_in(self._start), episodes_aside(self._start)
        seconds, contents = [], list[Contents]()
        for _ in range(_RUNS):
            ending = _check(forks.run(victim.task(self._prepared())))
            assert ending.seconds is not None
            seconds.append(ending.seconds)
            contents.append(contents_of(self._folder))
        self.seconds = statistics.median(seconds)
        self._contents, self._whole = contents[0], episodes_in(self._folder)
        for other in contents[1:]:
            assert not differences(other, contents[0]), "undisturbed runs must be the same"

    def count_operations(self) -> int:
        """Return how many operations of an undisturbed run change the folder."""
        folder = self._prepared()
        ending = _check(self._forks.run(Operations(folder, self._victim.task(folder))))
        found = re.search(r"operations: (\d+)", ending.text)
        assert found is not None, ending.text
        return int(found[1])

    def kill_at(self, delay: float) -> tuple[Landing, list[str]]:
        """Kill the victim so many seconds behind its start; return where that was, and faults."""
        task = self._victim.task(self._prepared())
        ending = self._forks.kill(task, delay, self._victim.strike)
        landing, faults = self._aftermath()
        if ending.status > 0 and _LOST not in ending.text:
            faults.append(f"it was not killed, and failed: {ending.text[-500:]}")
        return landing, faults

    def kill_before(self, operation: int) -> tuple[Landing, list[str]]:
        """Kill the victim before an operation; return where that was, and faults."""
        folder = self._prepared()
        task = StoppedBefore(operation, folder, self._victim.task(folder))
        ending = self._forks.run(task)
        assert ending.status < 0, f"it was not killed before operation {operation}: {ending}"
        return self._aftermath()

    def _prepared(self) -> Path:
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._start, self._folder)
        return self._folder

    def _aftermath(self) -> tuple[Landing, list[str]]:
        """Look for faults, do the same once more, and look again."""
        landing = self._landing()
        faults = find_faults(self._folder, [self._whole, self._old, self._aside])
        there = episodes_in(self._folder)
        kept = [n for n in there if self._victim.keeps and there[n] == self._whole.get(n)]
        before = {name: stamps_of(self._folder / name) for name in kept}
        ending = self._forks.run(self._victim.task(self._folder))
        refusal = self._victim.refusal
        is_refused = landing == "after" and refusal and refusal in ending.text
        if ending.status and not is_refused:
            faults.append(f"the same once more ends with {ending.status}: {ending.text[-500:]}")
        if text := differences(contents_of(self._folder), self._contents):
            faults.append(f"the same once more leaves a folder that {text}")
        anew = [name for name in kept if stamps_of(self._folder / name) != before[name]]
        faults += [f"{name} was whole, and was written again" for name in anew]
        return landing, faults

    def _landing(self) -> Landing:
        if any(self._folder.glob(".*")):
            return "mid-write"
        there = episodes_in(self._folder)
        if there == self._whole:
            return "after"
        return "before" if there == self._old else "between"


def interrupt(forks: Forks, victim: Victim, root: Path, count: int, seed: int) -> Toll:
    """Kill a victim at random moments, from just before it begins to just behind its end."""
    trial, moments = Trial(forks, victim, root), random.Random(f"{seed} {victim.case}")
    delays = [moments.uniform(0.0, 1.05 * trial.seconds) for _ in range(count)]
    return _toll(victim, [trial.kill_at(delay) for delay in delays])


def stop_everywhere(forks: Forks, victim: Victim, root: Path, every: int = 1) -> Toll:
    """Kill a victim before each, or every so-maniest, operation that changes its folder.

    It must do all in one process, one thing after the other.
    """
    trial = Trial(forks, victim, root)
    ends = [trial.kill_before(n) for n in range(1, 1 + trial.count_operations(), every)]
    return _toll(victim, ends)


def _toll(victim: Victim, ends: Sequence[tuple[Landing, list[str]]]) -> Toll:
    landings = Counter[Landing](landing for landing, _ in ends)
    faults = tuple(f"{where}: {one}" for where, found in ends for one in found)
    return Toll(victim.who, victim.case, landings, faults)


def _check(ending: Ending) -> Ending:
    assert ending.status == 0, f"an undisturbed run ends with {ending.status}: {ending.text}"
    return ending


#: Kills of each victim at random moments.
KILLS = {
    "writer": 55,
    "overwriter": 55,
    "videos": 30,
    "pictures": 15,
    "overwriting": 20,
    "workers": 25,
    "main": 15,
    "worker": 15,
}
#: Those that do all in one process, one thing after the other.
STOPPED = ("writer", "overwriter", "recoverer", "pictures", "overwriting")


def interruptions_report(root: Path) -> Result:
    """Kill all there is to kill, in an empty folder."""
    known = victims(root)
    with Forks() as forks:
        random_tolls = [
            interrupt(forks, known[name], root / f"random-{name}", count, _SEED)
            for name, count in KILLS.items()
        ]
        stopped_tolls = [
            stop_everywhere(forks, known[name], root / f"stopped-{name}") for name in STOPPED
        ]
    return summarise(random_tolls, stopped_tolls)


def summarise(at_random: Sequence[Toll], stopped: Sequence[Toll]) -> Result:
    """Return what came of all kills as a result of the benches."""
    faults = [one for toll in (*at_random, *stopped) for one in toll.faults]

    def count(who: str) -> int:
        return sum(toll.kills for toll in at_random if toll.who == who)

    inside = sum(toll.landings.get("mid-write", 0) for toll in at_random)
    return Result(
        name="interruptions",
        question=_QUESTION,
        machine=describe_machine(_LIBRARIES),
        settings={"seed": _SEED, **({"faults": faults[:20]} if faults else {})},
        targets=(
            _target("wrong", len(faults), "at most", 0),
            _target("kills of writers at random moments", count(WRITER), "at least", 80),
            _target("kills of converters at random moments", count(CONVERTER), "at least", 80),
            _target("of both", count(WRITER) + count(CONVERTER), "at least", 200),
            _target("of these, kills that landed mid-write", inside, "at least", 100),
        ),
        counts=tuple(
            _row(moments, toll)
            for moments, tolls in (("random moments", at_random), ("each operation", stopped))
            for toll in tolls
        ),
        figures=(),
    )


def _row(moments: str, toll: Toll) -> CountRow:
    columns: tuple[Landing, ...] = ("before", "mid-write", "between", "after")
    counts: dict[str, int] = {"kills": toll.kills}
    counts |= {name: toll.landings.get(name, 0) for name in columns}
    counts["wrong"] = len(toll.faults)
    return CountRow(f"{moments}: {toll.case}", toll.who, counts, {})


def _target(what: str, count: int, sense: Literal["at least", "at most"], bound: int) -> Target:
    value = float(count)
    return Target(what, Spread(value, value, value), sense, bound)
