"""Samples against the slow truth, and what they cost to read."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path
from typing import Any

import pytest
import simplejpeg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import KeyMap, KeySpec, ZarrDataset, human_keymap
from tests.episodes import (
    KEYPOINT_ARRAYS,
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
    write_human,
)
from tests.oracle import Oracle
from tests.strategies import key_specs, rates

TOTAL, HORIZON = 250, 30
INDICES = (0, 1, 3, 60, 79, 130, TOTAL - HORIZON, TOTAL - 3, TOTAL - 1)
#: Overlapping, ending right behind frame 130, and leaving gaps.
SPANS = [("reach", 0, 60), ("grasp", 40, 100), ("lift", 100, 131), ("place", 140, TOTAL)]
Sample = dict[str, Any]


def write_padded(path: Path) -> Path:
    """Write the human episode with zarr-python alone: 300 rows stored, 250 real."""
    features = {key: {"dtype": "float32", "shape": [n]} for key, n in KEYPOINT_ARRAYS.items()}
    features["images.front_1"] = {"dtype": "jpeg", "shape": [16, 24, 3]}
    group = foreign_group(path, TOTAL, features=features)
    for key, dims in KEYPOINT_ARRAYS.items():
        values = ramp(300, dims)
        values[TOTAL:] = 0
        foreign_numbers(group, key, values, shards=(300, dims))
    frames = jpegs(pictures(TOTAL))
    foreign_bytes(group, "images.front_1", frames + frames[-1:] * 50, shards=(300,))
    foreign_annotations(group, [*SPANS[:3], ("place", 140, 400)])
    return path


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("human")
    return {
        "written": write_human(folder / "written.zarr", TOTAL, annotations=SPANS),
        "padded": write_padded(folder / "padded.zarr"),
    }


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert found.shape == wanted.shape
        assert torch.equal(found, wanted)
    else:
        assert found == wanted


def assert_equals_oracle(ds: ZarrDataset, oracle: Oracle, frames: list[int]) -> None:
    """Compare single samples and one batch of them with the oracle's."""
    for i, in_batch in zip(frames, ds.__getitems__(frames), strict=True):
        wanted = oracle.sample(ds.keymap, i)
        assert tuple(wanted) == ds.keymap.sample_keys
        for sample in (ds[i], in_batch):
            for key, value in wanted.items():
                assert_same(sample[key], value)
            assert int(sample["frame_index"]) == i


@pytest.mark.parametrize("stored", ["written", "padded"])
@pytest.mark.parametrize("annotation_cutoff", [False, True], ids=["whole", "cutoff"])
@pytest.mark.parametrize("history", [1, 4])
@pytest.mark.parametrize("mode", ["keypoints", "cartesian"])
def test_samples_equal_one_read_per_entry(
    episodes: dict[str, Path], mode: Any, history: int, annotation_cutoff: bool, stored: str
) -> None:
    path = episodes[stored]
    keymap = human_keymap(
        mode=mode, horizon=HORIZON, proprio_history=history, masks=True, annotation_key="language"
    )
    ds = ZarrDataset(path, keymap, annotation_cutoff=annotation_cutoff)
    assert len(ds) == TOTAL
    oracle = Oracle(path, annotation_cutoff=annotation_cutoff)
    assert_equals_oracle(ds, oracle, list(INDICES))


@pytest.mark.parametrize("stored", ["written", "padded"])
def test_strides_lags_and_memories_equal_one_read_per_entry(
    episodes: dict[str, Path], stored: str
) -> None:
    keymap = human_keymap(
        proprio_history=4,
        history_stride_s=0.5,
        image_history_gap_s=0.1,
        image_memory=3,
        image_memory_stride_s=1.0,
        masks=True,
    )
    ds = ZarrDataset(episodes[stored], keymap)
    assert_equals_oracle(ds, Oracle(episodes[stored]), list(INDICES))


KEY = "left.obs_keypoints"


@pytest.mark.parametrize(
    "fields",
    [
        {"key_type": "proprio_keys"},
        {"key_type": "action_keys", "horizon": HORIZON},
        {"key_type": "proprio_keys", "history": 4},
        {"key_type": "proprio_keys", "offsets": [-9, -6, -3, 0]},
        {"key_type": "proprio_keys", "offsets": [0]},
    ],
    ids=lambda fields: next((f for f in fields if f != "key_type"), "frame"),
)
@pytest.mark.parametrize("stored", ["written", "padded"])
def test_one_entry_alone_equals_one_read_per_entry(
    episodes: dict[str, Path], fields: dict[str, Any], stored: str
) -> None:
    keymap = KeyMap({"a": KeySpec(zarr_key=KEY, mask=True, **fields)})
    ds = ZarrDataset(episodes[stored], keymap)
    assert_equals_oracle(ds, Oracle(episodes[stored]), list(INDICES))


@settings(deadline=None, max_examples=50)
@given(
    entries=st.lists(key_specs(), min_size=1, max_size=5),
    fps=rates,
    total=st.integers(1, 60),
    chunk_rows=st.integers(1, 70),
    annotation_cutoff=st.booleans(),
    data=st.data(),
)
def test_any_keymap_equals_one_read_per_entry(
    entries: list[KeySpec],
    fps: float,
    total: int,
    chunk_rows: int,
    annotation_cutoff: bool,
    data: st.DataObject,
) -> None:
    keymap = KeyMap({f"entry {n}": entry for n, entry in enumerate(entries)})
    frames = data.draw(st.lists(st.integers(0, total - 1), min_size=1, max_size=5))
    span = st.tuples(st.text("ab", max_size=2), st.integers(0, total), st.integers(1, 2 * total))
    spans = [
        (text, start, start + size) for text, start, size in data.draw(st.lists(span, max_size=4))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, total, fps=fps)
        foreign_numbers(group, "a", ramp(total + 7, 3), chunks=(chunk_rows, 2))
        foreign_annotations(group, spans)
        ds = ZarrDataset(path, keymap, annotation_cutoff=annotation_cutoff)
        oracle = Oracle(path, annotation_cutoff=annotation_cutoff)
        assert_equals_oracle(ds, oracle, frames)
        ds.episode.counts.reset()
        ds.__getitems__(frames)
        assert ds.episode.counts["a"].reads == 1


