"""Windows in frames: the worked examples of DESIGN section 4, and all else against plain loops."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeySpec
from egoloader.windows import (
    Steps,
    cut_ends,
    entry_pads,
    entry_rows,
    entry_runs,
    entry_steps,
    inside_rows,
    inside_runs,
)
from tests.oracle import keeps_time_axis, slow_rows
from tests.strategies import key_specs, rates


class Rows(NamedTuple):
    """A window's rows and mask."""

    rows: npt.NDArray[np.int64]
    is_pad: npt.NDArray[np.bool_]


def resolve(steps: Steps, frames: list[int], total: int) -> Rows:
    """Return rows and mask at each frame, (B, n) with or without a time axis."""
    asked, ends = np.array(frames), np.full(len(frames), total)
    rows, is_pad = entry_rows(steps, asked, ends), entry_pads(steps, asked, ends)
    assert rows.ndim == is_pad.ndim == (2 if steps.has_time_axis else 1)
    return Rows(rows.reshape(len(frames), -1), is_pad.reshape(len(frames), -1))


def spec(**fields: Any) -> KeySpec:
    return KeySpec(**{"zarr_key": "a", "key_type": "proprio_keys", **fields})


def rows_at(entry: KeySpec, i: int, *, fps: float = 30, total: int = 250) -> Rows:
    """Return the entry's rows and mask at one frame, without the axis of frames."""
    found = resolve(entry_steps(entry, fps), [i], total)
    return Rows(found.rows[0], found.is_pad[0])


def check(found: Rows, rows: list[int], is_pad: list[int]) -> None:
    assert found.rows.tolist() == rows
    assert found.is_pad.tolist() == [bool(pad) for pad in is_pad]


def test_the_current_frame_has_no_axis() -> None:
    check(rows_at(spec(), 17), [17], [0])
    assert not entry_steps(spec(), 30).has_time_axis


def test_a_horizon_is_the_frames_from_now_on() -> None:
    check(rows_at(spec(horizon=4), 17), [17, 18, 19, 20], [0, 0, 0, 0])
    assert entry_steps(spec(horizon=1), 30).has_time_axis


def test_case_06_a_horizon_past_the_end_repeats_the_last_real_row() -> None:
    check(rows_at(spec(horizon=4), 248, total=250), [248, 249, 249, 249], [0, 0, 1, 1])


def test_a_horizon_longer_than_the_episode() -> None:
    check(rows_at(spec(horizon=4), 1, total=2), [1, 1, 1, 1], [0, 1, 1, 1])


def test_a_history_ends_now() -> None:
    check(rows_at(spec(history=4), 17), [14, 15, 16, 17], [0, 0, 0, 0])


def test_a_history_before_the_start_repeats_row_0() -> None:
    check(rows_at(spec(history=4), 1), [0, 0, 0, 1], [1, 1, 0, 0])


def test_a_history_of_one_is_the_current_frame_without_axis() -> None:
    check(rows_at(spec(history=1), 17), [17], [0])
    assert not entry_steps(spec(history=1), 30).has_time_axis
    assert entry_steps(spec(history=2), 30).has_time_axis


def test_worked_example_a_stride_repeats_the_oldest_real_step() -> None:
    check(rows_at(spec(history=4, stride_s=0.1), 5), [2, 2, 2, 5], [1, 1, 0, 0])


def test_a_stride_that_no_step_before_now_fits() -> None:
    check(rows_at(spec(history=4, stride_s=1.0), 5), [5, 5, 5, 5], [1, 1, 1, 0])


def test_a_stride_far_from_the_start_pads_nothing() -> None:
    check(rows_at(spec(history=3, stride_s=0.1), 6), [0, 3, 6], [0, 0, 0])


def test_a_stride_below_one_frame_is_one_frame() -> None:
    check(rows_at(spec(history=3, stride_s=0.001), 9), [7, 8, 9], [0, 0, 0])


def test_worked_example_offsets_are_clamped_one_by_one() -> None:
    check(rows_at(spec(offsets=[-9, -6, -3, 0]), 5), [0, 0, 2, 5], [1, 1, 0, 0])


def test_offsets_are_clamped_at_both_ends_in_the_order_given() -> None:
    check(rows_at(spec(offsets=[3, 0, -8, 0]), 7, total=9), [8, 7, 0, 7], [1, 0, 1, 0])


def test_a_list_of_one_offset_keeps_its_axis() -> None:
    check(rows_at(spec(offsets=[0]), 5), [5], [0])
    assert entry_steps(spec(offsets=[0]), 30).has_time_axis
    assert entry_steps(spec(offsets_s=[0.0]), 30).has_time_axis


def test_offsets_in_seconds_round_ties_to_even() -> None:
    # 0.05 s and 0.15 s at 30 Hz are 1.5 and 4.5 frames.
    check(rows_at(spec(offsets_s=[-0.15, -0.05, 0.05, 0.15]), 50), [46, 48, 52, 54], [0, 0, 0, 0])


@pytest.mark.parametrize(("lag_s", "frames"), [(0.15, 4), (0.25, 8), (0.35, 10), (0.5, 15)])
def test_case_05_lag_rounds_ties_to_even(lag_s: float, frames: int) -> None:
    check(rows_at(spec(lag_s=lag_s), 100, fps=30), [100 - frames], [0])


