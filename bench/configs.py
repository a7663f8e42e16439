"""What does it cost to build an object from a config that lists many paths?"""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import hydra
from omegaconf import OmegaConf

from bench.machine import describe_machine
from bench.pairing import Contender, agreement, measure
from bench.result import Result, time_rows
from egoloader.train.config import make

__all__ = ["add_options", "measure_configs", "read_paths", "run"]

_QUESTION = """What does it cost to build an object from a config that lists many paths?

`egoloader` hands the object plain Python containers; Hydra's default hands it config objects. The
object reads each path once."""
_LIBRARIES = ("hydra-core", "omegaconf")
_CACHE = "none"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the question."""
    parser.add_argument("--paths", type=int, metavar="N", default=10_000, help="paths listed")
    parser.add_argument("--rounds", type=int, metavar="N", default=10, help="builds timed")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    return measure_configs(options.paths, options.rounds)


def read_paths(paths: Iterable[str]) -> tuple[str, ...]:
    """Take paths as a dataset's constructor would: go through them once."""
    return tuple(paths)


def measure_configs(num_paths: int, rounds: int) -> Result:
    """Time building from a config of `num_paths` paths.

    Raises:
        WrongAnswerError: the two don't hand over the same paths.
    """
    machine = describe_machine(_LIBRARIES)
    paths = [f"episodes/task_{n % 7}/episode_{n:06d}.zarr" for n in range(num_paths)]
    node = OmegaConf.create({"_target_": "bench.configs.read_paths", "paths": paths})
    contenders = [
        Contender("egoloader, plain containers", make),
        Contender("Hydra's default, config objects", hydra.utils.instantiate),
    ]
    timings = measure(contenders, [node] * rounds, agreement(_difference), rehearsal=[node])
    times = time_rows(f"{num_paths:,} paths", _CACHE, timings)
    settings = {"paths": num_paths, "rounds": rounds}
    return Result("configs", _QUESTION, machine, settings, (), (), tuple(times))


def _difference(reference: tuple[str, ...], paths: tuple[str, ...]) -> str | None:
    return None if reference == paths else f"{len(paths)} other paths"
