"""Keymaps and episodes that do not fit each other, refused when a dataset opens."""

from __future__ import annotations

import pickle
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from egoloader import KeySpec, ZarrDataset, human_keymap
from egoloader.errors import (
    AssumedFpsWarning,
    EgoloaderError,
    KeyMapError,
    MissingKeyError,
    SettingsError,
)
from tests.entries import CAMERA, POSE, camera, entry, keymap
from tests.episodes import (
    HUMAN_FRAMES,
    edit_attrs,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    is_flat,
    jpegs,
    pictures,
    ramp,
    shade,
)

TOTAL = HUMAN_FRAMES


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (entry("left.obs_keypoint"), "did you mean 'left.obs_keypoints'"),
        (entry("images.front_2", "camera_keys"), "did you mean 'images.front_1'"),
        (entry("annotation", "annotation_keys"), "did you mean 'annotations'"),
    ],
)
def test_a_missing_array_is_refused_at_open_with_the_near_miss(
    human: Path, wrong: KeySpec, words: str
) -> None:
    with pytest.raises(MissingKeyError, match=words) as caught:
        ZarrDataset(human, keymap(state=wrong))
    assert isinstance(caught.value, KeyError)
    assert "ep.zarr" in str(caught.value)
    assert "'state'" in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [
        entry(POSE, "camera_keys"),
        entry(CAMERA, "proprio_keys"),
        entry(CAMERA, "metadata_keys"),
        entry(POSE, "annotation_keys"),
        entry(CAMERA, "annotation_keys"),
        entry("annotations", "camera_keys"),
    ],
)
def test_an_array_of_another_kind_is_refused_at_open(human: Path, wrong: KeySpec) -> None:
    with pytest.raises(KeyMapError, match="'state'") as caught:
        ZarrDataset(human, keymap(state=wrong))
    assert "ep.zarr" in str(caught.value)
    assert wrong.zarr_key in str(caught.value)


@pytest.mark.parametrize("rows", [0, 1, 39])
def test_an_array_shorter_than_the_episode_is_refused_at_open(tmp_path: Path, rows: int) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 40)
    foreign_numbers(group, "a", ramp(rows, 2), chunks=(10, 2))
    with pytest.raises(ValueError, match=rf"ep\.zarr.*'a'.*{rows} rows.*40"):
        ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a")))


def test_a_short_camera_is_refused_at_open(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 9)
    foreign_bytes(group, CAMERA, jpegs(pictures(8)))
    with pytest.raises(ValueError, match=rf"ep\.zarr.*{CAMERA}.*8 rows"):
        ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera()))


def test_arrays_that_no_entry_names_may_be_broken(copied: Path) -> None:
    (copied / "obs_head_pose/zarr.json").write_text("{")
    (copied / "right.obs_ee_pose/zarr.json").unlink()
    assert ZarrDataset(copied, keymap(pose=entry()))[3]["pose"][0] == 3000


def test_a_missing_chunk_comes_out_of_a_dataset_as_such(copied: Path) -> None:
    shutil.rmtree(copied / POSE / "c")
    ds = ZarrDataset(copied, keymap(pose=entry()))
    with pytest.raises(EgoloaderError, match=rf"ep\.zarr.*{POSE}.*missing"):
        ds[0]


def test_missing_chunks_fill_reaches_the_reader(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20)
    foreign_numbers(group, "a", ramp(20, 1) + 1, chunks=(10, 1))
    (tmp_path / "ep.zarr/a/c/1/0").unlink()
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a")), missing_chunks="fill")
    assert float(ds[9]["a"]) == 9001
    with pytest.warns(UserWarning, match="'a'") as caught:
        assert [float(ds[i]["a"]) for i in (10, 19, 11)] == [0, 0, 0]
    assert len(caught) == 1


def test_absent_fps_is_one_warning_a_dataset(copied: Path) -> None:
    edit_attrs(copied, fps=...)
    with pytest.warns(AssumedFpsWarning, match="30") as caught:
        ds = ZarrDataset(copied, human_keymap(image_history_gap_s=0.1))
    assert len(caught) == 1
    assert "ep.zarr" in str(caught[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sample = ds[7]
        pickle.loads(pickle.dumps(ds))[7]
    assert float(sample["fps"]) == 30.0
    assert float(sample["timestamp"]) == 7 / 30
    assert is_flat(sample["observations.images.front_img_1_hist"], shade(4))


@pytest.mark.parametrize(
    "options",
    [
        {"image_dtype": "uint16"},
        {"image_dtype": None},
        {"annotation_cutoff": "yes"},
        {"transforms": [3]},
        {"missing_chunks": "zeros"},
    ],
)
def test_wrong_settings_are_refused(human: Path, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options)).removesuffix("s")):
        ZarrDataset(human, keymap(pose=entry()), **options)


def test_a_plain_mapping_is_no_keymap(human: Path) -> None:
    with pytest.raises(SettingsError, match="from_config"):
        ZarrDataset(human, {"pose": entry()})  # type: ignore[arg-type]
