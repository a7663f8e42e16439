"""The questions that the benches answer, by name."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from bench import (
    augment,
    configs,
    grid,
    hdf5,
    lance,
    lengths,
    loader,
    memory,
    order,
    reads,
    threads,
    transforms,
    validate,
)
from bench.result import save

__all__ = ["QUESTIONS", "answer"]

QUESTIONS = {
    "reads": reads,
    "lengths": lengths,
    "hdf5": hdf5,
    "lance": lance,
    "loader": loader,
    "threads": threads,
    "memory": memory,
    "order": order,
    "transforms": transforms,
    "grid": grid,
    "validate": validate,
    "augment": augment,
    "configs": configs,
}


def answer(name: str, options: argparse.Namespace, results: Path) -> None:
    """Answer one question, write its JSON into the folder `results`, and say how long it took."""
    start = time.monotonic()
    path = save(QUESTIONS[name].run(options), results)
    print(f"{name}: {time.monotonic() - start:.0f} s, {path}", flush=True)
