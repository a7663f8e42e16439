"""Whether a folder that something was killed in holds whole episodes only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrEpisode
from egoloader.catalog import find_episodes
from egoloader.errors import EpisodeError, FolderNotFoundError
from egoloader.validate import validate_paths

__all__ = [
    "Contents",
    "contents_of",
    "differences",
    "episodes_aside",
    "episodes_in",
    "find_faults",
    "stamps_of",
]

#: Path -> bytes of a file, or None of a folder.
Contents = Mapping[str, bytes | None]

_HIDDEN = re.compile(r"\.(?P<name>.+)\.partial(?P<old>\.old\d+)?")


def contents_of(folder: Path) -> Contents:
    """Return all that is in a folder, hidden or not."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }


def episodes_in(folder: Path) -> dict[str, Contents]:
    """Return what lies in a folder in the open, by name."""
    return {path.name: contents_of(path) for path in sorted(folder.glob("[!.]*")) if path.is_dir()}


def episodes_aside(folder: Path) -> dict[str, Contents]:
    """Return what a writer moved aside to replace it and had to leave there, by its old name."""
    found = {path: _HIDDEN.fullmatch(path.name) for path in folder.glob(".*.old0")}
    return {match["name"]: contents_of(path) for path, match in found.items() if match}


def stamps_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return what tells each file below a folder from one that was written anew."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in files}


def differences(found: Contents, wanted: Contents) -> str:
    """Return how two folders differ, in words; empty where they don't."""
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    other = sorted(path for path in found.keys() & wanted.keys() if found[path] != wanted[path])
    lists = {"lacks": missing, "has also": extra, "differs in": other}
    return "; ".join(f"{how} {paths[:3]} of {len(paths)}" for how, paths in lists.items() if paths)


def find_faults(folder: Path, whole: Sequence[Mapping[str, Contents]]) -> list[str]:
    """Return all that no reader may find in a folder after a kill, in words.

    Args:
        folder: the episodes' folder; need not be there.
        whole: episodes that may be there, as they are undisturbed, by name.
    """
    if not folder.exists():
        return []
    return [*_in_the_open(folder, whole), *_hidden(folder, whole), *_as_data(folder)]


def _in_the_open(folder: Path, whole: Sequence[Mapping[str, Contents]]) -> Iterator[str]:
    for path in sorted(folder.glob("[!.]*")):
        wanted = [episodes[path.name] for episodes in whole if path.name in episodes]
        if not path.is_dir() or not wanted:
            yield f"{path.name} is no episode that was to be written"
        elif contents_of(path) not in wanted:
            yield f"{path.name} is not whole: {differences(contents_of(path), wanted[0])}"


def _hidden(folder: Path, whole: Sequence[Mapping[str, Contents]]) -> Iterator[str]:
    for path in sorted(folder.glob(".*")):
        match = _HIDDEN.fullmatch(path.name)
        wanted = [episodes.get(match["name"]) for episodes in whole] if match else []
        if not any(wanted):
            yield f"{path.name} is no folder that an episode is written in"
            continue
        try:
            ZarrEpisode(path)
        except EpisodeError:
            continue
        if contents_of(path) not in wanted:
            yield f"{path.name} is not whole, and opens"


def _as_data(folder: Path) -> Iterator[str]:
    """Yield what readers of folders find amiss, or find where it isn't in the open."""
    names = sorted(episodes_in(folder))
    if not names:
        with suppress(FolderNotFoundError):
            yield f"{find_episodes(folder)} are found, and none is there"
        return
    keymap = KeyMap({"action": KeySpec(zarr_key="action", key_type="action_keys", horizon=4)})
    validation = validate_paths([folder], workers=1)
    yield from (f"egoloader validate: {one}" for one in validation.findings if one.is_bad)
    found = {
        "find_episodes": find_episodes(folder),
        "egoloader validate": list(validation.episodes),
    }
    try:
        dataset = MultiDataset.from_folder(folder, keymap)
    except EpisodeError as error:
        yield f"MultiDataset: {error}"
    else:
        found["MultiDataset"] = [record.name for record in dataset.episodes]
    for who, listed in found.items():
        if sorted(listed) != names:
            yield f"{who} finds {listed}, and {names} are there"
