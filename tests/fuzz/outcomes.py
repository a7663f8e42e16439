"""Judging what came of an episode: right values, an error that names the place, or wrong."""

from __future__ import annotations

import enum
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zarr

from egoloader.errors import (
    EgoloaderError,
    EpisodeFormatError,
    FrameError,
    MissingChunkError,
    ReadError,
    SampleError,
    ValueRangeError,
)
from tests.fuzz.bases import CAMERA, Base
from tests.fuzz.mutations import Mutation
from tests.fuzz.oracle import Rows, StoreRows, differences, slow_sample
from tests.fuzz.probe import Reading
from tests.readers import BYTE_RANGE

__all__ = ["REACHED", "Judgement", "Verdict", "judge"]


class Verdict(enum.StrEnum):
    """What came of an episode, the earliest of what came of its frames."""

    OPEN = "refused at open"
    INDEX = "refused at index or metadata"
    CHUNK = "refused at chunk decoding"
    ROW = "refused for a row's content"
    JPEG = "refused at JPEG"
    ORIGINAL = "right as recorded"
    ZARR = "right as zarr-python"
    WRONG = "wrong"


#: Those of which what was mutated came as far as a decoder of chunks.
REACHED = (Verdict.CHUNK, Verdict.ROW, Verdict.JPEG, Verdict.ORIGINAL, Verdict.ZARR)
_REFUSALS = tuple(Verdict)[:5]


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of an episode, and of a wrong one, why it is."""

    verdict: Verdict
    why: str = ""


class _WrongError(Exception):
    """Something that must not be was met."""


def judge(
    base: Base, recording: Rows, mutation: Mutation, path: Path, reading: Reading
) -> Judgement:
    """Judge what was read of a mutated episode.

    Args:
        base: how it is stored.
        recording: what was recorded.
        mutation: what was done to it.
        path: where it lies.
        reading: what came of reading it.
    """
    court = _Court(base, recording, mutation, path)
    try:
        verdict = court.judge(reading)
    except _WrongError as error:
        return Judgement(Verdict.WRONG, str(error))
    return Judgement(verdict)


class _Court:
    def __init__(self, base: Base, recording: Rows, mutation: Mutation, path: Path) -> None:
        self._base, self._recording, self._path = base, recording, path
        self._mutation, self._keys = mutation, mutation.keys(base)
        self._stored: Rows | None = None

    def judge(self, reading: Reading) -> Verdict:
        if reading.refusal is not None:
            self._check_error(reading.refusal, Verdict.OPEN)
            return Verdict.OPEN
        verdicts = [self._judge_frame(n, found) for n, found in reading.frames.items()]
        if reading.total != self._recording.total:
            verdicts.append(self._judge_total(reading.total))
        self._check_batches(reading)
        refusals = [one for one in _REFUSALS if one in verdicts]
        if refusals:
            self._check_findings(reading, refusals[0])
            return refusals[0]
        return Verdict.ZARR if Verdict.ZARR in verdicts else Verdict.ORIGINAL

    def _judge_frame(self, frame: int, found: Any) -> Verdict:
        if isinstance(found, Exception):
            stage = self._stage(found)
            self._check_error(found, stage)
            return stage
        if found["episode"] != self._path.name:
            raise _WrongError(f"frame {frame} says that it is of {found['episode']!r}")
        others: Mapping[str, str] | None = None
        if frame < self._recording.total:
            # Served as recorded although zarr-python may refuse it: what the mutation hit is
            # not needed to find and decode the rows, or is redundant.
            others = differences(found, slow_sample(self._recording, self._base, frame))
            if not others:
                return Verdict.ORIGINAL
        try:
            wanted = slow_sample(self._ask_zarr(), self._base, frame, others)
        except Exception as error:  # whatever zarr-python raises
            raise _WrongError(
                f"frame {frame} is served, zarr-python says {error!r:.300}"
            ) from error
        told = differences(found, wanted)
        if told:
            raise _WrongError(f"frame {frame}, {told}")
        return Verdict.ZARR

    def _judge_total(self, total: int | None) -> Verdict:
        try:
            stored = self._ask_zarr().total
        except Exception as error:  # whatever zarr-python raises
            raise _WrongError(f"{total} frames, zarr-python says {error!r:.300}") from error
        if stored != total:
            raise _WrongError(f"{total} frames, {stored} are stored")
        return Verdict.ZARR

    def _ask_zarr(self) -> Rows:
        if self._stored is None:
            self._stored = StoreRows(self._path)
        return self._stored

    def _stage(self, error: Exception) -> Verdict:
        """Return how far a frame came that is refused."""
        if isinstance(error, FrameError):
            return Verdict.JPEG
        if isinstance(error, ValueRangeError) or "no JSON: b" in str(error):
            return Verdict.ROW
        if isinstance(error, EpisodeFormatError) and re.search(r"row \d+ is no annot", str(error)):
            return Verdict.ROW
        if not isinstance(error, ReadError) or isinstance(error, MissingChunkError):
            return Verdict.INDEX
        if "can't be decoded" in str(error):
            return Verdict.CHUNK
        is_of_zarr = re.search(r": rows \[.* can't be read", str(error)) is not None
        return Verdict.CHUNK if is_of_zarr and self._is_open(error.key) else Verdict.INDEX

    def _is_open(self, key: str | None) -> bool:
        """Return whether zarr-python takes an array's metadata, so that it failed behind it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                zarr.open_array(self._path / str(key), mode="r")
        except Exception:  # whatever zarr-python raises
            return False
        return True

    def _check_error(self, error: Exception, stage: Verdict) -> None:
        """Refuse an error that is none of the project's, or that does not say where it is."""
        told = f"{type(error).__name__}: {error!s:.300}"
        if not isinstance(error, EgoloaderError) or isinstance(error, SampleError):
            raise _WrongError(f"nothing foresaw {told} (from {error.__cause__!r:.200})")
        if self._path.name not in str(error):
            raise _WrongError(f"the episode is not named by {told}")
        if self._keys is not None and not any(_names(error, key) for key in self._keys):
            raise _WrongError(f"{' or '.join(self._keys)} are not named by {told}")
        if stage is Verdict.CHUNK and not re.search(BYTE_RANGE, str(error)):
            raise _WrongError(f"no bytes are named by {told}")
        if isinstance(error, FrameError):
            self._check_frame(error, told)

    def _check_frame(self, error: FrameError, told: str) -> None:
        rows = self._mutation.rows
        bad = range(self._recording.total) if rows is None else [row for _, row in rows]
        # Where nothing declares the size, that of the first good frame is what others must have.
        others = rows is None or "its other frames have" in str(error)
        if error.key != CAMERA or error.frame is None or not (others or error.frame in bad):
            raise _WrongError(f"not frames {list(bad)} are named by {told}")

    def _check_batches(self, reading: Reading) -> None:
        """Refuse batches that are not made of the samples that were read one by one."""
        for frames, batch in reading.batches:
            singles = [reading.frames[frame] for frame in frames]
            errors = [one for one in singles if isinstance(one, Exception)]
            if isinstance(batch, Exception):
                self._check_error(batch, self._stage(batch))
                if not errors and not _is_relative(batch):
                    raise _WrongError(f"frames {frames} are bad together alone: {batch!s:.300}")
                continue
            if any(not _is_relative(one) for one in errors):
                raise _WrongError(f"frames {frames} are served together, alone {errors[0]!s:.300}")
            for frame, single, other in zip(frames, singles, batch, strict=True):
                if isinstance(single, Exception):
                    continue
                told = differences(other, _plain(single))
                if told:
                    raise _WrongError(f"frame {frame} of batch {frames}, {told}")

    def _check_findings(self, reading: Reading, stage: Verdict) -> None:
        """Refuse a validation that finds nothing wrong where stored bytes can't be read."""
        stages = (Verdict.INDEX, Verdict.CHUNK, Verdict.JPEG)
        if not reading.is_full or stage not in stages or reading.findings is None:
            return
        if not any(one.is_bad for one in reading.findings):
            raise _WrongError(f"{stage}, and validation finds nothing bad")


def _is_relative(error: Exception) -> bool:
    """Return whether a frame is only refused beside others.

    Where nothing declares the size of a camera's frames, the first whole one that is read sets it,
    and that may be another one when batches are read.
    """
    return isinstance(error, FrameError) and "its other frames have" in str(error)


def _names(error: EgoloaderError, key: str) -> bool:
    return getattr(error, "key", None) == key or repr(key) in str(error) or f"{key}/" in str(error)


def _plain(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample as something to compare others to."""
    return {
        key: value.numpy() if hasattr(value, "numpy") else value for key, value in sample.items()
    }
