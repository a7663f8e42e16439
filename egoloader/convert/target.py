"""What is already at the destination of a conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from egoloader.convert.job import EpisodeJob
from egoloader.errors import ConversionError

__all__ = ["is_converted", "target_path"]


def target_path(folder: Path, episode: int) -> Path:
    """Return where an episode goes."""
    return folder / f"episode_{episode:06d}.zarr"


def is_converted(job: EpisodeJob) -> bool:
    """Return whether the job's episode is there already: finished, and made in the same way.

    Raises:
        ConversionError: something else is at the path.
    """
    if not job.target.exists():
        return False
    attrs = _attributes(job.target)
    stamp = attrs.get("egoloader")
    if not isinstance(stamp, dict) or stamp.get("complete") is not True:
        raise _occupied(job, "it is not a finished episode")
    made = attrs.get("lerobot")
    if not isinstance(made, dict):
        raise _occupied(job, "it does not come from a LeRobot data set")
    source = (made.get("dataset"), made.get("episode_index"))
    wanted = (job.info.root.resolve().name, job.entry.index)
    if source != wanted:
        raise _occupied(job, f"it is episode {source[1]} of {source[0]!r}, not of {wanted[0]!r}")
    if attrs.get("total_frames") != job.entry.length:
        raise _occupied(
            job, f"it has {attrs.get('total_frames')} frames and the source {job.entry.length}"
        )
    _check_recipe(job, made.get("conversion"))
    return True


def _check_recipe(job: EpisodeJob, made: object) -> None:
    asked = job.recipe.as_attrs()
    if made == asked:
        return
    old = made if isinstance(made, dict) else {}
    changed = [f"{k} {old.get(k)!r}, now {v!r}" for k, v in asked.items() if old.get(k) != v]
    raise _occupied(job, f"it was converted with other settings ({'; '.join(changed)})")


def _attributes(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads((path / "zarr.json").read_bytes())
        attributes = metadata.get("attributes")
    except (OSError, ValueError, AttributeError):
        # Whatever it is, it is no episode; the caller says so.
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _occupied(job: EpisodeJob, why: str) -> ConversionError:
    return ConversionError(
        f"{job.target} exists, and {why}; convert into another folder, or replace it with "
        "overwrite=True (--overwrite)"
    )
