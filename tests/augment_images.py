"""Images to augment, and seeds of their samples."""

from __future__ import annotations

import torch

__all__ = ["scenes", "some_seeds"]


def scenes(count: int, size: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Return (count, 3, H, W) float32 in 0…1: coloured waves, each image's its own."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(count, 3, *shape, 1, 1, generator=generator)

    y, x = torch.meshgrid(*(torch.linspace(0, 1, length) for length in size), indexing="ij")
    waves = torch.sin(12 * (numbers() * x + numbers() * y + numbers()))
    middle = 0.2 + 0.6 * numbers()
    return (middle + 0.4 * numbers() * waves).clamp(0, 1)


def some_seeds(count: int, seed: int = 0) -> torch.Tensor:
    """Return (count,) int64 as loaders make them, from 0 to 2**63 - 1."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**63 - 1, (count,), generator=generator)
