"""Runs the benches: `python -m bench [QUESTION]`, all of them without one."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from bench.questions import QUESTIONS, answer
from bench.table import write_tables

__all__ = ["main"]

_RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str]) -> None:
    """Answer the questions that the arguments name; write their JSON, and the tables anew."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--results", type=Path, default=_RESULTS, metavar="DIR", help="where the JSON goes"
    )
    verbs = parser.add_subparsers(dest="question", metavar="QUESTION")
    for name, question in QUESTIONS.items():
        about = question.__doc__
        question.add_options(verbs.add_parser(name, help=about, description=about))
    given = parser.parse_args(arguments)
    if given.question:
        answer(given.question, given, given.results)
    else:
        # Each in a process of its own: none begins with the memory and the threads of another.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as process:
            for name in QUESTIONS:
                options = parser.parse_args([name])
                process.submit(answer, name, options, given.results).result()
    print(write_tables(given.results).read_text())


if __name__ == "__main__":
    main(sys.argv[1:])
