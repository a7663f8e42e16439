"""Frames that are not there: all zero, as an optional camera is that an episode lacks."""

from __future__ import annotations

import torch

__all__ = ["absent_frames"]


def absent_frames(images: torch.Tensor) -> torch.Tensor:
    """Return which frames are all zero, without waiting for the device.

    Asked of images as they are loaded, it tells what to keep at zero behind a normalisation, which
    makes something else of zeros:

        normalised = normalised.masked_fill(absent_frames(images)[..., None, None, None], 0.0)

    Args:
        images: (…, 3, H, W), uint8, or float from 0 on.

    Returns:
        (…) bool, on the same device.
    """
    return images.amax(dim=(-3, -2, -1)) == 0
