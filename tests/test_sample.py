"""The values of a sample: images, numbers, JSON rows, and what stands in for absent arrays."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import torch

from egoloader import KeyMap, KeySpec, ZarrDataset, collate
from egoloader.errors import (
    FrameError,
    KeyMapError,
    ReadError,
    ValueRangeError,
)
from tests.entries import CAMERA, camera, entry, keymap
from tests.episodes import (
    HUMAN_FRAMES,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    is_flat,
    jpegs,
    pictures,
    ramp,
    shade,
)
from tests.jpegs import CMYK

TOTAL = HUMAN_FRAMES


# Images.


def test_images_are_the_same_values_in_every_dtype(human: Path) -> None:
    whole, share, raw = (
        ZarrDataset(human, keymap(cam=camera(), past=camera(history=3)), image_dtype=image_dtype)
        for image_dtype in ("uint8", "float32", "jpeg")
    )
    for key in ("cam", "past"):
        pixels, floats = whole[17][key], share[17][key]
        assert (pixels.dtype, floats.dtype) == (torch.uint8, torch.float32)
        assert pixels.shape == floats.shape
        assert torch.equal(floats, pixels / 255)
    (stored,) = raw.episode.read({CAMERA: [(15, 18)]})[CAMERA]
    assert raw[17]["cam"] == stored[2]
    assert raw[17]["past"] == stored


def test_images_are_views_of_channels_last_memory(human: Path) -> None:
    sample = ZarrDataset(human, keymap(cam=camera(), past=camera(history=3)))[17]
    assert sample["cam"].permute(1, 2, 0).is_contiguous()
    assert sample["past"].permute(0, 2, 3, 1).is_contiguous()


def test_size_resizes_one_entry_and_leaves_the_others(human: Path) -> None:
    entries = keymap(
        small=camera(size=[8, 12]), cam=camera(), large=camera(history=2, size=[20, 30])
    )
    sample = ZarrDataset(human, entries)[17]
    assert sample["small"].shape == (3, 8, 12)
    assert sample["cam"].shape == (3, 16, 24)
    assert sample["large"].shape == (2, 3, 20, 30)
    for image in (sample["small"], sample["cam"], sample["large"][1]):
        assert is_flat(image, shade(17))


def foreign_camera(path: Path, rows: list[bytes], *, declared: bool) -> Path:
    features = {CAMERA: {"dtype": "jpeg", "shape": [16, 24, 3]}}
    group = foreign_group(path, len(rows), **({"features": features} if declared else {}))
    foreign_bytes(group, CAMERA, rows, shards=(len(rows),))
    return path


BAD_FRAMES = {
    "empty": b"",
    "no JPEG": b"no JPEG at all",
    "truncated": jpegs(pictures(5))[4][:-40],
    "of another size": jpegs(pictures(5, size=(8, 24)))[4],
    "CMYK": CMYK,
}


@pytest.mark.parametrize("kind", BAD_FRAMES)
@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_case_13_a_bad_frame_is_named_and_its_neighbours_read(
    tmp_path: Path, kind: str, place: int, declared: bool
) -> None:
    rows = jpegs(pictures(9))
    rows[place] = BAD_FRAMES[kind]
    path = foreign_camera(tmp_path / "ep.zarr", rows, declared=declared)
    ds = ZarrDataset(path, keymap(cam=camera()))
    for i in (place + 1, 8, 3):
        assert is_flat(ds[i]["cam"], shade(i))
    for frames in ([place], [8, place]):
        with pytest.raises(FrameError) as caught:
            ds.__getitems__(frames)
        assert (caught.value.episode, caught.value.key) == ("ep.zarr", CAMERA)
        assert caught.value.frame == place
    assert is_flat(ds[place + 1]["cam"], shade(place + 1))


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "undeclared"])
def test_a_camera_is_one_read_a_sample(tmp_path: Path, declared: bool) -> None:
    path = foreign_camera(tmp_path / "ep.zarr", jpegs(pictures(9)), declared=declared)
    ds = ZarrDataset(path, keymap(cam=camera()))
    for reads, i in enumerate((3, 0, 8), start=1):
        assert is_flat(ds[i]["cam"], shade(i))
        assert ds.episode.counts[CAMERA].reads == reads


def test_case_12_gray_frames_are_rgb(tmp_path: Path) -> None:
    gray = np.full((8, 6, 1), 90, dtype=np.uint8)
    rows = [simplejpeg.encode_jpeg(gray, colorspace="GRAY")] * 2
    group = foreign_group(tmp_path / "ep.zarr", 2)
    foreign_bytes(group, CAMERA, rows)
    image = ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera()))[1]["cam"]
    assert image.shape == (3, 8, 6)
    assert is_flat(image, (90, 90, 90))


# Numbers.


@pytest.mark.parametrize("stored", ["float64", "float16", "int64", "uint8", "bool"])
@pytest.mark.parametrize("key_type", ["proprio_keys", "action_keys"])
def test_numbers_leave_as_float32(tmp_path: Path, stored: str, key_type: Any) -> None:
    values = (np.arange(20).reshape(10, 2) % 2 if stored == "bool" else ramp(10, 2) % 251).astype(
        stored
    )
    group = foreign_group(tmp_path / "ep.zarr", 10)
    foreign_numbers(group, "a", values)
    found = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a", key_type)))[7]["a"]
    assert found.dtype == torch.float32
    assert found.tolist() == values[7].astype(np.float32).tolist()


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("float32", "float64"),
        ("float32", "int64"),
        ("int64", "int64"),
        ("int64", "int32"),
        ("int64", "float64"),
        ("uint8", "bool"),
        ("float64", "float16"),
    ],
)
def test_dtype_sets_the_output(tmp_path: Path, stored: str, wanted: str) -> None:
    values = (np.arange(20).reshape(10, 2) % 2).astype(stored)
    group = foreign_group(tmp_path / "ep.zarr", 10)
    foreign_numbers(group, "a", values)
    found = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a", dtype=wanted)))[7]["a"]
    assert found.dtype == getattr(torch, wanted)
    assert found.tolist() == values[7].astype(wanted).tolist()


def clocks(path: Path, dtype: str = "int64", last: int = 2**60) -> Path:
    values = np.array([0, 2**24 - 1, 2**24, last], dtype=dtype)
    group = foreign_group(path, 4)
    foreign_numbers(group, "clock_ns", values)
    return path


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_integers_beyond_2_to_the_24_do_not_pass_as_float32(tmp_path: Path, dtype: str) -> None:
    for last in (2**24 + 1, 2**24 + 2, 2**60):
        path = clocks(tmp_path / f"{last}.zarr", dtype, last)
        ds = ZarrDataset(path, keymap(clock=entry("clock_ns")))
        assert [int(ds[i]["clock"]) for i in range(3)] == [0, 2**24 - 1, 2**24]
        with pytest.raises(ValueRangeError, match="dtype") as caught:
            ds[3]
        assert (caught.value.key, caught.value.frame) == ("clock_ns", 3)


def test_negative_integers_beyond_2_to_the_24_do_not_pass_either(tmp_path: Path) -> None:
    path = clocks(tmp_path / "ep.zarr", last=-(2**24) - 1)
    with pytest.raises(ValueRangeError):
        ZarrDataset(path, keymap(clock=entry("clock_ns")))[3]


def test_clocks_keep_every_bit_as_int64_and_as_metadata(tmp_path: Path) -> None:
    path = clocks(tmp_path / "ep.zarr", last=2**60 + 1)
    for one in (entry("clock_ns", dtype="int64"), entry("clock_ns", "metadata_keys")):
        found = ZarrDataset(path, keymap(clock=one))[3]["clock"]
        assert (found.dtype, int(found)) == (torch.int64, 2**60 + 1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [(1.5, "int32"), (float("nan"), "int32"), (300, "uint8"), (-1, "uint8"), (1e300, "float32")],
)
def test_numbers_that_an_output_dtype_can_not_hold_are_refused(
    tmp_path: Path, value: float, dtype: str
) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 2)
    foreign_numbers(group, "a", np.array([0, value], dtype=np.float64))
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a", dtype=dtype)))
    assert float(ds[0]["a"]) == 0
    with pytest.raises(ValueRangeError, match=dtype):
        ds[1]


def test_nan_and_inf_pass_as_they_are(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 2)
    foreign_numbers(group, "a", np.array([[np.nan, np.inf]] * 2))
    found = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a")))[1]["a"]
    assert torch.isnan(found[0])
    assert torch.isinf(found[1])


@pytest.mark.parametrize("stored", ["float64", "int16", "uint8", "bool"])
def test_metadata_keep_their_type(tmp_path: Path, stored: str) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3)
    foreign_numbers(group, "a", np.ones((3, 2), dtype=stored))
    found = ZarrDataset(tmp_path / "ep.zarr", keymap(a=entry("a", "metadata_keys")))[1]["a"]
    assert found.dtype == getattr(torch, stored)


JSON_ROWS: list[Any] = [{"gain": 1.5, "on": [True, None]}, "text", 3, None, [1, "a"], {}]


def test_json_rows_leave_as_objects(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 6, features={"m": {"dtype": "json", "shape": []}})
    foreign_bytes(group, "m", [json.dumps(row).encode() for row in JSON_ROWS])
    entries = keymap(now=entry("m", "metadata_keys"), past=entry("m", "metadata_keys", history=2))
    ds = ZarrDataset(tmp_path / "ep.zarr", entries)
    assert [ds[i]["now"] for i in range(6)] == JSON_ROWS
    assert ds[3]["past"] == JSON_ROWS[2:4]
    first, second = ds.__getitems__([0, 0])
    first["now"]["gain"] = 2.5
    assert second["now"]["gain"] == 1.5


def test_json_rows_of_numbers_are_a_list_in_a_batch(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3, features={"m": {"dtype": "json", "shape": []}})
    foreign_bytes(group, "m", [b"1", b"2.5", b"3"])
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(m=entry("m", "metadata_keys")))
    assert collate(ds.__getitems__([0, 1, 2]))["m"] == [1, 2.5, 3]


def test_a_dtype_for_json_rows_is_refused(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 1, features={"m": {"dtype": "json", "shape": []}})
    foreign_bytes(group, "m", [b"1"])
    with pytest.raises(KeyMapError, match="no dtype can be set"):
        ZarrDataset(tmp_path / "ep.zarr", keymap(m=entry("m", "metadata_keys", dtype="int64")))


def test_a_broken_frame_does_not_set_the_size_of_the_others(tmp_path: Path) -> None:
    frames = jpegs(pictures(3))
    at = frames[1].index(b"\xff\xc0") + 5
    assert frames[1][at : at + 4] == struct.pack(">HH", 16, 24)
    frames[1] = frames[1][:at] + struct.pack(">HH", 800, 600) + frames[1][at + 4 :]
    group = foreign_group(tmp_path / "ep.zarr", 3)
    foreign_bytes(group, CAMERA, frames)
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera()))
    for _ in range(2):
        with pytest.raises(FrameError, match="truncated or corrupt") as caught:
            ds[1]
        assert caught.value.frame == 1
    assert is_flat(ds[0]["cam"], shade(0))
    assert is_flat(ds[2]["cam"], shade(2))
    with pytest.raises(FrameError, match="800 x 600") as caught:
        ds[1]
    assert caught.value.frame == 1


@pytest.mark.parametrize("row", [b"{", b"", b"\xff", b"[" * 100_000])
def test_a_row_that_is_no_json_is_named(tmp_path: Path, row: bytes) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 2)
    foreign_bytes(group, "m", [b"{}", row])
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(m=entry("m", "metadata_keys")))
    assert ds[0]["m"] == {}
    with pytest.raises(ReadError, match="frame 1: the row is no JSON"):
        ds[1]


# Optional entries.


def test_an_absent_optional_array_is_zeros_and_all_padded(human: Path) -> None:
    entries = {
        "grip": entry("gripper", "action_keys", horizon=3, optional=True, shape=[2]),
        "now": entry("gripper", optional=True, shape=[2]),
        "wide": entry("gripper", optional=True, shape=[2], dtype="int64"),
        "wrist": entry("images.wrist", "camera_keys", optional=True, shape=[8, 12, 3]),
        "small": entry(
            "images.wrist", "camera_keys", history=2, optional=True, shape=[8, 12, 3], size=[4, 6]
        ),
        "note": entry("notes", "annotation_keys", optional=True),
    }
    sample = ZarrDataset(human, KeyMap(entries))[7]
    for key, shape, dtype, steps in [
        ("grip", (3, 2), torch.float32, (3,)),
        ("now", (2,), torch.float32, ()),
        ("wide", (2,), torch.int64, ()),
        ("wrist", (3, 8, 12), torch.uint8, ()),
        ("small", (2, 3, 4, 6), torch.uint8, (2,)),
    ]:
        assert tuple(sample[key].shape) == shape
        assert sample[key].dtype == dtype
        assert not sample[key].any()
        assert tuple(sample[f"{key}_is_pad"].shape) == steps
        assert sample[f"{key}_is_pad"].all()
    assert sample["note"] == ""


def test_a_present_optional_array_is_served_and_its_mask_is_that_of_the_window(
    human: Path,
) -> None:
    entries = keymap(pose=entry(horizon=3, optional=True, shape=[7]))
    sample = ZarrDataset(human, entries)[TOTAL - 2]
    assert sample["pose"][:, 0].tolist() == [38000, 39000, 39000]
    assert sample["pose_is_pad"].tolist() == [False, False, True]


@pytest.mark.parametrize(
    "wrong",
    [
        entry(optional=True, shape=[6]),
        entry(optional=True, shape=[7, 1]),
        camera(optional=True, shape=[24, 16, 3]),
    ],
)
def test_an_optional_shape_that_the_array_does_not_have_is_refused(
    human: Path, wrong: KeySpec
) -> None:
    with pytest.raises(KeyMapError, match="shape"):
        ZarrDataset(human, keymap(a=wrong))


def test_a_lost_integer_is_named_without_a_time_axis_too(tmp_path: Path) -> None:
    values = np.zeros((5, 3), dtype=np.int64)
    values[4, 2] = 2**24 + 1
    foreign_numbers(foreign_group(tmp_path / "ep.zarr", 5), "clock", values, chunks=(5, 3))
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(clock=entry("clock")))
    with pytest.raises(ValueRangeError, match="dtype") as caught:
        ds.__getitems__([1, 4])
    assert (caught.value.key, caught.value.frame) == ("clock", 4)


@pytest.mark.parametrize("broken", [b"", b"garbage"])
def test_encoded_frames_are_looked_at_too(tmp_path: Path, broken: bytes) -> None:
    frames = [simplejpeg.encode_jpeg(np.zeros((16, 24, 3), np.uint8)), broken]
    foreign_bytes(foreign_group(tmp_path / "ep.zarr", 2), CAMERA, frames, chunks=(1,))
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera()), image_dtype="jpeg")
    assert ds[0]["cam"] == frames[0]
    with pytest.raises(FrameError) as caught:
        ds[1]
    assert caught.value.frame == 1
