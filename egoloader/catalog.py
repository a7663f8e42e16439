"""Which episodes there are in a folder, and which of them a dataset takes."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from egoloader.errors import FolderNotFoundError, SettingsError, near_miss
from egoloader.store import GROUP_FILES, MAX_METADATA_BYTES

__all__ = [
    "Split",
    "find_episodes",
    "is_episode",
    "is_group",
    "keep_share",
    "matches",
    "split_episodes",
]

Split = Literal["train", "valid", "all"]

#: Folders, one in the other, that episodes may lie in.
MAX_DEPTH = 64
#: Ways, by links, that may lead to one folder. Some links, each to a folder of such links, make
#: more ways than can ever be walked.
MAX_WAYS = 100


def find_episodes(folder: Path) -> list[str]:
    """Return the paths below `folder` of all episodes in it, sorted.

    An episode is a Zarr group that holds arrays, or a folder called `….zarr` that should be one.
    Folders whose name starts with a dot (half-written episodes among them) are passed over.

    Raises:
        FolderNotFoundError: there is no such folder, or no episode in it.
        SettingsError: folders that lie too deep in one another, or links without end.
    """
    if not folder.is_dir():
        what = (
            "this is a file, and no folder"
            if folder.exists()
            else "there is no folder at this path"
        )
        raise FolderNotFoundError(what, episode=str(folder))
    if is_episode(folder):
        raise FolderNotFoundError(
            "this is one episode, not a folder of episodes; "
            "give the folder above it, or open it with ZarrDataset",
            episode=str(folder),
        )
    try:
        found = sorted(_Walk(folder).below(folder, frozenset({os.path.realpath(folder)})))
    except OSError as error:
        raise FolderNotFoundError(f"it can't be searched: {error}", episode=str(folder)) from error
    if not found:
        raise FolderNotFoundError("the folder holds no episodes", episode=str(folder))
    return found


def split_episodes(
    names: Sequence[str], *, split: Split, valid_ratio: float, seed: int
) -> list[str]:
    """Return the episodes of a split, sorted: disjoint, seeded, whatever order they come in.

    `round(valid_ratio * n)` of the n episodes are for validation.

    Raises:
        SettingsError: an unknown split, or a ratio outside [0, 1).
    """
    if split not in get_args(Split):
        raise SettingsError(f"split is {split!r}; {near_miss(str(split), get_args(Split))}")
    if not _is_number(valid_ratio) or not 0 <= valid_ratio < 1:
        raise SettingsError(f"valid_ratio must be in [0, 1), got {valid_ratio!r}")
    _check_seed(seed)
    if split == "all":
        return sorted(names)
    valid = set(_shuffled(names, seed, "split")[: round(valid_ratio * len(names))])
    return sorted(name for name in names if (name in valid) == (split == "valid"))


def keep_share(names: Sequence[str], *, percent: float, seed: int) -> list[str]:
    """Return a seeded share of `names`, sorted; at least one; a smaller share lies in a larger.

    Raises:
        SettingsError: `percent` is outside (0, 100].
    """
    if not _is_number(percent) or not 0 < percent <= 100:
        raise SettingsError(f"percent must be in (0, 100], got {percent!r}")
    _check_seed(seed)
    keep = max(1, round(percent / 100 * len(names)))
    return sorted(_shuffled(names, seed, "percent")[:keep])


def matches(attrs: Mapping[str, Any], filters: Mapping[str, Any]) -> bool:
    """Return whether an episode's attributes meet every filter; a list means any of its values."""
    for name, wanted in filters.items():
        value = attrs.get(name)
        options = wanted if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
        if value not in options:
            return False
    return True


def _shuffled(names: Sequence[str], seed: int, purpose: str) -> list[str]:
    """Order names by a seeded hash, so that the order of listing can't matter."""

    def rank(name: str) -> bytes:
        text = f"{purpose}\0{seed}\0{name}".encode(errors="surrogateescape")
        return hashlib.blake2b(text, digest_size=16).digest()

    return sorted(names, key=rank)


def _check_seed(seed: object) -> None:
    if type(seed) is not int:
        raise SettingsError(f"seed must be a whole number, got {seed!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_group(folder: Path) -> bool:
    """Return whether a folder is a Zarr group, of whatever."""
    return any((folder / name).is_file() for name in GROUP_FILES)


def is_episode(folder: Path) -> bool:
    """Return whether a folder is a Zarr group that declares frames or has an array in it."""
    if not is_group(folder):
        return False
    return _declares_frames(folder) or _holds_array(folder)


def _declares_frames(folder: Path) -> bool:
    for name in ("zarr.json", ".zattrs"):
        path = folder / name
        if path.is_file() and b'"total_frames"' in _metadata(path):
            return True
    return False


def _holds_array(folder: Path) -> bool:
    for child in folder.iterdir():
        if not child.is_dir() or (child / ".zgroup").is_file():
            continue
        if (child / ".zarray").is_file():
            return True
        metadata = child / "zarr.json"
        if metadata.is_file() and b'"array"' in _metadata(metadata):
            return True
    return False


def _is_torn(folder: Path) -> bool:
    """Return whether a folder is no group and begins with an array: what a cut copy leaves.

    Opening it says so, where passing it over would not.
    """
    if is_group(folder):
        return False
    for child in sorted(folder.iterdir()):
        if (child / ".zarray").is_file():
            return True
        if (child / "zarr.json").is_file():
            try:
                metadata = json.loads(_metadata(child / "zarr.json"))
            except (ValueError, RecursionError):
                return False
            return isinstance(metadata, Mapping) and metadata.get("node_type") == "array"
    return False


def _metadata(path: Path) -> bytes:
    """Return a metadata file's bytes; of one that is too large to be one, the first."""
    with path.open("rb") as file:
        return file.read(min(path.stat().st_size, MAX_METADATA_BYTES))


class _Walk:
    """Looks for the episodes below a folder."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ways: Counter[str] = Counter()

    def below(self, folder: Path, above: frozenset[str]) -> Iterator[str]:
        """Yield the episodes below `folder`; `above` holds the real paths that lead to it."""
        found = False
        for path in sorted(folder.iterdir()):
            real = os.path.realpath(path)
            # A link to a folder above would be walked without end; one to itself is no folder.
            if path.name.startswith(".") or real in above:
                continue
            if not path.is_dir():
                if path.suffix == ".zarr":  # a link to a disk that is gone, or a file's stub
                    yield path.relative_to(self._root).as_posix()
                continue
            if is_episode(path) or _is_torn(path):
                found = True
                yield path.relative_to(self._root).as_posix()
            else:
                self._check(path, real, len(above))
                for name in self.below(path, above | {real}):
                    found = True
                    yield name
        if not found and folder != self._root and folder.suffix == ".zarr":
            yield folder.relative_to(self._root).as_posix()

    def _check(self, path: Path, real: str, depth: int) -> None:
        """Refuse what is not walked to its end."""
        self._ways[real] += 1
        if depth > MAX_DEPTH or self._ways[real] > MAX_WAYS:
            what = f"{MAX_DEPTH} folders" if depth > MAX_DEPTH else f"{MAX_WAYS} ways by links"
            raise SettingsError(
                f"more than {what} lead to {str(path)!r}; give the folder that the episodes are in"
            )
