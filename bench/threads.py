"""How do threads of this process compare with worker processes, and how many should there be?"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch.utils.data import default_collate

from bench.floor import DecodingProcesses
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, agreement, measure
from bench.recordings import CAMERA
from bench.result import Result, Target, time_rows
from bench.serving import (
    CACHE,
    LIBRARIES,
    Folder,
    Rounds,
    ServingSettings,
    StockLoader,
    ThreadedLoader,
    one_image,
    same_served,
    write_episodes,
)
from egoloader import collate

__all__ = ["Settings", "add_options", "measure_threads", "run"]

_QUESTION = """How do threads of this process compare with worker processes, and how many should
there be?

A round is a block of batches, from asking a loader for an iterator until it ends; one image a
sample, random frames over all episodes.

- *EpisodeLoader* makes batches in threads of this process, in recycled buffers.
- *two processes that only decode* hold the same JPEGs in memory and decode half of them each, into
  one buffer that is used again: no reading, no numbers, no batches, nothing sent.
- *DataLoader* is PyTorch's, with two persistent workers and prefetch factor 2, over the same
  dataset asked for one sample at a time; `egoloader.collate` or PyTorch's own makes its batches.

Before the timing, every picture of a block is compared with simplejpeg's; in it, the frame indices
and the last picture."""
_TWO = "EpisodeLoader, 2 threads"
_DECODE = "two processes that only decode"
_STOCK, _STOCK_DEFAULT = "DataLoader, egoloader.collate", "DataLoader, default_collate"
_SERVING = ServingSettings()
_ROUNDS, _THREAD_ROUNDS = Rounds(blocks=14, batches=24), Rounds(blocks=10, batches=24)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        serving: the episodes and the samples.
        rounds: against the other ways.
        thread_rounds: of several numbers of threads.
        num_threads: the numbers; the first is the one that the others are compared with.
    """

    serving: ServingSettings = _SERVING
    rounds: Rounds = _ROUNDS
    thread_rounds: Rounds = _THREAD_ROUNDS
    num_threads: tuple[int, ...] = (2, 1, 3, 4)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks timed per case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.blocks is not None:
        settings = dataclasses.replace(
            settings,
            rounds=dataclasses.replace(settings.rounds, blocks=options.blocks),
            thread_rounds=dataclasses.replace(settings.thread_rounds, blocks=options.blocks),
        )
    return measure_threads(settings)


def measure_threads(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and time loaders on them.

    Raises:
        WrongAnswerError: a loader serves something else than the others.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(LIBRARIES)
    serving = settings.serving
    keymap = one_image(serving)
    with tempfile.TemporaryDirectory() as path:
        recordings = write_episodes(serving, Path(path), (CAMERA,))
        folders = [
            Folder(Path(path), keymap, recordings, serving, rounds)
            for rounds in (settings.rounds, settings.thread_rounds)
        ]
        against = _time_against_processes(folders[0], serving)
        threads = _time_threads(folders[1], settings.num_threads)
    targets = (
        Target(f"{_DECODE} ÷ {_TWO}", against.ratio(_DECODE), "at least", 0.9),
        Target(f"{_STOCK} ÷ {_TWO}", against.ratio(_STOCK), "at least", 1.5),
        Target(f"{_STOCK_DEFAULT} ÷ {_TWO}", against.ratio(_STOCK_DEFAULT), "at least", 1.5),
    )
    figures = [
        *time_rows("against processes", CACHE, against),
        *time_rows("by number of threads", CACHE, threads),
    ]
    chosen = dataclasses.asdict(settings)
    return Result("threads", _QUESTION, machine, chosen, targets, (), tuple(figures))


def _time_against_processes(folder: Folder, serving: ServingSettings) -> Timings:
    rehearsal, *blocks = folder.blocks
    with contextlib.ExitStack() as stack:
        # Before this process has any thread of a loader: the workers are forked.
        stock = stack.enter_context(StockLoader(folder, collate))
        stock_default = stack.enter_context(StockLoader(folder, default_collate))
        decoders = stack.enter_context(
            DecodingProcesses(folder.frames, folder.blocks, serving.size, count=2)
        )
        loader = ThreadedLoader(folder, num_threads=2)
        folder.frames.check(loader.batches(rehearsal), rehearsal)
        contenders = [
            Contender(_TWO, loader.answer),
            Contender(_DECODE, decoders.answer),
            Contender(_STOCK, stock.answer),
            Contender(_STOCK_DEFAULT, stock_default.answer),
        ]
        return measure(contenders, blocks, agreement(same_served), rehearsal=[rehearsal])


def _time_threads(folder: Folder, numbers: tuple[int, ...]) -> Timings:
    rehearsal, *blocks = folder.blocks
    contenders = [
        Contender(f"num_threads={number}", ThreadedLoader(folder, number).answer)
        for number in numbers
    ]
    return measure(contenders, blocks, agreement(same_served), rehearsal=[rehearsal])
