"""The dtype that PyTorch makes floats of, as Lightning sets it to a trainer's precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["default_dtype"]


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Make floats of a dtype within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
