"""Where pixels come from: rotations, shifts, scales and crops, sampled once for all of them.

Places are (x, y) in pixels, the middle of the first pixel at (0, 0), y downwards. A step says where
each pixel of what comes out lies in what goes in, as a (2, 3) matrix; those of steps one behind the
other are multiplied, so that pixels are interpolated once.

Matrices are multiplied number by number: in a matrix product on an accelerator, or under autocast,
ten bits may be left of a number, a tenth of a pixel.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional

from egoloader.augment.step import Range, Step, between, is_number, is_pair
from egoloader.errors import near_miss

__all__ = ["Affine", "PlaceStep", "ResizedCrop", "composed", "warp"]

#: What is beyond the image.
_PADDINGS = ("zeros", "border", "reflection")
_TRIES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceStep(Step):
    """A step that changes where pixels come from."""

    @abc.abstractmethod
    def sources(self, draws: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return where the pixels that come out lie in what goes in: (N, 2, 3) float32.

        Args:
            draws: (N, num_draws) float32 in [0, 1).
            size: (H, W) of the images.
        """

    @property
    def beyond(self) -> str | None:
        """What is beyond the image; None where the step never looks there."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Affine(PlaceStep):
    """Turns images around their middle, scales and shifts them, as kornia's `RandomAffine` does.

    Args:
        degrees: a number n for angles of [-n, n], or [least, most]; clockwise above 0.
        translate: the largest shift to either side, as shares of width and height: a number for
            both, or [x, y].
        scale: [least, most] of one factor for both axes, such as [0.9, 1.1].
        padding: what is beyond the image: `zeros` (black), `border` or `reflection`.
        p: the probability that a sample is changed.

    Raises:
        SettingsError: an option outside its range, or none that changes anything.
    """

    degrees: float | Range = 0.0
    translate: float | Range = 0.0
    scale: Range = (1.0, 1.0)
    padding: str = "zeros"
    num_draws: ClassVar[int] = 4

    def _check(self) -> None:
        self._range("degrees", 0.0, -360.0, 360.0)
        self._pair("scale", 0.0, math.inf)
        self._check_translate()
        if self.padding not in _PADDINGS:
            hint = near_miss(str(self.padding), _PADDINGS)
            self._refuse(f"there is no padding {self.padding!r}; {hint}")
        if (self.degrees, self.translate, self.scale) == ((0, 0), (0, 0), (1, 1)):
            self._refuse("nothing to change; set degrees, translate or scale")

    def _check_translate(self) -> None:
        given = self.translate
        shares = (given, given) if is_number(given) else given
        if not is_pair(shares) or not all(0 <= one <= 1 for one in shares):
            self._refuse(f"translate must be a share from 0 to 1, or two, [x, y], got {given!r}")
        object.__setattr__(self, "translate", (float(shares[0]), float(shares[1])))

    @property
    def beyond(self) -> str | None:
        """What is beyond the image."""
        return self.padding

    def sources(self, draws: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return where pixels come from: (N, 2, 3)."""
        height, width = size
        angle = between(draws[:, 0], _pair_of(self.degrees)) * (math.pi / 180)
        scale = between(draws[:, 1], self.scale)
        right, down = (
            (2 * draws[:, 2 + axis] - 1) * (share * length)
            for axis, (share, length) in enumerate(
                zip(_pair_of(self.translate), (width, height), strict=True)
            )
        )
        middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
        cosine, sine = torch.cos(angle) / scale, torch.sin(angle) / scale
        # Back from where the middle went, then turned the other way.
        x, y = middle_x + right, middle_y + down
        return _matrix(
            (cosine, sine, middle_x - cosine * x - sine * y),
            (-sine, cosine, middle_y + sine * x - cosine * y),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizedCrop(PlaceStep):
    """Cuts a rectangle out of images, and enlarges it to their size, as `RandomResizedCrop` does.

    Drawn as in kornia and torchvision (Szegedy et al.: Going deeper with convolutions, 2015): of
    ten rectangles the first that lies inside, in whole pixels, else the largest of a shape that is
    asked for. The corners of the crop become those of the image.

    Args:
        scale: [least, most] share of the area, above 0 and at most 1.
        ratio: [least, most] of width over height, evenly spread in its logarithm.
        p: the probability that a sample is changed.

    Raises:
        SettingsError: an option outside its range.
    """

    scale: Range = (0.8, 1.0)
    ratio: Range = (3 / 4, 4 / 3)
    num_draws: ClassVar[int] = 2 * _TRIES + 2

    def _check(self) -> None:
        self._pair("scale", 0.0, 1.0)
        self._pair("ratio", 0.0, math.inf)

    def crops(self, draws: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return (N, 4) float32 of whole numbers: left, top, width and height in pixels."""
        height, width = size
        area = between(draws[:, :_TRIES], self.scale) * (height * width)
        logarithms = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        ratio = torch.exp(between(draws[:, _TRIES : 2 * _TRIES], logarithms))
        widths, heights = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
        first = fits.to(torch.int64).argmax(dim=1, keepdim=True)
        is_any = fits.any(dim=1)
        fallback_width, fallback_height = self._largest(height, width)
        wide = widths.gather(1, first)[:, 0].where(is_any, fallback_width)
        high = heights.gather(1, first)[:, 0].where(is_any, fallback_height)
        left = (draws[:, -2] * (width - wide + 1)).floor()
        top = (draws[:, -1] * (height - high + 1)).floor()
        return torch.stack([left, top, wide, high], dim=1)

    def sources(self, draws: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
        """Return where pixels come from: (N, 2, 3)."""
        height, width = size
        left, top, wide, high = self.crops(draws, size).unbind(1)
        none = torch.zeros_like(left)
        return _matrix(
            ((wide - 1) / max(width - 1, 1), none, left),
            (none, (high - 1) / max(height - 1, 1), top),
        )

    def _largest(self, height: int, width: int) -> tuple[float, float]:
        """Return width and height of the largest rectangle of a shape that is asked for."""
        least, most = self.ratio
        if width / height < least:
            return width, min(max(round(width / least), 1), height)
        if width / height > most:
            return min(max(round(height * most), 1), width), height
        return width, height


def composed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return where pixels come from after two steps: (N, 2, 3) of (N, 2, 3) each."""
    turned = (first[:, :, :2, None] * second[:, None]).sum(2)
    turned[:, :, 2] += first[:, :, 2]
    return turned


def warp(frames: torch.Tensor, sources: torch.Tensor, padding: str) -> torch.Tensor:
    """Return frames whose pixels come from elsewhere, by bilinear interpolation.

    Args:
        frames: (N, 3, H, W) float32.
        sources: (N, 2, 3) float32, where each pixel that comes out lies.
        padding: what is beyond the image: `zeros`, `border` or `reflection`.

    Returns:
        (N, 3, H, W) float32 in new memory.
    """
    height, width = frames.shape[-2:]
    # All x, then all y: written and read in a row.
    places = sources.new_empty((len(frames), 2, height, width))
    x = torch.arange(width, dtype=sources.dtype, device=sources.device)
    y = torch.arange(height, dtype=sources.dtype, device=sources.device)
    for axis, length in enumerate((width, height)):
        # From pixels to -1 at the middle of the first and 1 at that of the last.
        to_x, to_y, offset = (2 / max(length - 1, 1) * sources[:, axis]).unbind(1)
        across, down = to_x[:, None] * x, to_y[:, None] * y + (offset - 1)[:, None]
        torch.add(across[:, None], down[:, :, None], out=places[:, axis])
    grid = places.movedim(1, -1)
    return functional.grid_sample(frames, grid, padding_mode=padding, align_corners=True)


def _pair_of(value: float | Range) -> Range:
    assert isinstance(value, tuple)
    return value


def _matrix(*rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([torch.stack(list(row), dim=1) for row in rows], dim=1)
