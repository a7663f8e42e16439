"""Runs the long tests of order and resume: `python -m tests.soak [PART …]`, all without one.

Prints every case. Without a part, it writes `soak.json` and the tables of the results' folder anew.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.result import CountRow, Result, Target, save
from bench.table import write_tables
from tests.soak.kills import KillReport
from tests.soak.parts import KILLS, PARTS, Outcome, run_part

__all__ = ["main", "summarise"]

_RESULTS = Path(__file__).parents[2] / "bench" / "results"
_LIBRARIES = ("egoloader", "numpy", "torch", "lightning")


def main(arguments: Sequence[str]) -> int:
    """Run the parts that the arguments name; return 1 where anything is not as it must be."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--results", type=Path, default=_RESULTS, metavar="DIR")
    given = parser.parse_args(arguments)
    unknown = set(given.parts) - set(PARTS)
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    outcomes: list[Outcome] = []
    # Each in a process of its own: ranks are forked from one that has not trained.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as process:
        for name in given.parts or PARTS:
            start = time.monotonic()
            outcomes += process.submit(run_part, name).result()
            print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    for one in outcomes:
        print(f"{one.who}, {one.case}: {one.tally}")
    if not given.parts:
        save(summarise(outcomes), given.results)
        write_tables(given.results)
    return int(any(one.tally.wrong for one in outcomes))


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