def test_case_05_a_lag_before_the_start_is_frame_0() -> None:
    check(rows_at(spec(lag_s=0.25), 3, fps=30), [0], [1])
    check(rows_at(spec(lag_s=0.25), 8, fps=30), [0], [0])
    assert not entry_steps(spec(lag_s=0.25), 30).has_time_axis


@pytest.mark.parametrize(("fps", "row"), [(10, 95), (30, 85), (50, 75)])
def test_case_05_a_lag_counts_in_the_episodes_own_frames(fps: float, row: int) -> None:
    check(rows_at(spec(lag_s=0.5), 100, fps=fps), [row], [0])


def test_a_lag_below_one_frame_is_one_frame() -> None:
    check(rows_at(spec(lag_s=0.001), 9), [8], [0])


def test_case_09_one_window_a_frame_padded_before_and_after() -> None:
    entry = spec(offsets=[-1, 0, 1, 2])
    windows = [rows_at(entry, i, total=5).rows.tolist() for i in range(5)]
    assert windows == [[0, 0, 1, 2], [0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 4], [3, 4, 4, 4]]


def test_case_10_an_earlier_end_cuts_a_horizon() -> None:
    check(rows_at(spec(horizon=4), 3, total=5), [3, 4, 4, 4], [0, 0, 1, 1])
    check(rows_at(spec(horizon=4), 3, total=10), [3, 4, 5, 6], [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("span", "ends"),
    [
        (("a", 0, 4), [4, 4, 9]),
        (("a", -(10**30), 10**30), [9, 9, 9]),
        (("a", 10**30, -(10**30)), [9, 9, 9]),
        (("a", 2, 10**30), [9, 9, 9]),
        (("a", 5, -1), [9, 9, 9]),
    ],
)
def test_spans_end_windows_whatever_numbers_they_name(
    span: tuple[str, int, int], ends: list[int]
) -> None:
    assert cut_ends([span], np.array([0, 3, 7]), 9).tolist() == ends


@settings(deadline=None, max_examples=50)
@given(
    entry=key_specs(),
    fps=rates,
    total=st.integers(1, 120),
    data=st.data(),
)
def test_windows_equal_plain_loops(
    entry: KeySpec, fps: float, total: int, data: st.DataObject
) -> None:
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=6))
    steps = entry_steps(entry, fps)
    found = resolve(steps, frames, total)
    assert steps.has_time_axis == keeps_time_axis(entry)
    assert found.rows.dtype == np.int64
    assert found.is_pad.dtype == np.bool_
    for b, i in enumerate(frames):
        rows, is_pad = slow_rows(entry, fps, total, i)
        assert found.rows[b].tolist() == rows
        assert found.is_pad[b].tolist() == is_pad


@settings(deadline=None, max_examples=50)
@given(entry=key_specs(), fps=rates, total=st.integers(1, 120), data=st.data())
def test_rows_stay_inside_the_episode_and_real_steps_are_where_they_should_be(
    entry: KeySpec, fps: float, total: int, data: st.DataObject
) -> None:
    i = data.draw(st.integers(0, total - 1))
    steps = entry_steps(entry, fps)
    found = resolve(steps, [i], total)
    assert ((found.rows >= 0) & (found.rows < total)).all()
    real = ~found.is_pad[0]
    assert (found.rows[0][real] == (i + steps.offsets)[real]).all()
    wanted = i + steps.offsets
    assert (real == ((wanted >= 0) & (wanted < total))).all()


@settings(deadline=None, max_examples=100)
@given(entry=key_specs(), fps=rates, total=st.integers(1, 120), data=st.data())
def test_runs_hold_the_rows_and_no_others(
    entry: KeySpec, fps: float, total: int, data: st.DataObject
) -> None:
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=6))
    ends = [data.draw(st.integers(frame + 1, total)) for frame in frames]
    steps = entry_steps(entry, fps)
    starts, stops = entry_runs(steps, np.array(frames), np.array(ends))
    rows = entry_rows(steps, np.array(frames), np.array(ends))
    for of_frame, low, high in zip(rows.reshape(len(frames), -1), starts, stops, strict=True):
        assert (low < high).all()
        held = {row for run in zip(low, high, strict=True) for row in range(*run)}
        assert held == set(of_frame)


@settings(deadline=None, max_examples=100)
@given(entry=key_specs(), fps=rates, total=st.integers(1, 400), data=st.data())
def test_inside_the_episode_nothing_is_clamped(
    entry: KeySpec, fps: float, total: int, data: st.DataObject
) -> None:
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=6))
    steps = entry_steps(entry, fps)
    asked, ends = np.array(frames), np.full(len(frames), total)
    is_inside = steps.is_inside(min(frames), total - max(frames))
    assert is_inside == (not entry_pads(steps, asked, ends).any())
    if is_inside:
        assert inside_rows(steps, asked).tolist() == entry_rows(steps, asked, ends).tolist()
        for inside, run in zip(
            inside_runs(steps, asked), entry_runs(steps, asked, ends), strict=True
        ):
            assert inside.tolist() == run.tolist()
