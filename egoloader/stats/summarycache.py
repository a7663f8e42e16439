"""Summaries of episodes on disk, so that what was computed once is not computed again."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import uuid
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from egoloader.episode import ANNOTATIONS, TIMESTAMP
from egoloader.errors import SettingsError, StatisticsWarning
from egoloader.stats.job import EpisodeJob
from egoloader.stats.summary import KeySummary
from egoloader.store import GROUP_FILES
from egoloader.transforms import Chain, Transform

__all__ = ["SummaryCache", "cache_at"]

#: Of what the files hold.
_VERSION = 1
_PACKAGE = "egoloader."


class SummaryCache:
    """A folder with a file for each episode that was summarised.

    A file's name is a fingerprint of all that decides what is in it: the keymap's entries, the
    transforms and their options, which frames count, what becomes of missing chunks, and of the
    episode its name and each file of the arrays that are read, by path, size and time of
    modification. So an episode that was written
    again, or edited, is looked at again; so is one that was copied without its times.

    Files appear whole, by rename. What is no longer wanted stays until somebody deletes it.

    Args:
        folder: made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise SettingsError(f"cache must be a folder, and {str(folder)!r} is a file")
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def load(self, job: EpisodeJob) -> dict[str, KeySummary] | None:
        """Return the summaries of an episode; None where they are not there."""
        path = self._path(job)
        try:
            with path.open("rb") as stored, np.load(stored, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
        except FileNotFoundError:
            return None
        except (zipfile.BadZipFile, ValueError, EOFError):
            return None  # a disk's fault, and what is computed anew replaces it
        found: dict[str, dict[str, Any]] = {}
        keys = [str(key) for key in arrays.pop("keys")]
        for name, array in arrays.items():
            number, _, part = name.partition("/")
            found.setdefault(keys[int(number)], {})[part] = array
        return {key: KeySummary.from_arrays(parts) for key, parts in found.items()}

    def store(self, job: EpisodeJob, summaries: dict[str, KeySummary]) -> None:
        """Keep the summaries of an episode."""
        arrays: dict[str, Any] = {"keys": np.array(list(summaries), dtype=np.str_)}
        for number, summary in enumerate(summaries.values()):
            for part, array in summary.to_arrays().items():
                arrays[f"{number}/{part}"] = array
        path = self._path(job)
        half = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp")
        try:
            with half.open("wb") as file:
                np.savez(file, **arrays)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)

    def _path(self, job: EpisodeJob) -> Path:
        return self._folder / f"{_fingerprint(job)}.npz"


def cache_at(
    folder: str | os.PathLike[str] | None, transforms: Iterable[object]
) -> SummaryCache | None:
    """Return the cache in a folder; None where there is to be none.

    A transform that is none of the project's has no fingerprint: there is a warning then.

    Raises:
        SettingsError: it is no path, or that of a file.
    """
    if folder is None:
        return None
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise SettingsError(f"cache must be the path of a folder, got {folder!r}")
    for one in _flat(transforms):
        known = type(one).__module__.startswith(_PACKAGE) and dataclasses.is_dataclass(one)
        if not (isinstance(one, Transform) and known):
            warnings.warn(
                f"the statistics are not cached: nothing tells whether transform {one!r} is what "
                "it was before",
                StatisticsWarning,
                stacklevel=4,
            )
            return None
    return SummaryCache(Path(folder))


def _flat(transforms: Iterable[object]) -> Iterator[object]:
    for one in transforms:
        yield from _flat(one.transforms) if isinstance(one, Chain) else [one]


def _fingerprint(job: EpisodeJob) -> str:
    assert job.view is not None
    episode, digest = job.episode, hashlib.blake2b(digest_size=16)
    its = (episode.name, episode.total_frames, episode.fps, episode.missing_chunks)
    head = (_VERSION, its, job.view.identity)
    digest.update(repr(head).encode(errors="surrogateescape"))
    if job.frames is not None:
        digest.update(job.frames.astype("<i8").tobytes())
    keys = {spec.zarr_key for spec in job.view.entries.values()} | {ANNOTATIONS, TIMESTAMP}
    paths = [episode.path / name for name in (*GROUP_FILES, ".zattrs")]
    for key in sorted(keys):
        paths.extend(sorted((episode.path / key).rglob("*")))
    for path in paths:
        if path.is_file():
            status = path.stat()
            where = path.relative_to(episode.path).as_posix()
            one = (where, status.st_size, status.st_mtime_ns)
            digest.update(repr(one).encode(errors="surrogateescape"))
    return digest.hexdigest()
