"""Which frames of an episode have samples with numbers outside bounds."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.keymap import KeyMap
from egoloader.sample import SampleMaker
from egoloader.stats.blocks import Numbers, row_numbers, sample_numbers, split_frames
from egoloader.stats.job import EpisodeJob
from egoloader.stats.transformed import can_reduce, row_transforms
from egoloader.stats.view import View, entry_dtype
from egoloader.windows import entry_moments, entry_steps

__all__ = ["Bounds", "Outliers", "find_outliers"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
#: Per key, the least and the greatest number that is none, each of the shape of the key's stats.
Bounds = Mapping[str, tuple[FloatArray, FloatArray]]


@dataclass(frozen=True, slots=True)
class Outliers:
    """The frames of an episode whose samples hold numbers outside bounds.

    Attributes:
        frames: ascending.
        by_key: how many frames each key has outside; a frame may be among those of several.
    """

    frames: IntArray
    by_key: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Group:
    """Entries whose windows are the same rows at every frame, and what is made of them alone.

    Attributes:
        view: of them alone.
        maker: of one of them that is there; None where all are absent.
    """

    view: View
    maker: SampleMaker | None


def find_outliers(job: EpisodeJob, bounds: Bounds) -> Outliers:
    """Return the frames of which a real number of the sample lies outside the bounds of its key.

    Rows that are looked at as rows are looked up in the windows that hold them; no samples are made
    then, but where a key is made of windows that differ, or of steps between two rows. NaN lies
    outside.

    Raises:
        EpisodeError: its numbers can't be read or transformed.
    """
    is_outside = np.zeros(job.episode.total_frames, dtype=np.bool_)
    by_key: dict[str, int] = {}
    if job.view is not None and len(job.counted):
        for key, frames in _found(job, job.view, bounds):
            by_key[key] = by_key.get(key, 0) + len(frames)
            is_outside[frames] = True
    return Outliers(np.flatnonzero(is_outside), {key: n for key, n in by_key.items() if n})


def _found(job: EpisodeJob, view: View, bounds: Bounds) -> Iterator[tuple[str, IntArray]]:
    """Yield keys, and the frames at which they lie outside."""
    by_rows = {key for key in bounds if view.takes_rows_of(key)}
    by_samples = set(bounds) - by_rows
    for group in _groups(job.episode, view) if by_rows else ():
        for key, is_row in _rows_outside(job, group, bounds).items():
            if key in by_rows:
                by_rows.remove(key)
                yield key, _holding(job.counted, group, is_row)
    # Of the rest, the former have bounds of rows as they are stored.
    for keys, its in ((by_rows, _as_stored(job.episode, view)), (by_samples, view)):
        for numbers in sample_numbers(job.episode, its, job.counted) if keys else ():
            if numbers.key in keys:
                yield numbers.key, numbers.frames[_is_outside(numbers, bounds)]


def _is_outside(numbers: Numbers, bounds: Bounds) -> BoolArray:
    """Return at which of its frames a number of a key lies outside: (F,)."""
    low, high = bounds[numbers.key]
    is_within = (numbers.values >= low) & (numbers.values <= high)
    is_beyond = numbers.is_real & ~is_within
    return np.asarray(is_beyond.reshape(len(numbers.frames), -1).any(axis=1))


def _groups(episode: ZarrEpisode, view: View) -> Iterator[_Group]:
    """Yield the entries by their windows, without those whose steps lie between rows."""
    plain = dataclasses.replace(view.settings, transforms=())
    alike: dict[Hashable, list[str]] = {}
    for key, window in _windows_of(SampleMaker(episode, KeyMap(view.entries), plain)):
        alike.setdefault(window, []).append(key)
    steps = view.settings.transforms_of(episode.embodiment)
    for keys in alike.values():
        others = [key for key in view.entries if key not in keys]
        rows = None if others and not can_reduce(steps) else row_transforms(steps, others)
        if rows is None:
            continue
        entries = {key: view.entries[key] for key in keys}
        there = [key for key in keys if episode.has(entries[key].zarr_key)][:1]
        one = KeyMap({key: entries[key] for key in there}) if there else None
        yield _Group(
            dataclasses.replace(view, entries=entries, rows=rows),
            None if one is None else SampleMaker(episode, one, plain),
        )


def _windows_of(maker: SampleMaker) -> Iterator[tuple[str, Hashable]]:
    """Yield the entries whose steps are rows, and what is equal of those that read the same."""
    is_cut = maker.settings.annotation_cutoff
    for key, spec in maker.keymap.items():
        is_uneven = maker.timeline is not None and spec.is_timed
        steps = (entry_moments if is_uneven else entry_steps)(spec, maker.fps)
        ends = is_cut and spec.key_type == "action_keys" and steps.is_horizon
        if not steps.is_interpolated:
            yield key, (is_uneven, steps.identity, ends)


def _rows_outside(job: EpisodeJob, group: _Group, bounds: Bounds) -> dict[str, BoolArray]:
    """Return, per key that is made of a group's rows, which rows lie outside: (total_frames,)."""
    is_read = np.zeros(job.episode.total_frames, dtype=np.bool_)
    for _, rows, is_real in _windows(job.counted, group):
        is_read[rows[is_real]] = True
    read = np.flatnonzero(is_read) if is_read.any() else job.counted[:1]
    found: dict[str, BoolArray] = {}
    for numbers in row_numbers(job.episode, group.view, read):
        if numbers.key in bounds:
            its = found.setdefault(numbers.key, np.zeros_like(is_read))
            its[numbers.frames] = _is_outside(numbers, bounds)
    return found


def _holding(counted: IntArray, group: _Group, is_row: BoolArray) -> IntArray:
    """Return the frames whose windows hold any of some rows as a real one."""
    found = [np.empty(0, dtype=np.int64)]
    for frames, rows, is_real in _windows(counted, group) if is_row.any() else ():
        found.append(frames[(is_row[rows] & is_real).any(axis=1)])
    return np.concatenate(found)


def _windows(counted: IntArray, group: _Group) -> Iterator[tuple[IntArray, IntArray, BoolArray]]:
    """Yield frames that count, (F,), the rows of their windows, (F, n), and which are real."""
    if group.maker is None:
        return
    (key,) = group.maker.keymap
    for frames in split_frames(counted):
        plan, axes = group.maker.plan(frames), (len(frames), -1)
        yield frames, plan.rows(key).reshape(axes), ~plan.is_pad(key).reshape(axes)


def _as_stored(episode: ZarrEpisode, view: View) -> View:
    """Return a view whose samples are as exact as rows are."""
    entries = {
        key: dataclasses.replace(spec, dtype="float64")
        if entry_dtype(episode, spec).kind == "f"
        else spec
        for key, spec in view.entries.items()
    }
    return dataclasses.replace(view, entries=entries)
