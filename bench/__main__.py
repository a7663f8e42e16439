"""Runs the benches: `python -m bench [QUESTION]`, all of them without one."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench import configs, reads
from bench.result import save
from bench.table import write_tables

__all__ = ["main"]

QUESTIONS = {"reads": reads, "configs": configs}
_RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> None:
    """Answer the questions that the arguments name; write their JSON, and the tables anew."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=_RESULTS, metavar="DIR", help="where the JSON goes"
    )
    verbs = parser.add_subparsers(dest="question", metavar="QUESTION")
    for name, question in QUESTIONS.items():
        question.add_options(verbs.add_parser(name, help=question.__doc__))
    given = parser.parse_args(arguments)
    for name in [given.question] if given.question else QUESTIONS:
        options = given if given.question else parser.parse_args([name])
        start = time.monotonic()
        path = save(QUESTIONS[name].run(options), given.results)
        print(f"{name}: {time.monotonic() - start:.0f} s, {path}")
    print(write_tables(given.results).read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
