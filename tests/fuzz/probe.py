"""Reading an episode in every way that a user may: what comes of it, and of each frame."""

from __future__ import annotations

import functools
import random
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from egoloader import EpisodeLoader, MultiDataset, ZarrDataset
from egoloader.guard import MissingChunks
from egoloader.validate import Finding, validate_episode
from tests.fuzz.bases import TOTAL, Base

__all__ = ["Probe", "Reading", "probe"]

#: Frames of a longer episode that are read, from its start.
_FIRST = 2 * TOTAL
_BATCH = 4


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of reading an episode.

    Attributes:
        total: its frames; None where it can't be opened.
        refusal: why it can't be opened, if so.
        frames: per frame, its sample, or the error in its place.
        batches: per batch, its frames, and the batch or the error in its place.
        findings: of validation in full depth, or of another where that was drawn; None where
            validation was not drawn.
        is_full: whether findings are those of the full depth.
    """

    total: int | None
    refusal: Exception | None
    frames: Mapping[int, Any]
    batches: Sequence[tuple[Sequence[int], Any]] = ()
    findings: Sequence[Finding] | None = None
    is_full: bool = False


#: From a base, an episode stored so, and a drawer to what came of reading it. What it raises is
#: an error that the project should not have let through.
Probe = Callable[[Base, Path, random.Random], Reading]


@dataclass(frozen=True, slots=True)
class _Source:
    """An episode, and how it is opened."""

    base: Base
    path: Path
    missing: MissingChunks

    def open(self) -> ZarrDataset:
        return ZarrDataset(self.path, self.base.keymap, **self._options())

    def open_folder(self) -> MultiDataset:
        return MultiDataset.from_folder(self.path.parent, self.base.keymap, **self._options())

    def _options(self) -> dict[str, Any]:
        return {"annotation_cutoff": self.base.has_cutoff, "missing_chunks": self.missing}


def probe(base: Base, path: Path, rng: random.Random) -> Reading:
    """Open an episode, read every frame of it, and for a part of them batches; validate a part."""
    source = _Source(base, path, rng.choice(["error", "error", "fill"]))
    way = rng.choice([None, _batch_of_all, _batches_of_threads, _batch_of_folder])
    depth: Any = rng.choice([None, None, "full", "full", "sampled", "metadata"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what is assumed or filled, as was asked for
        findings = None if depth is None else validate_episode(path, path.name, depth)
        try:
            data = source.open()
        except Exception as error:  # judged later
            return Reading(None, error, {}, (), findings, depth == "full")
        numbers = _frames(len(data), rng)
        frames = {
            number: _attempt(functools.partial(data.__getitem__, number)) for number in numbers
        }
        batches = [] if way is None or not numbers else way(source, numbers)
    return Reading(len(data), None, frames, batches, findings, depth == "full")


def _frames(total: int, rng: random.Random) -> list[int]:
    """Return all frames of an episode, or those that hold all rows that were recorded and some."""
    if total <= _FIRST:
        return list(range(total))
    return [*range(_FIRST), rng.randrange(_FIRST, total), total - 1]


def _attempt(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as error:  # judged later
        return error


def _batch_of_all(source: _Source, frames: Sequence[int]) -> list[tuple[Sequence[int], Any]]:
    return [(frames, _attempt(lambda: list(source.open().__getitems__(frames))))]


def _batches_of_threads(source: _Source, frames: Sequence[int]) -> list[tuple[Sequence[int], Any]]:
    parts = [frames[at : at + _BATCH] for at in range(0, len(frames), _BATCH)]
    loader = iter(EpisodeLoader(source.open(), batch_sampler=parts, num_threads=1))
    found = [(part, _attempt(lambda: _samples(next(loader)))) for part in parts]
    assert next(loader, None) is None
    return found


def _batch_of_folder(source: _Source, frames: Sequence[int]) -> list[tuple[Sequence[int], Any]]:
    """Read the episode as one of those in its folder."""

    def read() -> list[Any]:
        data, first = source.open_folder(), 0
        for name, count in data.frames_by_episode():
            if name == source.path.name:
                return list(data.__getitems__([first + frame for frame in frames]))
            first += count
        raise LookupError(f"{source.path.name} is not found in its folder")

    return [(frames, _attempt(read))]


def _samples(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    count = len(batch["frame_index"])
    return [{key: column[place] for key, column in batch.items()} for place in range(count)]
