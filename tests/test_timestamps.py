"""What timestamps have to be: one rule for opening under a time grid and for `validate`."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from egoloader import KeyMap, KeySpec, ZarrDataset
from egoloader.cli import app
from egoloader.errors import EpisodeFormatError
from egoloader.timestamps import time_faults
from egoloader.validate import validate_episode
from tests.episodes import foreign_group, foreign_numbers, ramp

FPS = 30
GRID = KeyMap({"a": KeySpec(zarr_key="a", key_type="action_keys", rate_hz=10, horizon_s=0.5)})
ODD = [math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0]


def write(path: Path, total: int, times: npt.NDArray[Any]) -> Path:
    group = foreign_group(path, total, fps=FPS)
    foreign_numbers(group, "a", ramp(total, 2))
    foreign_numbers(group, "timestamp", times)
    return path


@st.composite
def clocks(draw: st.DrawFn) -> tuple[int, npt.NDArray[Any]]:
    """Frames of an episode and the times that it has: good ones, most often with faults."""
    total = draw(st.integers(1, 9))
    start = draw(st.sampled_from([0.0, 1.7e9]))
    times = start + np.arange(total) * draw(st.sampled_from([1 / FPS, 0.02, 1e-6, 1e6 / FPS]))
    for _ in range(draw(st.integers(0, 3))):
        row, other = draw(st.integers(0, total - 1)), draw(st.integers(0, total - 1))
        times[row] = draw(st.sampled_from([*ODD, float(times[other])]))
    dtype = draw(st.sampled_from(["float64", "float32", "int64", "bool"]))
    with np.errstate(over="ignore", invalid="ignore"):
        times = times.astype(dtype)
    times = times[: draw(st.sampled_from([total, total, total, max(1, total - 1)]))]
    shape = draw(st.sampled_from([(-1,), (-1, 1)]))
    return total, times.reshape(shape)


def refusal(path: Path) -> EpisodeFormatError | None:
    """Return the error that a time grid refuses an episode with."""
    try:
        ZarrDataset(path, GRID)
    except EpisodeFormatError as error:
        return error
    return None


@given(clock=clocks())
@settings(deadline=None, max_examples=150)
def test_validate_passes_nothing_that_a_time_grid_refuses(
    clock: tuple[int, npt.NDArray[Any]],
) -> None:
    total, times = clock
    with TemporaryDirectory() as folder:
        path = write(Path(folder) / "ep.zarr", total, times)
        found = [one for one in validate_episode(path, "ep.zarr") if one.key == "timestamp"]
        error = refusal(path)
    if error is not None:
        at = 0 if error.frame is None else error.frame
        spans = [(one.start or 0, total if one.end is None else one.end) for one in found]
        assert any(start <= at < end for start, end in spans), (str(error), found)
        assert all(one.is_bad and one.episode == "ep.zarr" for one in found)
        assert error.key == "timestamp"


@given(clock=clocks())
@settings(deadline=None, max_examples=300)
def test_faults_are_where_a_loop_finds_them(clock: tuple[int, npt.NDArray[Any]]) -> None:
    times = clock[1].reshape(-1).astype(np.float64)
    every = np.ones(len(times), dtype=bool)
    faults = list(time_faults(times, every, FPS))
    is_bad = np.zeros(len(times), dtype=bool)
    for one in faults:
        if not one.problem.startswith("frames are"):
            is_bad[one.start : one.end] = True
    for row, time in enumerate(times.tolist()):
        before = float(times[row - 1]) if row else -math.inf
        is_stuck = row > 0 and math.isfinite(before) and time <= before
        assert is_bad[row] == (not math.isfinite(time) or is_stuck)
    # Beside what is not known, nothing changes.
    for row in range(len(times)):
        known = every & (np.arange(len(times)) != row)
        left = list(time_faults(np.where(known, times, math.nan), known, FPS))
        assert not any(one.start == row and one.end == row + 1 for one in left if len(times) > 1)


def test_the_command_names_episode_key_and_frame(tmp_path: Path) -> None:
    times = np.arange(40) / FPS
    times[[7, 8, 30]] = times[6]
    write(tmp_path / "ep.zarr", 40, times)
    result = CliRunner().invoke(app, ["validate", str(tmp_path), "--workers", "1", "--json"])
    assert result.exit_code == 1
    found = validate_episode(tmp_path / "ep.zarr", "ep.zarr")
    assert [(one.key, one.start, one.end) for one in found[:2]] == [
        ("timestamp", 7, 9),
        ("timestamp", 30, 31),
    ]
    assert found[0].message == "times must ascend, got 0.2 behind 0.2"
    assert found[0].message in result.stdout
