"""A keymap bound to one episode: every mismatch that the metadata can show is refused here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.episode import TIMESTAMP, ZarrEpisode
from egoloader.errors import EpisodeFormatError, KeyMapError, MissingKeyError, near_miss
from egoloader.header import Feature
from egoloader.keymap import KeyMap, KeySpec
from egoloader.layout import ArrayLayout
from egoloader.plan import EntryPlan, PlanOutline, ReadPlan, outline_plan
from egoloader.row import rotating_row, row_of
from egoloader.timeline import Timeline, tolerance
from egoloader.timestamps import layout_problem, time_faults
from egoloader.windows import Moments, Steps, current_frame, entry_moments, entry_steps

__all__ = ["Binding", "bind"]


@dataclass(frozen=True, slots=True)
class Binding:
    """What one episode makes of a keymap.

    Attributes:
        outline: of the entries whose arrays the episode has and whose rows are read; `timestamp`
            is among them where the episode records one.
        steps: per sample key with rows, absent arrays among them, its window in frames; the moments
            of those that are read by time, where the episode has a timeline.
        timeline: when its frames were recorded, where that is not evenly and makes a difference.
    """

    outline: PlanOutline
    steps: Mapping[str, Steps | Moments]
    timeline: Timeline | None


def bind(episode: ZarrEpisode, keymap: KeyMap, *, annotation_cutoff: bool) -> Binding:
    """Check a keymap against an episode's metadata.

    Raises:
        MissingKeyError: an array that is not optional is missing.
        KeyMapError: an array is not what the entry takes it for.
        EpisodeFormatError: an array is shorter than `total_frames`, or can't be understood.
    """
    entries: dict[str, EntryPlan] = {}
    chunk_rows: dict[str, int] = {}
    steps: dict[str, Steps | Moments] = {}
    timeline = _timeline(episode) if keymap.is_timed else None
    for key, spec in keymap.items():
        if spec.is_task:
            continue
        present = episode.has(spec.zarr_key)
        if not present and not spec.optional:
            raise MissingKeyError(
                f"entry {key!r} needs an array that this episode of embodiment "
                f"{episode.embodiment!r} does not have; {near_miss(spec.zarr_key, episode.keys)} "
                "(optional: true serves zeros where an episode lacks it)",
                episode=episode.name,
                key=spec.zarr_key,
            )
        if present:
            _check_kind(episode, key, spec, episode.layout(spec.zarr_key))
        if spec.is_annotation:
            continue
        is_uneven = timeline is not None and spec.is_timed
        steps[key] = (entry_moments if is_uneven else entry_steps)(spec, episode.fps)
        if present:
            layout = episode.layout(spec.zarr_key)
            _check_rows(episode, spec.zarr_key, layout)
            is_cut = annotation_cutoff and spec.key_type == "action_keys"
            entries[key] = EntryPlan(spec.zarr_key, steps[key], is_cut and steps[key].is_horizon)
            chunk_rows[spec.zarr_key] = layout.chunk_rows
    if episode.has(TIMESTAMP):
        _check_timestamps(episode)
        entries[TIMESTAMP] = EntryPlan(TIMESTAMP, current_frame(), False)
        chunk_rows[TIMESTAMP] = episode.layout(TIMESTAMP).chunk_rows
    return Binding(outline_plan(entries, chunk_rows), steps, timeline)


def _timeline(episode: ZarrEpisode) -> Timeline | None:
    """Return when an episode's frames were recorded; None where they are even, as its fps says.

    The one thing that is read of an episode to plan.
    """
    if not episode.has(TIMESTAMP) or not episode.total_frames:
        return None
    _check_timestamps(episode)
    stored = np.asarray(episode.fetch(TIMESTAMP, ReadPlan(((0, episode.total_frames),))))
    stored = stored.reshape(-1)
    times = stored.astype(np.float64)
    _check_times(episode, times)
    times.flags.writeable = False
    timeline = Timeline(times, episode.fps, tolerance(stored))
    return None if timeline.is_even else timeline


def _check_times(episode: ZarrEpisode, times: npt.NDArray[np.float64]) -> None:
    """Refuse times that nothing can be read by."""
    fault = next(time_faults(times, np.ones(len(times), dtype=np.bool_), episode.fps), None)
    if fault is not None:
        raise EpisodeFormatError(
            f"{fault.problem}; entries with rate_hz or latency_s go by these times, all of them: "
            "repair them, or leave the episode out, as a quarantine file does that lists one of "
            "them",
            episode=episode.name,
            key=TIMESTAMP,
            frame=fault.start,
        )


def _check_rows(episode: ZarrEpisode, key: str, layout: ArrayLayout) -> None:
    if layout.rows < episode.total_frames:
        raise EpisodeFormatError(
            f"the array has {layout.rows} rows, fewer than total_frames = {episode.total_frames}",
            episode=episode.name,
            key=key,
        )


def _check_timestamps(episode: ZarrEpisode) -> None:
    """Check the array that every sample's `timestamp` comes from."""
    layout = episode.layout(TIMESTAMP)
    _check_rows(episode, TIMESTAMP, layout)
    problem = layout_problem(layout)
    if problem:
        raise EpisodeFormatError(problem, episode=episode.name, key=TIMESTAMP)


