"""From samples to a batch: egoloader's collate and PyTorch's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

from egoloader import KeyMap, KeySpec, ZarrDataset, collate, human_keymap
from egoloader.errors import SettingsError
from tests.episodes import foreign_bytes, foreign_group, write_human

FRONT = "observations.images.front_img_1"


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("human") / "ep.zarr"
    return write_human(path, 40, annotations=[("reach", 0, 20)])


def dataset(path: Path, **options: Any) -> ZarrDataset:
    keymap = human_keymap(
        proprio_history=4,
        image_history_gap_s=0.1,
        image_memory=2,
        masks=True,
        annotation_key="language",
    )
    return ZarrDataset(path, keymap, **options)


def assert_same(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if torch.is_tensor(one):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    else:
        assert one == other


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
@pytest.mark.parametrize("frames", [[7], [3, 1, 3], [0, 39, 20, 19]])
def test_both_collates_give_the_same_values(
    human: Path, frames: list[int], image_dtype: Any
) -> None:
    samples = dataset(human, image_dtype=image_dtype).__getitems__(frames)
    ours, theirs = collate(samples), default_collate(samples)
    assert list(ours) == list(theirs) == list(samples[0])
    for key, value in ours.items():
        assert_same(value, theirs[key])


def test_a_batch_holds_its_samples_in_order(human: Path) -> None:
    samples = dataset(human).__getitems__([3, 1, 3])
    batch = collate(samples)
    for b, sample in enumerate(samples):
        for key, value in sample.items():
            assert_same(batch[key][b], value)


def test_dtypes_and_shapes_of_a_batch(human: Path) -> None:
    batch = collate(dataset(human).__getitems__([3, 25]))
    shapes = {key: tuple(value.shape) for key, value in batch.items() if torch.is_tensor(value)}
    assert shapes[FRONT] == (2, 3, 16, 24)
    assert shapes[f"{FRONT}_mem"] == (2, 2, 3, 16, 24)
    assert shapes["left.action_keypoints"] == (2, 30, 63)
    assert shapes["left.obs_keypoints"] == (2, 4, 63)
    assert shapes["left.obs_keypoints_is_pad"] == (2, 4)
    assert shapes[f"{FRONT}_hist_is_pad"] == shapes["fps"] == (2,)
    assert batch["fps"].dtype == torch.float32
    assert batch["timestamp"].dtype == torch.float64
    assert batch["frame_index"].tolist() == [3, 25]
    assert batch["embodiment"] == ["human", "human"]
    assert batch["episode"] == ["ep.zarr", "ep.zarr"]
    assert batch["language"] == ["reach", ""]


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
@pytest.mark.parametrize("frames", [[7], [3, 1, 3]])
def test_images_of_a_batch_are_views_of_channels_last_memory(
    human: Path, frames: list[int], image_dtype: Any
) -> None:
    batch = collate(dataset(human, image_dtype=image_dtype).__getitems__(frames))
    for key in (FRONT, f"{FRONT}_hist"):
        assert batch[key].is_contiguous(memory_format=torch.channels_last)
    assert batch[f"{FRONT}_mem"].permute(0, 1, 3, 4, 2).is_contiguous()


def test_encoded_images_become_lists_of_bytes(human: Path) -> None:
    batch = collate(dataset(human, image_dtype="jpeg").__getitems__([3, 1]))
    assert [type(jpeg) for jpeg in batch[FRONT]] == [bytes, bytes]
    assert [[type(jpeg) for jpeg in steps] for steps in batch[f"{FRONT}_mem"]] == [[bytes] * 2] * 2
    assert torch.is_tensor(batch[f"{FRONT}_mem_is_pad"])


@pytest.mark.parametrize("rows", [[{"a": 1}, {"b": [2]}], ["x", 3, None], [3, "x"], [None, 1]])
def test_json_rows_become_lists(tmp_path: Path, rows: list[Any]) -> None:
    group = foreign_group(tmp_path / "ep.zarr", len(rows))
    foreign_bytes(group, "m", [json.dumps(row).encode() for row in rows])
    keymap = KeyMap(
        {
            "now": KeySpec(zarr_key="m", key_type="metadata_keys"),
            "past": KeySpec(zarr_key="m", key_type="metadata_keys", history=2),
        }
    )
    samples = ZarrDataset(tmp_path / "ep.zarr", keymap).__getitems__(range(len(rows)))
    batch = collate(samples)
    assert batch["now"] == rows
    assert batch["past"] == [[rows[max(0, i - 1)], rows[i]] for i in range(len(rows))]


def test_what_transforms_add_is_stacked_too() -> None:
    samples = [{"a": np.full(3, i), "b": i * 0.5, "c": np.float32(i), "d": f"{i}"} for i in (1, 2)]
    batch = collate(samples)
    assert batch["a"].tolist() == [[1, 1, 1], [2, 2, 2]]
    assert batch["b"] == [0.5, 1.0]  # Python's own, as a JSON row may be one
    assert batch["c"].tolist() == [1, 2]
    assert batch["d"] == ["1", "2"]


def test_stacked_samples_share_no_memory_with_their_batch(human: Path) -> None:
    samples = list(dataset(human).__getitems__([3, 4]))
    batch = collate(samples)
    before = batch["left.obs_keypoints"].clone()
    for sample in samples:
        sample["left.obs_keypoints"].fill_(-1)
    assert torch.equal(batch["left.obs_keypoints"], before)


def test_a_whole_batch_is_handed_out_uncopied(human: Path) -> None:
    batch = dataset(human).__getitems__([3, 4])
    collated = collate(batch)
    for key, value in batch[1].items():
        if isinstance(value, torch.Tensor):
            assert value.data_ptr() == collated[key][1].data_ptr(), key


def test_what_was_changed_in_a_sample_is_in_the_batch(human: Path) -> None:
    batch = dataset(human).__getitems__([3, 4])
    batch[1]["left.obs_keypoints"] = torch.full((4, 63), -1.0)
    batch[0]["extra"] = batch[1]["extra"] = 7
    collated = collate(batch)
    assert (collated["left.obs_keypoints"][1] == -1).all()
    assert collated["left.obs_keypoints"][0, -1].tolist() == [3000 + d for d in range(63)]
    assert collated["extra"] == [7, 7]


def test_no_samples_are_no_batch() -> None:
    with pytest.raises(SettingsError, match="at least one"):
        collate([])


def test_samples_of_other_keys_are_refused_naming_both_episodes() -> None:
    with pytest.raises(SettingsError, match=r"one.*two.*state") as caught:
        collate([{"episode": "one", "state": torch.zeros(2)}, {"episode": "two"}])
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "other", [torch.zeros(3), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64), None, 0.5]
)
def test_samples_of_other_shapes_or_dtypes_are_refused_naming_both_episodes(
    other: torch.Tensor,
) -> None:
    with pytest.raises(SettingsError, match=r"state.*one.*two"):
        collate([{"episode": "one", "state": torch.zeros(2)}, {"episode": "two", "state": other}])
