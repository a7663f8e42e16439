"""The picture of a sample."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from egoloader import ZarrEpisode, human_keymap
from egoloader.assembly import make_sample
from egoloader.errors import MissingExtraError, require_extra
from egoloader.picture import _curves, _frames, _span, draw_sample
from egoloader.sample import SampleMaker, SampleSettings
from tests.episodes import shade, write_human


@pytest.fixture
def maker(tmp_path: Path) -> SampleMaker:
    keymap = human_keymap("cartesian", horizon=9, proprio_history=3, image_memory=2, masks=True)
    return SampleMaker(ZarrEpisode(write_human(tmp_path / "e.zarr", 60)), keymap, SampleSettings())


def test_frames_are_in_order_of_time_and_are_the_episodes_own(maker: SampleMaker) -> None:
    sample = make_sample(maker, 45)
    frames = _frames(maker, sample)
    assert [title.split("\n")[1] for title, _ in frames] == ["-1.00 s", "now", "now"]
    for (_, pixels), frame in zip(frames, (15, 45, 45), strict=True):
        assert np.abs(pixels.reshape(-1, 3).mean(axis=0) - shade(frame)).max() < 4


def test_curves_and_span_cover_every_window_of_numbers(maker: SampleMaker) -> None:
    assert _curves(maker)["left.obs_ee_pose"] == ["left.action_ee_pose", "left.obs_ee_pose"]
    earliest, latest = _span(maker)
    assert earliest < -2 / 30 < 8 / 30 < latest


def test_a_picture_is_drawn(maker: SampleMaker, tmp_path: Path) -> None:
    draw_sample(maker, 55, tmp_path / "sample.png")
    pixels = matplotlib.image.imread(tmp_path / "sample.png")
    assert pixels.shape[0] > 400
    assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 50


def test_a_missing_library_names_its_extra() -> None:
    with pytest.raises(MissingExtraError, match=r"pip install 'egoloader\[view\]'"):
        require_extra("no_such_library.pyplot", "view")
