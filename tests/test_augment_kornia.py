"""Augmented batches against kornia's operations, image by image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from kornia.augmentation import ColorJitter as KorniaJitter
from kornia.color import rgb_to_grayscale
from kornia.filters import gaussian_blur2d
from scipy.stats import ks_2samp

from bench.singly import CAMERA, draws_of, kornia_operation, kornia_parameters
from egoloader.augment import (
    Affine,
    Blur,
    ColorJitter,
    Erasing,
    Grayscale,
    ImageAugment,
    ResizedCrop,
)
from tests.augment_images import scenes, some_seeds

FULL = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1)
NO_HUE = ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4)
AFFINE = Affine(degrees=20, translate=[0.1, 0.2], scale=[0.8, 1.2])
JITTERS = [
    FULL,
    NO_HUE,
    ColorJitter(brightness=[0.2, 2.5], hue=[-0.5, 0.5]),
    ColorJitter(contrast=2.0),
    ColorJitter(saturation=[0.0, 0.0]),
    ColorJitter(brightness=0.9),
    ColorJitter(contrast=0.5, saturation=3.0),
    ColorJitter(hue=0.5),
]
MOVES = [
    AFFINE,
    Affine(degrees=[5, 90], padding="border"),
    Affine(scale=[0.3, 0.5], padding="reflection"),
    Affine(translate=1.0),
    ResizedCrop(),
    ResizedCrop(scale=[0.05, 0.3], ratio=[0.2, 5.0]),
    # None of the ten fits.
    ResizedCrop(scale=[0.9, 1.0], ratio=[7.0, 9.0]),
    ResizedCrop(scale=[0.9, 1.0], ratio=[0.01, 0.02]),
]


def augmented(step: Any, images: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    return ImageAugment([step])({CAMERA: images}, seeds)[CAMERA]


def singly(step: Any, images: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Return what kornia makes of each image alone, with egoloader's draws."""
    size = (images.shape[-2], images.shape[-1])
    operation = kornia_operation(step, size)
    made = [
        operation(image[None], params=dict(parameters))
        for image, parameters in zip(images, kornia_parameters(step, seeds, size), strict=True)
    ]
    return torch.cat(made)


@pytest.mark.parametrize("step", JITTERS, ids=str)
def test_colours_are_kornias(step: ColorJitter) -> None:
    images, seeds = scenes(48, (17, 23)), some_seeds(48)
    made = augmented(step, images, seeds)
    assert (made - singly(step, images, seeds)).abs().max() < 5e-6
    assert (made - images).abs().mean() > 0.01


@pytest.mark.parametrize("step", MOVES, ids=str)
@pytest.mark.parametrize("size", [(24, 40), (31, 20)])
def test_places_are_kornias(step: Any, size: tuple[int, int]) -> None:
    images, seeds = scenes(24, size), some_seeds(24)
    made = augmented(step, images, seeds)
    assert (made - images).abs().mean() > 0.01
    if getattr(step, "padding", "") == "reflection":
        # kornia's mirror stands at the edge of the last pixel, not in its middle.
        inside = augmented(Affine(scale=step.scale), torch.ones_like(images), seeds) > 0.99
        made, images = made.where(inside, 0.0), singly(step, images, seeds).where(inside, 0.0)
        assert inside.float().mean() > 0.05
        torch.testing.assert_close(made, images, atol=2e-5, rtol=0)
        return
    torch.testing.assert_close(made, singly(step, images, seeds), atol=2e-5, rtol=0)


def test_single_pixels_move_as_in_kornia() -> None:
    # One row or column: there is nothing between the first and the last pixel.
    images, seeds = scenes(8, (1, 6)), some_seeds(8)
    made = augmented(ResizedCrop(), images, seeds)
    torch.testing.assert_close(made, singly(ResizedCrop(), images, seeds), atol=2e-5, rtol=0)


