"""One episode's conversion: from its LeRobot files to the finished episode."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.convert.pictures import is_depth_picture, picture_frames
from egoloader.convert.rows import EpisodeRows, read_rows
from egoloader.convert.source import EpisodeEntry, LeRobotInfo
from egoloader.convert.video import video_frames
from egoloader.errors import ConversionError, EgoloaderError
from egoloader.writer import EpisodeWriter

__all__ = ["EpisodeJob", "EpisodeResult", "Recipe", "convert_episode"]

Frame = npt.NDArray[np.uint8] | bytes
Camera = Iterator[Frame]
#: Frames behind the last row that are counted.
_COUNTED = 1000


@dataclass(frozen=True)
class Recipe:
    """The settings that decide an episode's bytes; they are recorded in its attributes."""

    embodiment: str
    image_size: tuple[int, int] | None
    quality: int
    subsampling: str

    def as_attrs(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "embodiment": self.embodiment,
            "image_size": None if self.image_size is None else list(self.image_size),
            "quality": self.quality,
            "subsampling": self.subsampling,
        }


@dataclass(frozen=True)
class EpisodeJob:
    """All that a process needs to convert one episode.

    Attributes:
        info: the data set's description.
        entry: the episode's line of `meta/episodes.jsonl`.
        target: where the episode goes.
        recipe: how.
        overwrite: replace what is at `target`.
    """

    info: LeRobotInfo
    entry: EpisodeEntry
    target: Path
    recipe: Recipe
    overwrite: bool


@dataclass(frozen=True)
class EpisodeResult:
    """What came of a job: `error` is None where the episode was written."""

    index: int
    error: str | None
    left_out: Mapping[str, str]
    warnings: tuple[str, ...]


def convert_episode(job: EpisodeJob, threads: int) -> EpisodeResult:
    """Convert one episode; its own failures come back as text, so that others go on.

    Args:
        job: what to do.
        threads: video decoder threads, for each camera.
    """
    left_out: Mapping[str, str] = {}
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            left_out = _convert(job, threads)
        except (EgoloaderError, OSError) as failure:
            error = f"{failure}" or type(failure).__name__
    texts = dict.fromkeys(str(warning.message) for warning in caught)
    return EpisodeResult(job.entry.index, error, left_out, tuple(texts))


def _convert(job: EpisodeJob, threads: int) -> dict[str, str]:
    info, index = job.info, job.entry.index
    path = info.parquet(index)
    rows = read_rows(path, index, info.features, info.fps, info.tasks)
    if rows.count != job.entry.length:
        raise ConversionError(
            f"episode {index}: {path.name} holds {rows.count} rows, "
            f"and meta/episodes.jsonl says {job.entry.length}"
        )
    left_out = dict(rows.left_out)
    task = _task(job, rows)
    with ExitStack() as stack:
        cameras: dict[str, Camera] = {}
        for key, frames in _cameras(job, threads, left_out):
            cameras[key] = stack.enter_context(closing(frames))
        with EpisodeWriter(
            job.target,
            fps=info.fps,
            embodiment=job.recipe.embodiment,
            task_name=task,
            task_description=task,
            annotations=list(rows.spans) if len(rows.spans) > 1 else [],
            attrs=_attrs(job, left_out),
            names=_names(job, rows),
            jpeg_quality=job.recipe.quality,
            jpeg_subsampling=job.recipe.subsampling,
            overwrite=job.overwrite,
        ) as writer:
            _write_frames(writer, rows, cameras, f"episode {index}")
    return left_out


def _cameras(job: EpisodeJob, threads: int, left_out: dict[str, str]) -> Iterator[tuple[str, Any]]:
    """Yield each camera's key and frames; adds those that turn out to hold depth to `left_out`."""
    size = job.recipe.image_size
    index = job.entry.index
    for feature in job.info.features:
        key = feature.key
        if feature.kind == "video":
            where = f"episode {index}, key {key!r}"
            yield key, video_frames(job.info.video(index, key), where, size, threads)
        elif feature.kind == "image":
            path = job.info.parquet(index)
            if is_depth_picture(path, key):
                left_out[key] = "16-bit pictures, not colours"
            else:
                yield key, picture_frames(path, key, size)


def _write_frames(
    writer: EpisodeWriter, rows: EpisodeRows, cameras: Mapping[str, Camera], where: str
) -> None:
    """Write row by row, so that one frame of each camera is held at a time."""
    for row in range(rows.count):
        images: dict[str, Frame] = {}
        for key, frames in cameras.items():
            frame = next(frames, None)
            if frame is None:
                raise ConversionError(f"{where}, key {key!r}: {_disagree(row, rows.count)}")
            images[key] = frame
        writer.add_frame(
            numeric={key: values[row] for key, values in rows.arrays.items()}, images=images
        )
    for key, frames in cameras.items():
        extra = sum(1 for _ in itertools.islice(frames, _COUNTED))
        if extra:
            found = rows.count + extra
            more = " or more" if extra == _COUNTED else ""
            raise ConversionError(f"{where}, key {key!r}: {_disagree(found, rows.count, more)}")


def _disagree(frames: int, rows: int, more: str = "") -> str:
    return (
        f"the camera has {frames}{more} frames and the parquet file {rows} rows; "
        "record or download the episode again, or leave it out with `episodes`"
    )


def _task(job: EpisodeJob, rows: EpisodeRows) -> str:
    """Return the texts of the rows' tasks, else of the episode's line."""
    texts = [text for text, _, _ in rows.spans] or job.entry.tasks
    return "; ".join(dict.fromkeys(texts))


def _names(job: EpisodeJob, rows: EpisodeRows) -> dict[str, list[str]]:
    return {
        feature.key: list(feature.names)
        for feature in job.info.features
        if feature.names is not None and feature.key in rows.arrays
    }


def _attrs(job: EpisodeJob, left_out: Mapping[str, str]) -> dict[str, Any]:
    """Return where the episode comes from and how it was made, under one name."""
    info = job.info
    unfit = {f.key: f.raw_names for f in info.features if f.names is None and f.raw_names}
    known = {f.key: f.reason for f in info.features if f.kind == "left_out"}
    return {
        "lerobot": {
            "dataset": info.root.resolve().name,
            "codebase_version": info.version,
            "robot_type": info.robot_type,
            "episode_index": job.entry.index,
            "channel_order": "rgb",
            "conversion": job.recipe.as_attrs(),
            "axis_names": unfit,
            "left_out": {**known, **left_out},
        }
    }
