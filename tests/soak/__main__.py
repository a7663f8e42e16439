"""Runs the long tests: `python -m tests.soak [NAME …]`, all without one.

A name is that of a part of the tests of order and resume, of "soak" for all of these, or of a test
with a result of its own. Prints every case. What ran as a whole is written to its JSON file, and
the tables of the results' folder anew.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TypeVar

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.result import CountRow, Result, Target, save
from bench.table import write_tables
from tests.soak.kills import KillReport
from tests.soak.parts import KILLS, PARTS, Outcome, run_part
from tests.soak.reports import REPORTS, run_report

__all__ = ["main", "summarise"]

_RESULTS = Path(__file__).parents[2] / "bench" / "results"
_LIBRARIES = ("egoloader", "numpy", "torch", "lightning")
#: All parts of the tests of order and resume.
_ORDER = "soak"
_T = TypeVar("_T")


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments name; return 1 where anything is not as it must be."""
    known = [*PARTS, _ORDER, *REPORTS]
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(known)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    results: list[Result] = []
    is_bad = False
    for name in given.names or [_ORDER, *REPORTS]:
        if name in REPORTS:
            results.append(_in_a_process(run_report, name))
            continue
        outcomes = [one for part in _parts(name) for one in _in_a_process(run_part, part)]
        for one in outcomes:
            print(f"{one.who}, {one.case}: {one.tally}")
        is_bad |= any(one.tally.wrong for one in outcomes)
        if name == _ORDER:
            results.append(summarise(outcomes))
    return int(_publish(results, given.results) or is_bad)


def _parts(name: str) -> list[str]:
    return list(PARTS) if name == _ORDER else [name]


def _in_a_process(run: Callable[[str], _T], name: str) -> _T:
    """Run one in a process of its own: ranks are forked from one that has not trained."""
    start = time.monotonic()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        result = process.submit(run, name).result()
    print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    return result


def _publish(results: Sequence[Result], folder: Path) -> bool:
    """Write results and the tables; return whether one misses a target."""
    for result in results:
        save(result, folder)
        for target in result.targets:
            wanted = f"{target.figure.median:g}, wanted {target.sense} {target.bound:g}"
            print(f"{result.name}, {target.what}: {wanted}{'' if target.is_met else ' MISSED'}")
    if results:
        write_tables(folder)
    return not all(target.is_met for result in results for target in result.targets)


def summarise(outcomes: Sequence[Outcome]) -> Result:
    """Return what came of all parts as a result of the benches."""
    killed = next(one.kills for one in outcomes if one.kills is not None)
    wrong = sum(one.tally.wrong for one in outcomes)
    inside = sum(kill.is_inside for kill in killed.kills)
    return Result(
        name="soak",
        question=(
            "Does a run that was saved anywhere go on as if nothing had happened? Resumes: how "
            "often something went on from a saved position. Batches: how many were compared behind "
            "them with those of a run that was not interrupted (draws, for the pool). Wrong: how "
            "many of them were others, were missing or too many."
        ),
        machine=describe_machine(_LIBRARIES),
        settings=_describe_kills(killed),
        targets=(
            _target("wrong batches", wrong, "at most", 0),
            _target("kills of a Lightning run at random moments", len(killed.kills), "at least",
                    KILLS),
            _target("kills that landed inside an epoch", inside, "at least", 1),
        ),
        counts=tuple(_row(one) for one in outcomes),
        figures=(),
    )  # fmt: skip


def _describe_kills(report: KillReport) -> dict[str, object]:
    return {
        "kills": [
            f"in epoch {one.epoch} behind {one.done} of {one.size} batches, {one.lost} of them "
            f"behind the newest checkpoint{', which was half written' if one.is_torn else ''}"
            for one in report.kills
        ],
    }


def _row(one: Outcome) -> CountRow:
    tally = one.tally
    counts = {"resumes": tally.resumes, "batches": tally.batches, "wrong": tally.wrong}
    return CountRow(one.case, one.who, counts, {})


def _target(what: str, count: int, sense: str, bound: int) -> Target:
    value = float(count)
    return Target(what, Spread(value, value, value), sense, bound)  # type: ignore[arg-type]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
