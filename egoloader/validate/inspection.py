"""All that is looked at of one episode."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from egoloader.episode import ANNOTATIONS, ZarrEpisode
from egoloader.errors import EpisodeError
from egoloader.layout import ArrayLayout
from egoloader.validate.cameras import check_camera
from egoloader.validate.finding import Finding, join_runs
from egoloader.validate.metadata import check_annotations, check_metadata, readable_keys
from egoloader.validate.numbers import check_finite, check_tails, check_timestamps
from egoloader.validate.poses import check_poses, is_pose
from egoloader.validate.stored import Depth, Numbers, check_depth, read_bytes, read_numbers

__all__ = ["Depth", "validate_episode"]


def validate_episode(path: Path, name: str, depth: Depth = "full") -> list[Finding]:
    """Look for everything that is wrong with one episode.

    Args:
        path: the episode's folder.
        name: what findings call it.
        depth: `metadata` decodes nothing, `sampled` some chunks of each array, `full` all.

    Raises:
        SettingsError: there is no such depth.
    """
    check_depth(depth)
    findings: list[Finding] = []
    total = 0
    # NaN, inf and huge numbers are looked at like any others, and no surprise.
    with np.errstate(over="ignore", invalid="ignore"):
        try:
            episode = ZarrEpisode(path, name=name)
            total = episode.total_frames
            findings += check_metadata(episode)
            if depth != "metadata" and total:
                findings += _check_rows(episode, depth)
                if not any(one.key == ANNOTATIONS and one.is_bad for one in findings):
                    findings += check_annotations(episode)
        except EpisodeError as error:
            findings.append(Finding(name, "metadata", error.message))
        except (OSError, MemoryError) as error:
            # One that can't be looked at says nothing of the others.
            findings.append(Finding(name, "process", f"it can't be looked at: {error!r}"))
    return join_runs(_without_repeats(findings) if depth == "full" else findings, total)


def _check_rows(episode: ZarrEpisode, depth: Depth) -> Iterator[Finding]:
    arrays: dict[str, Numbers] = {}
    for key, layout in readable_keys(episode).items():
        if layout.kind == "numeric":
            arrays[key], findings = read_numbers(episode, key, depth)
            yield from findings
            yield from check_finite(episode, key, arrays[key])
            if is_pose(key, arrays[key]):
                yield from check_poses(episode, key, arrays[key])
        elif _is_camera(episode, key, layout):
            yield from check_camera(episode, key, depth)
        else:
            yield from _check_json(episode, key, depth)
    yield from check_tails(episode, arrays)
    yield from check_timestamps(episode, arrays)


def _is_camera(episode: ZarrEpisode, key: str, layout: ArrayLayout) -> bool:
    feature = (episode.header.features or {}).get(key)
    if feature is not None:
        return feature.dtype == "jpeg"
    return layout.kind == "bytes" and "image" in key


def _check_json(episode: ZarrEpisode, key: str, depth: Depth) -> Iterator[Finding]:
    feature = (episode.header.features or {}).get(key)
    is_json = feature is not None and feature.dtype == "json"
    for row, data in read_bytes(episode, key, depth):
        if isinstance(data, Finding):
            yield data
            continue
        try:
            if is_json:
                json.loads(data)
        except (ValueError, RecursionError) as error:
            message = f"the row is no JSON ({error}): {data!r:.60}"
            yield Finding(episode.name, "json", message, key, row, row + 1)


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """Leave out that an array lacks chunks where the rows that can't be read are all named."""
    named = {one.key for one in findings if one.check == "unreadable"}
    return [one for one in findings if not (one.check == "metadata" and one.key in named)]
