"""A picture of what samples read: per array a line of rows, its chunks, and the reads as bars."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from egoloader.errors import SettingsError, require_extra
from egoloader.explanation import ArrayReads, EpisodeReads
from egoloader.overview import read_path, size_text
from egoloader.plan import Window
from egoloader.windows import consecutive_runs

__all__ = ["MAX_PANELS", "draw_plan", "plan_figure"]

#: Episodes that are drawn; of the others the picture says how many there are.
MAX_PANELS = 6
#: Chunks of an array in view up to which each is drawn with its borders.
_MAX_BORDERS = 240
#: Rows that are shown at least, where the episode has as many.
_MIN_ROWS = 40

_NEEDED, _STORED, _TOUCHED = "#1f4e8c", "#e4e4e4", "#9dc3ea"
_REQUEST, _REFERENCE, _NOW = "#d9730d", "#b8a9c9", "#b00020"
#: Around requests, so that neighbours are told apart.
_REQUEST_EDGE = "#96500a"
#: What a line is made of, from its top: bottom and top of each strip, of a line 1 high.
_NEEDED_Y, _CHUNK_Y, _REQUEST_Y = (0.10, 0.30), (0.34, 0.60), (0.64, 0.86)
_LINE_INCHES, _CONTEXT_INCHES, _SPACE_INCHES, _MARGIN_INCHES = 0.56, 0.16, 0.12, 0.9


def draw_plan(episodes: Sequence[EpisodeReads], path: Path) -> None:
    """Draw what samples read and save it.

    One panel an episode, the first `MAX_PANELS` of them. A narrow strip on top is the whole
    episode; below, zoomed to the rows that are read, each array has a line: the rows that entries
    need, the chunks and which of them are touched, and the requests as bars over the rows whose
    chunks they fetch. zarr-python's requests are its own; there the bars are the groups of rows.

    Args:
        episodes: what is read of each, at least one.
        path: where the picture goes; the ending decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
        SettingsError: the path's ending is no format that can be drawn, or no rows are read.
    """
    figure = plan_figure(episodes)
    endings = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in endings:
        raise SettingsError(f"pictures end in .png, .pdf or .svg, got {str(path)!r}")
    figure.savefig(path, dpi=110)


def plan_figure(episodes: Sequence[EpisodeReads]) -> Any:
    """Return the figure that `draw_plan` saves."""
    require_extra("matplotlib", "view")
    from matplotlib.figure import Figure

    if not all(one.arrays for one in episodes):
        raise SettingsError("there is nothing to draw: no entry of the keymap reads rows")
    shown = episodes[:MAX_PANELS]
    ratios: list[float] = []
    for episode in shown:
        ratios += [_SPACE_INCHES, _CONTEXT_INCHES, _LINE_INCHES * len(episode.arrays)]
    inches = sum(ratios) + _MARGIN_INCHES + 0.6 * len(shown)  # titles and ticks
    figure = Figure(figsize=(13.0, inches), layout="constrained")
    grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
    for place, episode in enumerate(shown):
        zoom = _zoom(episode)
        context = figure.add_subplot(grid[3 * place + 1], gid="context")
        _draw_context(context, episode, zoom)
        _draw_lines(figure.add_subplot(grid[3 * place + 2], gid="lines"), episode, zoom)
    figure.axes[-1].set_xlabel("row", fontsize=9)
    figure.legend(handles=_legend(shown), loc="outside upper center", ncols=6, fontsize=9)
    if len(episodes) > len(shown):
        left_out = _number(len(episodes) - len(shown), "more episode")
        figure.supxlabel(f"not drawn: {left_out}", fontsize=9)
    return figure


def _zoom(episode: EpisodeReads) -> Window:
    """Return the rows to look at: those needed, and as much again of the chunks around them."""
    needed = [window for array in episode.arrays for window in array.needed]
    low, high = min(start for start, _ in needed), max(stop for _, stop in needed)
    reach = max(high - low, _MIN_ROWS)
    touched = [
        (number * array.chunk_rows, (number + 1) * array.chunk_rows)
        for array in episode.arrays
        for number in array.chunk_numbers
    ]
    first, last = min(start for start, _ in touched), max(stop for _, stop in touched)
    margin = max(2, reach // 20)
    start, stop = max(first, low - reach) - margin, min(last, high + reach) + margin
    return max(0, start), min(episode.total_frames, stop)


def _draw_context(axes: Any, episode: EpisodeReads, zoom: Window) -> None:
    """Draw the whole episode: what is needed of it, and what the panel below shows."""
    total = episode.total_frames
    axes.broken_barh([(0, total)], (0, 1), facecolor=_STORED, linewidth=0, gid="episode")
    needed = _merged(window for array in episode.arrays for window in array.needed)
    _draw_bars(axes, needed, (0, 1), _NEEDED, gid="needed")
    start, stop = zoom
    axes.broken_barh(
        [(start, stop - start)],
        (-0.35, 1.7),
        facecolor="none",
        edgecolor=_NOW,
        linewidth=1.2,
        clip_on=False,
        gid="zoom",
    )
    axes.set_xlim(0, total)
    axes.set_ylim(0, 1)
    axes.set_xticks([])
    axes.set_yticks([0.5], [f"all {total} rows"], fontsize=8)
    axes.tick_params(length=0)
    axes.set_frame_on(False)
    axes.set_title(_title(episode), fontsize=10, loc="left", pad=10)


def _title(episode: EpisodeReads) -> str:
    frames, total = episode.frames, episode.total_frames
    if len(frames) == 1:
        return f"{episode.name}: frame {frames[0]} of {total}, {episode.fps:g} Hz"
    return f"{episode.name}: {len(frames)} samples of {total} frames, {episode.fps:g} Hz"


def _draw_lines(axes: Any, episode: EpisodeReads, zoom: Window) -> None:
    """Draw a line for each array."""
    for line, array in enumerate(episode.arrays):
        _draw_array(axes, line, array, episode.total_frames, zoom)
        text = _cost_text(array)
        axes.text(
            1.01, line + 0.5, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8
        )
    for frame in sorted(set(episode.frames)):
        # Behind the bars, some of which are as narrow.
        axes.axvline(frame + 0.5, color=_NOW, linewidth=0.8, linestyle=":", zorder=0, gid="frame")
    axes.set_xlim(*zoom)
    axes.set_ylim(len(episode.arrays), 0)
    axes.set_yticks(
        [line + 0.5 for line in range(len(episode.arrays))],
        [array.zarr_key for array in episode.arrays],
        fontsize=9,
    )
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def _draw_array(axes: Any, line: int, array: ArrayReads, total: int, zoom: Window) -> None:
    def strip(bounds: tuple[float, float]) -> tuple[float, float]:
        return line + bounds[0], bounds[1] - bounds[0]

    _draw_bars(axes, array.needed, strip(_NEEDED_Y), _NEEDED, gid=f"needed {array.zarr_key}")
    _draw_chunks(axes, array, strip(_CHUNK_Y), total, zoom)
    bottom, height = strip(_REQUEST_Y)
    if array.reference_reason:
        groups, gid = array.groups, f"groups {array.zarr_key}"
        _draw_bars(axes, groups, (bottom, height), _REFERENCE, gid=gid)
        return
    lanes = _lanes([request.rows for request in array.requests])
    for lane, bars in enumerate(lanes):
        place = (bottom + lane * height / len(lanes), 0.9 * height / len(lanes))
        gid = f"requests {array.zarr_key}"
        _draw_bars(axes, bars, place, _REQUEST, edge=_REQUEST_EDGE, gid=gid)


def _draw_chunks(
    axes: Any, array: ArrayReads, strip: tuple[float, float], total: int, zoom: Window
) -> None:
    """Draw an array's chunks in view, and of the others those that are touched."""
    size, touched = array.chunk_rows, set(array.chunk_numbers)
    inside = range(zoom[0] // size, (zoom[1] - 1) // size + 1)
    has_borders = len(inside) <= _MAX_BORDERS
    for numbers, colour, what in (
        ([n for n in inside if n not in touched], _STORED, "chunks"),
        (sorted(touched), _TOUCHED, "touched"),
    ):
        chunks = [(n * size, min((n + 1) * size, total)) for n in numbers]
        spans = chunks if has_borders else _merged(chunks)
        axes.broken_barh(
            [(start, stop - start) for start, stop in spans],
            strip,
            facecolor=colour,
            edgecolor="white" if has_borders else colour,
            linewidth=0.8,
            gid=f"{what} {array.zarr_key}",
        )


def _draw_bars(
    axes: Any,
    bars: Iterable[Window],
    strip: tuple[float, float],
    colour: str,
    *,
    gid: str,
    edge: str | None = None,
) -> None:
    """Draw bars; their edges keep those that are narrower than a pixel in sight."""
    spans = [(start, stop - start) for start, stop in bars]
    edge = edge or colour
    axes.broken_barh(spans, strip, facecolor=colour, edgecolor=edge, linewidth=0.8, gid=gid)


def _lanes(bars: Sequence[Window]) -> list[list[Window]]:
    """Deal bars to lanes in which none overlap."""
    lanes: list[list[Window]] = []
    for bar in sorted(bars):
        for lane in lanes:
            if lane[-1][1] <= bar[0]:
                lane.append(bar)
                break
        else:
            lanes.append([bar])
    return lanes


def _merged(windows: Iterable[Window]) -> list[Window]:
    return consecutive_runs(np.concatenate([np.arange(*window) for window in windows]))


def _cost_text(array: ArrayReads) -> str:
    cost = array.cost
    needed = f"{cost.needed_rows} of {_number(cost.rows, 'row')} needed"
    first = f"{needed}; {_number(cost.chunks, 'chunk')} of {_number(array.chunk_rows, 'row')}"
    if array.reference_reason:
        return f"{first}\n{read_path(array.reference_reason)}"
    wanted, read = size_text(cost.wanted_bytes), size_text(cost.read_bytes)
    return f"{first}\n{_number(cost.requests, 'request')}, {wanted} wanted, {read} read"


def _number(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _legend(episodes: Sequence[EpisodeReads]) -> list[Any]:
    from matplotlib.patches import Patch

    reasons = {bool(array.reference_reason) for one in episodes for array in one.arrays}
    patches = [
        Patch(color=_NEEDED, label="rows needed"),
        Patch(color=_STORED, label="chunks"),
        Patch(color=_TOUCHED, label="chunks touched"),
    ]
    if False in reasons:
        patches.append(Patch(color=_REQUEST, label="requests"))
    if True in reasons:
        patches.append(Patch(color=_REFERENCE, label="row groups that zarr-python reads"))
    return [*patches, Patch(color=_NOW, label="frames of samples; what is zoomed to")]
