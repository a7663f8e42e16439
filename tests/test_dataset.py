"""Samples of one episode: what they hold, indexing, transforms and pickling."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from egoloader import EpisodeWriter, KeyMap, ZarrDataset, human_keymap
from egoloader.errors import (
    EpisodeFormatError,
    FrameIndexError,
    SampleError,
)
from tests.entries import camera, entry, keymap
from tests.episodes import (
    HUMAN_FRAMES,
    KEYPOINT_ARRAYS,
    foreign_annotations,
    foreign_group,
    foreign_numbers,
    is_flat,
    ramp,
    shade,
    write_human,
)

TOTAL = HUMAN_FRAMES


# What a sample holds.


def test_every_sample_says_where_it_comes_from(human: Path) -> None:
    sample = ZarrDataset(human, keymap(pose=entry()))[17]
    context = {"fps", "embodiment", "episode", "frame_index", "timestamp"}
    assert set(sample) == {"pose", "sample_seed", "is_repeat"} | context
    assert (sample["embodiment"], sample["episode"]) == ("human", "ep.zarr")
    assert (sample["fps"].dtype, sample["fps"].shape) == (torch.float32, ())
    assert (sample["frame_index"].dtype, sample["frame_index"].shape) == (torch.int64, ())
    assert (sample["timestamp"].dtype, sample["timestamp"].shape) == (torch.float64, ())
    assert (float(sample["fps"]), int(sample["frame_index"])) == (10.0, 17)
    assert float(sample["timestamp"]) == 17 / 10


def test_keys_stand_in_the_keymaps_order_with_masks_behind_their_entries(human: Path) -> None:
    entries = {"b": entry(horizon=2, mask=True), "a": entry(), "c": entry(mask=True)}
    sample = ZarrDataset(human, KeyMap(entries))[0]
    assert list(sample)[:5] == ["b", "b_is_pad", "a", "c", "c_is_pad"]


def test_shapes_with_and_without_a_time_axis(human: Path) -> None:
    entries = {
        "now": entry(mask=True),
        "one": entry(history=1, mask=True),
        "lag": entry(lag_s=0.3, mask=True),
        "past": entry(history=4, mask=True),
        "future": entry(horizon=1, mask=True),
        "offset": entry(offsets=[-1], mask=True),
        "image": camera(mask=True),
        "images": camera(history=3, mask=True),
    }
    sample = ZarrDataset(human, KeyMap(entries))[17]
    shapes = {key: tuple(sample[key].shape) for key in entries}
    assert shapes == {
        "now": (7,),
        "one": (7,),
        "lag": (7,),
        "past": (4, 7),
        "future": (1, 7),
        "offset": (1, 7),
        "image": (3, 16, 24),
        "images": (3, 3, 16, 24),
    }
    for key in entries:
        is_pad = sample[f"{key}_is_pad"]
        assert is_pad.dtype == torch.bool
        windowed = key in ("past", "future", "offset", "images")
        assert tuple(is_pad.shape) == (shapes[key][:1] if windowed else ())
        assert not is_pad.any()


def test_case_06_windows_past_the_end_repeat_real_rows_and_are_masked(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    stored = np.zeros((300, 1), dtype=np.float32)
    stored[:250, 0] = np.arange(250)
    foreign_numbers(group, "a", stored, shards=(300, 1))
    ds = ZarrDataset(
        tmp_path / "ep.zarr", keymap(a=entry("a", "action_keys", horizon=4, mask=True))
    )
    assert len(ds) == 250
    assert ds[248]["a"][:, 0].tolist() == [248, 249, 249, 249]
    assert ds[248]["a_is_pad"].tolist() == [False, False, True, True]


def test_case_05_a_lagged_camera_at_the_start_is_frame_0(human: Path) -> None:
    front = "observations.images.front_img_1"
    ds = ZarrDataset(human, human_keymap(image_history_gap_s=0.8, masks=True))
    assert is_flat(ds[3][f"{front}_hist"], shade(0))
    assert bool(ds[3][f"{front}_hist_is_pad"])
    assert is_flat(ds[19][f"{front}_hist"], shade(11))
    assert not bool(ds[19][f"{front}_hist_is_pad"])
    assert is_flat(ds[19][front], shade(19))


def test_an_image_memory_is_oldest_first_and_padded_like_a_stride(human: Path) -> None:
    front = "observations.images.front_img_1"
    ds = ZarrDataset(human, human_keymap(image_memory=3, image_memory_stride_s=0.4))
    sample = ds[6]
    assert sample[f"{front}_mem"].shape == (3, 3, 16, 24)
    for image, frame in zip(sample[f"{front}_mem"], (2, 2, 6), strict=True):
        assert is_flat(image, shade(frame))
    assert sample[f"{front}_mem_is_pad"].tolist() == [True, False, False]
    one = ZarrDataset(human, human_keymap(image_memory=1))[6]
    assert one[f"{front}_mem"].shape == (1, 3, 16, 24)
    assert one[f"{front}_mem_is_pad"].tolist() == [False]


def test_case_10_an_annotations_end_cuts_action_horizons_only(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 10)
    foreign_numbers(group, "a", np.arange(10, dtype=np.float32))
    foreign_annotations(group, [("first", 0, 5), ("second", 5, 10)])
    entries = {
        "action": entry("a", "action_keys", horizon=4, mask=True),
        "steps": entry("a", "action_keys", offsets=[0, 1, 2, 3], mask=True),
        "state": entry("a", "proprio_keys", horizon=4, mask=True),
    }
    cut = ZarrDataset(tmp_path / "ep.zarr", KeyMap(entries), annotation_cutoff=True)[3]
    assert cut["action"].tolist() == [3, 4, 4, 4]
    assert cut["action_is_pad"].tolist() == [False, False, True, True]
    whole = ZarrDataset(tmp_path / "ep.zarr", KeyMap(entries))[3]
    assert whole["action"].tolist() == [3, 4, 5, 6]
    assert not whole["action_is_pad"].any()
    for sample in (cut, whole):
        assert sample["steps"].tolist() == sample["state"].tolist() == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("spans", "rows"),
    [
        ([], [3, 4, 5, 6]),
        (None, [3, 4, 5, 6]),
        ([("later", 5, 8)], [3, 4, 5, 6]),
        ([("long", 0, 9), ("short", 2, 4)], [3, 3, 3, 3]),
        ([("short", 2, 5), ("long", 0, 9)], [3, 4, 4, 4]),
        ([("past the end", 0, 99)], [3, 4, 5, 6]),
        ([("ends here", 0, 3)], [3, 4, 5, 6]),
    ],
)
def test_case_10_the_earliest_end_of_the_spans_holding_the_frame_cuts(
    tmp_path: Path, spans: Any, rows: list[int]
) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 7)
    foreign_numbers(group, "a", np.arange(9, dtype=np.float32))
    if spans is not None:
        foreign_annotations(group, spans)
    entries = keymap(action=entry("a", "action_keys", horizon=4))
    ds = ZarrDataset(tmp_path / "ep.zarr", entries, annotation_cutoff=True)
    assert ds[3]["action"].tolist() == rows
    assert ds[6]["action"].tolist() == [6, 6, 6, 6]


def test_annotation_entries_yield_the_texts_of_all_spans_that_hold_the_frame(human: Path) -> None:
    ds = ZarrDataset(human, human_keymap(annotation_key="language"))
    texts = [ds[i]["language"] for i in (0, 9, 10, 19, 20, 29, 30, 39)]
    both = "reach; grasp"
    assert texts == ["reach", "reach", both, both, "grasp", "grasp", "", ""]


def test_without_annotations_the_text_is_empty(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 5)
    assert ZarrDataset(path, human_keymap(annotation_key="language"))[2]["language"] == ""


def test_stored_timestamps_take_the_place_of_reckoned_ones(tmp_path: Path) -> None:
    times = np.array([0.0, 0.04, 0.11, 0.13, 0.2])
    for stored in (times, times[:, None], times.astype(np.float32)):
        EpisodeWriter.write(
            tmp_path / "ep.zarr",
            numeric={"a": ramp(5, 1), "timestamp": stored},
            fps=30,
            embodiment="human",
            overwrite=True,
        )
        ds = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a")))
        found = [ds[i]["timestamp"] for i in range(5)]
        assert {time.dtype for time in found} == {torch.float64}
        assert [float(time) for time in found] == stored.ravel().astype(np.float64).tolist()


@pytest.mark.parametrize("values", [np.zeros(3), np.zeros((5, 2)), np.zeros(5, dtype=bool)])
def test_timestamps_that_are_no_number_a_frame_are_refused_at_open(
    tmp_path: Path, values: Any
) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 5)
    foreign_numbers(group, "a", ramp(5, 1))
    foreign_numbers(group, "timestamp", values)
    with pytest.raises(EpisodeFormatError, match=r"ep\.zarr.*timestamp"):
        ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a")))


# Indexing.


def test_lengths_and_negative_indices(human: Path) -> None:
    ds = ZarrDataset(human, keymap(pose=entry()))
    assert len(ds) == TOTAL
    assert int(ds[-1]["frame_index"]) == TOTAL - 1
    assert int(ds[-TOTAL]["frame_index"]) == 0
    assert int(ds[np.int64(3)]["frame_index"]) == 3
    assert int(ds[torch.tensor(3)]["frame_index"]) == 3  # type: ignore[index]


@pytest.mark.parametrize("index", [TOTAL, TOTAL + 1, -TOTAL - 1, 10**12])
def test_only_indices_outside_are_index_errors(human: Path, index: int) -> None:
    ds = ZarrDataset(human, keymap(pose=entry()))
    with pytest.raises(FrameIndexError, match=str(index)) as caught:
        ds[index]
    assert isinstance(caught.value, IndexError)
    with pytest.raises(IndexError):
        ds.__getitems__([0, index])


@pytest.mark.parametrize("index", [1.5, "1", None, slice(0, 2)])
def test_what_is_no_index_is_a_type_error(human: Path, index: Any) -> None:
    with pytest.raises(TypeError):
        ZarrDataset(human, keymap(pose=entry()))[index]


def test_iterating_visits_every_frame_once_in_order(human: Path) -> None:
    ds = ZarrDataset(human, keymap(pose=entry()))
    assert [int(sample["frame_index"]) for sample in ds] == list(range(TOTAL))  # type: ignore[attr-defined]


def test_many_indices_keep_order_and_repeats(human: Path) -> None:
    ds = ZarrDataset(human, human_keymap(proprio_history=4))
    for indices in ([3, 1, 3], [39, 0, -1], [5], []):
        samples = ds.__getitems__(indices)
        assert len(samples) == len(indices)
        for index, sample in zip(indices, samples, strict=True):
            alone = ds[index]
            assert list(sample) == list(alone)
            for key, value in alone.items():
                same = torch.equal(sample[key], value) if torch.is_tensor(value) else None
                assert same if same is not None else sample[key] == value


# Transforms.


def fail_at_3(sample: dict[str, Any]) -> dict[str, Any]:
    if int(sample["frame_index"]) == 3:
        [][3]
    return sample


def stop_at_3(sample: dict[str, Any]) -> dict[str, Any]:
    return next(iter([])) if int(sample["frame_index"]) == 3 else sample


@pytest.mark.parametrize("transform", [fail_at_3, stop_at_3])
def test_case_29_an_index_error_inside_is_no_end_of_the_dataset(
    tmp_path: Path, transform: Any
) -> None:
    path = write_human(tmp_path / "ep.zarr", 5)
    ds = ZarrDataset(path, keymap(pose=entry()), transforms=[transform])
    walk = iter(ds)
    assert [int(next(walk)["frame_index"]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(SampleError, match=transform.__name__) as caught:
        next(walk)
    assert not isinstance(caught.value, IndexError | StopIteration)
    assert (caught.value.episode, caught.value.frame) == ("ep.zarr", 3)
    assert isinstance(caught.value.__cause__, IndexError | StopIteration)
    assert int(ds[4]["frame_index"]) == 4
    with pytest.raises(IndexError):
        ds[5]


def test_case_29_an_index_error_of_another_dataset_is_no_end_of_this_one(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 5)
    other = ZarrDataset(path, keymap(pose=entry()))

    def look_ahead(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "later": other[int(sample["frame_index"]) + 2]["pose"]}

    ds = ZarrDataset(path, keymap(pose=entry()), transforms=[look_ahead])
    with pytest.raises(SampleError, match="frame 3"):
        list(ds)  # type: ignore[call-overload]


def test_transforms_are_applied_in_order(human: Path) -> None:
    def add(sample: dict[str, Any]) -> dict[str, Any]:
        sample["pose"] += 1
        return sample

    def double(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "pose": sample["pose"] * 2}

    ds = ZarrDataset(human, keymap(pose=entry()), transforms=(add, double))
    assert ds[3]["pose"].tolist() == [2 * (3000 + d + 1) for d in range(7)]
    assert ds[3]["pose"].tolist() == [2 * (3000 + d + 1) for d in range(7)]


def test_datasets_pickle_as_paths_and_settings(human: Path) -> None:
    ds = ZarrDataset(human, human_keymap(), transforms=[fail_at_3])
    fresh = len(pickle.dumps(ds))
    wanted = ds.__getitems__([1, 2, 39])
    assert len(pickle.dumps(ds)) == fresh
    again = pickle.loads(pickle.dumps(ds))
    assert again.keymap == ds.keymap
    assert again.episode.counts.total.reads == 0
    for one, other in zip(again.__getitems__([1, 2, 39]), wanted, strict=True):
        assert all(
            torch.equal(one[key], value) if torch.is_tensor(value) else one[key] == value
            for key, value in other.items()
        )
    with pytest.raises(SampleError):
        again[3]


def test_the_arrays_of_the_keypoint_keymap_are_all_there(human: Path) -> None:
    sample = ZarrDataset(human, human_keymap())[5]
    for key, dims in KEYPOINT_ARRAYS.items():
        if key in human_keymap():
            assert sample[key].tolist() == [5000.0 + d for d in range(dims)]
