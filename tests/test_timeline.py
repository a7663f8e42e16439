"""When frames were recorded: times that are honoured, taken for even ones, or refused."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from egoloader import EpisodeLoader, KeyMap, KeySpec, MultiDataset, ZarrDataset
from egoloader.errors import EpisodeFormatError, KeyMapError
from egoloader.timeline import Timeline
from tests.episodes import foreign_group, foreign_numbers, ramp

TOTAL = 40
ACTION: dict[str, Any] = {"zarr_key": "a", "key_type": "action_keys", "mask": True}
GRID = KeySpec(rate_hz=10, horizon_s=0.5, interpolation="linear", **ACTION)


def write(
    path: Path, times: npt.NDArray[Any] | None, *, fps: float = 30, total: int = TOTAL
) -> Path:
    group = foreign_group(path, total, fps=fps)
    foreign_numbers(group, "a", ramp(total, 2))
    if times is not None:
        foreign_numbers(group, "timestamp", times)
    return path


def opened(path: Path, **entries: KeySpec) -> ZarrDataset:
    return ZarrDataset(path, KeyMap(entries or {"action": GRID}))


def frames_of(sample: dict[str, Any]) -> npt.NDArray[np.float64]:
    """Return at which frames the steps of `action` are."""
    return np.asarray(sample["action"][:, 0].double().numpy() / 1000)


EVEN = np.arange(TOTAL) / 30


@pytest.mark.parametrize(
    "times",
    [
        EVEN,
        EVEN.astype("f4"),
        (EVEN + 1000).astype("f4"),
        EVEN + 1.7e9,
        EVEN[:, None],
        EVEN + np.random.default_rng(0).uniform(-4e-7, 4e-7, TOTAL),
    ],
    ids=["float64", "float32", "late float32", "unix", "column", "microseconds"],
)
def test_even_times_are_planned_as_the_frame_rate_is(tmp_path: Path, times: Any) -> None:
    plain = opened(write(tmp_path / "plain.zarr", None))
    timed = opened(write(tmp_path / "timed.zarr", times))
    assert timed._maker.timeline is None
    for frame in (0, 7, 33, 39):
        assert torch.equal(timed[frame]["action"], plain[frame]["action"])
        assert torch.equal(timed[frame]["action_is_pad"], plain[frame]["action_is_pad"])


@pytest.mark.parametrize("start", [0.0, 1.7e9])
def test_uneven_times_set_the_steps(tmp_path: Path, start: float) -> None:
    # The first half at 20 Hz, the second at 40 Hz, whatever fps says.
    times = start + np.concatenate([np.arange(20) / 20, 1 + np.arange(20) / 40])
    ds = opened(write(tmp_path / "ep.zarr", times))
    np.testing.assert_allclose(frames_of(ds[4]), [4, 6, 8, 10, 12], atol=1e-4)
    np.testing.assert_allclose(frames_of(ds[18]), [18, 20, 24, 28, 32], atol=1e-4)
    assert ds[30]["action_is_pad"].tolist() == [False, False, False, True, True]
    np.testing.assert_allclose(frames_of(ds[30]), [30, 34, 38, 39, 39], atol=1e-4)


def test_a_steady_rate_that_fps_does_not_say_is_honoured(tmp_path: Path) -> None:
    ds = opened(write(tmp_path / "ep.zarr", np.arange(TOTAL) / 20, fps=30))
    assert frames_of(ds[4]).tolist() == [4, 6, 8, 10, 12]


def test_windows_that_count_frames_do_not_go_by_times(tmp_path: Path) -> None:
    times = np.cumsum(np.arange(TOTAL) / 100.0 + 0.01)
    spec = KeySpec(zarr_key="a", key_type="action_keys", horizon=4)
    counted, timed = opened(write(tmp_path / "ep.zarr", times), action=spec), opened
    assert counted._maker.timeline is None
    assert frames_of(counted[7]).tolist() == [7, 8, 9, 10]
    both = timed(tmp_path / "ep.zarr", action=spec, grid=GRID)
    assert frames_of(both[7]).tolist() == [7, 8, 9, 10]
    assert both[7]["timestamp"] == times[7]


def test_no_times_are_read_where_nothing_goes_by_them(tmp_path: Path) -> None:
    path = write(tmp_path / "ep.zarr", EVEN * np.nan)
    ds = opened(path, action=KeySpec(zarr_key="a", key_type="action_keys", horizon=4))
    assert "timestamp" not in ds.episode.counts
    with pytest.raises(EpisodeFormatError, match="nan"):
        opened(path)


def swapped(frame: int) -> npt.NDArray[np.float64]:
    times = EVEN.copy()
    times[[frame, frame + 1]] = times[[frame + 1, frame]]
    return times


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (swapped(20), "frame 21.*must ascend"),
        (np.maximum(EVEN, EVEN[7]), "frame 1: times must ascend"),
        (np.where(EVEN[9] == EVEN, np.nan, EVEN), "frame 9.*nan"),
        (np.where(EVEN[9] == EVEN, np.inf, EVEN), "frame 9.*inf"),
        ((EVEN * 1e9).astype("i8"), "3.33333e.07 apart at 30 Hz; are these seconds"),
        (EVEN * 1e6, "are these seconds"),
        (EVEN / 1e4, "are these seconds"),
        (np.stack([EVEN, EVEN], axis=1), "one number a frame"),
        (EVEN > 0, "one number a frame"),
        (EVEN[:30], "30 rows, fewer than total_frames = 40"),
    ],
)
def test_times_that_nothing_can_go_by_are_refused_at_open(
    tmp_path: Path, times: npt.NDArray[Any], words: str
) -> None:
    path = write(tmp_path / "ep.zarr", times)
    with pytest.raises(EpisodeFormatError, match=rf"ep\.zarr.*'timestamp'.*{words}"):
        opened(path)
    with pytest.raises(EpisodeFormatError, match=words):
        MultiDataset.from_folder(tmp_path, KeyMap({"action": GRID}))


def test_one_frame_has_no_pace(tmp_path: Path) -> None:
    ds = opened(write(tmp_path / "ep.zarr", np.array([5.0]), total=1))
    assert frames_of(ds[0]).tolist() == [0] * 5
    assert ds[0]["action_is_pad"].tolist() == [False, True, True, True, True]


def test_times_are_read_once_and_samples_do_not_read_more_for_it(tmp_path: Path) -> None:
    times = EVEN + 0.003 * (np.arange(TOTAL) % 3)
    ds = opened(write(tmp_path / "ep.zarr", times))
    assert ds.episode.counts["timestamp"].reads == 1
    ds.episode.counts.reset()
    ds.__getitems__([3, 10, 3])
    # Every sample says when it is.
    assert {key: ds.episode.counts[key].reads for key in ds.episode.counts} == {
        "a": 1,
        "timestamp": 1,
    }


def test_datasets_on_uneven_times_pickle_and_load(tmp_path: Path) -> None:
    for number in range(3):
        times = np.cumsum(np.random.default_rng(number).uniform(0.01, 0.06, TOTAL))
        write(tmp_path / f"{number}.zarr", times)
    ds = MultiDataset.from_folder(tmp_path, KeyMap({"action": GRID}))
    again = pickle.loads(pickle.dumps(ds))
    wanted = [ds[index] for index in range(len(ds))]
    for index in (0, 50, 119):
        assert torch.equal(again[index]["action"], wanted[index]["action"])
    seen = 0
    for batch in EpisodeLoader(ds, batch_size=16, shuffle=True, seed=0, num_threads=2):
        for place, (name, frame) in enumerate(
            zip(batch["episode"], batch["frame_index"].tolist(), strict=True)
        ):
            index = int(name[0]) * TOTAL + frame
            assert torch.equal(batch["action"][place], wanted[index]["action"])
            assert torch.equal(batch["action_is_pad"][place], wanted[index]["action_is_pad"])
            seen += 1
    assert seen == len(ds)


def test_quarantined_rows_are_those_that_a_grid_reads(tmp_path: Path) -> None:
    times = np.concatenate([np.arange(20) / 20, 1 + np.arange(20) / 40])
    for values in (times, None):
        path = write(tmp_path / f"{values is None}.zarr", values)
        maker = opened(path)._maker
        is_row = np.zeros(TOTAL, dtype=bool)
        is_row[24] = True
        found = maker.reads("a", is_row)
        for frame in range(TOTAL):
            plan = maker.plan(np.array([frame]))
            assert found[frame] == (24 in plan.rows("action")), frame


def test_an_array_called_timestamp_may_be_an_entry_itself(tmp_path: Path) -> None:
    path = write(tmp_path / "ep.zarr", EVEN * 2)
    spec = KeySpec(
        zarr_key="timestamp", key_type="proprio_keys", latency_s=0.01, interpolation="linear",
        dtype="float64",
    )  # fmt: skip
    sample = opened(path, clock=spec)[5]
    np.testing.assert_allclose(sample["clock"].item(), EVEN[5] * 2 + 0.01, rtol=1e-12)
    with pytest.raises(KeyMapError, match="no poses"):
        opened(path, clock=KeySpec(
            zarr_key="timestamp", key_type="proprio_keys", latency_s=1, interpolation="slerp"
        ))  # fmt: skip


@pytest.mark.parametrize("error", [-3e-7, -1e-16, 0.0, 1e-16, 3e-7])
def test_rounding_parts_no_step_from_the_frame_that_it_meets(error: float) -> None:
    times = np.array([0.1 + 0.2, 0.5, 0.81])
    timeline = Timeline(times, 30.0, 1e-6)
    asked = times[None] + error
    low, high, weights = timeline.find(asked)
    assert low.tolist() == high.tolist() == [[0, 1, 2]]
    assert not weights.any()
    # Between two frames, the middle is a tie, whichever way it is rounded.
    middle = np.array([[0.4 + error]])
    assert timeline.nearest(middle).tolist() == [[0]]
    assert timeline.nearest(asked).tolist() == [[0, 1, 2]]


def test_steps_outside_are_told_by_frames_that_are_not_there() -> None:
    timeline = Timeline(np.array([1.0, 1.5]), 30.0, 1e-6)
    low, high, weights = timeline.find(np.array([0.99, 1.25, 1.51]))
    assert low.tolist() == [-1, 0, 1]
    assert high.tolist() == [0, 1, 2]
    assert weights.tolist() == [0, 0.5, 0]
