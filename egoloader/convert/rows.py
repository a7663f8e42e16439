"""The rows of one LeRobot episode: its parquet file, checked and turned into arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.convert.feature import BOOKKEEPING, Feature
from egoloader.errors import ConversionError, require_extra
from egoloader.header import MAX_FRAMES

__all__ = ["EpisodeRows", "read_rows"]

Array = npt.NDArray[Any]

#: Numbers of an episode's parquet file: a column is held whole while it is converted.
_MAX_NUMBERS = 2**30

# A recorded clock may differ from i / fps by this much, in seconds, and still be called regular.
_REGULAR_S = 1e-3


@dataclass(frozen=True)
class EpisodeRows:
    """The numbers of one episode.

    Attributes:
        count: rows, which are frames.
        arrays: key -> (count, D…) numbers or booleans, of the dtype they are stored in.
        spans: (text, start, end) for each run of one task, half-open.
        left_out: key -> why the column was not taken.
    """

    count: int
    arrays: Mapping[str, Array]
    spans: tuple[tuple[str, int, int], ...]
    left_out: Mapping[str, str]


def read_rows(
    path: Path, episode: int, features: tuple[Feature, ...], fps: float, tasks: Mapping[int, str]
) -> EpisodeRows:
    """Read an episode's parquet file, but for its pictures.

    Args:
        path: the file.
        episode: its LeRobot episode index.
        features: as `meta/info.json` lists them.
        fps: frames per second, against which `timestamp` is checked.
        tasks: task index -> text.

    Raises:
        ConversionError: an unreadable file, a column that is absent, ragged, has nulls or another
            shape than listed, rows out of order, timestamps that do not increase, a task index
            without a text.
    """
    where = f"episode {episode}, {path.name}"
    table = _read_table(path, where, features)
    columns = {name: table.column(place) for place, name in enumerate(table.column_names)}
    by_key = {feature.key: feature for feature in features}
    _check_present(by_key, columns, where)
    arrays: dict[str, Array] = {}
    left_out: dict[str, str] = {}
    for key in [*(k for k in by_key if k in columns), *(c for c in columns if c not in by_key)]:
        feature = by_key.get(key)
        if key in BOOKKEEPING or (feature is not None and feature.kind != "numeric"):
            continue
        values = _numbers(columns[key], f"{where}, column {key!r}")
        if isinstance(values, str):
            left_out[key] = values
        else:
            arrays[key] = _shaped(values, feature, f"{where}, column {key!r}")
    count = int(table.num_rows)
    if count == 0:
        raise ConversionError(f"{where}: the file holds no rows")
    _check_order(columns, count, episode, where)
    clock = _clock(columns, fps, where)
    if clock is not None:
        arrays["timestamp"] = clock
    return EpisodeRows(count, arrays, _spans(columns, tasks, where), left_out)


def _read_table(path: Path, where: str, features: tuple[Feature, ...]) -> Any:
    arrow, parquet = (
        require_extra("pyarrow", "convert"),
        require_extra("pyarrow.parquet", "convert"),
    )
    pictures = {feature.key for feature in features if feature.kind == "image"}
    try:
        with parquet.ParquetFile(path) as file:
            _check_size(file.metadata, where)
            names = file.schema_arrow.names
            # `columns` takes `action.x` along with `action`; `select` goes by the exact name.
            wanted = [name for name in names if name not in pictures]
            return file.read(columns=wanted).select(wanted)
    except (arrow.ArrowException, OSError, KeyError) as error:
        raise ConversionError(f"{where}: the file can't be read: {error}") from error


def _check_size(metadata: Any, where: str) -> None:
    """Refuse more rows, or more numbers, than an episode has, before there is memory for them."""
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    columns = (group.column(n) for group in groups for n in range(group.num_columns))
    numbers = sum(column.num_values for column in columns)
    if metadata.num_rows > MAX_FRAMES or numbers > _MAX_NUMBERS:
        raise ConversionError(
            f"{where}: the file promises {metadata.num_rows} rows and {numbers} numbers; "
            f"an episode has at most {MAX_FRAMES} and {_MAX_NUMBERS}"
        )


def _check_present(by_key: Mapping[str, Feature], columns: Mapping[str, Any], where: str) -> None:
    for key, feature in by_key.items():
        if feature.kind == "numeric" and key not in columns:
            raise ConversionError(
                f"{where}: meta/info.json lists {key!r}, and the file has no such column"
            )


def _numbers(column: Any, where: str) -> Array | str:
    """Return a column as an array, or why it holds no numbers."""
    arrow = require_extra("pyarrow", "convert")
    types = arrow.types
    # One Array even of several chunks, and of none.
    values = (
        arrow.concat_arrays(column.chunks) if column.num_chunks else arrow.array([], column.type)
    )
    shape: list[int] = [len(values)]
    while True:
        if isinstance(values, arrow.ExtensionArray):
            values = values.storage
        if values.null_count:
            raise ConversionError(f"{where}: {values.null_count} values are null")
        if not _is_list(values.type, types):
            break
        shape.append(_list_length(values, where))
        values = values.flatten()
    kind = values.type
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)):
        return f"of parquet type {kind}, not numbers"
    if 0 in shape[1:]:
        return f"its rows have the shape {tuple(shape[1:])}, which holds nothing"
    array: Array = np.asarray(values.to_numpy(zero_copy_only=False))
    return array.reshape(shape)


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_length(values: Any, where: str) -> int:
    """Return the length that all lists have."""
    lengths = np.unique(values.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ConversionError(
            f"{where}: rows are of {len(lengths)} lengths, from {lengths[0]} to {lengths[-1]}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _shaped(values: Array, feature: Feature | None, where: str) -> Array:
    """Give rows the listed shape: a row of shape (1,) is stored as a plain number."""
    if feature is None or values.shape[1:] == feature.shape:
        return values
    if values[:1].size != math.prod(feature.shape) * len(values[:1]):
        raise ConversionError(
            f"{where}: rows have the shape {values.shape[1:]}, "
            f"and meta/info.json lists {feature.shape}"
        )
    return values.reshape(len(values), *feature.shape)


def _bookkeeping(columns: Mapping[str, Any], key: str, where: str) -> Array | None:
    if key not in columns:
        return None
    values = _numbers(columns[key], f"{where}, column {key!r}")
    if isinstance(values, str):
        raise ConversionError(f"{where}, column {key!r}: {values}")
    return values.reshape(-1)


def _check_order(columns: Mapping[str, Any], count: int, episode: int, where: str) -> None:
    frames = _bookkeeping(columns, "frame_index", where)
    if frames is not None and not np.array_equal(frames, np.arange(count)):
        row = int(np.flatnonzero(frames != np.arange(count))[0])
        raise ConversionError(
            f"{where}: row {row} has frame_index {frames[row]}; rows are out of order or absent"
        )
    owners = _bookkeeping(columns, "episode_index", where)
    if owners is not None and (owners != episode).any():
        row = int(np.flatnonzero(owners != episode)[0])
        raise ConversionError(f"{where}: row {row} has episode_index {owners[row]}")


def _clock(columns: Mapping[str, Any], fps: float, where: str) -> Array | None:
    """Return the timestamps, (count,) float64 seconds, or None where they are i / fps."""
    stored = _bookkeeping(columns, "timestamp", where)
    if stored is None:
        return None
    times = stored.astype(np.float64)
    steps = np.diff(times)
    if not np.isfinite(times).all() or (steps <= 0).any():
        row = int(np.flatnonzero(~(steps > 0))[0]) + 1 if len(steps) else 0
        raise ConversionError(
            f"{where}: timestamps do not increase at row {row}: "
            f"{times[max(row - 1, 0)]} s, then {times[row]} s"
        )
    ideal = np.arange(len(times)) / fps
    # Late in a long recording, float32 can't name i / fps to a millisecond.
    rounding = np.spacing(np.abs(stored)) if stored.dtype.kind == "f" else 0.0
    if (np.abs(times - ideal) <= _REGULAR_S + rounding).all():
        return None
    return times


def _spans(
    columns: Mapping[str, Any], tasks: Mapping[int, str], where: str
) -> tuple[tuple[str, int, int], ...]:
    indices = _bookkeeping(columns, "task_index", where)
    if indices is None:
        return ()
    starts = [0, *(np.flatnonzero(np.diff(indices)) + 1).tolist()]
    ends = [*starts[1:], len(indices)]
    unknown = sorted({int(indices[start]) for start in starts} - set(tasks))
    if unknown:
        raise ConversionError(f"{where}: meta/tasks.jsonl has no task_index {unknown[0]}")
    return tuple(
        (tasks[int(indices[start])], start, end) for start, end in zip(starts, ends, strict=True)
    )
