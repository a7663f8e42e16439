"""What becomes of a batch between the loader and the network: once, on the device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from egoloader.augment import ImageAugment, absent_frames
from egoloader.errors import SettingsError, near_miss
from egoloader.imagestats import ImageStats, check_bits, normalize_images
from egoloader.normalizer import NormalizedBatch, Normalizer
from egoloader.train.spec import SampleSpec

__all__ = ["Preparation", "PreparedBatch"]

Batch = Mapping[str, Any]
#: Of images in 0…1, which stay as they are.
_PLAIN_IMAGES = ImageStats(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), scale=1.0)


class PreparedBatch(dict[str, Any]):
    """A batch that a `Preparation` made, and refuses, by its class: see `NormalizedBatch`."""


class Preparation(nn.Module):
    """Augments images while training, normalises images and numbers, and takes predictions back.

    Frames of absent cameras, which are all zero, stay so. Nothing waits for the device.

    Args:
        specs: per embodiment, what its samples are.
        normalizer: of numbers (or its plain form); None leaves them as they are.
        images: what images are normalised by (or its plain form); None leaves them in 0…1.
        augment: changes images in training; None doesn't.

    Raises:
        SettingsError: `augment` is none, or shares draws of what is no camera.
    """

    def __init__(
        self,
        specs: Mapping[str, SampleSpec],
        normalizer: Normalizer | Mapping[str, Any] | None,
        images: ImageStats | Mapping[str, Any] | None,
        augment: ImageAugment | None,
    ) -> None:
        super().__init__()
        if isinstance(normalizer, Mapping):
            normalizer = Normalizer.from_plain(normalizer)
        self.normalizer = normalizer
        self.images = ImageStats(**images) if isinstance(images, Mapping) else images
        self._specs, self._augment = dict(specs), augment
        if augment is not None and not isinstance(augment, ImageAugment):
            raise SettingsError(f"augment must be an ImageAugment, got {augment!r}")
        if augment is not None:
            augment.check_cameras({key for spec in specs.values() for key in spec.cameras})

    def to_plain(self) -> dict[str, Any]:
        """Return what a robot needs of it, in plain values: not how images are augmented."""
        return {
            "normalizer": None if self.normalizer is None else self.normalizer.to_plain(),
            "images": None if self.images is None else self.images.to_plain(),
        }

    def forward(self, embodiment: str, batch: Batch) -> PreparedBatch:
        """Return a batch as the network takes it.

        Args:
            embodiment: whose batch it is.
            batch: of samples as a dataset hands them out; images uint8 in 0…255, or float32 or
                float64 in 0…1.

        Raises:
            SettingsError: it was prepared before, lacks what the network takes, or has images in a
                list.
            TransformError: images of another dtype.
        """
        spec = self._specs.get(embodiment)
        if spec is None:
            raise SettingsError(
                f"the policy was built for {sorted(self._specs)}, not for {embodiment!r}"
            )
        is_augmented = self._augment is not None and self.training and bool(spec.cameras)
        _check(batch, spec, ["sample_seed"] if is_augmented else [])
        cameras = {key: batch[key] for key in spec.cameras}
        absent = {key: absent_frames(frames) for key, frames in cameras.items()}
        if self._augment is not None and is_augmented:
            cameras = self._augment(cameras, batch["sample_seed"])
        stats = self.images or _PLAIN_IMAGES
        images = {
            key: normalize_images(frames, stats).masked_fill(absent[key][..., None, None, None], 0)
            for key, frames in cameras.items()
        }
        made = {**batch, **images}
        if self.normalizer is not None:
            made = self.normalizer.normalize(embodiment, made)
        return PreparedBatch(made)

    def restore(
        self, embodiment: str, chunks: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Return chunks as the samples have them, in their units, whole numbers as floats.

        Args:
            embodiment: whose they are.
            chunks: per action key (B, H, D), or of the samples' shapes; normalised.

        Returns:
            Per action key, (B, H, D…); float64 where a chunk was of it, float32 else.
        """
        shapes = self._specs[embodiment].actions
        shaped = {
            key: (chunk if chunk.dtype == torch.float64 else chunk.float()).reshape(
                -1, *shapes[key]
            )
            for key, chunk in chunks.items()
        }
        if self.normalizer is None:
            return shaped
        # Whole numbers have no statistics, and are predicted as they are.
        known = self.normalizer.keys_of(embodiment)
        scaled = {key: chunk for key, chunk in shaped.items() if key in known}
        return {**shaped, **self.normalizer.unnormalize(embodiment, scaled)}


def _check(batch: Batch, spec: SampleSpec, more: Sequence[str]) -> None:
    if isinstance(batch, PreparedBatch | NormalizedBatch):
        raise SettingsError("the batch is prepared already; give one as the loader makes it")
    for key in (*spec.inputs, *more):
        if key not in batch:
            raise SettingsError(
                f"the policy takes {key!r}, and the batch lacks it; {near_miss(key, batch)}"
            )
    for key in spec.cameras:
        if not isinstance(batch[key], torch.Tensor):
            raise SettingsError(
                f"camera {key!r} comes as a {type(batch[key]).__name__}, and the policy takes one "
                "tensor: of cameras of several sizes set `size` in the keymap"
            )
        check_bits(f"images of camera {key!r}", batch[key])
