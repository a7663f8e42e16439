"""Runs of rows of which the same is true."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["runs"]


def runs(is_so: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the half-open runs of true values, ascending."""
    edges = (np.flatnonzero(is_so[1:] != is_so[:-1]) + 1).tolist()
    if is_so[:1].any():
        edges.insert(0, 0)
    if len(edges) % 2:
        edges.append(len(is_so))
    yield from zip(edges[::2], edges[1::2], strict=True)
