"""What a plan reads, as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from egoloader.explanation import LIMITS, ArrayReads, Cost, EpisodeReads, cost_by_array
from egoloader.overview import read_path, size_text
from egoloader.plan import Window
from egoloader.terminal import shown

__all__ = ["plan_report"]

_UNKNOWN = "?"


def plan_report(episodes: Sequence[EpisodeReads]) -> Iterator[str | Table]:
    """Yield what samples read: a headline, the windows of a single sample, costs, and notes.

    Args:
        episodes: what is read of each episode, at least one.
    """
    total = sum(cost_by_array(episodes).values(), Cost())
    shared = f"{episodes[0].num_entries} entries, {total.reads} reads"
    frames = sum(len(one.frames) for one in episodes)
    if frames == 1:
        one = episodes[0]
        yield (
            f"episode {shown(one.name)}, frame {one.frames[0]} of {one.total_frames}, "
            f"{one.fps:g} Hz: {shared}"
        )
        yield _windows_table(one.arrays)
    else:
        yield f"batch of {frames} frames, {len(episodes)} episodes: {shared}"
    yield _cost_table(episodes)
    yield (
        "bytes wanted: stored bytes of the chunks that hold the rows; bytes read: those of the "
        f"requests, which read through gaps of up to {LIMITS.gap_bytes} bytes"
    )
    yield "shard indexes are read once and kept, and left out here"
    if total.reference_reads:
        yield f"{_UNKNOWN}: zarr-python makes its own requests, and may decode more chunks"
    kept = sorted({key for one in episodes for key in one.kept_arrays})
    if kept:
        yield f"read once an episode and kept, and left out here: {shown(', '.join(kept))}"


def _windows_table(arrays: Sequence[ArrayReads]) -> Table:
    table = Table()
    for name in ("array", "entry", "windows", "groups read"):
        table.add_column(name, overflow="fold")
    table.add_column("rows a chunk", justify="right")
    for array in arrays:
        table.add_section()
        for place, (key, entry) in enumerate(array.entries.items()):
            text = _spans(entry.windows)
            text += f" + {entry.num_padded} padded" if entry.num_padded else ""
            text += f" ({entry.times})" if entry.times else ""
            if place:
                table.add_row("", shown(key), text)
                continue
            name, groups = shown(array.zarr_key), _spans(array.groups)
            table.add_row(name, shown(key), text, groups, str(array.chunk_rows))
    return table


def _cost_table(episodes: Sequence[EpisodeReads]) -> Table:
    table = Table()
    for name in ("array", "read by"):
        table.add_column(name, overflow="fold")
    for name in (
        *("rows\nneeded", "rows\nread", "chunks\ndecoded", "requests"),
        *("bytes\nwanted", "bytes\nread"),
        *("one span a sample:\nrows / chunks", "one read an entry:\nrows / chunks"),
    ):
        table.add_column(name, justify="right")
    costs = cost_by_array(episodes)
    for zarr_key, cost in costs.items():
        table.add_row(shown(zarr_key), shown(_paths(zarr_key, episodes)), *_cells(cost))
    table.add_section()
    table.add_row("all", "", *_cells(sum(costs.values(), Cost())))
    return table


def _paths(zarr_key: str, episodes: Sequence[EpisodeReads]) -> str:
    """Return how an array is read, every way that some episode takes."""
    arrays = (array for episode in episodes for array in episode.arrays)
    reasons = {array.reference_reason for array in arrays if array.zarr_key == zarr_key}
    return "; ".join(read_path(reason) for reason in sorted(reasons))


def _cells(cost: Cost) -> list[str]:
    return [
        str(cost.needed_rows),
        str(cost.rows),
        str(cost.chunks),
        _known(str(cost.requests), cost),
        size_text(cost.wanted_bytes),
        _known(size_text(cost.read_bytes), cost),
        f"{cost.span_rows} / {cost.span_chunks}",
        f"{cost.entry_rows} / {cost.entry_chunks}",
    ]


def _known(text: str, cost: Cost) -> str:
    """Return a count of requests or bytes, with a mark where zarr-python adds to it."""
    if not cost.reference_reads:
        return text
    return _UNKNOWN if cost.reference_reads == cost.reads else f"{text} + {_UNKNOWN}"


def _spans(windows: Sequence[Window]) -> str:
    return ", ".join(f"{start}:{stop}" for start, stop in windows)
