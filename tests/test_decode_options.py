"""What becomes of images: dtypes, other sizes, encoded bytes, and batches of several sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import torch
from torch.utils.data import DataLoader

from egoloader import EpisodeLoader, EpisodeWriter, KeyMap, MultiDataset, ZarrDataset, collate
from egoloader.errors import SettingsError
from tests.entries import CAMERA, camera, entry, keymap
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, ramp

STORED = (96, 128)
OTHER = (40, 72)
TOTAL = 12
Pixels = npt.NDArray[np.uint8]


def noisy(total: int, size: tuple[int, int], seed: int) -> list[bytes]:
    """Return JPEGs of coarse noise: no two frames, rows or channels are alike."""
    noise = np.random.default_rng(seed).integers(0, 256, (total, 12, 12, 3), dtype=np.uint8)
    whole = noise.repeat(-(-size[0] // 12), axis=1).repeat(-(-size[1] // 12), axis=2)
    frames = np.ascontiguousarray(whole[:, : size[0], : size[1]])
    return [simplejpeg.encode_jpeg(frame, quality=92) for frame in frames]


FRAMES = {"a.zarr": noisy(TOTAL, STORED, 1), "b.zarr": noisy(TOTAL, OTHER, 2)}


@pytest.fixture(scope="module", params=["declared", "undeclared"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes whose cameras have sizes of their own."""
    root = tmp_path_factory.mktemp("sizes")
    for name, rows in FRAMES.items():
        size = simplejpeg.decode_jpeg_header(rows[0])[:2]
        features = {
            CAMERA: {"dtype": "jpeg", "shape": [*size, 3]},
            "pose": {"dtype": "float32", "shape": [4]},
        }
        declared: dict[str, Any] = {"features": features} if request.param == "declared" else {}
        group = foreign_group(root / name, TOTAL, **declared)
        foreign_bytes(group, CAMERA, rows, shards=(TOTAL,))
        foreign_numbers(group, "pose", ramp(TOTAL, 4))
    return root


def pixels(name: str, frame: int) -> torch.Tensor:
    """Return a stored frame as the decoder's own (3, H, W)."""
    return torch.from_numpy(simplejpeg.decode_jpeg(FRAMES[name][frame])).permute(2, 0, 1)


# The dtype.


@pytest.mark.parametrize("size", [None, [30, 50], [48, 64]])
@pytest.mark.parametrize("mixed_sizes", ["error", "list"])
def test_float32_is_uint8_by_255_to_the_last_bit(folder: Path, mixed_sizes: Any, size: Any) -> None:
    entries = keymap(cam=camera(size=size), past=camera(history=3, size=size))
    whole, share = (
        collate(
            ZarrDataset(
                folder / "a.zarr", entries, image_dtype=image_dtype, mixed_sizes=mixed_sizes
            ).__getitems__([5, 0, 5, 11])
        )
        for image_dtype in ("uint8", "float32")
    )
    levels = torch.tensor([np.float32(level) / np.float32(255) for level in range(256)])
    for key in ("cam", "past"):
        for found, wanted in zip(share[key], whole[key], strict=True):
            assert (found.dtype, wanted.dtype) == (torch.float32, torch.uint8)
            assert torch.equal(found, levels[wanted.long()])
            assert len(wanted.unique()) > 200


# The size.


