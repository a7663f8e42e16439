"""Runs one case again: `python -m tests.fuzz BASE CLASS SEED`; `--keep DIR` leaves its episode."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.bases import BASES
from tests.fuzz.case import Case, Workshop
from tests.fuzz.memory import limit_addresses
from tests.fuzz.mutations import CLASSES
from tests.fuzz.outcomes import Verdict
from tests.fuzz.probe import probe

__all__ = ["main"]


def main(arguments: Sequence[str]) -> int:
    """Run the case that the arguments name, show what comes of it; return 1 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("base", choices=list(BASES))
    parser.add_argument("kind", choices=list(CLASSES), metavar="class")
    parser.add_argument("seed", type=int)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="copy the episode there")
    given = parser.parse_args(arguments)
    case = Case(given.base, given.kind, given.seed)
    with tempfile.TemporaryDirectory() as root:
        workshop = Workshop(Path(root), probe)
        mutation = workshop.mutation(case)
        print(f"{case}: {mutation.what}")
        if given.keep is not None:
            shutil.copytree(workshop.place(case, mutation), given.keep)
        limit_addresses()
        _show_errors(workshop, case)
        outcome = workshop.run(case)
    print(f"{outcome.seconds:.2f} s, {outcome.peak / 2**20:.0f} MiB")
    print(f"{outcome.judgement.verdict}: {outcome.judgement.why}")
    return int(outcome.judgement.verdict is Verdict.WRONG)


def _show_errors(workshop: Workshop, case: Case) -> None:
    """Print every distinct error that reading the episode raises, with where it comes from."""
    path = workshop.place(case, workshop.mutation(case))
    try:
        reading = probe(BASES[case.base], path, case.drawer("reading"))
    except Exception:
        traceback.print_exc()
        return
    found = [reading.refusal, *reading.frames.values(), *(batch for _, batch in reading.batches)]
    errors = {f"{one}": one for one in found if isinstance(one, Exception)}
    for error in errors.values():
        traceback.print_exception(error, limit=-6)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
