"""What samples read, for people to look at: per array, rows, chunks, requests and bytes.

Where chunks lie is looked up in shard indexes, which are read for it and kept; no chunk is decoded,
but for the times of frames, where windows go by them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from egoloader.batchplan import BatchPlan
from egoloader.chunktable import Extent
from egoloader.episode import ANNOTATIONS
from egoloader.plan import ReadPlan, Window
from egoloader.ranges import MergeLimits, merge_ranges
from egoloader.sample import SampleMaker, reads_spans
from egoloader.windows import consecutive_runs

__all__ = [
    "LIMITS",
    "ArrayReads",
    "Cost",
    "EntryRows",
    "EpisodeReads",
    "RequestRows",
    "cost_by_array",
    "explain",
]

IntArray = npt.NDArray[np.int64]

#: When an episode merges neighbouring byte ranges.
LIMITS = MergeLimits()


@dataclass(frozen=True, slots=True)
class Cost:
    """What samples cost to read; costs add up.

    Attributes:
        reads: reads, one an array and episode.
        reference_reads: those among them that zarr-python does. Its requests are its own, and
            are in neither `requests` nor `read_bytes`.
        needed_rows: distinct rows that entries need.
        rows: rows that are copied out of chunks.
        chunks: stored chunks that hold them; each is decoded once.
        requests: requests for chunks. Shard indexes, read once and kept, are left out.
        wanted_bytes: stored bytes of those chunks; of their shards, where only zarr-python can tell
            the chunks in them apart.
        read_bytes: bytes of those requests; more than is wanted where one reads through a gap.
        span_rows: rows if every sample read each array once, from the first to the last row needed.
        span_chunks: chunks that such spans touch.
        entry_rows: rows if every sample read each entry on its own, from its first to its last row.
        entry_chunks: chunks that such spans touch.
    """

    reads: int = 0
    reference_reads: int = 0
    needed_rows: int = 0
    rows: int = 0
    chunks: int = 0
    requests: int = 0
    wanted_bytes: int = 0
    read_bytes: int = 0
    span_rows: int = 0
    span_chunks: int = 0
    entry_rows: int = 0
    entry_chunks: int = 0

    def __add__(self, other: Cost) -> Cost:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Cost(*(one + two for one, two in pairs))


@dataclass(frozen=True, slots=True)
class EntryRows:
    """What one entry needs.

    Attributes:
        windows: its distinct rows, as sorted half-open runs.
        num_padded: its clamped or padded steps, over all samples.
        times: how its steps are found, where that is by time; else empty.
    """

    windows: tuple[Window, ...]
    num_padded: int
    times: str = ""


@dataclass(frozen=True, slots=True)
class RequestRows:
    """One request.

    Attributes:
        rows: half-open, from the first row of the first chunk in it to the last row of the last;
            rows that no real frame has are left out.
        num_bytes: its size.
    """

    rows: Window
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ArrayReads:
    """The one read of one array.

    Attributes:
        zarr_key: the array.
        reference_reason: why zarr-python reads it; empty where its bytes are read directly.
        chunk_rows: rows of one decoded chunk.
        entries: per sample key that is cut from it, the rows.
        groups: the half-open row groups that are read.
        chunk_numbers: the chunks along the rows that hold them.
        requests: the requests; () for zarr-python's.
        cost: what it costs.
    """

    zarr_key: str
    reference_reason: str
    chunk_rows: int
    entries: Mapping[str, EntryRows]
    groups: tuple[Window, ...]
    chunk_numbers: tuple[int, ...]
    requests: tuple[RequestRows, ...]
    cost: Cost

    @property
    def needed(self) -> list[Window]:
        """The distinct rows that any entry needs, as sorted half-open runs."""
        windows = [window for entry in self.entries.values() for window in entry.windows]
        return consecutive_runs(np.concatenate([np.arange(*window) for window in windows]))


@dataclass(frozen=True, slots=True)
class EpisodeReads:
    """What samples of one episode read.

    Attributes:
        name: the episode.
        total_frames: its real frames.
        fps: in Hz.
        num_entries: entries of the keymap.
        frames: the samples' frames, in their order.
        arrays: the reads, one an array.
        kept_arrays: arrays of annotations besides, which are read whole at first use and kept.
    """

    name: str
    total_frames: int
    fps: float
    num_entries: int
    frames: tuple[int, ...]
    arrays: tuple[ArrayReads, ...]
    kept_arrays: tuple[str, ...]


def explain(maker: SampleMaker, frames: IntArray) -> EpisodeReads:
    """Plan samples of one episode, and say what they read.

    Args:
        maker: of the episode's samples.
        frames: (B,) int64, each in [0, total_frames); repeats are allowed.

    Raises:
        MissingChunkError, ReadError: a chunk that is to be read is not stored.
    """
    episode, plan = maker.episode, maker.plan(frames)
    entries: dict[str, list[str]] = {}
    for key in plan.keys:
        # An entry without a place in the keymap is the episode's own, `timestamp`.
        zarr_key = maker.keymap[key].zarr_key if key in maker.keymap else key
        entries.setdefault(zarr_key, []).append(key)
    arrays = []
    for zarr_key, read in plan.reads.items():
        table = episode.chunk_table(zarr_key)
        chunk_rows = table.layout.chunk_rows
        chunks = _Chunks(
            rows=chunk_rows,
            width=len(table.tails),
            total_frames=episode.total_frames,
            extents=table.find(read.pieces(chunk_rows).chunks),
        )
        reason = episode.reference_reason(zarr_key)
        times = {key: _times(maker, key) for key in entries[zarr_key]}
        arrays.append(_describe(zarr_key, reason, plan, times, read, chunks))
    return EpisodeReads(
        name=episode.name,
        total_frames=episode.total_frames,
        fps=episode.fps,
        num_entries=len(maker.keymap),
        frames=tuple(frames.tolist()),
        arrays=tuple(arrays),
        kept_arrays=_kept_arrays(maker),
    )


def cost_by_array(episodes: Iterable[EpisodeReads]) -> dict[str, Cost]:
    """Return what each array costs over all episodes."""
    costs: dict[str, Cost] = {}
    for array in (array for episode in episodes for array in episode.arrays):
        costs[array.zarr_key] = costs.get(array.zarr_key, Cost()) + array.cost
    return costs


def _times(maker: SampleMaker, key: str) -> str:
    """Return how the steps of an entry are found, where that is by time."""
    spec = maker.keymap.get(key)
    if spec is None or not spec.is_timed:
        return ""
    parts = [] if spec.rate_hz is None else [f"{spec.grid_steps} steps at {spec.rate_hz:g} Hz"]
    parts.append("nearest frame" if spec.interpolation == "nearest" else spec.interpolation)
    if spec.latency_s:
        parts.append(f"{abs(spec.latency_s):g} s {'late' if spec.latency_s > 0 else 'early'}")
    if maker.timeline is not None:
        parts.append("uneven timestamps")
    return ", ".join(parts)


def _kept_arrays(maker: SampleMaker) -> tuple[str, ...]:
    specs = maker.keymap.values()
    kept = {spec.zarr_key for spec in specs if spec.is_annotation and not spec.is_task}
    if reads_spans(maker.keymap, maker.settings):
        kept.add(ANNOTATIONS)
    return tuple(sorted(key for key in kept if maker.episode.has(key)))


@dataclass(frozen=True, slots=True)
class _Chunks:
    """The chunks that a read touches.

    Attributes:
        rows: rows of one.
        width: chunks side by side behind the axis of rows.
        total_frames: the episode's real frames.
        extents: where they lie; None for one of fill values.
    """

    rows: int
    width: int
    total_frames: int
    extents: Sequence[Extent | None]


def _describe(
    zarr_key: str,
    reference_reason: str,
    plan: BatchPlan,
    times: Mapping[str, str],
    read: ReadPlan,
    chunks: _Chunks,
) -> ArrayReads:
    """Describe the read of one array from which the entries that `times` lists are cut."""
    numbers = read.pieces(chunks.rows).chunks
    requests = () if reference_reason else _requests(numbers, chunks)
    samples = {key: plan.rows(key).reshape(len(plan.rows(key)), -1) for key in times}
    entries = {
        key: EntryRows(tuple(consecutive_runs(rows)), int(plan.is_pad(key).sum()), times[key])
        for key, rows in samples.items()
    }
    return ArrayReads(
        zarr_key=zarr_key,
        reference_reason=reference_reason,
        chunk_rows=chunks.rows,
        entries=entries,
        groups=read.groups,
        chunk_numbers=tuple(numbers),
        requests=requests,
        cost=dataclasses.replace(
            _cost(list(samples.values()), chunks),
            reference_reads=1 if reference_reason else 0,
            rows=read.num_rows,
            requests=len(requests),
            read_bytes=sum(request.num_bytes for request in requests),
        ),
    )


def _cost(samples: Sequence[IntArray], chunks: _Chunks) -> Cost:
    """Return what one array costs, apart from the read itself.

    Args:
        samples: per entry, its rows: (B, n).
        chunks: the array's.
    """
    together = np.concatenate(samples, axis=1)
    span_rows, span_chunks = _spans(together, chunks)
    entry_spans = [_spans(rows, chunks) for rows in samples]
    stored = {(one.path, one.start, one.stop) for one in chunks.extents if one is not None}
    return Cost(
        reads=1,
        needed_rows=len(np.unique(together)),
        chunks=len(chunks.extents) - chunks.extents.count(None),
        wanted_bytes=sum(stop - start for _, start, stop in stored),
        span_rows=span_rows,
        span_chunks=span_chunks,
        entry_rows=sum(rows for rows, _ in entry_spans),
        entry_chunks=sum(touched for _, touched in entry_spans),
    )


def _requests(numbers: Sequence[int], chunks: _Chunks) -> tuple[RequestRows, ...]:
    """Return the requests that fetch the chunks, file by file."""
    by_file: dict[str, list[tuple[int, int, int]]] = {}
    for place, extent in enumerate(chunks.extents):
        if extent is not None:
            number = numbers[place // chunks.width]
            by_file.setdefault(extent.path, []).append((number, extent.start, extent.stop))
    found = []
    for stored in by_file.values():
        for start, stop, members in merge_ranges([one[1:] for one in stored], LIMITS):
            inside = [stored[member][0] for member in members]
            last_row = min((max(inside) + 1) * chunks.rows, chunks.total_frames)
            found.append(RequestRows((min(inside) * chunks.rows, last_row), stop - start))
    return tuple(found)


def _spans(rows: IntArray, chunks: _Chunks) -> tuple[int, int]:
    """Return how many rows and chunks spans from the first to the last row take.

    Args:
        rows: (B, n), a span for each of B.
        chunks: the array's.
    """
    first, last = rows.min(axis=1), rows.max(axis=1)
    touched = (last // chunks.rows - first // chunks.rows + 1).sum() * chunks.width
    return int((last - first + 1).sum()), int(touched)