def scaled(data: bytes, size: tuple[int, int]) -> Pixels:
    """Decode at the smallest eighth that is not below `size`, the whole picture at most."""
    full = np.array(simplejpeg.decode_jpeg_header(data)[:2])
    for eighths in range(1, 9):
        extent = tuple(int(side) for side in -(-full * eighths // 8))
        if eighths == 8 or (extent[0] >= size[0] and extent[1] >= size[1]):
            break
    found: Pixels = simplejpeg.decode_jpeg(data, min_height=extent[0], min_width=extent[1])
    assert found.shape[:2] == extent
    return found


def triangles(source: int, target: int) -> npt.NDArray[np.float64]:
    """Return the (target, source) weights of a triangle filter, widened where it shrinks."""
    scale = source / target
    centres = (np.arange(target)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(source) + 0.5 - centres) / max(1.0, scale)
    weights = np.maximum(0, 1 - distance)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def resized(image: Pixels, size: tuple[int, int]) -> torch.Tensor:
    """Resize (H, W, 3), antialiased, to (3, h, w) of unrounded values."""
    rows, columns = (triangles(*sides) for sides in zip(image.shape[:2], size, strict=True))
    return torch.from_numpy(rows @ np.moveaxis(image, -1, 0) @ columns.T)


SIZES = [(48, 64), (12, 16), (37, 61), (40, 100), (84, 112), (90, 50), (10, 10), (100, 140)]


@pytest.mark.parametrize("size", SIZES)
def test_a_smaller_image_is_the_nearest_larger_dct_scale_resized(
    folder: Path, size: tuple[int, int]
) -> None:
    ds = ZarrDataset(folder / "a.zarr", keymap(cam=camera(size=size)))
    for i in (0, 7):
        data = FRAMES["a.zarr"][i]
        small = scaled(data, size)
        error = (ds[i]["cam"] - resized(small, size)).abs()
        assert error.max() <= 1.01
        if small.shape[:2] == size:
            assert error.max() == 0
        if small.shape[:2] not in (size, STORED):  # which scale is decoded can be told
            assert (ds[i]["cam"] - resized(simplejpeg.decode_jpeg(data), size)).abs().max() > 3


def test_several_sizes_of_one_camera_in_a_batch_with_repeats(folder: Path) -> None:
    sizes: dict[str, tuple[int, int]] = {"half": (48, 64), "odd": (37, 61), "full": STORED}
    entries: dict[str, Any] = {name: camera(size=size) for name, size in sizes.items()}
    entries |= {"cam": camera(), "past": camera(offsets=[-3, 0], size=(37, 61))}
    frames = [5, 8, 5, 2, 8]
    batch = collate(ZarrDataset(folder / "a.zarr", KeyMap(entries)).__getitems__(frames))
    assert torch.equal(batch["full"], batch["cam"])
    assert torch.equal(batch["past"][:, 1], batch["odd"])
    assert torch.equal(batch["past"][0, 0], batch["odd"][3])  # frame 2, of another sample too
    for b, i in enumerate(frames):
        assert torch.equal(batch["cam"][b], pixels("a.zarr", i))
        for name in ("half", "odd"):
            wanted = resized(scaled(FRAMES["a.zarr"][i], sizes[name]), sizes[name])
            assert batch[name].shape == (5, 3, *sizes[name])
            assert (batch[name][b] - wanted).abs().max() <= 1.01


# Encoded bytes.


def test_jpeg_hands_out_the_stored_bytes(folder: Path) -> None:
    entries = KeyMap(
        {
            "cam": camera(),
            "past": camera(history=3, mask=True),
            "wrist": entry("images.wrist", "camera_keys", optional=True, shape=(8, 8, 3)),
            "wrists": entry("wrists", "camera_keys", optional=True, shape=(8, 8, 3), horizon=2),
        }
    )
    md = MultiDataset.from_folder(folder, entries, image_dtype="jpeg")
    a, b = FRAMES["a.zarr"], FRAMES["b.zarr"]
    for batch in (
        collate(md.__getitems__([5, TOTAL, 5])),
        next(iter(EpisodeLoader(md, batch_sampler=[[5, TOTAL, 5]]))),
    ):
        assert batch["cam"] == [a[5], b[0], a[5]]
        assert batch["past"] == [a[3:6], [b[0]] * 3, a[3:6]]
        assert {type(jpeg) for jpeg in batch["cam"] + batch["past"][0]} == {bytes}
        assert batch["past_is_pad"].sum(dim=1).tolist() == [0, 2, 0]
        assert batch["wrist"] == [b""] * 3
        assert batch["wrists"] == [[b"", b""]] * 3
        assert batch["wrists_is_pad"].all()
    assert md[5]["past"] == a[3:6]


def test_encoded_images_stay_as_they_were_while_others_are_read(tmp_path: Path) -> None:
    for name, rows in FRAMES.items():  # not compressed again, as our writer has it
        EpisodeWriter.write(
            tmp_path / name, numeric={}, images={CAMERA: rows}, fps=30, embodiment="human"
        )
    entries = keymap(cam=camera(), past=camera(history=2))
    md = MultiDataset.from_folder(tmp_path, entries, image_dtype="jpeg")
    indices = [[(7 * k + 5 * b) % (2 * TOTAL) for b in range(6)] for k in range(40)]
    held = list(EpisodeLoader(md, batch_sampler=indices, num_threads=3))
    held += [collate(md.__getitems__(one)) for one in indices]
    for wanted, batch in zip(indices * 2, held, strict=True):
        for index, image, past in zip(wanted, batch["cam"], batch["past"], strict=True):
            record, i = md.locate(index)
            rows = FRAMES[record.name]
            assert image == rows[i]
            assert past == [rows[max(0, i - 1)], rows[i]]


# Images of several sizes in one batch.

MIXED = keymap(cam=camera(), past=camera(history=2, mask=True), pose=entry("pose", history=2))
INDICES = [5, TOTAL + 5, 6, TOTAL]


def as_it_is(sample: dict[str, Any]) -> dict[str, Any]:
    return sample


def test_a_batch_of_several_sizes_is_an_error_that_says_what_to_set(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, MIXED)
    words = r"'cam'.*a\.zarr.*b\.zarr.*size: \[h, w\].*mixed_sizes: list"
    with pytest.raises(SettingsError, match=words):
        collate(md.__getitems__(INDICES))
    with pytest.raises(SettingsError, match=words):
        list(DataLoader(md, batch_sampler=[INDICES], collate_fn=collate))
    batches = iter(EpisodeLoader(md, batch_sampler=[[0, 1], INDICES, [TOTAL]], num_threads=1))
    assert next(batches)["frame_index"].tolist() == [0, 1]
    with pytest.raises(SettingsError, match=words):
        next(batches)
    assert next(batches)["cam"].shape == (1, 3, *OTHER)


@pytest.mark.parametrize("transforms", [(), (as_it_is,)])
@pytest.mark.parametrize("mixed_sizes", ["error", "list"])
def test_samples_of_several_sizes_alone_always_work(
    folder: Path, mixed_sizes: Any, transforms: Any
) -> None:
    md = MultiDataset.from_folder(folder, MIXED, mixed_sizes=mixed_sizes, transforms=transforms)
    for index, sample in zip(INDICES, md.__getitems__(INDICES), strict=True):
        record, i = md.locate(index)
        for found in (sample, md[index]):
            assert torch.equal(found["cam"], pixels(record.name, i))
            assert torch.equal(found["past"][0], pixels(record.name, max(0, i - 1)))
            assert torch.equal(found["past"][1], found["cam"])
            assert found["cam"].movedim(-3, -1).is_contiguous()
            assert found["pose"][:, 0].tolist() == [1000 * max(0, i - 1), 1000 * i]


def assert_images_are_lists(batch: dict[str, Any], md: MultiDataset, indices: list[int]) -> None:
    for key in ("cam", "past"):
        assert isinstance(batch[key], list)
        for index, image in zip(indices, batch[key], strict=True):
            assert torch.equal(image, md[index][key])
    assert batch["past_is_pad"].shape == (len(indices), 2)
    frames = [md.locate(index)[1] for index in indices]
    assert batch["pose"][:, 1, 0].tolist() == [1000 * i for i in frames]
    assert batch["frame_index"].tolist() == frames


@pytest.mark.parametrize("indices", [INDICES, [5, 6, 5]], ids=["mixed", "of one size"])
@pytest.mark.parametrize("transforms", [(), (as_it_is,)], ids=["plain", "transformed"])
def test_mixed_sizes_list_hands_images_out_as_a_list(
    folder: Path, transforms: Any, indices: list[int]
) -> None:
    md = MultiDataset.from_folder(folder, MIXED, mixed_sizes="list", transforms=transforms)
    assert_images_are_lists(collate(md.__getitems__(indices)), md, indices)
    (batch,) = EpisodeLoader(md, batch_sampler=[indices])
    assert_images_are_lists(batch, md, indices)
    (batch,) = DataLoader(md, batch_sampler=[indices], collate_fn=collate)
    assert_images_are_lists(batch, md, indices)


def test_mixed_sizes_list_holds_after_a_sample_was_looked_at(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, MIXED, mixed_sizes="list")
    for indices in (INDICES, [5, 6, 5]):
        batch = md.__getitems__(indices)
        assert batch[0]["cam"].shape == (3, *STORED)
        assert_images_are_lists(collate(batch), md, indices)


@pytest.mark.parametrize("image_dtype", ["uint8", "float32"])
def test_size_makes_several_sizes_one(folder: Path, image_dtype: Any) -> None:
    entries = keymap(cam=camera(size=[24, 32]), past=camera(history=2, size=[24, 32]))
    md = MultiDataset.from_folder(folder, entries, image_dtype=image_dtype)
    batch = collate(md.__getitems__(INDICES))
    assert batch["cam"].shape == (4, 3, 24, 32)
    assert batch["past"].shape == (4, 2, 3, 24, 32)
    scale = 255 if image_dtype == "float32" else 1
    for b, index in enumerate(INDICES):
        record, i = md.locate(index)
        wanted = resized(scaled(FRAMES[record.name][i], (24, 32)), (24, 32))
        assert (batch["cam"][b] * scale - wanted).abs().max() <= 1.01
