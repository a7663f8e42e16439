"""Mutations of an episode's files, by class; each is drawn by the seed that it is handed."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zarr

from tests.damage import put_row
from tests.fuzz.bases import ANNOTATIONS, CAMERA, EVENTS, Base
from tests.fuzz.edits import edit_documents, hostile_row
from tests.fuzz.pictures import hostile_picture

__all__ = ["CLASSES", "Files", "Material", "Mutation", "load_files"]

#: By their paths below the episode.
Files = dict[str, bytes]
_METADATA = ("zarr.json", ".zarray", ".zattrs", ".zgroup")


@dataclass(frozen=True, slots=True)
class Material:
    """What a mutation is made of.

    Attributes:
        base: how the episode is stored.
        files: of the episode.
        sibling: of another recording that is stored alike.
        strangers: of episodes that are stored in other ways.
    """

    base: Base
    files: Files
    sibling: Files
    strangers: Sequence[Files]

    def chunks(self) -> list[str]:
        """Return the paths of all chunks and shards."""
        return [path for path in self.files if not _is_metadata(path)]

    def pick(self, rng: random.Random) -> str:
        """Return the path of a file: of metadata, or of an array's chunks, each as often."""
        if rng.random() < 0.3:
            return rng.choice([path for path in self.files if _is_metadata(path)])
        of_keys = [[p for p in self.chunks() if p.startswith(f"{k}/")] for k in self.base.keys]
        return rng.choice(rng.choice([paths for paths in of_keys if paths]))

    def below(self, key: str) -> list[str]:
        """Return the paths of an array's files."""
        return [path for path in self.files if path.startswith(f"{key}/")]


@dataclass(frozen=True, slots=True)
class Mutation:
    """What becomes of an episode.

    Attributes:
        what: was done, in words.
        changed: files with other content; None where one is taken away.
        folders: paths at which an empty folder is in the place of a file.
        pipes: paths at which a pipe is, to which nobody writes.
        rows: array and row to other bytes, which are stored as an episode's own are.
    """

    what: str
    changed: Mapping[str, bytes | None]
    folders: Sequence[str] = ()
    pipes: Sequence[str] = ()
    rows: Mapping[tuple[str, int], bytes] | None = None

    @property
    def paths(self) -> frozenset[str]:
        """All paths that something was done to; of a row, that of its array."""
        return frozenset([*self.changed, *(f"{k}/" for k, _ in self.rows or ())])

    def keys(self, base: Base) -> frozenset[str] | None:
        """Return the arrays that something was done to; None where it was done to the group."""
        found = {next((k for k in base.keys if p.startswith(f"{k}/")), None) for p in self.paths}
        return None if None in found else frozenset(key for key in found if key is not None)

    def write(self, files: Files, target: Path) -> None:
        """Write the mutated episode into a folder that is not there yet."""
        for path, data in {**files, **self.changed}.items():
            if data is not None:
                place = target / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
        target.mkdir(exist_ok=True)
        for path in self.folders:
            (target / path).mkdir(parents=True)
        for path in self.pipes:
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            os.mkfifo(target / path)
        with zarr.config.set({"array.write_empty_chunks": True}):  # an empty row is a row
            for (key, row), data in (self.rows or {}).items():
                put_row(target, key, row, data)


def load_files(episode: Path) -> Files:
    """Return the files of an episode, in the order of their paths."""
    paths = sorted(path for path in episode.rglob("*") if path.is_file())
    return {path.relative_to(episode).as_posix(): path.read_bytes() for path in paths}


def _is_metadata(path: str) -> bool:
    return path.rpartition("/")[2] in _METADATA


def _flip_bits(rng: random.Random, material: Material) -> Mutation:
    path = material.pick(rng)
    data = bytearray(material.files[path])
    # The heads of compressed chunks, and the indexes of shards, lie at the ends.
    low, high = rng.choice([(0, len(data)), (0, 20), (len(data) - 200, len(data))])
    low, high = max(0, low), min(high, len(data))
    count = rng.choice([1, 1, 1, 2, 5, 30])
    for _ in range(count):
        data[rng.randrange(low, high)] ^= 1 << rng.randrange(8)
    return Mutation(f"{count} bits of {path}, bytes {low} to {high}", {path: bytes(data)})


