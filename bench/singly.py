"""kornia's augmentations of one image at a time, with the draws of egoloader's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from kornia.augmentation import ColorJitter, RandomAffine, RandomResizedCrop

from egoloader import augment
from egoloader.augment.draws import uniforms
from egoloader.augment.geometry import PlaceStep
from egoloader.augment.step import FrameStep

__all__ = ["CAMERA", "Apply", "Operation", "draws_of", "kornia_operation", "kornia_parameters"]

#: The key of the images.
CAMERA = "front"
#: Changes one image, (1, 3, H, W), with parameters of kornia's, or with its own draws.
Operation = ColorJitter | RandomAffine | RandomResizedCrop
Apply = Callable[[torch.Tensor], torch.Tensor]
Parameters = Mapping[str, torch.Tensor]


def kornia_operation(step: augment.Step, size: tuple[int, int]) -> Operation:
    """Return kornia's operation of the same settings, always applied, for images of one size."""
    if isinstance(step, augment.ColorJitter):
        return ColorJitter(step.brightness, step.contrast, step.saturation, step.hue)
    if isinstance(step, augment.Affine):
        return RandomAffine(
            step.degrees, step.translate, step.scale, padding_mode=step.padding, p=1.0
        )
    assert isinstance(step, augment.ResizedCrop)
    return RandomResizedCrop(size, scale=step.scale, ratio=step.ratio)


def draws_of(step: FrameStep | PlaceStep, sample_seed: torch.Tensor) -> torch.Tensor:
    """Return the draws that a step of `ImageAugment([step])` has for `CAMERA`, but for `p`'s."""
    return uniforms(sample_seed, 1 + step.num_draws, CAMERA, type(step).__name__, 1)[:, 1:]


def kornia_parameters(
    step: augment.Step, sample_seed: torch.Tensor, size: tuple[int, int]
) -> list[Parameters]:
    """Return what kornia is to be handed for each image so that it does what egoloader does."""
    if isinstance(step, augment.ColorJitter):
        columns = _jitter(step, draws_of(step, sample_seed))
    elif isinstance(step, augment.Affine):
        columns = _affine(step, draws_of(step, sample_seed), size)
    else:
        assert isinstance(step, augment.ResizedCrop)
        columns = _crop(step, draws_of(step, sample_seed), size)
    columns["batch_prob"] = torch.ones(len(sample_seed), dtype=torch.bool)
    columns["forward_input_shape"] = torch.tensor([1, 3, *size]).repeat(len(sample_seed), 1)
    whole = ("order", "forward_input_shape")  # of a batch, not of its images
    return [
        {name: values[one] if name in whole else values[one : one + 1] for name, values in rows}
        for one in range(len(sample_seed))
        for rows in [columns.items()]
    ]


def _jitter(step: augment.ColorJitter, draws: torch.Tensor) -> dict[str, torch.Tensor]:
    jitter = step.parameters(draws)
    names = ("brightness_factor", "contrast_factor", "saturation_factor", "hue_factor")
    columns = dict(zip(names, jitter.factors.unbind(1), strict=True))
    return {**columns, "order": jitter.ranks.argsort(dim=1)}


def _affine(
    step: augment.Affine, draws: torch.Tensor, size: tuple[int, int]
) -> dict[str, torch.Tensor]:
    assert isinstance(step.degrees, tuple)
    assert isinstance(step.translate, tuple)
    lengths = torch.tensor(size[::-1])
    none = torch.zeros(len(draws))
    return {
        "angle": step.degrees[0] + draws[:, 0] * (step.degrees[1] - step.degrees[0]),
        "scale": (step.scale[0] + draws[:, 1:2] * (step.scale[1] - step.scale[0])).expand(-1, 2),
        "translations": (2 * draws[:, 2:] - 1) * lengths * torch.tensor(step.translate),
        "center": (lengths / 2 - 0.5).expand(len(draws), -1),
        "shear_x": none,
        "shear_y": none,
    }


def _crop(
    step: augment.ResizedCrop, draws: torch.Tensor, size: tuple[int, int]
) -> dict[str, torch.Tensor]:
    boxes = torch.tensor([[0.0, 0.0, size[1], size[0]]]).expand(len(draws), -1)
    return {"src": _corners(step.crops(draws, size)), "dst": _corners(boxes)}


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    """Return the pixels in the corners of (N, 4) boxes, clockwise from the first: (N, 4, 2)."""
    left, top, width, height = boxes.unbind(1)
    right, bottom = left + width - 1, top + height - 1
    places = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return torch.stack([torch.stack(place, dim=1) for place in places], dim=1)
