"""From a list of samples to one dict batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from egoloader.batch import Batch
from egoloader.errors import SettingsError

__all__ = ["collate"]


def collate(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stack B samples of one keymap into a batch; a `Batch` hands its tensors out uncopied.

    Returns:
        Per sample key, a tensor with a leading axis of B where the values are tensors or NumPy's;
        images, (B, C, H, W) or (B, n, C, H, W), lie in channels-last memory. Python's own objects
        (texts, JPEG bytes, JSON rows, numbers among them) become a list of B; PyTorch's
        `default_collate` gives the same tensors, and takes JSON rows apart.

    Raises:
        SettingsError: no samples, other keys, or other shapes among them; names both episodes.
    """
    if isinstance(samples, Batch) and samples and (tensors := samples.tensors) is not None:
        return tensors
    if not samples:
        raise SettingsError("a batch needs at least one sample")
    keys = samples[0].keys()
    for sample in samples[1:]:
        if sample.keys() != keys:
            odd = sorted(keys ^ sample.keys())
            raise SettingsError(
                f"samples of {_name(samples[0])} and {_name(sample)} have other keys: {odd}; "
                "a batch holds one keymap"
            )
    listed = samples.listed_keys if isinstance(samples, Batch) else frozenset()
    return {
        key: [sample[key] for sample in samples] if key in listed else _stack(key, samples)
        for key in keys
    }


def _stack(key: str, samples: Sequence[dict[str, Any]]) -> Any:
    values = [sample[key] for sample in samples]
    if all(isinstance(value, np.ndarray | np.generic) for value in values):
        values = [torch.as_tensor(value) for value in values]
    if not any(isinstance(value, torch.Tensor) for value in values):
        return values
    first = _describe(values[0])
    for sample, value in zip(samples, values, strict=True):
        if _describe(value) != first:
            raise SettingsError(
                f"key {key!r} is {first} in {_name(samples[0])} and "
                f"{_describe(value)} in {_name(sample)}; for cameras of several sizes set "
                "size: [h, w] on the entry (or mixed_sizes: list), for other arrays use one "
                "keymap per embodiment"
            )
    if _is_channels_last(values[0]):
        return torch.stack([value.movedim(-3, -1) for value in values]).movedim(-1, -3)
    return torch.stack(values)


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape)} {value.dtype}"
    return type(value).__name__


def _is_channels_last(value: torch.Tensor) -> bool:
    """Return whether (…, C, H, W) is a view of (…, H, W, C) memory."""
    return value.dim() >= 3 and not value.is_contiguous() and value.movedim(-3, -1).is_contiguous()


def _name(sample: dict[str, Any]) -> str:
    return f"episode {sample.get('episode')!r}"
