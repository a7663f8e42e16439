"""Colours: jitter as torchvision and kornia define it, and grayscale.

kornia draws one order of the four changes for a whole batch, and asks the host for it. Here each
sample has its own order, as if it were alone in its batch, and nothing is asked: hue, which costs
most, is changed once, with places before and behind it where a sample makes those of the other
changes that it makes there. Tests hold the outcome equal to kornia's, image by image.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from egoloader.augment.step import FrameStep, Range, between

__all__ = ["ColorJitter", "Grayscale"]

#: Shares of red, green and blue in what is seen as brightness: ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
_NAMES = ("brightness", "contrast", "saturation", "hue")
#: Factors that change nothing.
_NEUTRAL = (1.0, 1.0, 1.0, 0.0)
#: A difference of colours below which there is no hue to speak of; far below that of any two bytes.
_NO_COLOUR = 1e-12


class Jitter(NamedTuple):
    """What a jitter does to each frame.

    Attributes:
        factors: (N, 4) of brightness, contrast, saturation (all 1 where nothing changes) and hue,
            in turns of the circle of hues (0 where nothing changes).
        ranks: (N, 4) uniform; the changes are made in their ascending order.
    """

    factors: torch.Tensor
    ranks: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ColorJitter(FrameStep):
    """Changes brightness, contrast, saturation and hue, in an order that each sample draws.

    The changes are those of torchvision's `ColorJitter`, and of kornia's class of that name:
    brightness multiplies, contrast moves away from the frame's mean gray, saturation away from each
    pixel's gray, hue turns the circle of hues; what leaves 0…1 is cut off each time. Frames of a
    window get the same factors; the mean gray is each frame's own.

    Args:
        brightness: a number n for factors of [max(0, 1 - n), 1 + n], or [least, most].
        contrast: likewise.
        saturation: likewise.
        hue: a number n of at most 0.5 for turns of [-n, n], or [least, most]; most of the time that
            a jitter takes is this one's.
        p: the probability that a sample is changed.

    Raises:
        SettingsError: an option outside its range, or none that changes anything.
    """

    brightness: float | Range = 0.0
    contrast: float | Range = 0.0
    saturation: float | Range = 0.0
    hue: float | Range = 0.0
    num_draws: ClassVar[int] = 8

    def _check(self) -> None:
        for name in _NAMES[:_HUE]:
            self._range(name, 1.0, 0.0, math.inf)
        self._range("hue", 0.0, -0.5, 0.5)
        if not self._active:
            self._refuse(f"nothing to change; set one of {', '.join(_NAMES)}")

    @property
    def _spans(self) -> tuple[Range, ...]:
        return tuple(getattr(self, name) for name in _NAMES)

    @property
    def _active(self) -> list[int]:
        """The changes that there are, with hue, if it is one, at the end."""
        spans = zip(self._spans, _NEUTRAL, strict=True)
        return [change for change, (span, neutral) in enumerate(spans) if set(span) != {neutral}]

    def parameters(self, draws: torch.Tensor) -> Jitter:
        """Return what the draws of each frame, (N, 8), mean."""
        columns = [between(draws[:, one], span) for one, span in enumerate(self._spans)]
        return Jitter(torch.stack(columns, dim=1), draws[:, 4:])

    def apply(self, frames: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
        """Return the frames with other colours, in their own memory."""
        return self.jitter(frames, self.parameters(draws))

    def jitter(self, frames: torch.Tensor, parameters: Jitter) -> torch.Tensor:
        """Return frames jittered as the parameters say, in their own memory.

        Args:
            frames: (N, 3, H, W) float32 in 0…1.
            parameters: of each.
        """
        active = self._active
        # Column by column: a list as an index would be copied to the device.
        factors = torch.stack([parameters.factors[:, one] for one in active], dim=1)
        ranks = torch.stack([parameters.ranks[:, one] for one in active], dim=1)
        order = ranks.argsort(dim=1, stable=True)
        if _HUE not in active:
            for place in range(len(active)):
                self._change(frames, factors, order[:, place])
            return frames
        last = len(active) - 1
        # Where hue comes in each frame's order.
        turning = (order == last).to(torch.int64).argmax(dim=1)
        # `last` stands for no change as well: hue's own place holds none.
        for place in range(last):
            self._change(frames, factors, order[:, place].where(turning > place, last))
        _turn_hue(frames, factors[:, last])
        for place in range(last):
            self._change(frames, factors, order[:, place + 1].where(turning <= place, last))
        return frames

    def _change(self, frames: torch.Tensor, factors: torch.Tensor, change: torch.Tensor) -> None:
        """Make one change in each frame: `change`, (N,), is its place among the active ones.

        All three are x ↦ f x + s gray(x) + c mean(gray(x)), cut to 0…1.
        """
        affine = [one for one in self._active if one != _HUE]
        factor = factors.gather(1, change[:, None])[:, 0]
        factor = factor.where(change < len(affine), 1.0)[:, None, None]
        if affine != [_BRIGHTNESS]:
            gray = _gray(frames)
            rest = 1 - factor
            kind = change[:, None, None]
            added = torch.zeros_like(factor)
            if _CONTRAST in affine:
                is_contrast = kind == affine.index(_CONTRAST)
                added = gray.mean((-2, -1), keepdim=True) * rest.where(is_contrast, 0.0)
            if _SATURATION in affine:
                is_saturation = kind == affine.index(_SATURATION)
                gray.mul_(rest.where(is_saturation, 0.0)).add_(added)
                added = gray
            torch.addcmul(added[:, None], frames, factor[:, None], out=frames)
        else:
            frames.mul_(factor[:, None])
        frames.clamp_(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grayscale(FrameStep):
    """Takes the colours away: each pixel's three numbers become its gray, by ITU-R BT.601.

    Args:
        p: the probability that a sample is changed.
    """

    p: float = 0.1
    num_draws: ClassVar[int] = 0

    def _check(self) -> None:
        """There is nothing but `p`."""

    def apply(self, frames: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        """Return the frames without colours."""
        return _gray(frames)[:, None].expand_as(frames)


def _gray(frames: torch.Tensor) -> torch.Tensor:
    """Return each pixel's gray, (N, H, W), in new memory."""
    red, green, blue = frames.unbind(1)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


