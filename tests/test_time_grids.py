"""Windows that are read by time: against the slow truth, and what they cost to read."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrDataset
from tests.entries import camera
from tests.episodes import (
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    is_flat,
    jpegs,
    pictures,
    ramp,
    shade,
)
from tests.grid_oracle import Clock, exact, slow_steps, slow_values
from tests.motions import motion, write_motion
from tests.oracle import keeps_time_axis
from tests.strategies import latencies, recorded_rates, timed_specs

Sample = dict[str, Any]


def has_axis(spec: KeySpec) -> bool:
    if spec.rate_hz is None:
        return keeps_time_axis(spec)
    return spec.horizon_s is not None or round((spec.history_s or 0) * spec.rate_hz) > 1


def check_entry(
    key: str,
    spec: KeySpec,
    sample: Sample,
    stored: npt.NDArray[Any],
    clock: Clock,
    cut_end: int | None,
) -> None:
    """Compare one entry of a sample with the slow truth."""
    steps = slow_steps(spec, clock, int(sample["frame_index"]), cut_end)
    wanted, is_pad = slow_values(spec, stored, steps), [step.is_pad for step in steps]
    found, mask = sample[key].double().numpy(), sample[f"{key}_is_pad"]
    if not has_axis(spec):
        found, mask = found[None], mask[None]
    assert mask.tolist() == is_pad
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


def end_of_span(spans: Sequence[tuple[str, int, int]], i: int, total: int) -> int | None:
    ends = [min(stop, total) for _, start, stop in spans if start <= i < stop]
    return min(ends) if ends else None


def check_dataset(
    path: Path,
    entries: Sequence[KeySpec],
    stored: npt.NDArray[Any],
    clock: Clock,
    frames: Sequence[int],
    spans: Sequence[tuple[str, int, int]],
    cuts: bool,
) -> None:
    """Compare single samples and one batch of them with the slow truth, and count the reads."""
    keymap = KeyMap({f"entry {n}": entry for n, entry in enumerate(entries)})
    ds = ZarrDataset(path, keymap, annotation_cutoff=cuts)
    ds.episode.counts.reset()
    batch = ds.__getitems__(list(frames))
    assert ds.episode.counts["a"].reads == 1
    for i, in_batch in zip(frames, batch, strict=True):
        alone = ds[i]
        cut_end = end_of_span(spans, i, clock.total) if cuts else None
        for key, spec in keymap.items():
            assert torch.equal(alone[key], in_batch[key])
            assert torch.equal(alone[f"{key}_is_pad"], in_batch[f"{key}_is_pad"])
            check_entry(key, spec, alone, stored, clock, cut_end)


span = st.tuples(st.just("reach"), st.integers(0, 40), st.integers(1, 60))
spans = st.lists(span, max_size=3).map(lambda all_: [(t, a, a + n) for t, a, n in all_])


@settings(deadline=None, max_examples=120)
@given(
    entries=st.lists(timed_specs(), min_size=1, max_size=4),
    fps=recorded_rates,
    total=st.integers(1, 45),
    chunk_rows=st.integers(1, 50),
    spans=spans,
    cuts=st.booleans(),
    data=st.data(),
)
def test_any_grid_equals_the_slow_truth(
    entries: list[KeySpec],
    fps: float,
    total: int,
    chunk_rows: int,
    spans: list[tuple[str, int, int]],
    cuts: bool,
    data: st.DataObject,
) -> None:
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=5))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        stored = write_motion(path, total, fps=fps, spare=7, chunk_rows=chunk_rows, spans=spans)
        clock = Clock(exact(fps), total)
        check_dataset(path, entries, stored, clock, frames, spans, cuts)


whole_rates = st.sampled_from([1.0, 5.0, 10.0, 20.0, 30.0, 50.0])


@settings(deadline=None, max_examples=120)
@given(
    entries=st.lists(timed_specs(whole_rates), min_size=1, max_size=4),
    gaps=st.lists(st.integers(1, 120), min_size=0, max_size=40),
    start=st.sampled_from([0, 500_000]),
    has_column=st.booleans(),
    spans=spans,
    cuts=st.booleans(),
    data=st.data(),
)
def test_uneven_times_are_honoured(
    entries: list[KeySpec],
    gaps: list[int],
    start: int,
    has_column: bool,
    spans: list[tuple[str, int, int]],
    cuts: bool,
    data: st.DataObject,
) -> None:
    ticks = [start + sum(gaps[:n]) for n in range(len(gaps) + 1)]
    total = len(ticks)
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=5))
    times = np.array([tick / 1000 for tick in ticks])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        column = times[:, None] if has_column else times
        stored = write_motion(path, total, fps=20, times=column, spare=5, spans=spans)
        clock = Clock(Fraction(20), total, [Fraction(tick, 1000) for tick in ticks])
        check_dataset(path, entries, stored, clock, frames, spans, cuts)


def folder_of_rates(folder: Path) -> dict[str, tuple[npt.NDArray[Any], Clock]]:
    """Write one motion at several rates, one uneven twice; return rows and clocks by name."""
    made = {}
    for fps in (10.0, 30.0, 50.0):
        name = f"at_{fps:g}.zarr"
        made[name] = (write_motion(folder / name, 60, fps=fps), Clock(exact(fps), 60))
    for number in (1, 2):
        ticks = np.cumsum(np.random.default_rng(number).integers(10, 60, 60)).tolist()
        name, times = f"uneven_{number}.zarr", np.array([tick / 1000 for tick in ticks])
        rows = write_motion(folder / name, 60, fps=30, times=times)
        made[name] = (rows, Clock(Fraction(30), 60, [Fraction(tick, 1000) for tick in ticks]))
    return made


@pytest.mark.parametrize("interpolation", ["nearest", "linear", "slerp"])
def test_one_batch_holds_episodes_of_every_clock(tmp_path: Path, interpolation: Any) -> None:
    made = folder_of_rates(tmp_path)
    keymap = KeyMap(
        {
            "action": KeySpec(
                zarr_key="a", key_type="action_keys", rate_hz=20, horizon_s=1.6, mask=True,
                interpolation=interpolation,
            ),
            "state": KeySpec(
                zarr_key="a", key_type="proprio_keys", rate_hz=10, history_s=0.4, mask=True,
                latency_s=0.017, interpolation=interpolation,
            ),
            "now": KeySpec(zarr_key="a", key_type="proprio_keys"),
        }
    )  # fmt: skip
    ds = MultiDataset.from_folder(tmp_path, keymap)
    order = np.random.default_rng(0).permutation(len(ds))[:40].tolist()
    batch = ds.__getitems__(order)
    for index, sample in zip(order, batch, strict=True):
        rows, clock = made[sample["episode"]]
        for key in ("action", "state"):
            assert torch.equal(sample[key], ds[index][key])
            check_entry(key, keymap[key], sample, rows, clock, None)
        assert sample["now"].tolist() == rows[int(sample["frame_index"])].astype("f4").tolist()


def test_uneven_episodes_are_planned_together(tmp_path: Path) -> None:
    folder_of_rates(tmp_path)
    entry = KeySpec(zarr_key="a", key_type="action_keys", rate_hz=20, horizon_s=0.5)
    ds = MultiDataset.from_folder(tmp_path, KeyMap({"action": entry}))
    ds.__getitems__(list(range(0, len(ds), 7)))  # so that kinds are known
    kinds = {record.name: ds._maker(n).kind for n, record in enumerate(ds.episodes)}
    assert kinds["uneven_1.zarr"] is kinds["uneven_2.zarr"]
    assert len(set(kinds.values())) == 4


# One motion, three frame rates.


def windows_at(
    folder: Path, second: float, interpolation: Any, rates: Sequence[float] = (10, 30, 50)
) -> dict[float, Sample]:
    """Return the sample of one time out of one motion recorded at several rates."""
    common = {"zarr_key": "a", "rate_hz": 20, "mask": True, "interpolation": interpolation}
    keymap = KeyMap(
        {
            "action": KeySpec(key_type="action_keys", horizon_s=1.6, **common),
            "state": KeySpec(key_type="proprio_keys", history_s=0.5, **common),
        }
    )
    samples = {}
    for fps in rates:
        path = folder / f"{fps:g}_{interpolation}_{second:g}.zarr"
        write_motion(path, round(6 * fps) + 1, fps=fps)
        samples[fps] = ZarrDataset(path, keymap)[round(second * fps)]
    return samples


WANTED = {"action": np.arange(32) / 20, "state": np.arange(-9, 1) / 20}


@pytest.mark.parametrize("second", [0.0, 0.2, 2.0, 5.0, 6.0])
@pytest.mark.parametrize("interpolation", ["nearest", "linear", "slerp"])
def test_one_motion_at_10_30_and_50_hz_gives_the_same_window(
    tmp_path: Path, interpolation: Any, second: float
) -> None:
    samples = windows_at(tmp_path, second, interpolation)
    for key, offsets in WANTED.items():
        times = second + offsets
        is_pad = (times < -1e-9) | (times > 6 + 1e-9)
        truth = motion(np.clip(times, 0, 6))
        truth[1::2, 3:] *= -1  # the signs that `motion` turned
        for fps, sample in samples.items():
            assert sample[f"{key}_is_pad"].tolist() == is_pad.tolist(), fps
            found = sample[key].double().numpy()
            # Linear interpolation misses by h² / 8 of the second derivative, a sine's is SPEED²;
            # the nearest frame is half a frame away at most.
            bound = 1 / fps / 2 * 1.3 if interpolation == "nearest" else (1.3 / fps) ** 2 / 8
            assert np.abs(found[:, :3] - truth[:, :3]).max() <= bound + 1e-6
            cosines = np.abs((found[:, 3:] * truth[:, 3:]).sum(axis=1))
            if interpolation == "slerp":
                # At a constant turn it is exact, whatever the signs that were stored.
                np.testing.assert_allclose(cosines, 1, atol=1e-6)
            elif interpolation == "nearest":
                assert (cosines >= np.cos(2.1 / fps / 4) - 1e-6).all()


# What it costs, and what it is of.


def test_a_grid_at_the_frame_rate_is_the_frames_themselves(tmp_path: Path) -> None:
    write_motion(tmp_path / "ep.zarr", 80, fps=29.97)
    common = {"zarr_key": "a", "key_type": "action_keys", "mask": True}
    grid = {"rate_hz": 29.97, "horizon_s": 16 / 29.97, **common}
    keymap = KeyMap(
        {
            "frames": KeySpec(horizon=16, **common),
            "nearest": KeySpec(**grid),
            "linear": KeySpec(interpolation="linear", **grid),
            "slerp": KeySpec(interpolation="slerp", **grid),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    for sample in (ds[3], *ds.__getitems__([0, 40, 70, 79])):
        for key in ("nearest", "linear", "slerp"):
            assert torch.equal(sample[key], sample["frames"])
            assert torch.equal(sample[f"{key}_is_pad"], sample["frames_is_pad"])


@pytest.mark.parametrize("late", [0, 0.0])
def test_no_latency_is_as_if_none_were_given(tmp_path: Path, late: float) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 30)
    foreign_numbers(group, "a", ramp(30, 2))
    common = {"zarr_key": "a", "key_type": "proprio_keys", "history": 4, "stride_s": 0.1}
    keymap = KeyMap({"a": KeySpec(**common), "b": KeySpec(latency_s=late, **common)})
    sample = ZarrDataset(tmp_path / "ep.zarr", keymap)[5]
    assert sample["a"][:, 0].tolist() == sample["b"][:, 0].tolist() == [2000, 2000, 2000, 5000]


def test_a_late_sensor_is_read_later(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 30)
    foreign_numbers(group, "a", ramp(30, 2))
    common = {"zarr_key": "a", "key_type": "proprio_keys", "mask": True}
    keymap = KeyMap(
        {
            "now": KeySpec(latency_s=0.1, **common),
            "tie": KeySpec(latency_s=0.05, **common),
            "early": KeySpec(latency_s=-0.1, **common),
            "past": KeySpec(latency_s=0.1, history=3, **common),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    sample = ds[10]
    assert [sample[key][0].item() for key in ("now", "tie", "early")] == [13000, 11000, 7000]
    assert sample["past"][:, 0].tolist() == [11000, 12000, 13000]
    assert ds[28]["past_is_pad"].tolist() == [False, True, True]
    assert ds[28]["past"][:, 0].tolist() == [29000, 29000, 29000]
    assert ds[28]["now_is_pad"]
    assert ds[2]["early_is_pad"]
    assert ds[2]["early"][0] == 0


def test_the_windows_of_one_array_are_one_read_of_the_rows_planned(tmp_path: Path) -> None:
    write_motion(tmp_path / "ep.zarr", 250, fps=30)
    common = {"zarr_key": "a", "rate_hz": 10}
    keymap = KeyMap(
        {
            "action": KeySpec(key_type="action_keys", horizon_s=1.6, **common),
            "state": KeySpec(key_type="proprio_keys", history_s=0.4, **common),
            "late": KeySpec(
                zarr_key="a", key_type="proprio_keys", latency_s=0.05, interpolation="linear"
            ),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    ds[50]
    counted = ds.episode.counts["a"]
    # From frame 41, three steps of 0.1 s back, to frame 95, 1.5 s ahead: all in the first chunk.
    assert (counted.reads, counted.rows, counted.chunks) == (1, 55, 1)
    ds.episode.counts.reset()
    ds.__getitems__([50, 51, 53])
    counted = ds.episode.counts["a"]
    assert (counted.reads, counted.rows) == (1, 98 - 41 + 1)


def test_rows_behind_an_annotations_end_are_not_read(tmp_path: Path) -> None:
    write_motion(tmp_path / "ep.zarr", 90, fps=30, chunk_rows=1, spans=[("reach", 0, 40)])
    fields: dict[str, Any] = {"rate_hz": 20, "horizon_s": 1.0, "interpolation": "linear"}
    keymap = KeyMap({"a": KeySpec(zarr_key="a", key_type="action_keys", **fields)})
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap, annotation_cutoff=True)
    ds[36]
    # Steps at rows 36, 37.5 and 39, and all others behind the end.
    assert ds.episode.counts["a"].rows == 4


@pytest.mark.parametrize("uneven", [False, True])
def test_each_frame_of_a_camera_on_a_grid_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uneven: bool
) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 60)
    foreign_bytes(group, "images.front_1", jpegs(pictures(60)))
    if uneven:
        times = np.arange(60) / 30
        times[1::2] += 0.004
        foreign_numbers(group, "timestamp", times)
    decoded: list[bytes] = []
    original = simplejpeg.decode_jpeg

    def noted(data: bytes, *args: Any, **kwargs: Any) -> Any:
        decoded.append(data)
        return original(data, *args, **kwargs)

    past = camera(rate_hz=50, history_s=0.1, mask=True)
    ds = ZarrDataset(tmp_path / "ep.zarr", KeyMap({"now": camera(), "past": past}))
    ds[0]  # so that the size is known
    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    ds.episode.counts.reset()
    sample = ds[30]
    # 80, 60, 40, 20 and 0 ms back are 2.4, 1.8, 1.2, 0.6 and 0 frames.
    rows = [28, 28, 29, 29, 30]
    assert all(is_flat(image, shade(row)) for image, row in zip(sample["past"], rows, strict=True))
    assert len(decoded) == 3
    counted = ds.episode.counts["images.front_1"]
    assert (counted.reads, counted.rows) == (1, 3)


@given(late=latencies, fps=recorded_rates, rate=st.sampled_from([10.0, 30.0, 50.0]))
def test_times_of_steps_leave_latency_out(late: float, fps: float, rate: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        foreign_numbers(foreign_group(path, 3, fps=fps), "a", ramp(3, 2))
        entry = KeySpec(
            zarr_key="a", key_type="action_keys", rate_hz=rate, horizon_s=4 / rate, latency_s=late
        )
        maker = ZarrDataset(path, KeyMap({"a": entry}))._maker
        np.testing.assert_allclose(maker.step_times("a"), np.arange(4) / rate)


@pytest.mark.parametrize("uneven", [False, True])
def test_a_step_between_two_rows_is_of_another_span_where_one_of_them_is(
    tmp_path: Path, uneven: bool
) -> None:
    times = np.arange(30) / 10 + (0.001 * (np.arange(30) % 2) if uneven else 0)
    write_motion(tmp_path / "ep.zarr", 30, fps=10, times=times, spans=[("reach", 0, 10)])
    common = {"zarr_key": "a", "span_mask": True, "interpolation": "linear"}
    keymap = KeyMap(
        {
            "ahead": KeySpec(key_type="action_keys", rate_hz=25, horizon_s=0.2, **common),
            "one": KeySpec(key_type="proprio_keys", lag_s=0.1, latency_s=0.15, **common),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    # Steps 40 ms apart from row 9 on: all but the first are between it and row 10, or behind.
    assert ds[9]["ahead_is_other_span"].tolist() == [False, True, True, True, True]
    assert ds[8]["ahead_is_other_span"].tolist() == [False, False, False, True, True]
    assert [bool(ds[i]["one_is_other_span"]) for i in (7, 8, 9)] == [False, False, True]
