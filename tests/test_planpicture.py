"""The picture of a plan: what is drawn where, in rows."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure
from zarr.codecs.numcodecs import Delta

from egoloader import KeyMap, ZarrEpisode
from egoloader.errors import SettingsError
from egoloader.explanation import EpisodeReads, explain
from egoloader.planpicture import MAX_PANELS, draw_plan, plan_figure
from egoloader.sample import SampleMaker, SampleSettings
from tests.entries import CAMERA, POSE, camera, entry, keymap
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human

HEAD = "obs_head_pose"
KEYMAP = keymap(
    past=entry(history=4),
    future=entry(key_type="action_keys", horizon=10),
    head=entry(HEAD),
    now=camera(),
    before=camera(lag_s=2.0),
)


def reads(path: Path, frames: Sequence[int], entries: KeyMap = KEYMAP) -> EpisodeReads:
    maker = SampleMaker(ZarrEpisode(path), entries, SampleSettings())
    return explain(maker, np.array(frames))


def panels(figure: Figure, gid: str) -> list[Any]:
    return [axes for axes in figure.axes if axes.get_gid() == gid]


def bars(axes: Any, gid: str) -> list[tuple[float, float]]:
    """Return the (start, stop) in rows of the bars that go by a name, sorted."""
    drawn = [one for one in axes.collections if one.get_gid() == gid]
    assert drawn, [one.get_gid() for one in axes.collections]
    extents = [path.get_extents() for one in drawn for path in one.get_paths()]
    return sorted((extent.x0, extent.x1) for extent in extents)


def heights(axes: Any, gid: str) -> set[tuple[float, float]]:
    drawn = [one for one in axes.collections if one.get_gid() == gid]
    extents = [path.get_extents() for one in drawn for path in one.get_paths()]
    return {(round(extent.y0, 6), round(extent.y1, 6)) for extent in extents}


@pytest.fixture
def sample(tmp_path: Path) -> Figure:
    figure = plan_figure([reads(write_human(tmp_path / "ep.zarr", 1000), [402])])
    assert isinstance(figure, Figure)
    return figure


def test_a_line_shows_rows_chunks_and_requests(sample: Figure) -> None:
    (lines,) = panels(sample, "lines")
    assert bars(lines, f"needed {POSE}") == [(399, 412)]
    assert bars(lines, f"touched {POSE}") == [(300, 400), (400, 500)]
    assert bars(lines, f"requests {POSE}") == [(300, 500)]
    assert bars(lines, f"requests {HEAD}") == [(400, 500)]
    assert bars(lines, f"needed {CAMERA}") == [(342, 343), (402, 403)]
    assert bars(lines, f"touched {CAMERA}") == bars(lines, f"needed {CAMERA}")
    assert [label.get_text() for label in lines.get_yticklabels()] == [POSE, HEAD, CAMERA]
    (now,) = [line for line in lines.lines if line.get_gid() == "frame"]
    assert now.get_xdata()[0] == 402.5


def test_strips_of_a_line_lie_one_below_the_other(sample: Figure) -> None:
    (lines,) = panels(sample, "lines")
    for line, key in enumerate([POSE, HEAD, CAMERA]):
        strips = [heights(lines, f"{what} {key}") for what in ("needed", "touched", "requests")]
        ((needed, chunks, requests),) = zip(*strips, strict=True)
        assert heights(lines, f"chunks {key}") == {chunks}
        assert line < needed[0] < needed[1] < chunks[0]
        assert chunks[1] < requests[0] < requests[1] < line + 1


def test_the_view_is_zoomed_and_the_whole_episode_stays_in_sight(sample: Figure) -> None:
    (lines,), (context,) = panels(sample, "lines"), panels(sample, "context")
    # Rows 342 to 412 are needed, of chunks 300 to 500: as much again, and a little margin.
    assert lines.get_xlim() == (300 - 3, 412 + 70 + 3)
    assert bars(lines, f"chunks {HEAD}") == [(200, 300), (300, 400)]
    assert bars(context, "episode") == [(0, 1000)]
    assert bars(context, "zoom") == [lines.get_xlim()]
    assert bars(context, "needed") == [(342, 343), (399, 412)]
    assert context.get_xlim() == (0, 1000)


def test_the_costs_stand_beside_the_lines(sample: Figure) -> None:
    (lines,) = panels(sample, "lines")
    texts = [text.get_text() for text in lines.texts]
    assert texts[0].startswith("13 of 13 rows needed; 2 chunks of 100 rows\n1 request, ")
    assert texts[1].startswith("1 of 1 row needed; 1 chunk of 100 rows\n1 request, ")
    assert texts[2].startswith("2 of 2 rows needed; 2 chunks of 1 row\n2 requests, ")


def test_no_labels_overlap(sample: Figure) -> None:
    sample.draw_without_rendering()
    boxes = [
        text.get_window_extent()
        for axes in sample.axes
        for text in (*axes.texts, *axes.get_yticklabels(), axes.title, axes._left_title)
        if text.get_text()
    ]
    (legend,) = sample.legends
    boxes.append(legend.get_window_extent())
    assert len(boxes) == 3 + 3 + 1 + 1 + 1
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:place])
        assert sample.bbox.x0 <= box.x0
        assert box.x1 <= sample.bbox.x1


def test_rows_past_the_end_of_the_episode_are_not_drawn(tmp_path: Path) -> None:
    figure = plan_figure([reads(write_human(tmp_path / "ep.zarr", 250), [249])])
    (lines,) = panels(figure, "lines")
    assert bars(lines, f"needed {POSE}") == [(246, 250)]
    assert bars(lines, f"touched {POSE}") == [(200, 250)]
    assert bars(lines, f"requests {POSE}") == [(200, 250)]
    assert lines.get_xlim()[1] == 250


def test_many_chunks_in_view_are_drawn_without_borders(tmp_path: Path) -> None:
    figure = plan_figure([reads(write_human(tmp_path / "ep.zarr", 1000), [100, 900])])
    (lines,) = panels(figure, "lines")
    assert len(bars(lines, f"chunks {CAMERA}")) == 5
    assert len(bars(lines, f"touched {CAMERA}")) == 4


def test_requests_for_the_same_rows_are_drawn_side_by_side(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, POSE, ramp(250, 7), chunks=(20, 3))
    found = reads(
        tmp_path / "ep.zarr", [125], keymap(future=entry(horizon=30, key_type="action_keys"))
    )
    (lines,) = panels(plan_figure([found]), "lines")
    assert bars(lines, f"requests {POSE}") == 3 * [(120, 140)] + 3 * [(140, 160)]
    lanes = sorted(heights(lines, f"requests {POSE}"))
    assert len(lanes) == 3
    assert all(upper[1] <= lower[0] for upper, lower in itertools.pairwise(lanes))


def test_what_zarr_python_reads_is_drawn_as_groups(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numcodecs in Zarr v3 are not in its specification
        foreign_numbers(group, POSE, ramp(250, 7), filters=[Delta(dtype="<f4")])
        found = reads(tmp_path / "ep.zarr", [120], keymap(past=entry(history=4)))
    figure = plan_figure([found])
    (lines,) = panels(figure, "lines")
    assert bars(lines, f"groups {POSE}") == [(117, 121)]
    assert "zarr-python: codec numcodecs.delta" in lines.texts[0].get_text()
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "row groups that zarr-python reads" in labels
    assert "requests" not in labels


@pytest.mark.parametrize(("number", "left_out"), [(2, ""), (8, "not drawn: 2 more episodes")])
def test_a_batch_has_a_panel_an_episode_up_to_a_limit(
    tmp_path: Path, number: int, left_out: str
) -> None:
    found = [reads(write_human(tmp_path / f"e{n}.zarr", 30 + n), [n, 20, n]) for n in range(number)]
    figure = plan_figure(found)
    shown = min(number, MAX_PANELS)
    assert len(panels(figure, "lines")) == len(panels(figure, "context")) == shown
    titles = [axes.get_title(loc="left") for axes in panels(figure, "context")]
    assert titles[1] == "e1.zarr: 3 samples of 31 frames, 30 Hz"
    assert len(panels(figure, "lines")[1].lines) == 2
    assert figure.get_supxlabel() == left_out


def test_the_picture_is_saved(tmp_path: Path) -> None:
    found = [reads(write_human(tmp_path / "ep.zarr", 250), [130])]
    draw_plan(found, tmp_path / "plan.png")
    pixels = matplotlib.image.imread(tmp_path / "plan.png")
    assert pixels.shape[0] > 200
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50
    for name in ("plan.xyz", "plan"):
        with pytest.raises(SettingsError, match=r"end in .png, .pdf or .svg"):
            draw_plan(found, tmp_path / name)
    assert {path.name for path in tmp_path.iterdir()} == {"ep.zarr", "plan.png"}


def test_a_keymap_that_reads_no_rows_is_refused(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 20, annotations=[("reach", 0, 10)])
    found = reads(path, [5], keymap(text=entry("annotations", "annotation_keys")))
    assert found.arrays == ()
    with pytest.raises(SettingsError, match="nothing to draw"):
        plan_figure([found])
