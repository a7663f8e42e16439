"""What a sample reads, for people to look at: per array, windows, groups and rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from egoloader.errors import FrameIndexError
from egoloader.plan import Window
from egoloader.sample import SampleMaker
from egoloader.windows import consecutive_runs

__all__ = ["ArrayReads", "explain_frame"]


@dataclass(frozen=True, slots=True)
class ArrayReads:
    """The one read of one array.

    Attributes:
        zarr_key: the array.
        windows: per sample key that is cut from it, the runs of rows it needs, and its padded
            steps.
        groups: the half-open row groups that are read.
        rows: rows that are read.
        union_rows: rows from the first to the last one needed, as one plain span would read.
        chunk_rows: rows of one decoded chunk.
    """

    zarr_key: str
    windows: dict[str, tuple[list[Window], int]]
    groups: tuple[Window, ...]
    rows: int
    union_rows: int
    chunk_rows: int


def explain_frame(maker: SampleMaker, frame: int) -> list[ArrayReads]:
    """Plan one frame's sample and say what it reads; no rows are fetched.

    Raises:
        FrameIndexError: the frame is outside the episode.
    """
    total = maker.episode.total_frames
    if not 0 <= frame < total:
        raise FrameIndexError(
            f"frame {frame} is outside episode {maker.episode.name!r} of {total} frames"
        )
    plan = maker.plan(np.array([frame], dtype=np.int64))
    reads = []
    for zarr_key, read in plan.reads.items():
        windows = {
            key: (consecutive_runs(plan.rows(key)), int(plan.is_pad(key).sum()))
            for key in plan.keys
            # An entry without a place in the keymap is the episode's own, `timestamp`.
            if (maker.keymap[key].zarr_key if key in maker.keymap else key) == zarr_key
        }
        reads.append(
            ArrayReads(
                zarr_key=zarr_key,
                windows=windows,
                groups=read.groups,
                rows=read.num_rows,
                union_rows=read.groups[-1][1] - read.groups[0][0],
                chunk_rows=maker.episode.layout(zarr_key).chunk_rows,
            )
        )
    return reads
