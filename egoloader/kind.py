"""What the samples of some episodes have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from egoloader.batch import Field
from egoloader.keymap import KeySpec
from egoloader.plan import PlanOutline

__all__ = ["Entry", "Kind", "Source"]

#: What an entry is cut out of: `numbers` of the dtype that they leave as, others that are `cast`,
#: those that steps lie `between`, rows of `json`, `texts` of annotations or the `task` (or that
#: where there are none of those), a `camera`, or nothing, where the array is `absent`.
Source = Literal[
    "numbers", "cast", "between", "json", "texts", "task", "texts_or_task", "camera", "absent"
]


class Entry(NamedTuple):
    """One entry of the keymap as one episode has it.

    Attributes:
        key: the sample's key.
        spec: the entry.
        zarr_key: the array.
        source: what it is cut out of.
        number: of its cut, in the outline of what is read; -1 where nothing is.
        is_image: whether it is decoded into the memory of a batch.
        dtype: what its numbers leave as; None for rows of JSON.
        steps: the axis of steps that a sample keeps, (n,) or ().
        mask: the sample's key of its mask, if it emits one.
        span_mask: that of the mask of its steps in other annotation spans, likewise.
    """

    key: str
    spec: KeySpec
    zarr_key: str
    source: Source
    number: int
    is_image: bool
    dtype: np.dtype[Any] | None
    steps: tuple[int, ...]
    mask: str | None
    span_mask: str | None


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Kind:
    """What the samples of episodes have in common that a batch can read and cut as one.

    Such episodes share the object.

    Attributes:
        outline: of what is read.
        arrays: that are read, without cameras: the number of the read, and those that it is of.
        cameras: that are read, and the number of the read.
        rows: the keymap's entries without cameras.
        images: those of cameras.
        masks: those that emit one.
        span_masks: those that emit one of steps in other annotation spans.
        has_jpegs: whether images leave as they are stored.
        fields: of a sample; none as long as the size of a camera is not known.
        pixels: those of them that are decoded into a batch's own memory.
    """

    outline: PlanOutline
    arrays: tuple[tuple[int, tuple[str, ...]], ...]
    cameras: tuple[tuple[str, int], ...]
    rows: tuple[Entry, ...]
    images: tuple[Entry, ...]
    masks: tuple[Entry, ...]
    span_masks: tuple[Entry, ...]
    has_jpegs: bool
    fields: tuple[Field, ...] = ()
    pixels: tuple[Field, ...] = ()
