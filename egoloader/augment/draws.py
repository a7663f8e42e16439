"""Random numbers of samples, made on the device that their images are on.

Each is a function of a sample's `sample_seed`, of what it is for, and of nothing else: neither of
the other samples of the batch nor of their order, nor of the device, nor of PyTorch's generators,
which are left as they are. The numbers are SplitMix64's (see `egoloader.seeding`), a stream for
each sample and purpose, in int64 that wraps around. Nothing waits for the device.
"""

from __future__ import annotations

import torch

from egoloader.seeding import stream_key

__all__ = ["uniforms"]

# As int64 holds the numbers of `egoloader.seeding`.
_STEP, *_FACTORS = (
    factor - 2**64 for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)
_SIGN = 2**63


def uniforms(sample_seed: torch.Tensor, count: int, *purpose: int | str) -> torch.Tensor:
    """Return numbers of [0, 1), evenly spread, for each sample.

    Args:
        sample_seed: (B,) int64.
        count: how many for each.
        purpose: what they are for; other purposes have other numbers.

    Returns:
        (B, count) float32, multiples of 2**-24, on the device of `sample_seed`. More of them begin
        with the same.
    """
    key = (stream_key("augment", *purpose) + _SIGN) % 2**64 - _SIGN
    streams = _mixed(sample_seed + key)
    places = torch.arange(1, count + 1, device=sample_seed.device)
    words = _mixed(streams[:, None] + places * _STEP)
    return _shifted(words, 40).to(torch.float32) * 2.0**-24


def _mixed(word: torch.Tensor) -> torch.Tensor:
    for shift, factor in zip((30, 27), _FACTORS, strict=True):
        word = (word ^ _shifted(word, shift)) * factor
    return word ^ _shifted(word, 31)


def _shifted(word: torch.Tensor, bits: int) -> torch.Tensor:
    """Shift to the right, with zeros from the left, which int64 does not."""
    return (word >> bits) & ((1 << (64 - bits)) - 1)
