"""What lies over images: blur, and rectangles of one gray."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from egoloader.augment.step import FrameStep, Range, between
from egoloader.errors import require_extra

__all__ = ["Blur", "Erasing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blur(FrameStep):
    """Blurs images with a Gaussian of a width that each sample draws; needs kornia.

    Args:
        sigma: [least, most] of its standard deviation in pixels.
        kernel_size: of the square of pixels that are mixed: odd, from 3 on, and less than twice
            the shorter side of the images.
        p: the probability that a sample is changed.

    Raises:
        SettingsError: an option outside its range.
        MissingExtraError: kornia is not installed; names the extra that installs it.
    """

    sigma: Range = (0.1, 2.0)
    kernel_size: int = 7
    p: float = 0.5
    num_draws: ClassVar[int] = 1

    def _check(self) -> None:
        self._pair("sigma", 0.0, math.inf)
        if type(self.kernel_size) is not int or self.kernel_size < 3 or self.kernel_size % 2 == 0:
            self._refuse(f"kernel_size must be odd, from 3 on, got {self.kernel_size!r}")
        require_extra("kornia", extra="augment")

    def apply(self, frames: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return the frames blurred; what is beyond them is their reflection.

        Raises:
            SettingsError: the kernel reaches farther than a reflection of the frames.
        """
        filters = require_extra("kornia.filters", extra="augment")
        sigma = between(draws, self.sigma)
        reach = self.kernel_size // 2
        height, width = frames.shape[-2:]
        if reach >= min(height, width):
            self._refuse(
                f"kernel_size {self.kernel_size} needs images of more than {reach} pixels a side, "
                f"got {height} x {width}"
            )
        offsets = torch.arange(-reach, reach + 1, dtype=sigma.dtype, device=sigma.device)
        # kornia's own kernels ask the host whether sigma is above 0.
        kernels = torch.softmax(-0.5 * (offsets / sigma) ** 2, dim=1)
        # Mixed in full precision: what comes out is what training sees.
        with torch.autocast(frames.device.type, enabled=False):
            blurred: torch.Tensor = filters.filter2d_separable(frames, kernels, kernels)
        return blurred.clamp_(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasing(FrameStep):
    """Covers a rectangle of images with one gray (Zhong et al.: Random erasing, 2020).

    Args:
        scale: [least, most] share of the area, above 0 and at most 1.
        ratio: [least, most] of height over width, evenly spread in its logarithm.
        value: the gray, in 0…1. A frame that is all zero is not covered.
        p: the probability that a sample is changed.

    Raises:
        SettingsError: an option outside its range.
    """

    scale: Range = (0.02, 0.2)
    ratio: Range = (0.3, 3.3)
    value: float = 0.0
    p: float = 0.5
    num_draws: ClassVar[int] = 4

    def _check(self) -> None:
        self._pair("scale", 0.0, 1.0)
        self._pair("ratio", 0.0, math.inf)
        self._number("value", 0.0, 1.0)

    def apply(self, frames: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return the frames, a rectangle of each covered; one that is too long is cut."""
        height, width = frames.shape[-2:]
        area = between(draws[:, 0], self.scale) * (height * width)
        logarithms = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        ratio = torch.exp(between(draws[:, 1], logarithms))
        down = _covered(height, (area * ratio).sqrt(), draws[:, 2])
        across = _covered(width, (area / ratio).sqrt(), draws[:, 3])
        is_covered = down[:, None, :, None] & across[:, None, None, :]
        gray = self.value * (frames.amax((1, 2, 3), keepdim=True) > 0).to(frames.dtype)
        return torch.where(is_covered, gray, frames)


def _covered(length: int, wanted: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Return which pixels of an axis a part of it covers: (N, length) bool."""
    count = wanted.round().clamp(1, length)
    start = (draws * (length - count + 1)).floor()
    places = torch.arange(length, device=draws.device)
    return (places >= start[:, None]) & (places < (start + count)[:, None])
