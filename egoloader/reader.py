"""Reading planned rows of one array: the seam between a plan and the store.

A reader is handed a plan and fetches it; it decides nothing about rows. `ReferenceReader` asks
zarr-python; `egoloader.rangereader` goes for the bytes itself.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import zarr
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata
from zarr.storage import StorePath

from egoloader.arena import Arena
from egoloader.chunkcodec import ChunkRows
from egoloader.counts import ReadCounts
from egoloader.decompression import Stored
from egoloader.errors import EgoloaderError, LostEpisodeError, MissingChunkError, ReadError
from egoloader.expansion import refusal
from egoloader.guard import ChunkGuard
from egoloader.layout import ArrayLayout, parse_layout
from egoloader.plan import ReadPlan, Window
from egoloader.store import CountingStore, EpisodeFolder, OnHole
from egoloader.tally import with_tally

__all__ = ["BytesReader", "GuardedReader", "ReadAlike", "Reader", "ReferenceReader", "join_rows"]

#: The process that first read through zarr-python; a forked child finds its parent's here.
_first_process: list[int] = []


#: From a plan to the rows that it reads of each of some arrays; a read of each. The rows come in
#: parts, which follow one another, and may not be written to.
ReadAlike = Callable[[ReadPlan], Sequence[Sequence[ChunkRows]]]


class BytesReader(Protocol):
    """Fetches the rows of a plan of one array of bytes."""

    def stream(self, plan: ReadPlan, arena: Arena | None) -> Iterable[tuple[int, Stored]]:
        """Read the plan's groups, a request at a time: one read.

        Args:
            plan: of the read.
            arena: where stored bytes go; else each row has memory of its own.

        Yields:
            Each row once, in any order: its place in the read, and its bytes; those in an arena are
            good until the next row is asked for.

        Raises:
            ReadError: bytes that can't be turned into rows.
        """
        ...


def join_rows(parts: Sequence[ChunkRows]) -> ChunkRows:
    """Return rows in parts, at least one, as one array or list; it may be the only part itself."""
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)  # type: ignore[arg-type]
    return list(itertools.chain.from_iterable(parts))


class Reader(Protocol):
    """Fetches the rows of a plan."""

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Read the plan's groups of array `key`, one behind the other.

        Returns:
            (plan.num_rows, D…) numbers of the layout's dtype, or a sequence of the bytes of each
            row. Neither may be written to: a reader may keep what it hands out.

        Raises:
            ReadError: bytes that can't be turned into rows.
        """
        ...


class ReferenceReader:
    """Reads through zarr-python: any codec it knows, and the oracle for faster readers.

    Args:
        folder: the episode's files.
        counts: where the cost is added.
        on_hole: called with key and path where a chunk is not there; may raise.
    """

    def __init__(self, folder: EpisodeFolder, counts: ReadCounts, on_hole: OnHole) -> None:
        self._folder, self._counts, self._on_hole = folder, counts, on_hole
        self._arrays: dict[str, zarr.Array[Any]] = {}

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Read the plan's groups; see `Reader.read`."""
        _refuse_foreign_pipeline(self._folder.name, key)
        try:
            if key not in self._arrays:
                self._arrays[key] = self._open(key, layout)
            rows = np.asarray(_select(self._arrays[key], plan), dtype=layout.dtype)
        except EgoloaderError:
            raise
        except Exception as error:
            # zarr-python from 3.3 on fetches in groups, and wraps what a fetch raises.
            for link in getattr(error, "exceptions", ()):
                if isinstance(link, EgoloaderError):
                    raise link from error
            raise ReadError(
                f"rows {_spell(plan.groups)} can't be read: {type(error).__name__}: {error}",
                episode=self._folder.name,
                key=key,
            ) from error
        self._counts.of(key).add_read(len(rows), chunks=0)
        return rows.tolist() if rows.dtype == object and rows.ndim == 1 else rows

    def _open(self, key: str, layout: ArrayLayout) -> zarr.Array[Any]:
        """Open an array.

        Its metadata is read here, within bounds, as zarr-python reads whatever is there, however
        large.
        """
        why = refusal(layout)
        if why:
            raise ReadError(why, episode=self._folder.name, key=key)
        store = CountingStore(self._folder.root, key, self._counts, self._on_hole)
        metadata = _metadata(self._folder, key, layout)
        metadata = with_tally(metadata, self._counts.of(key).add_chunk, layout.unpacked_limit)
        return zarr.Array(zarr.AsyncArray(metadata, StorePath(store, key)))


class GuardedReader:
    """A reader with the check ahead of it that the planned chunks are stored.

    Args:
        reader: reads what has passed.
        guard: checks it, and names the byte ranges of what can't be read.
    """

    def __init__(self, reader: Reader, guard: ChunkGuard) -> None:
        self._reader, self._guard = reader, guard

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ChunkRows:
        """Check, then read the plan's groups; see `Reader.read`."""
        self._guard.check(key, layout, plan)
        try:
            return self._reader.read(key, layout, plan)
        except MissingChunkError:
            raise
        except ReadError as error:
            raise self._guard.blame(key, layout, plan, error) from error


def _refuse_foreign_pipeline(episode: str, key: str) -> None:
    """Refuse to read in a forked child with a codec pipeline that its parent has used.

    zarr-python sets itself up anew in a child; another package's threads are not there any more,
    and its pipeline waits for them without end.

    Raises:
        ReadError: such a pipeline is set.
    """
    if not _first_process:
        _first_process.append(os.getpid())
    pipeline = zarr.config.get("codec_pipeline.path", "zarr.")
    if _first_process[0] != os.getpid() and not pipeline.startswith("zarr."):
        raise ReadError(
            f"the codec pipeline {pipeline} can't be used in a forked process whose parent has "
            "read with it; start workers with the multiprocessing context 'spawn', or set "
            "zarr's codec_pipeline.path back to its default",
            episode=episode,
            key=key,
        )


def _metadata(folder: EpisodeFolder, key: str, layout: ArrayLayout) -> Any:
    """Return an array's metadata as zarr-python has it.

    Raises:
        LostEpisodeError: it is another than that of the layout.
    """
    name = "zarr.json" if layout.zarr_format == 3 else ".zarray"
    stored = folder.read_json(f"{key}/{name}", key)
    found = None if stored is None else parse_layout(stored, episode=folder.name, key=key)
    # As text, in which a NaN is equal to itself.
    if stored is None or repr(found) != repr(layout):
        raise LostEpisodeError(
            f"{key}/{name} was replaced while the episode was open; open it anew",
            episode=folder.name,
            key=key,
        )
    if layout.zarr_format == 3:
        return ArrayV3Metadata.from_dict(stored)
    return ArrayV2Metadata.from_dict(stored)


def _select(array: zarr.Array[Any], plan: ReadPlan) -> Any:
    if len(plan.groups) == 1:
        start, stop = plan.groups[0]
        return array[start:stop]
    return array.oindex[(plan.rows, *[slice(None)] * (array.ndim - 1))]


def _spell(groups: Sequence[Window]) -> str:
    shown = ", ".join(f"[{start}, {stop})" for start, stop in groups[:4])
    return f"{shown}, …" if len(groups) > 4 else shown
