"""Reading planned rows of one array: the seam between a plan and the store.

A reader is handed a plan and fetches it; it decides nothing about rows. `ReferenceReader` asks
zarr-python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import zarr

from egoloader.counts import KeyCounts, ReadCounts
from egoloader.errors import EgoloaderError, ReadError
from egoloader.layout import ArrayLayout
from egoloader.plan import ReadPlan, Window
from egoloader.store import CountingStore, EpisodeFolder, OnHole
from egoloader.tally import with_tally

__all__ = ["Reader", "ReferenceReader"]

ObjectArray = npt.NDArray[Any]


class Reader(Protocol):
    """Fetches the rows of a plan."""

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ObjectArray:
        """Read the plan's groups of array `key`, one behind the other.

        Returns:
            (plan.num_rows, D…) numbers of the layout's dtype, or (plan.num_rows,) objects, each
            the bytes of a row.

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

    def read(self, key: str, layout: ArrayLayout, plan: ReadPlan) -> ObjectArray:
        """Read the plan's groups; see `Reader.read`."""
        try:
            if key not in self._arrays:
                self._arrays[key] = self._open(key)
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
        self._counts.add(key, KeyCounts(reads=1, rows=len(rows)))
        return rows

    def _open(self, key: str) -> zarr.Array[Any]:
        store = CountingStore(self._folder.root, key, self._counts, self._on_hole)
        array = zarr.open_array(store=store, path=key, mode="r")
        metadata = with_tally(array.metadata, lambda: self._counts.add(key, KeyCounts(chunks=1)))
        return zarr.Array(zarr.AsyncArray(metadata, array.store_path))


def _select(array: zarr.Array[Any], plan: ReadPlan) -> Any:
    if len(plan.groups) == 1:
        start, stop = plan.groups[0]
        return array[start:stop]
    return array.oindex[(plan.rows, *[slice(None)] * (array.ndim - 1))]


def _spell(groups: Sequence[Window]) -> str:
    shown = ", ".join(f"[{start}, {stop})" for start, stop in groups[:4])
    return f"{shown}, …" if len(groups) > 4 else shown
