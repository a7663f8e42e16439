"""A picture of one sample: its frames in order of time, and its windows of numbers as curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.assembly import make_sample
from egoloader.errors import require_extra
from egoloader.sample import Sample, SampleMaker

__all__ = ["draw_sample"]

_PAST, _FUTURE, _MAX_DIMS = "#3b6fb6", "#d9730d", 8


def draw_sample(maker: SampleMaker, frame: int, path: Path) -> None:
    """Draw the sample of one frame and save it.

    The upper row shows camera frames, oldest first, with their time. Below, one panel an array
    shows its windows in the array's own units, all over the same seconds: the past on blue ground,
    the future on orange, now as a line between, padded steps as crosses.

    Args:
        maker: makes the sample; its images must be pixels.
        frame: the frame index.
        path: where the picture goes; the ending decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
        EpisodeError: the sample can't be made.
    """
    require_extra("matplotlib", "view")
    from matplotlib.figure import Figure

    sample = make_sample(maker, frame)
    frames, curves = _frames(maker, sample), _curves(maker)
    columns = max(1, len(frames))
    figure = Figure(
        figsize=(max(9.0, 3.0 * columns), 2.6 + 1.9 * len(curves)), layout="constrained"
    )
    grid = figure.add_gridspec(1 + len(curves), columns)
    for place, (title, pixels) in enumerate(frames):
        axes = figure.add_subplot(grid[0, place])
        axes.imshow(pixels)
        axes.set_title(title, fontsize=9)
        axes.set_axis_off()
    for place, (array, keys) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[1 + place, :])
        for key in keys:
            _draw_window(axes, maker, sample, key)
        _mark_now(axes, *_span(maker))
        axes.set_ylabel(array, fontsize=9)
    figure.axes[-1].set_xlabel("seconds from now; padded steps are crosses")
    figure.suptitle(f"{sample['episode']}, frame {frame}, {maker.episode.fps:g} Hz")
    figure.savefig(path, dpi=110)


def _frames(maker: SampleMaker, sample: Sample) -> list[tuple[str, npt.NDArray[np.uint8]]]:
    """Return (title, (H, W, 3) pixels) of every camera frame, oldest first within a camera."""
    found: list[tuple[str, float, npt.NDArray[np.uint8]]] = []
    for key, spec in maker.keymap.items():
        if spec.is_camera:
            images = sample[key] if sample[key].dim() == 4 else sample[key][None]
            for time, image in zip(maker.step_times(key), images, strict=True):
                found.append((spec.zarr_key, float(time), image.movedim(0, -1).numpy()))
    found.sort(key=lambda one: one[:2])
    return [(f"{camera}\n{_clock(time)}", pixels) for camera, time, pixels in found]


def _curves(maker: SampleMaker) -> dict[str, list[str]]:
    """Return, per array of numbers, the sample keys that are cut from it."""
    panels: dict[str, list[str]] = {}
    for key, spec in maker.keymap.items():
        if spec.key_type in ("proprio_keys", "action_keys"):
            panels.setdefault(spec.zarr_key, []).append(key)
    return panels


def _span(maker: SampleMaker) -> tuple[float, float]:
    """Return the seconds from the earliest to the latest step of any array of numbers."""
    keys = [key for keys in _curves(maker).values() for key in keys]
    times = np.concatenate([maker.step_times(key) for key in keys])
    margin = max(0.02 * float(np.ptp(times)), 0.5 / maker.episode.fps)
    return float(times.min()) - margin, float(times.max()) + margin


def _mark_now(axes: Any, earliest: float, latest: float) -> None:
    axes.axvspan(earliest, 0, color=_PAST, alpha=0.08, linewidth=0)
    axes.axvspan(0, latest, color=_FUTURE, alpha=0.08, linewidth=0)
    axes.axvline(0, color="black", linewidth=1)
    axes.set_xlim(earliest, latest)
    for text, x, side in (("past", 0.0, "right"), ("future", 0.0, "left")):
        axes.annotate(
            f" {text} ",
            (x, 0.97),
            xycoords=("data", "axes fraction"),
            va="top",
            ha=side,
            fontsize=8,
            color="gray",
        )


def _draw_window(axes: Any, maker: SampleMaker, sample: Sample, key: str) -> None:
    times = maker.step_times(key)
    values = sample[key].numpy().reshape(len(times), -1)[:, :_MAX_DIMS]
    is_pad = np.zeros(len(times), dtype=bool)
    if f"{key}_is_pad" in sample:
        is_pad |= sample[f"{key}_is_pad"].numpy().reshape(-1)
    colour = _FUTURE if times[-1] > 0 else _PAST
    for dim in range(values.shape[1]):
        axes.plot(times, values[:, dim], "-", color=colour, alpha=0.5, linewidth=1)
        axes.plot(times[~is_pad], values[~is_pad, dim], ".", color=colour)
        axes.plot(times[is_pad], values[is_pad, dim], "x", color=colour)


def _clock(time: float) -> str:
    return "now" if time == 0 else f"{time:+.2f} s"
