"""Comparing samples and batches with what they should hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch

__all__ = ["Sample", "difference", "difference_in_a_row", "in_a_row"]

Sample = dict[str, Any]
Q = TypeVar("Q")


def difference(keys: Iterable[str], reference: Sample, sample: Sample) -> str | None:
    """Return what differs between two samples in the entries `keys`; None where nothing does."""
    for key in keys:
        if key not in sample:
            return f"no {key!r}"
        wanted, got = reference[key], sample[key]
        if type(wanted) is not type(got):
            return f"{key!r} is a {type(got).__name__}, not a {type(wanted).__name__}"
        if not isinstance(wanted, torch.Tensor):
            if wanted != got:
                return f"{key!r} holds other bytes"
        elif wanted.shape != got.shape or wanted.dtype != got.dtype:
            return f"{key!r} is {got.dtype} {tuple(got.shape)}"
        elif not torch.equal(wanted, got):
            return f"{key!r} holds other numbers"
    return None


def in_a_row(make_sample: Callable[[Q], Sample]) -> Callable[[Sequence[Q]], list[Sample]]:
    """Make samples one after the other, as a loader does.

    A contender that is asked for one sample at a time finds the processor's caches full of what
    the one before it left there.
    """
    return lambda questions: [make_sample(question) for question in questions]


def difference_in_a_row(
    keys: Iterable[str], reference: Sequence[Sample], samples: Sequence[Sample]
) -> str | None:
    """Return what differs first between the samples of two runs; None where nothing does."""
    wanted = tuple(keys)
    for one, other in zip(reference, samples, strict=True):
        found = difference(wanted, one, other)
        if found is not None:
            return found
    return None
