"""What annotation spans make of samples: texts, and which steps lie in another span."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from egoloader.annotation import Annotation
from egoloader.batch import Allocate, Column
from egoloader.errors import ReadError
from egoloader.kind import Entry
from egoloader.share import Fetched
from egoloader.task import MAX_TEXT

__all__ = ["cut_span_masks", "cut_tasks", "cut_texts", "cut_texts_or_tasks", "holding_spans"]

IntArray = npt.NDArray[np.int64]


def cut_texts(entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    """Return the texts of the annotation spans that hold each frame, "" where none does."""
    return ["; ".join(texts) for texts in _texts(entry, fetched)]


def cut_tasks(_entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    """Return the task of each frame's episode."""
    tasks = [maker.task for maker in fetched.share.makers]
    return [tasks[number] for number in fetched.share.numbers.tolist()]


def cut_texts_or_tasks(entry: Entry, fetched: Fetched, allocate: Allocate) -> Column:
    """Return the texts of the spans that hold each frame, and the task where none does."""
    tasks = cut_tasks(entry, fetched, allocate)
    found = zip(_texts(entry, fetched), tasks, strict=True)
    return ["; ".join(texts) if texts else task for texts, task in found]


def _texts(entry: Entry, fetched: Fetched) -> list[list[str]]:
    """Return the texts of the annotation spans that hold each frame."""
    key, share = entry.zarr_key, fetched.share
    spans = [maker.episode.annotations(key) for maker in share.makers]
    found = []
    for number, frame in zip(share.numbers.tolist(), share.frames.tolist(), strict=True):
        texts = [text for text, start, end in spans[number] if start <= frame < end]
        size = sum(map(len, texts)) + 2 * max(0, len(texts) - 1)
        if size > MAX_TEXT:
            message = f"the texts of a frame have {size} characters, the limit is {MAX_TEXT}"
            raise ReadError(message, episode=share.makers[number].name, key=key, frame=frame)
        found.append(texts)
    return found


def cut_span_masks(fetched: Fetched) -> dict[str, Column]:
    """Return, by key, which steps of windows lie outside the span that holds their frame."""
    entries, share = fetched.kind.span_masks, fetched.share
    if not entries:
        return {}
    starts, ends = np.empty_like(share.frames), np.empty_like(share.frames)
    for number, maker in enumerate(share.makers):
        its = share.numbers == number
        spans = maker.episode.annotations()
        starts[its], ends[its] = holding_spans(spans, share.frames[its], maker.total_frames)
    made: dict[str, Column] = {}
    for entry in entries:
        mask = np.zeros((len(share.frames), *entry.steps), dtype=np.bool_)
        if entry.number >= 0:
            rows = fetched.plan.rows(entry.key).reshape(len(mask), -1)
            is_other = (rows < starts[:, None]) | (rows >= ends[:, None])
            # Of a step between two rows, either may lie there.
            mask |= is_other.reshape(len(mask), -1, *entry.steps).any(axis=1)
        made[entry.span_mask or ""] = mask
    return made


def holding_spans(
    spans: Iterable[Annotation], frames: IntArray, total_frames: int
) -> tuple[IntArray, IntArray]:
    """Return the span that holds each of B frames; of several, the shortest that ends first.

    Args:
        spans: annotation spans (text, start, end), half-open in frames.
        frames: (B,) int64 frame indices.
        total_frames: the episode's real frames; the whole episode is the span of frames that none
            holds, and no span ends behind it.

    Returns:
        Starts and ends, (B,) int64 each.
    """
    starts, ends = np.zeros_like(frames), np.full_like(frames, total_frames)
    for _, start, end in spans:
        # Clamped first: a span may name any number, beyond all that int64 holds.
        first, last = max(0, min(start, total_frames)), max(0, min(end, total_frames))
        held = (first <= frames) & (frames < last)
        is_better = (last < ends) | ((last == ends) & (first > starts))
        starts[held & is_better], ends[held & is_better] = first, last
    return starts, ends
