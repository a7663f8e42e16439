"""Where an episode's bytes come from: one local folder, read by path and byte range.

`EpisodeFolder` is the small interface that egoloader itself asks for bytes through.
`CountingStore` is the same folder as zarr-python sees it. Both count chunk requests and bytes.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from zarr.abc.store import ByteRequest
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import LocalStore

from egoloader.arena import Arena
from egoloader.counts import ReadCounts
from egoloader.errors import EpisodeFormatError, LostEpisodeError, ReadError
from egoloader.files import Signature, StoredFile, open_files

__all__ = [
    "GROUP_FILES",
    "MAX_METADATA_BYTES",
    "CountingStore",
    "EpisodeFolder",
    "OnHole",
    "size_below",
]

OnHole = Callable[[str, str], None]

MAX_METADATA_BYTES = 16 * 2**20
#: Folders, one in the other, in which arrays are looked for.
MAX_DEPTH = 64
#: Of which a Zarr group has one: `zarr.json` in format 3, `.zgroup` in format 2.
GROUP_FILES = ("zarr.json", ".zgroup")
_METADATA_NAMES = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


class EpisodeFolder:
    """Read-only access to the files of one episode.

    Args:
        root: the episode's folder.
        name: what errors call the episode.
        counts: where requests and bytes are added.
        group: the file of the group's metadata, and which one it was when the episode was opened.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        counts: ReadCounts,
        group: tuple[str, Signature] | None = None,
    ) -> None:
        self._group = group
        self.root, self.name, self._counts = root, name, counts
        #: The folder's path as text, which costs less to join than a `Path`.
        self.root_name = os.fspath(root)

    def read_json(self, path: str, key: str | None = None) -> dict[str, Any] | None:
        """Return the JSON object in a file of at most 16 MB, or None where there is no file.

        Args:
            path: of the file, below the episode.
            key: the array that it is of, if it is of one.

        Raises:
            EpisodeFormatError: the file is too large, is no JSON, or is no object.
            ReadError: the file is there but can't be read.
        """

        def refuse(message: str) -> EpisodeFormatError:
            return EpisodeFormatError(f"{path} {message}", episode=self.name, key=key)

        try:
            file = StoredFile(self.full_path(path))
            data = file.read(0, min(file.size, MAX_METADATA_BYTES) + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise ReadError(f"{path} can't be read: {error}", episode=self.name, key=key) from error
        if len(data) > MAX_METADATA_BYTES:
            raise refuse(f"is larger than {MAX_METADATA_BYTES} bytes")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise refuse(f"is no JSON: {error}") from error
        if not isinstance(value, dict):
            raise refuse(f"must hold a JSON object, got {type(value).__name__}")
        return value

    def signature(self, path: str) -> Signature | None:
        """Return what tells a file from its successor; None where there is no file.

        Raises:
            ReadError: it can't be told whether there is one, or it is a pipe or device.
        """
        try:
            status = os.stat(f"{self.root_name}/{path}")  # noqa: PTH116 (a Path costs more)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ReadError(f"{path} can't be reached: {error}", episode=self.name) from error
        if stat.S_ISDIR(status.st_mode):
            return None
        if not stat.S_ISREG(status.st_mode):
            raise ReadError(f"{path} is no regular file", episode=self.name)
        return status.st_size, status.st_mtime_ns, status.st_ino

    def check_unchanged(self, key: str) -> None:
        """Refuse what a folder holds now if another episode has taken its place.

        Raises:
            ReadError: the group's metadata is not what it was when the episode was opened.
        """
        if self._group is None:
            return
        path, opened = self._group
        # Where there is none any more, nothing is in its place, and other checks say so.
        if self.signature(path) not in (opened, None):
            raise LostEpisodeError(
                "the episode was replaced or edited while it was open; open it anew",
                episode=self.name,
                key=key,
            )

    def full_path(self, path: str) -> str:
        """Return the path of a file below the folder."""
        return f"{self.root_name}/{path}"

    def open_file(self, key: str, path: str, kept: Signature | None) -> StoredFile | None:
        """Open a stored object of array `key`; None where there is no file.

        Args:
            key: the array.
            path: of the file, below the episode.
            kept: the file's signature where it is to stay among the process's open files, to be
                asked again.

        Raises:
            ReadError: the file is there but can't be opened, or it is another than `kept` says.
        """
        full = self.full_path(path)
        try:
            file = StoredFile(full) if kept is None else open_files().get(full, kept)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as error:
            raise ReadError(
                f"{path} can't be opened: {error}", episode=self.name, key=key
            ) from error
        if kept is not None and file.signature != kept:
            raise LostEpisodeError(
                f"{path} was replaced while the episode was open; open it anew",
                episode=self.name,
                key=key,
            )
        return file

    def read_range(
        self,
        key: str,
        path: str,
        file: StoredFile,
        start: int,
        stop: int,
        arena: Arena | None = None,
    ) -> bytes | memoryview:
        """Return bytes [start, stop) of a stored object of array `key`, and count the request.

        What is behind the file's end is left out. They are in memory of an arena if there is one.

        Raises:
            ReadError: the file can't be read, or is shorter than it was.
        """
        stop = max(start, min(stop, file.size))
        try:
            if arena is None:
                data: bytes | memoryview = file.read(start, stop)
            else:
                data = file.read_into(arena.take(stop - start), start)
        except OSError as error:
            raise self._unreadable(key, path, start, stop, error) from error
        size = len(data)
        self._counts.of(key).add_request(size)
        if size < stop - start:
            raise ReadError(
                f"{path} was cut short while it was open: bytes {start} to {stop} hold {size}",
                episode=self.name,
                key=key,
            )
        return data

    def _unreadable(self, key: str, path: str, start: int, stop: int, error: OSError) -> ReadError:
        return ReadError(
            f"{path}, bytes {start} to {stop} can't be read: {error}", episode=self.name, key=key
        )

    def walk(self) -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield every folder as `os.walk` does, sorted, by its path below the episode."""
        for folder, subfolders, files in os.walk(self.root):
            name = Path(folder).relative_to(self.root)
            if len(name.parts) == MAX_DEPTH:
                subfolders.clear()
            subfolders.sort()
            yield name.as_posix(), subfolders, files

    def array_names(self) -> Iterator[str]:
        """Yield the names of all arrays below the folder, sorted; a name may hold slashes."""
        for name, subfolders, files in self.walk():
            if ".zarray" in files or ("zarr.json" in files and self._is_array(f"{name}/zarr.json")):
                subfolders.clear()
                yield name

    def _is_array(self, path: str) -> bool:
        metadata = self.read_json(path)
        return metadata is not None and metadata.get("node_type") == "array"


def size_below(folder: str | os.PathLike[str]) -> int:
    """Return the bytes of all files below a folder, as far as they can be reached."""
    size, folders = 0, [os.fspath(folder)]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif entry.is_file():
                        size += entry.stat().st_size
        except OSError:  # what went away meanwhile, or lies deeper than paths go
            continue
    return size


class CountingStore(LocalStore):
    """A local folder for zarr-python that counts requests and bytes of one array's chunks.

    It inherits, as newer versions of zarr-python fetch a shard's chunks by a method of the store
    that asks `get` of the same object.

    Args:
        root: the folder.
        key: the array.
        counts: where requests and bytes are added.
        on_hole: called with the key and the path of a chunk that is not there, before zarr-python
            takes it for one of fill values; may raise.
    """

    def __init__(self, root: Path, key: str, counts: ReadCounts, on_hole: OnHole) -> None:
        super().__init__(root, read_only=True)
        self._key, self._counts, self._on_hole = key, counts, on_hole

    async def get(
        self,
        key: str,
        prototype: BufferPrototype | None = None,
        byte_range: ByteRequest | None = None,
    ) -> Buffer | None:
        """Fetch a stored object, or a byte range of it, and count the request."""
        data = await super().get(key, prototype, byte_range)
        if key.rpartition("/")[2] not in _METADATA_NAMES:
            self._counts.of(self._key).add_request(0 if data is None else len(data))
            if data is None:
                self._on_hole(self._key, key)
        return data
