"""The long run, as a result of the benches: how many of each class and base came to what."""

from __future__ import annotations

import collections
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.machine import describe_machine
from bench.pairing import Spread
from bench.result import CountRow, Result, Target
from tests.fuzz.bases import BASES
from tests.fuzz.case import Outcome, cases
from tests.fuzz.memory import GROWTH
from tests.fuzz.mutations import CLASSES
from tests.fuzz.outcomes import REACHED, Verdict
from tests.fuzz.worker import LIMIT, run_cases

__all__ = ["fuzz_report", "summarise_fuzz"]

#: Episodes of each class.
PER_CLASS = 1755
_LIBRARIES = ("egoloader", "numpy", "zarr", "numcodecs", "simplejpeg")
_QUESTION = (
    "What comes of broken and hostile episodes? Good episodes of several layouts are mutated, "
    "opened, and read frame by frame, by batches, by threads, and by validation. Right: every "
    "frame that was served holds what was recorded, or what zarr-python and a strict JPEG decoder "
    "read from the mutated store. Refused: an error of the project's that names the episode, the "
    "array and, where one is to blame, the bytes or the frame; an episode counts where the first "
    "of its frames was refused, and what was served of the others is right. Wrong: any other value "
    "or error, more than the time or the memory below, or the end of the process."
)


def fuzz_report(root: Path) -> Result:
    """Run the long form in an empty folder; print what is wrong."""
    lanes = min(2, len(os.sched_getaffinity(0)))
    outcomes = []
    for outcome in run_cases(root, cases(PER_CLASS), lanes):
        outcomes.append(outcome)
        if outcome.judgement.verdict is Verdict.WRONG:
            print(f"{outcome.case}: {outcome.what}: {outcome.judgement.why}", flush=True)
    return summarise_fuzz(outcomes)


def summarise_fuzz(outcomes: Sequence[Outcome]) -> Result:
    """Return what came of all cases as a result of the benches."""
    of_class = collections.Counter(one.case.kind for one in outcomes)
    wrong = sum(one.judgement.verdict is Verdict.WRONG for one in outcomes)
    reached = sum(one.judgement.verdict in REACHED for one in outcomes)
    slowest = max(outcomes, key=lambda one: one.seconds)
    largest = max(outcomes, key=lambda one: one.peak)
    return Result(
        name="fuzz",
        question=_QUESTION,
        machine=describe_machine(_LIBRARIES),
        settings={
            "slowest": f"{slowest.case}, {slowest.seconds:.2f} s",
            "largest": f"{largest.case}, {largest.peak / 2**20:.0f} MiB",
            "run_again": "python -m tests.fuzz BASE CLASS SEED",
        },
        targets=(
            _target("mutated episodes", len(outcomes), "at least", 10_000),
            _target("of the class with fewest", min(of_class.values()), "at least", 1000),
            _target("wrong", wrong, "at most", 0),
            _target("% that reached chunk decoding", 100 * reached / len(outcomes), "at least", 30),
            _target("s of the slowest episode", slowest.seconds, "at most", LIMIT),
            _target("MiB that the largest added", largest.peak / 2**20, "at most", GROWTH / 2**20),
        ),
        counts=tuple(_rows(outcomes)),
        figures=(),
    )


def _rows(outcomes: Iterable[Outcome]) -> Iterable[CountRow]:
    verdicts = {(kind, base): collections.Counter[Verdict]() for kind in CLASSES for base in BASES}
    for one in outcomes:
        verdicts[one.case.kind, one.case.base][one.judgement.verdict] += 1
    for (kind, base), its in verdicts.items():
        counts = {"episodes": its.total(), **{one.value: its[one] for one in Verdict}}
        yield CountRow(kind, base, counts, {})


def _target(what: str, figure: float, sense: str, bound: float) -> Target:
    value = float(figure)
    return Target(what, Spread(value, value, value), sense, bound)  # type: ignore[arg-type]
