"""Images normalised by channel, with the scale of the statistics written down."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from egoloader.errors import SettingsError, TransformError

__all__ = ["ImageStats", "check_bits", "normalize_images"]


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Mean and spread of the channels of images, red, green, blue.

    Args:
        mean: of each channel.
        std: of each channel, above 0.
        scale: what white is in them: 1.0, as in 0.485, or 255.0, as in 123.7.

    Raises:
        SettingsError: they can't be meant, such as a mean of 123.7 where white is 1, or one of
            0.485 where it is 255.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        if not _is_number(self.scale) or self.scale <= 0:
            raise SettingsError(f"scale must be what white is, 1.0 or 255.0, got {self.scale!r}")
        if len(self.mean) != len(self.std):
            raise SettingsError(f"there are {len(self.mean)} means and {len(self.std)} stds")
        for place, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            if not 0 <= mean <= self.scale or not 0 < std <= self.scale:
                raise SettingsError(
                    f"channel {place}: mean {mean} and std {std} are not within 0 to {self.scale}, "
                    "which is what white is; is the scale another?"
                )
        if max(*self.mean, *self.std) < 1 < self.scale:
            raise SettingsError(
                f"mean {list(self.mean)} and std {list(self.std)} are all below 1, and white is "
                f"{self.scale}; of shares of white, the scale is 1.0"
            )

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain Python values, which JSON and checkpoints take."""
        return {"mean": list(self.mean), "std": list(self.std), "scale": self.scale}


def normalize_images(images: torch.Tensor, stats: ImageStats) -> torch.Tensor:
    """Return (image - mean) / std, with white = 1: float32, on the images' device.

    Bytes become shares of white first, as a dataset makes float32 images of them, so that both come
    out the same, bit for bit. The device is not waited for, once it has the statistics.

    Args:
        images: (…, C, H, W), uint8 in 0…255 or float32 in 0…1, as datasets hand them out, or
            float64, as a trainer of that precision makes of the latter.
        stats: of C channels.

    Raises:
        TransformError: images of another dtype, or of other channels.
    """
    check_bits("images", images)
    if images.ndim < 3 or images.shape[-3] != len(stats.mean):
        raise TransformError(
            f"images are (…, {len(stats.mean)}, H, W), got the shape {list(images.shape)}"
        )
    mean, std = _constants(stats, images.device)
    # Ahead of the division, as that of whole numbers makes floats of the default dtype.
    shares = images.float()
    if images.dtype == torch.uint8:
        shares.div_(255)
    return (shares - mean) / std


def check_bits(name: str, images: torch.Tensor) -> None:
    """Refuse images of a dtype that can't hold the 256 values of a byte as shares of white.

    Args:
        name: what they are, for the error.
        images: of any shape.

    Raises:
        TransformError: images of another dtype than uint8, float32 and float64.
    """
    if images.dtype in (torch.float16, torch.bfloat16):
        raise TransformError(
            f"{name} are uint8 or float32, got {images.dtype}, which rounds them; where a trainer "
            'of few bits makes that of float32, take image_dtype="uint8", which it leaves as it is'
        )
    if images.dtype not in (torch.uint8, torch.float32, torch.float64):
        raise TransformError(f"{name} are uint8 or float32, got {images.dtype}")


@functools.lru_cache(maxsize=64)
def _constants(stats: ImageStats, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and std of shares of white, (C, 1, 1) each, on a device."""
    mean, std = (
        torch.tensor([value / stats.scale for value in values], dtype=torch.float32, device=device)
        for values in (stats.mean, stats.std)
    )
    return mean[:, None, None], std[:, None, None]


def _numbers(name: str, values: Any) -> tuple[float, ...]:
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not values or not all(map(_is_number, values)):
        raise SettingsError(f"{name} must list a number for each channel, got {values!r}")
    return tuple(map(float, values))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
