"""Numbers in the dtype that a sample wants, or an error where they would not survive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.errors import ValueRangeError
from egoloader.keymap import KeySpec

__all__ = ["cast_rows", "output_dtype"]


def output_dtype(spec: KeySpec, stored: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype an entry's numbers leave as: its own, else float32, else (metadata) kept."""
    if spec.dtype is not None:
        return np.dtype(spec.dtype)
    return stored if spec.key_type == "metadata_keys" else np.dtype(np.float32)


def cast_rows(
    spec: KeySpec,
    numbers: npt.NDArray[Any],
    rows: npt.NDArray[np.int64],
    *,
    episodes: Sequence[str],
) -> npt.NDArray[Any]:
    """Cast numbers to the entry's output dtype.

    Floats round to a float dtype. Whole numbers must be exact: integers beyond the float's
    significand (2**24 for float32), and whatever an integer dtype can't hold, are refused.

    Args:
        spec: the entry.
        numbers: (B, n, D…) of the stored dtype, (B, D…) without a time axis.
        rows: (B, n) or (B,) int64, the row that each came from.
        episodes: (B,) names, for errors.

    Raises:
        ValueRangeError: a number does not survive the cast.
    """
    target = output_dtype(spec, numbers.dtype)
    if target == numbers.dtype:
        return numbers
    with np.errstate(invalid="ignore", over="ignore"):
        cast = numbers.astype(target)
    if numbers.dtype.kind == target.kind == "f" and np.isfinite(cast).all():
        return cast  # the quicker question
    lost = _lost(numbers, cast)
    if lost.any():
        place = tuple(np.argwhere(lost)[0])
        raise ValueRangeError(
            f"{numbers[place]} of dtype {numbers.dtype} does not fit into {target}; "
            "set the entry's dtype",
            episode=episodes[place[0]],
            key=spec.zarr_key,
            frame=int(rows[place[: rows.ndim]]),
        )
    return cast


def _lost(numbers: npt.NDArray[Any], cast: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return where a cast changed a number by more than rounding floats to floats."""
    source, target = numbers.dtype.kind, cast.dtype.kind
    if source == "b":
        return np.zeros(numbers.shape, dtype=bool)
    if target == "f":
        if source == "f":
            return np.asarray(np.isfinite(numbers) & ~np.isfinite(cast))
        limit = 2 ** (np.finfo(cast.dtype).nmant + 1)
        return np.asarray((numbers > limit) | (numbers < -limit))
    with np.errstate(invalid="ignore"):
        return np.asarray((cast.astype(numbers.dtype) != numbers) | ((cast < 0) != (numbers < 0)))
