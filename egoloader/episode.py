"""One episode on disk, opened for reading."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from egoloader.access import EpisodeAccess
from egoloader.annotation import ANNOTATIONS, Annotation, num_annotations, parse_annotations
from egoloader.cache import ByteCache
from egoloader.chunkcodec import ChunkRows, unread_reason
from egoloader.chunktable import ChunkTable
from egoloader.counts import ReadCounts
from egoloader.entryfields import is_array_name
from egoloader.errors import (
    EpisodeFormatError,
    EpisodeNotFoundError,
    MissingKeyError,
    RowRangeError,
    SettingsError,
    near_miss,
)
from egoloader.files import Signature
from egoloader.guard import MissingChunks
from egoloader.header import EpisodeHeader, parse_header
from egoloader.layout import ArrayLayout, parse_layout
from egoloader.plan import ReadPlan, Window, plan_reads
from egoloader.reader import BytesReader, ReadAlike, join_rows
from egoloader.store import GROUP_FILES, EpisodeFolder

__all__ = ["ANNOTATIONS", "TIMESTAMP", "Annotation", "ZarrEpisode"]

#: The array that holds each frame's time in seconds, where it was recorded.
TIMESTAMP = "timestamp"
#: Chunks that are looked up at once.
_CHECKED_CHUNKS = 1024


class ZarrEpisode:
    """One episode: its metadata, and windows of rows out of its arrays.

    Opening reads the group's metadata only; an array's is read when the array is first asked for.
    Pickles as its path and settings, and opens its files anew in every process.

    Args:
        path: the episode's folder.
        missing_chunks: `error`, or `fill` to serve fill values, with one warning a key, for chunks
            that another writer left out.
        name: what errors and samples call the episode; the folder's name unless given.
        cache: what episodes of one dataset keep together of what they read: decoded chunks of
            numbers and shard indexes. One of its own unless given.
        warned_keys: keys that need no more warning of missing chunks; episodes of one dataset
            share a set. A set of its own unless given.

    Attributes:
        missing_chunks: as given.

    Raises:
        EpisodeNotFoundError: nothing is at the path, or no Zarr group.
        EpisodeFormatError: the group's metadata is missing, wrong or half-written.
    """

    #: Pure planner of one array's read; see `egoloader.plan.plan_reads`.
    plan_reads = staticmethod(plan_reads)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        missing_chunks: MissingChunks = "error",
        name: str | None = None,
        cache: ByteCache | None = None,
        warned_keys: set[str] | None = None,
    ) -> None:
        if missing_chunks not in get_args(MissingChunks):
            hint = near_miss(str(missing_chunks), get_args(MissingChunks))
            raise SettingsError(f"missing_chunks is {missing_chunks!r}; {hint}")
        # Absolute, so that a later change of folder can't lose the episode.
        self.path = Path(path).absolute()
        self.name = self.path.name if name is None else name
        self.missing_chunks = missing_chunks
        self._cache = ByteCache() if cache is None else cache
        self._warned_keys: set[str] = set() if warned_keys is None else warned_keys
        folder = EpisodeFolder(self.path, self.name, ReadCounts())
        # Before the header is read, so that a change in between is seen later.
        self._group = _group_file(folder)
        self.header = _read_header(folder)
        self._states: dict[int, EpisodeAccess] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.path, self.missing_chunks, self.name, self._cache)

    def __repr__(self) -> str:
        return f"ZarrEpisode({str(self.path)!r}, total_frames={self.total_frames})"

    @property
    def total_frames(self) -> int:
        """Real frames; rows at or past it are padding and never returned."""
        return self.header.total_frames

    @property
    def fps(self) -> float:
        """Frames a second, in Hz."""
        return self.header.fps

    @property
    def fps_assumed(self) -> bool:
        """Whether the episode has no `fps` attribute, and 30 was taken."""
        return self.header.fps_assumed

    @property
    def embodiment(self) -> str:
        """The body that was recorded."""
        return self.header.embodiment

    @property
    def attrs(self) -> Mapping[str, Any]:
        """Every attribute of the episode's group, unchanged."""
        return self.header.attrs

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays: those declared in `features`, else those on disk."""
        if self.header.features is not None:
            return tuple(self.header.features)
        return tuple(self._here().folder.array_names())

    @property
    def counts(self) -> ReadCounts:
        """What reading has cost in this process, per array."""
        return self._here().counts

    def has(self, key: str) -> bool:
        """Return whether the episode has an array of that name.

        Raises:
            EpisodeFormatError: it should have it, as it declares it in `features`, and it is gone;
                or the array's metadata can't be understood.
            EpisodeNotFoundError: the episode itself is gone.
        """
        return self._find(key) is not None

    def reference_reason(self, key: str) -> str:
        """Return why zarr-python reads an array; empty where egoloader reads its bytes itself.

        Raises:
            MissingKeyError: the episode has no such array.
            EpisodeFormatError, EpisodeNotFoundError: see `has`.
        """
        return unread_reason(self.layout(key))

    def layout(self, key: str) -> ArrayLayout:
        """Return how an array lies on disk.

        Raises:
            MissingKeyError: the episode has no such array.
            EpisodeFormatError, EpisodeNotFoundError: see `has`.
        """
        found = self._find(key)
        if found is None:
            raise MissingKeyError(
                f"there is no such array; {near_miss(key, self.keys)}", episode=self.name, key=key
            )
        return found

    def chunk_table(self, key: str) -> ChunkTable:
        """Return the table that says where an array's chunks lie; raises as `layout` does."""
        return self._here().guard.table(key, self.layout(key))

    def _find(self, key: str) -> ArrayLayout | None:
        """Return an array's layout, None where the episode never had it; both are remembered."""
        layouts = self._here().layouts
        if key not in layouts:
            self._here().folder.check_unchanged(key)
            metadata = self._metadata(key)
            if metadata is None:
                self._refuse_loss(key)
                layouts[key] = None
            else:
                layouts[key] = parse_layout(metadata, episode=self.name, key=key)
        return layouts[key]

    def _refuse_loss(self, key: str) -> None:
        """Raise where an array is not absent but lost, alone or with the whole episode."""
        folder = self._here().folder
        if not any(folder.signature(name) for name in GROUP_FILES):
            raise EpisodeNotFoundError(
                "the episode was here and is not any more; was it moved, or is a disk gone?",
                episode=self.name,
            )
        if is_array_name(key) and key in (self.header.features or {}):
            raise EpisodeFormatError(
                "features declares this array and it is not there; the copy is incomplete, "
                "copy or write the episode again",
                episode=self.name,
                key=key,
            )

    def fetch(self, key: str, plan: ReadPlan) -> ChunkRows:
        """Read the planned groups of one array, one behind the other: one read.

        Returns:
            (plan.num_rows, D…) numbers, or a sequence of the bytes of each row; not to be
            written to.

        Raises:
            ReadError: the stored bytes are missing, cut short or broken.
        """
        (parts,) = self.reader((key,))(plan)
        return join_rows(parts)

    def reader(self, keys: tuple[str, ...]) -> ReadAlike:
        """Return what reads arrays by one plan in this process: their chunks have as many rows.

        Raises:
            MissingKeyError, EpisodeFormatError, EpisodeNotFoundError: see `layout`.
        """
        readers = self._here().readers
        found = readers.get(keys)
        if found is None:
            layouts = {key: self.layout(key) for key in keys}
            found = readers.setdefault(keys, self._here().open(layouts))
        return found

    def bytes_reader(self, key: str) -> BytesReader:
        """Return what reads an array of bytes in this process; raises as `reader` does."""
        readers = self._here().bytes_readers
        found = readers.get(key)
        if found is None:
            found = readers.setdefault(key, self._here().open_bytes(key, self.layout(key)))
        return found

    def check_stored(self, key: str, window: Window | None = None) -> None:
        """Check that an array has every row of the episode, and every chunk that they lie in.

        Reads shard indexes only, and decodes nothing.

        Args:
            key: the array.
            window: half-open (start, stop) rows, where only the chunks of these are meant.

        Raises:
            EpisodeFormatError: the array is shorter than the episode.
            MissingChunkError, ReadError: a chunk is missing, or a shard is cut short.
        """
        layout = self.layout(key)
        rows = self.total_frames
        if key == ANNOTATIONS:
            rows = num_annotations(layout, episode=self.name, key=key)
        if layout.rows < rows:
            raise EpisodeFormatError(
                f"the array has {layout.rows} rows, fewer than total_frames = {rows}",
                episode=self.name,
                key=key,
            )
        start, end = (0, rows) if window is None else window
        # In parts, as metadata may promise more chunks than can be listed.
        step = _CHECKED_CHUNKS * max(layout.chunk_rows, 1)
        for first in range(start, end, step):
            plan = ReadPlan(((first, min(first + step, end)),))
            self._here().guard.check(key, layout, plan)

    def read(
        self, windows: Mapping[str, Sequence[Window]]
    ) -> dict[str, list[npt.NDArray[Any] | list[bytes]]]:
        """Read row windows of several arrays, with one read per array.

        Args:
            windows: per array, half-open (start, stop) rows, in any order; they may overlap.

        Returns:
            Per array, one result per window, in the order asked for: (stop - start, D…) numbers of
            the stored dtype, or a list of bytes for an array of bytes. Results share no memory.

        Raises:
            MissingKeyError: the episode has no such array.
            RowRangeError: a window is empty, reversed, negative, or reaches past the last real row.
            ReadError: the stored bytes are missing, cut short or broken.
        """
        return {key: self._read_key(key, wanted) for key, wanted in windows.items()}

    def annotations(self, key: str = ANNOTATIONS) -> tuple[Annotation, ...]:
        """Return the annotation spans (text, start, end), half-open in frames; () for none.

        Raises:
            EpisodeFormatError: a row is no annotation, or there are more than anybody makes.
            ReadError: the stored bytes are missing, cut short or broken.
        """
        parsed = self._here().annotations
        if key not in parsed:
            parsed[key] = self._parse_annotations(key)
        return parsed[key]

    def _parse_annotations(self, key: str) -> tuple[Annotation, ...]:
        where = {"episode": self.name, "key": key}
        rows = num_annotations(self.layout(key), **where) if self.has(key) else 0
        if not rows:
            return ()
        return parse_annotations(list(self.fetch(key, ReadPlan(((0, rows),)))), **where)

    def _read_key(
        self, key: str, windows: Sequence[Window]
    ) -> list[npt.NDArray[Any] | list[bytes]]:
        layout = self.layout(key)
        limit = layout.rows if key == ANNOTATIONS else min(layout.rows, self.total_frames)
        for start, stop in windows:
            if not 0 <= start < stop <= limit:
                raise RowRangeError(
                    f"window ({start}, {stop}) is not within its {limit} rows, as "
                    "(start, stop) with 0 <= start < stop",
                    episode=self.name,
                    key=key,
                )
        if not windows:
            return []
        plan = ReadPlan(tuple(plan_reads(windows, layout.chunk_rows)))
        rows = self.fetch(key, plan)
        places = [plan.locate(np.arange(start, stop)) for start, stop in windows]
        if isinstance(rows, np.ndarray):
            return [rows[place] for place in places]
        return [[bytes(rows[n]) for n in place.tolist()] for place in places]

    def _metadata(self, key: str) -> dict[str, Any] | None:
        if not is_array_name(key):
            return None  # a path out of the episode is no array of it
        folder = self._here().folder
        metadata = folder.read_json(f"{key}/zarr.json", key)
        if metadata is None:
            return folder.read_json(f"{key}/.zarray", key)
        return None if metadata.get("node_type") == "group" else metadata

    def _here(self) -> EpisodeAccess:
        pid = os.getpid()
        state = self._states.get(pid)
        if state is None:
            # Threads may come here together; all take the one that was first put in.
            made = EpisodeAccess(
                self.path,
                self.name,
                stamped=self.header.stamped,
                missing_chunks=self.missing_chunks,
                warned_keys=self._warned_keys,
                cache=self._cache,
                group=self._group,
            )
            state = self._states.setdefault(pid, made)
            for parent in set(self._states) - {pid}:
                self._states.pop(parent, None)  # a forked process has no use for its parent's
        return state


