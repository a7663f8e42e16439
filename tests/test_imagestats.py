"""Images normalised the same, whatever their dtype and the scale of the statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from egoloader.errors import SettingsError, TransformError
from egoloader.imagestats import ImageStats, normalize_images
from tests.dtypes import default_dtype

SHARES = ImageStats(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), scale=1.0)
BYTES = ImageStats(mean=(123.675, 116.28, 103.53), std=(58.395, 57.12, 57.375), scale=255.0)
ALL = torch.arange(256, dtype=torch.uint8).repeat(3, 1).reshape(1, 3, 16, 16)


def test_bytes_by_statistics_of_bytes_are_shares_by_statistics_of_shares() -> None:
    grey = torch.full((3, 2, 2), 128, dtype=torch.uint8)
    by_bytes = normalize_images(grey, ImageStats((127.5,) * 3, (51.0,) * 3, 255.0))
    by_shares = normalize_images(grey / 255, ImageStats((0.5,) * 3, (0.2,) * 3, 1.0))
    torch.testing.assert_close(by_bytes, by_shares, rtol=0, atol=0)
    torch.testing.assert_close(by_bytes, torch.full((3, 2, 2), (128 / 255 - 0.5) / 0.2))


@pytest.mark.parametrize("stats", [SHARES, BYTES], ids=["shares", "bytes"])
def test_both_dtypes_are_the_same_bit_for_bit(stats: ImageStats) -> None:
    made = normalize_images(ALL, stats)
    assert made.dtype == torch.float32
    assert torch.equal(made, normalize_images(ALL / 255, stats))
    exact = ALL.double().numpy() / 255
    mean, std = (np.array(v)[:, None, None] for v in (SHARES.mean, SHARES.std))
    np.testing.assert_allclose(made, (exact - mean) / std, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_trainers_dtype_changes_nothing(dtype: torch.dtype) -> None:
    wanted, shares = normalize_images(ALL, SHARES), ALL / 255
    with default_dtype(dtype):
        found = [normalize_images(images, SHARES) for images in (ALL, shares, shares.double())]
    assert all(one.dtype == torch.float32 and torch.equal(one, wanted) for one in found)


def test_any_leading_axes() -> None:
    stacked = ALL.expand(2, 4, 3, 16, 16)
    assert torch.equal(normalize_images(stacked, SHARES)[1, 3], normalize_images(ALL[0], SHARES))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (ALL.short(), "uint8 or float32, got torch.int16"),
        (
            ALL.bfloat16() / 255,
            r"torch\.bfloat16, which rounds them; .* take image_dtype=\"uint8\"",
        ),
        (ALL.half() / 255, "torch.float16, which rounds them"),
        (ALL.movedim(1, -1), r"\(…, 3, H, W\), got the shape \[1, 16, 16, 3\]"),
        (ALL[0, 0], "got the shape"),
    ],
)
def test_other_images_are_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(TransformError, match=message):
        normalize_images(images, SHARES)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": 0}, "scale must be"),
        ({"scale": "255"}, "scale must be"),
        ({"mean": (123.7,) * 3}, "is the scale another"),
        ({"scale": 255.0}, r"all below 1, and white is 255\.0; .* scale is 1\.0"),
        ({"std": (0.0,) * 3}, "channel 0: .*std 0.0"),
        ({"std": (0.2, 0.2)}, "3 means and 2 stds"),
        ({"mean": 0.5}, "mean must list"),
        ({"mean": (float("nan"),) * 3}, "mean must list"),
    ],
)
def test_what_cannot_be_meant_is_refused(change: dict[str, Any], message: str) -> None:
    options = {"mean": (0.5,) * 3, "std": (0.2,) * 3, "scale": 1.0}
    with pytest.raises(SettingsError, match=message):
        ImageStats(**(options | change))


def test_bytes_may_stay_as_they_are() -> None:
    made = normalize_images(ALL, ImageStats((0.0,) * 3, (1.0,) * 3, 255.0))
    torch.testing.assert_close(made, ALL.float())


def test_plain_values_make_them_again() -> None:
    assert ImageStats(**BYTES.to_plain()) == BYTES