def _check_kind(episode: ZarrEpisode, key: str, spec: KeySpec, layout: ArrayLayout) -> None:
    feature = (episode.header.features or {}).get(spec.zarr_key)
    if spec.is_annotation:
        problem = _annotation_problem(layout, feature)
    elif layout.kind == "other":
        problem = f"rows of data type {layout.type_name!r} can't be read"
    elif spec.is_camera:
        problem = _camera_problem(spec, layout, feature)
    else:
        problem = _rows_problem(spec, layout, feature)
    if problem:
        raise KeyMapError(
            f"entry {key!r} does not fit episode {episode.name!r}, key {spec.zarr_key!r}: {problem}"
        )


def _annotation_problem(layout: ArrayLayout, feature: Feature | None) -> str:
    if layout.rows and (layout.kind != "bytes" or (feature and feature.dtype == "jpeg")):
        return f"{feature.dtype if feature else layout.type_name} rows are no annotations"
    return ""


def _camera_problem(spec: KeySpec, layout: ArrayLayout, feature: Feature | None) -> str:
    if layout.kind != "bytes" or (feature and feature.dtype != "jpeg"):
        return f"{feature.dtype if feature else layout.type_name} rows are no camera frames"
    if spec.shape is not None and feature and feature.shape and spec.shape != feature.shape:
        return f"its frames are {feature.shape}, the entry's shape is {spec.shape}"
    return ""


def _rows_problem(spec: KeySpec, layout: ArrayLayout, feature: Feature | None) -> str:
    if layout.kind == "bytes":
        if feature and feature.dtype == "jpeg":
            return "its rows are jpeg, no numbers; key_type would be camera_keys"
        if spec.key_type != "metadata_keys":
            what = feature.dtype if feature else "bytes"
            return f"its rows are {what}, no numbers; key_type would be metadata_keys"
        if spec.dtype is not None:
            return f"its rows are JSON, for which no dtype can be set, got {spec.dtype!r}"
    if layout.kind == "numeric" and spec.optional and spec.shape is None:
        return "its rows are numbers, so that an optional entry needs shape and dtype"
    if spec.interpolation != "nearest":
        problem = _interpolation_problem(spec, layout)
        if problem:
            return problem
    if spec.shape is not None and layout.row_shape != spec.shape:
        return f"its rows are {layout.row_shape}, the entry's shape is {spec.shape}"
    return ""


def _interpolation_problem(spec: KeySpec, layout: ArrayLayout) -> str:
    dtype, shape = layout.dtype, layout.row_shape
    if dtype is None:
        return "JSON rows can't be interpolated; leave interpolation out"
    if dtype.kind == "b":
        return "true and false can't be interpolated; leave interpolation out"
    if spec.key_type == "metadata_keys" and spec.dtype is None and dtype.kind != "f":
        return f"its rows leave as {dtype}, and interpolation makes floats; set dtype: float32"
    if spec.interpolation == "slerp" and rotating_row(spec.row, shape[-1] if shape else 1) is None:
        if spec.row is not None:
            return f"its rows are {shape}, and row {list(spec.row)} is {row_of(spec.row).size} long"
        return (
            f"slerp takes rows of rotations, and its are {shape}, which are no poses (7 numbers, "
            "xyz and a wxyz quaternion) nor wxyz quaternions (4); list their parts with row, as in "
            "[xyz, quaternion_wxyz, 1]"
        )
    return ""