# No two values share memory.


def memory_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the addresses [first, past the last) of a tensor's elements."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def assert_separate(samples: list[Sample]) -> None:
    tensors = [value for sample in samples for value in sample.values() if torch.is_tensor(value)]
    ranges = sorted(memory_of(tensor) for tensor in tensors)
    for (_, stop), (start, _) in itertools.pairwise(ranges):
        assert stop <= start


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_values_of_one_read_share_no_memory(episodes: dict[str, Path], image_dtype: Any) -> None:
    keymap = human_keymap(proprio_history=4, image_history_gap_s=0.1, image_memory=2, masks=True)
    ds = ZarrDataset(episodes["written"], keymap, image_dtype=image_dtype)
    for frames in ([60], [60, 61, 60], [0, 249]):
        assert_separate(ds.__getitems__(frames))


def test_writing_into_a_value_leaves_all_others_as_they_were(episodes: dict[str, Path]) -> None:
    keymap = human_keymap(proprio_history=4, image_history_gap_s=0.1, image_memory=2, masks=True)
    ds = ZarrDataset(episodes["written"], keymap)
    wanted = ds[60]
    tensors = [key for key, value in wanted.items() if torch.is_tensor(value)]
    first, second = ds.__getitems__([60, 60])
    for key in tensors:
        before = first[key].clone()
        first[key].fill_(1)
        for other in tensors:
            if other != key:
                assert torch.equal(first[other], wanted[other]), (key, other)
            assert torch.equal(second[other], wanted[other]), (key, other)
        first[key].copy_(before)
    for key in tensors:
        assert torch.equal(ds[60][key], wanted[key])


def test_case_01_two_windows_of_one_array_are_one_read_and_two_copies(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 10)
    foreign_numbers(group, "a", ramp(10, 2))
    keymap = KeyMap(
        {
            "state": KeySpec(zarr_key="a", key_type="proprio_keys", history=4),
            "action": KeySpec(zarr_key="a", key_type="action_keys", horizon=3),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap)
    sample = ds[2]
    assert ds.episode.counts["a"].reads == 1
    assert sample["state"][:, 0].tolist() == [0, 0, 1000, 2000]
    assert sample["action"][:, 0].tolist() == [2000, 3000, 4000]
    sample["state"].fill_(-1)
    assert sample["action"].tolist() == [[2000, 2001], [3000, 3001], [4000, 4001]]
    sample["action"].fill_(-2)
    assert (sample["state"] == -1).all()


# What a sample costs.


def test_the_keypoint_keymap_is_one_read_a_key_and_33_rows_of_keypoints(
    episodes: dict[str, Path],
) -> None:
    ds = ZarrDataset(episodes["written"], human_keymap(proprio_history=4, horizon=30))
    ds[130]
    counts = ds.episode.counts
    assert {key: counts[key].reads for key in counts} == {
        "images.front_1": 1,
        "left.obs_keypoints": 1,
        "right.obs_keypoints": 1,
        "left.obs_wrist_pose": 1,
        "right.obs_wrist_pose": 1,
        "obs_head_pose": 1,
    }
    assert counts["left.obs_keypoints"].rows == 33
    assert counts["right.obs_wrist_pose"].rows == 33
    assert counts["obs_head_pose"].rows == 1
    assert counts["images.front_1"].rows == 1
    # Rows 127 to 160 lie in the second chunk of 100.
    assert counts["left.obs_keypoints"].chunks == 1


@pytest.mark.parametrize("gap", [0.1, 0.5, 2.0])
def test_image_history_costs_two_jpegs_whatever_the_gap(
    episodes: dict[str, Path], gap: float
) -> None:
    ds = ZarrDataset(episodes["written"], human_keymap(image_history_gap_s=gap))
    ds[130]
    counted = ds.episode.counts["images.front_1"]
    assert (counted.reads, counted.rows, counted.chunks) == (1, 2, 2)


def test_a_batch_is_one_read_a_key_and_decodes_each_frame_once(
    episodes: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    original = simplejpeg.decode_jpeg

    def noted(data: bytes, *args: Any, **kwargs: Any) -> Any:
        decoded.append(data)
        return original(data, *args, **kwargs)

    keymap = human_keymap(image_history_gap_s=0.1, image_memory=2, image_memory_stride_s=0.1)
    ds = ZarrDataset(episodes["written"], keymap)
    monkeypatch.setattr(simplejpeg, "decode_jpeg", noted)
    ds.__getitems__([63, 60, 63])
    # Frames 60 and 63, and three frames before each: 57, 60 and 63 in all.
    assert len(decoded) == 3
    assert ds.episode.counts["images.front_1"].rows == 3
    assert {ds.episode.counts[key].reads for key in ds.episode.counts} == {1}


def test_rows_past_an_annotations_end_are_not_read(episodes: dict[str, Path]) -> None:
    keymap = KeyMap({"a": KeySpec(zarr_key=KEY, key_type="action_keys", horizon=HORIZON)})
    ds = ZarrDataset(episodes["padded"], keymap, annotation_cutoff=True)
    ds[130]
    assert ds.episode.counts[KEY].rows == 1
    ds.episode.counts.reset()
    ds[235]
    assert ds.episode.counts[KEY].rows == TOTAL - 235
