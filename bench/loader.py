"""What does the loader add to decoding the JPEGs?"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.floor import Floor
from bench.machine import describe_machine
from bench.pairing import Contender, Timings, agreement, measure
from bench.result import CountRow, FigureRow, Result, Target, time_rows
from bench.serving import (
    CACHE,
    CAMERAS,
    LIBRARIES,
    Folder,
    FreshBatches,
    Rounds,
    ServingSettings,
    ThreadedLoader,
    many_images,
    one_image,
    same_served,
    write_episodes,
)
from egoloader import KeyMap

__all__ = ["Settings", "add_options", "measure_loader", "run"]

_QUESTION = """What does the loader add to decoding the JPEGs?

A round is a block of batches, from asking a loader for an iterator until it ends, so that nothing
is made ahead of it while another contender runs. Frames are random ones over all episodes.

- *EpisodeLoader, 1 thread* makes the batches in one thread, in recycled buffers; the consumer looks
  at the frame indices and lets go of each batch.
- *floor* is `simplejpeg.decode_jpeg` with its default flags on the same JPEGs, into one buffer that
  is used again. A frame that a batch shows twice is decoded once by both.
- *fresh tensors* is `__getitems__` and `collate`, batch after batch, in the calling thread.

Before the timing, every picture of a block is compared with simplejpeg's; in it, the frame indices
and the last picture."""
_LOADER, _FLOOR, _FRESH = "EpisodeLoader, 1 thread", "floor", "fresh tensors"
_FRESH_BOUND = 0.6
_SERVING = ServingSettings()
_ONE_IMAGE, _NINE_IMAGES = Rounds(blocks=30, batches=12), Rounds(blocks=12, batches=3)


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        serving: the episodes and the samples.
        one_image: rounds with one image a sample.
        nine_images: rounds with nine.
    """

    serving: ServingSettings = _SERVING
    one_image: Rounds = _ONE_IMAGE
    nine_images: Rounds = _NINE_IMAGES


@dataclass(frozen=True, slots=True)
class Case:
    """One keymap."""

    name: str
    keymap: KeyMap
    rounds: Rounds
    bound: float


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--blocks", type=int, metavar="N", help="blocks timed per case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.blocks is not None:
        settings = Settings(
            one_image=Rounds(options.blocks, settings.one_image.batches),
            nine_images=Rounds(options.blocks, settings.nine_images.batches),
        )
    return measure_loader(settings)


def measure_loader(settings: Settings) -> Result:
    """Write the episodes into a temporary folder, and time loader and floor on them.

    Raises:
        WrongAnswerError: the loader serves something else than the floor decodes.
        JpegSizeError: the pictures don't compress to the size asked for.
    """
    machine = describe_machine(LIBRARIES)
    serving = settings.serving
    cases = [
        Case("one image a sample", one_image(serving), settings.one_image, 0.93),
        Case("nine images a sample", many_images(serving), settings.nine_images, 0.95),
    ]
    counts: list[CountRow] = []
    figures: list[FigureRow] = []
    targets: list[Target] = []
    with tempfile.TemporaryDirectory() as path:
        recordings = write_episodes(serving, Path(path), CAMERAS)
        for case in cases:
            folder = Folder(Path(path), case.keymap, recordings, serving, case.rounds)
            counts.append(_count(case, folder))
            timings = _time(folder, serving)
            figures += time_rows(case.name, CACHE, timings)
            targets += _targets(case, timings)
    chosen = dataclasses.asdict(settings)
    return Result(
        "loader", _QUESTION, machine, chosen, tuple(targets), tuple(counts), tuple(figures)
    )


def _count(case: Case, folder: Folder) -> CountRow:
    """Say how much of a block is work for a decoder."""
    block = folder.blocks[0]
    samples = sum(map(len, block.batches))
    counts = {
        "samples": samples,
        "images": samples * folder.frames.images,
        "JPEGs decoded": sum(map(len, block.pictures)),
    }
    return CountRow(case.name, "the first block", counts, {})


def _time(folder: Folder, serving: ServingSettings) -> Timings:
    loader = ThreadedLoader(folder, num_threads=1)
    floor = Floor(folder.frames, folder.blocks, serving.size)
    rehearsal, *blocks = folder.blocks
    folder.frames.check(loader.batches(rehearsal), rehearsal)
    contenders = [
        Contender(_LOADER, loader.answer),
        Contender(_FLOOR, floor.answer),
        Contender(_FRESH, FreshBatches(folder).answer),
    ]
    return measure(contenders, blocks, agreement(same_served), rehearsal=[rehearsal])


def _targets(case: Case, timings: Timings) -> list[Target]:
    loader, fresh = timings.ratio(_FLOOR), timings.ratio(_FLOOR, over=_FRESH)
    return [
        Target(f"{case.name}: floor ÷ {_LOADER}", loader, "at least", case.bound),
        Target(f"{case.name}: floor ÷ {_FRESH}", fresh, "at least", _FRESH_BOUND),
    ]