def test_grays_and_blurs_are_kornias() -> None:
    images, seeds = scenes(12, (20, 15)), some_seeds(12)
    gray = augmented(Grayscale(p=1.0), images, seeds)
    torch.testing.assert_close(gray, rgb_to_grayscale(images).expand(-1, 3, -1, -1))
    step = Blur(sigma=[0.2, 3.0], kernel_size=5, p=1.0)
    sigma = 0.2 + 2.8 * draws_of(step, seeds)
    wanted = gaussian_blur2d(images, (5, 5), sigma.expand(-1, 2))
    torch.testing.assert_close(augmented(step, images, seeds), wanted, atol=1e-6, rtol=0)


def test_rectangles_are_erased() -> None:
    size = (40, 60)
    images, seeds = torch.full((400, 3, *size), 0.25), some_seeds(400)
    made = augmented(Erasing(scale=[0.1, 0.2], ratio=[0.5, 2.0], value=1.0, p=1.0), images, seeds)
    covered = (made == 1.0).all(dim=1)
    assert torch.equal(made, torch.where(covered[:, None], 1.0, images))
    rows, columns = covered.any(dim=2).sum(1), covered.any(dim=1).sum(1)
    assert torch.equal(covered.sum((1, 2)), rows * columns)  # rectangles
    share = (rows * columns) / (size[0] * size[1])
    assert 0.09 < share.min() < 0.11
    assert 0.19 < share.max() < 0.21
    assert 0.45 < (rows / columns).min() < 0.55
    assert 1.8 < (rows / columns).max() < 2.2
    # As much of the one side as of the other.
    shares = covered.float().mean(0)
    assert shares[:, :30].mean() == pytest.approx(float(shares[:, 30:].mean()), rel=0.15)
    assert shares[:20].mean() == pytest.approx(float(shares[20:].mean()), rel=0.15)


#: Of the images that a statistic is taken of: every one is shown to both, each time drawn anew.
NUM_IMAGES, NUM_SCENES = 6400, 4


def statistics(images: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return eight numbers of each image: (N, 8)."""
    across = (images[..., 1:] - images[..., :-1]).abs().mean((1, 2, 3))
    top, low = images.amax(1), images.amin(1)
    middle = images[:, :, 8:16, 8:16].mean((1, 2, 3))
    numbers = [*images.mean((2, 3)).unbind(1), images.std((1, 2, 3)), across]
    numbers += [((top - low) / top.clamp_min(1e-6)).mean((1, 2)), middle]
    numbers.append(images[:, :, :4, :4].mean((1, 2, 3)))
    return torch.stack(numbers, dim=1).numpy()


def p_values(one: torch.Tensor, other: torch.Tensor) -> list[float]:
    pairs = zip(statistics(one).T, statistics(other).T, strict=True)
    return [float(ks_2samp(a, b).pvalue) for a, b in pairs]


@pytest.mark.parametrize("step", [FULL, NO_HUE, AFFINE], ids=["colours", "no hue", "places"])
def test_the_marginals_are_those_of_kornia_at_batch_1(step: Any) -> None:
    images = scenes(NUM_SCENES, (24, 24)).repeat(NUM_IMAGES // NUM_SCENES, 1, 1, 1)
    operation = kornia_operation(step, (24, 24))
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = torch.cat([operation(image[None]) for image in images])
    seeds = some_seeds(NUM_IMAGES)
    found = p_values(augmented(step, images, seeds), theirs)
    assert len(found) == 8
    assert min(found) > 0.01 / 8
    # So many images tell a slightly other jitter from it.
    other = Affine(degrees=20, translate=[0.1, 0.2], scale=[0.9, 1.1])
    if isinstance(step, ColorJitter):
        other = ColorJitter(brightness=0.3, contrast=0.4, saturation=0.4, hue=step.hue)
    assert min(p_values(augmented(other, images, seeds), theirs)) < 0.01 / 8


def test_orders_are_drawn_evenly_by_each_sample() -> None:
    seeds = some_seeds(24_000)
    orders = FULL.parameters(draws_of(FULL, seeds)).ranks.argsort(dim=1)
    _, counts = torch.unique(orders, dim=0, return_counts=True)
    assert len(counts) == 24
    assert counts.min() > 850
    assert counts.max() < 1150
    # kornia draws one for its whole batch: there, the comparison has to be image by image.
    assert KorniaJitter(0.1).forward_parameters(torch.Size([8, 3, 2, 2]))["order"].shape == (4,)
