"""Augmentation of images: random, for each sample, on whole batches, on their device.

    colours     ColorJitter · Grayscale
    places      Affine · ResizedCrop
    patches     Blur · Erasing

`ImageAugment` applies them, one behind the other. In a recipe:

    _target_: egoloader.augment.ImageAugment
    steps:
      - _target_: egoloader.augment.ColorJitter
        brightness: 0.3
        contrast: 0.4
        saturation: 0.5
        hue: 0.03
      - _target_: egoloader.augment.Affine
        degrees: 5
        translate: 0.05
        scale: [0.95, 1.05]

Only `Blur` needs kornia (`pip install 'egoloader[augment]'`).
"""

from __future__ import annotations

from egoloader.augment.absence import absent_frames
from egoloader.augment.augmenter import ImageAugment
from egoloader.augment.color import ColorJitter, Grayscale
from egoloader.augment.geometry import Affine, ResizedCrop
from egoloader.augment.patches import Blur, Erasing
from egoloader.augment.step import Step

__all__ = [
    "Affine",
    "Blur",
    "ColorJitter",
    "Erasing",
    "Grayscale",
    "ImageAugment",
    "ResizedCrop",
    "Step",
    "absent_frames",
]