def _turn_hue(frames: torch.Tensor, turns: torch.Tensor) -> None:
    """Turn the hue of frames, (N, 3, H, W), in place, by (N,) turns of at most a half.

    With hues in sixths of a turn, red at 0, green at 2 and blue at 4 (Smith: Color gamut transform
    pairs, 1978), a colour's part of each is full up to 1 from it, and none from 2 on.
    """
    red, green, blue = frames.unbind(1)
    top, low, spread, hue, part = frames.new_empty((5, *red.shape)).unbind(0)
    torch.maximum(torch.maximum(red, green, out=top), blue, out=top)
    torch.minimum(torch.minimum(red, green, out=low), blue, out=low)
    torch.sub(top, low, out=spread)
    torch.sub(red, green, out=hue).add_(spread, alpha=4)
    torch.sub(blue, red, out=part).add_(spread, alpha=2)
    torch.where(top == green, part, hue, out=hue)
    torch.sub(green, blue, out=part)
    torch.where(top == red, part, hue, out=hue)
    hue.div_(torch.clamp(spread, min=_NO_COLOUR, out=part)).add_((6 * turns)[:, None, None])
    hue.sub_(torch.mul(hue, 1 / 6, out=part).floor_(), alpha=6)
    torch.sub(hue, 3, out=part).abs_().sub_(1).clamp_(0, 1)
    torch.addcmul(low, spread, part, out=red)
    for centre, channel in ((2, green), (4, blue)):
        torch.sub(hue, centre, out=part).abs_().sub_(1).clamp_(0, 1)
        torch.addcmul(top, spread, part, value=-1, out=channel)
