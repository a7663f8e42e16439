"""All of a batch but its images, cut out of what was read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from egoloader.batch import Allocate, Column
from egoloader.cast import cast_rows
from egoloader.episode import TIMESTAMP
from egoloader.errors import EgoloaderError, ReadError
from egoloader.interpolation import interpolate_rows
from egoloader.kind import Entry
from egoloader.seeding import sample_seeds
from egoloader.share import Fetched
from egoloader.spans import cut_span_masks, cut_tasks, cut_texts, cut_texts_or_tasks

__all__ = ["cut_columns"]


def cut_columns(fetched: Fetched, allocate: Allocate) -> dict[str, Column]:
    """Cut, cast and pad all that is not decoded.

    Args:
        fetched: of B samples.
        allocate: makes memory.

    Returns:
        Per field that is of no camera, (B, …) memory of its own or a list of B.

    Raises:
        EpisodeError: a row can't be cast or parsed; names episode, key and frame.
    """
    columns: dict[str, Column] = {}
    try:
        for entry in fetched.kind.rows:
            columns[entry.key] = _CUTS[entry.source](entry, fetched, allocate)
        for entry in fetched.kind.masks:
            columns[entry.mask or ""] = _mask(entry, fetched)
        columns |= cut_span_masks(fetched)
        _cut_context(fetched, columns)
    except (EgoloaderError, Warning):
        raise
    except Exception as error:
        raise fetched.share.failure(error) from error
    return columns


def _numbers(entry: Entry, fetched: Fetched, allocate: Allocate) -> Column:
    stored: Any = fetched.stored[entry.zarr_key]
    line = fetched.plan.lines[entry.number]
    if line is not None:
        one: npt.NDArray[Any] = stored[None, line].copy()
        return one
    places = fetched.plan.places(entry.key)
    column = allocate(entry.key, (*places.shape, *stored.shape[1:]), stored.dtype)
    # Places need no clipping; any other mode would copy once more.
    stored.take(places, axis=0, out=column, mode="clip")
    return column


def _cast(entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    stored: Any = fetched.stored[entry.zarr_key]
    cut = stored.take(fetched.plan.places(entry.key), axis=0)
    return cast_rows(entry.spec, cut, fetched.plan.rows(entry.key), episodes=fetched.names)


def _between(entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    """Return steps that lie between rows."""
    plan, stored = fetched.plan, cast("npt.NDArray[Any]", fetched.stored[entry.zarr_key])
    numbers, rows = stored.take(plan.places(entry.key), axis=0), plan.rows(entry.key)
    weights = plan.weights(entry.key)
    steps = interpolate_rows(entry.spec, numbers, rows, weights, episodes=fetched.names)
    return steps if entry.steps else steps[:, 0]


def _absent(entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    """Return what stands for an optional array of rows that the episodes lack."""
    size = len(fetched.names)
    if entry.dtype is None:
        return [[None] * entry.steps[0] if entry.steps else None for _ in range(size)]
    return np.zeros((size, *entry.steps, *(entry.spec.shape or ())), dtype=entry.dtype)


def _json(entry: Entry, fetched: Fetched, _allocate: Allocate) -> Column:
    """Return rows of JSON as objects."""
    key, plan = entry.zarr_key, fetched.plan
    stored = fetched.stored[key]
    columns: list[Any] = []
    frames = zip(fetched.names, plan.places(entry.key), plan.rows(entry.key), strict=True)
    for episode, places, rows in frames:
        its = zip(np.atleast_1d(places).tolist(), np.atleast_1d(rows).tolist(), strict=True)
        parsed = [_parse(stored[place], key, episode, row) for place, row in its]
        columns.append(parsed if entry.steps else parsed[0])
    return columns


def _parse(stored: bytes | memoryview, key: str, episode: str, row: int) -> Any:
    try:
        return json.loads(bytes(stored))
    except (ValueError, RecursionError) as error:
        message = f"the row is no JSON: {bytes(stored)!r:.60}"
        raise ReadError(message, episode=episode, key=key, frame=row) from error


def _mask(entry: Entry, fetched: Fetched) -> npt.NDArray[np.bool_]:
    if entry.number >= 0:
        return fetched.plan.is_pad(entry.key)
    return np.ones((len(fetched.names), *entry.steps), dtype=np.bool_)


def _cut_context(fetched: Fetched, columns: dict[str, Column]) -> None:
    """Add what every sample carries besides the keymap's entries."""
    makers, numbers, frames, _, marks = fetched.share
    rates = np.array([maker.fps for maker in makers]).take(numbers)
    bodies = [maker.embodiment for maker in makers]
    columns["fps"] = rates.astype(np.float32)
    columns["embodiment"] = [bodies[number] for number in numbers.tolist()]
    columns["episode"] = fetched.names
    columns["frame_index"] = frames.copy()
    columns["timestamp"] = frames / rates
    if TIMESTAMP in fetched.stored:
        times = np.asarray(fetched.stored[TIMESTAMP])[fetched.plan.places(TIMESTAMP)]
        columns["timestamp"] = times.reshape(len(frames)).astype(np.float64)
    drawn = zip(numbers.tolist(), marks.epochs, strict=True)
    keys = [makers[number].seed_key(epoch) for number, epoch in drawn]
    columns["sample_seed"] = sample_seeds(keys, frames.tolist())
    columns["is_repeat"] = marks.is_repeat
    if makers[0].settings.marks_replaced:
        columns["is_replaced"] = marks.is_replaced


_CUTS: Mapping[str, Callable[[Entry, Fetched, Allocate], Column]] = {
    "numbers": _numbers,
    "cast": _cast,
    "between": _between,
    "json": _json,
    "texts": cut_texts,
    "task": cut_tasks,
    "texts_or_task": cut_texts_or_tasks,
    "absent": _absent,
}