def _reopen(path: Path, missing_chunks: MissingChunks, name: str, cache: ByteCache) -> ZarrEpisode:
    return ZarrEpisode(path, missing_chunks=missing_chunks, name=name, cache=cache)


def _read_header(folder: EpisodeFolder) -> EpisodeHeader:
    group = folder.read_json("zarr.json")
    if group is not None:
        if group.get("node_type") != "group":
            raise EpisodeFormatError(
                f"zarr.json is that of a {group.get('node_type')!r}, not of a group",
                episode=folder.name,
            )
        attrs = group.get("attributes", {})
    elif folder.read_json(".zgroup") is not None:
        attrs = folder.read_json(".zattrs") or {}
    else:
        raise EpisodeNotFoundError(_explain_absence(folder.root), episode=str(folder.root))
    if not isinstance(attrs, dict):
        raise EpisodeFormatError("the group's attributes are no mapping", episode=folder.name)
    return parse_header(attrs, episode=folder.name)


def _group_file(folder: EpisodeFolder) -> tuple[str, Signature] | None:
    """Return the file that the group's attributes are in, and which one it is."""
    for path in ("zarr.json", ".zattrs", ".zgroup"):
        signature = folder.signature(path)
        if signature is not None:
            return path, signature
    return None


def _explain_absence(path: Path) -> str:
    if not path.exists():
        return "there is nothing at this path"
    if not path.is_dir():
        return "this is a file; an episode is a folder"
    if path.suffix == ".zarr":
        return "there is no Zarr group in it; was the copy interrupted?"
    return "there is no Zarr group here; a folder of episodes opens with MultiDataset.from_folder"