def _truncate(rng: random.Random, material: Material) -> Mutation:
    path = material.pick(rng)
    data = material.files[path]
    near = len(data) - rng.randint(1, min(20, len(data)))
    size = rng.choice([0, near, rng.randrange(len(data)), rng.randrange(len(data))])
    return Mutation(f"{path} cut from {len(data)} to {size}", {path: data[:size]})


def _swap(rng: random.Random, material: Material) -> Mutation:
    return rng.choice([_swap_within, _swap_within, _swap_arrays, _take_sibling, _take_stranger])(
        rng, material
    )


def _swap_within(rng: random.Random, material: Material) -> Mutation:
    one, files = material.pick(rng), material.files
    others = [path for path in files if _is_metadata(path) == _is_metadata(one) and path != one]
    other = rng.choice(others if rng.random() < 0.9 else [path for path in files if path != one])
    return Mutation(f"{one} and {other}", {one: files[other], other: files[one]})


def _swap_arrays(rng: random.Random, material: Material) -> Mutation:
    one, other = rng.sample(material.base.keys, 2)
    changed: dict[str, bytes | None] = {}
    for key, source in ((one, other), (other, one)):
        changed |= dict.fromkeys(material.below(key))
        for path in material.below(source):
            changed[key + path.removeprefix(source)] = material.files[path]
    return Mutation(f"arrays {one} and {other}", changed)


def _take_sibling(rng: random.Random, material: Material) -> Mutation:
    path = material.pick(rng)
    paths = [path]
    if rng.random() < 0.3:
        paths = material.below(rng.choice(material.base.keys))
    changed = {path: material.sibling[path] for path in paths}
    return Mutation(f"{', '.join(paths)} of another recording", changed)


def _take_stranger(rng: random.Random, material: Material) -> Mutation:
    stranger, path = rng.choice(material.strangers), material.pick(rng)
    same = [path] if path in stranger and rng.random() < 0.7 else list(stranger)
    other = rng.choice(same)
    return Mutation(f"{path} is {other} of another layout", {path: stranger[other]})


def _edit(rng: random.Random, material: Material) -> Mutation:
    rows = [key for key in (ANNOTATIONS, EVENTS) if key in material.base.keys]
    if rows and rng.random() < 0.15:
        key = rng.choice(rows)
        row, data = rng.randrange(2), hostile_row(rng)
        return Mutation(f"row {row} of {key} is {data!r:.50}", {}, rows={(key, row): data})
    for _ in range(20):
        changed, told = edit_documents(rng, material.base, material.files)
        if changed:
            break
    return Mutation(told, changed)


def _delete(rng: random.Random, material: Material) -> Mutation:
    files, key = list(material.files), rng.choice(material.base.keys)
    one = material.pick(rng)
    choices: list[Sequence[str]] = [
        [one],
        [one],
        rng.sample(files, rng.randint(1, min(5, len(files)))),
        [path for path in material.below(key) if not _is_metadata(path)],
        [path for path in material.below(key) if _is_metadata(path)],
        material.below(key),
        [path for path in files if "/" not in path],
        [path for path in files if _is_metadata(path)],
        material.chunks(),
    ]
    # Most often something of which the rest may still be read.
    paths = rng.choices(choices, weights=[6, 6, 4, 2, 2, 2, 1, 0.5, 0.5])[0]
    instead, told = rng.random(), ", ".join(paths)
    if instead < 0.1:
        return Mutation(f"folders in place of {told}", dict.fromkeys(paths), folders=paths)
    if instead < 0.2:
        return Mutation(f"pipes in place of {told}", dict.fromkeys(paths), pipes=paths)
    return Mutation(told, dict.fromkeys(paths))


def _put_pictures(rng: random.Random, material: Material) -> Mutation:
    frames, told = material.base.recording().rows[CAMERA], []
    rows: dict[tuple[str, int], bytes] = {}
    for row in rng.sample(range(len(frames)), rng.choice([1, 1, 2, 3])):
        rows[CAMERA, row], kind = hostile_picture(rng, frames[row])
        told.append(f"row {row} {kind}")
    return Mutation("; ".join(told), {}, rows=rows)


#: By name.
CLASSES: Mapping[str, Callable[[random.Random, Material], Mutation]] = {
    "flipped-bits": _flip_bits,
    "truncated": _truncate,
    "swapped": _swap,
    "edited-json": _edit,
    "deleted": _delete,
    "bad-jpeg": _put_pictures,
}
