"""Transforms that reckon with the current row of another key."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from egoloader.batch import Sample
from egoloader.row import Row
from egoloader.transforms.numbers import BoolArray, FloatArray, RowsTransform
from egoloader.transforms.transform import Leads, Shape

__all__ = ["ReferenceTransform"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceTransform(RowsTransform):
    """Changes rows by a row of another key, the same for all steps of a window.

    Whether the reference has steps is told from `frame_index` or `fps`, which samples and batches
    carry: their axes are those of a batch. Without them, a reference (n, D) is one row for each of
    the first n that lead the rows of `keys`.

    Args:
        keys: of the sample; rows (…, D), in a window or not.
        row: the parts of a row of `keys`.
        reference: the other key, which stays as it is: (…, D), or with steps (…, K, D).
        step: which of the reference's steps is taken, where it has them: -1 is the last, so the
            current one of a history; 0 is the first, so the current one of a horizon.
    """

    reference: str
    step: int | None = None

    def _check_row(self) -> None:
        self._names("reference", [self.reference])
        if self.reference in self.keys:
            self._refuse(f"key {self.reference!r} can't be its own reference; leave it out of keys")
        if self.step is not None and type(self.step) is not int:
            self._refuse(f"step must be a whole number, got {self.step!r}")

    @property
    @abc.abstractmethod
    def _reference_row(self) -> Row:
        """The parts of a row of the reference."""

    def _options(self) -> dict[str, Any]:
        """Return the options, which the inverse has, too."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def _row_keys(self) -> tuple[str, ...]:
        return (*self.keys, self.reference)

    def _takes(self, key: str, axes: int) -> bool:
        return axes == 1 or (axes > 1 and key != self.reference)

    def _check_axes(self, given: Mapping[str, Shape], leads: Leads) -> None:
        # Its own class is named, as the zero-argument form does not go with slots.
        RowsTransform._check_axes(self, given, leads)
        shape = self._rows_shape(given, self.reference)
        lead = leads.of.get(self.reference, len(shape) - 1)
        if leads.batch is not None and lead - leads.batch != (0 if self.step is None else 1):
            wanted = "has steps: set step" if self.step is None else "has no steps: leave step out"
            self._refuse(f"reference {self.reference!r}, of the shape {list(shape)}, {wanted}")

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = RowsTransform._shape(self, given, key)
        other = self._rows_shape(given, self.reference, axes=1 if self.step is None else 2)
        self._check_width(self.reference, other, self._reference_row)
        if self.step is not None and not -other[-2] <= self.step < other[-2]:
            self._refuse(f"reference {self.reference!r} has {other[-2]} steps, and no {self.step}")
        lead = other[: -1 if self.step is None else -2]
        if shape[:-1][: len(lead)] != lead:
            self._refuse(
                f"key {key!r}, of the shape {list(shape)}, can't be reckoned with reference "
                f"{self.reference!r}, of the shape {list(other)}"
            )
        return shape

    def _reference(self, sample: Sample, axes: int) -> tuple[FloatArray, BoolArray]:
        """Return the reference's rows with that many leading axes, and which are padded."""
        numbers = self._numbers(sample, self.reference)
        padded = self._padded(sample, self.reference, numbers.shape[:-1])
        if self.step is not None:
            numbers, padded = numbers[..., self.step, :], padded[..., self.step]
        for part in self._reference_row.parts:
            if part.is_rotation:  # named by the reference's own axes, before there are more
                self._rotations(self.reference, numbers, part, padded)
        lead = (*padded.shape, *[1] * (axes - padded.ndim))
        return numbers.reshape(*lead, numbers.shape[-1]), padded.reshape(lead)
