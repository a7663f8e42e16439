"""A batch: B samples, and the tensors that they are views of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Allocate", "Batch", "Column", "Field", "Sample", "Values", "allocate_column"]

Sample = dict[str, Any]
#: One value a sample: memory with a leading axis of B, or a list of B.
Column = npt.NDArray[Any] | list[Any]
#: One value a sample, as it is handed out.
Values = torch.Tensor | list[Any]
#: Makes memory for a key, of a shape and a dtype; what it holds does not matter.
Allocate = Callable[[str, tuple[int, ...], np.dtype[Any]], npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Field:
    """One key of a sample.

    Attributes:
        key: the sample's key.
        shape: of one sample's value, an image's as (…, H, W, 3); None for Python objects, and for
            what transforms made.
        dtype: None likewise.
        is_image: whether it is handed out as (…, 3, H, W); without a shape, images of any size
            that a batch lists.
    """

    key: str
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    is_image: bool = False

    @property
    def has_pixels(self) -> bool:
        """Whether frames are decoded into the batch's own memory."""
        return self.is_image and self.shape is not None


def allocate_column(field: Field, batch_size: int, allocate: Allocate) -> Column:
    """Return a field's column of a batch, not filled yet."""
    if field.shape is None or field.dtype is None:
        return [None] * batch_size
    return allocate(field.key, (batch_size, *field.shape), field.dtype)


class Batch(Sequence[Sample]):
    """B samples in the order asked for, and the batch's tensors.

    Samples are dicts of views into the batch's memory, made when first asked for and then kept, so
    that a sample that was changed stays changed. `egoloader.collate` hands the tensors out uncopied
    as long as no sample was asked for, and stacks the samples else.

    Args:
        fields: of the samples.
        columns: of each field, filled memory, or values as they are handed out.
        size: B.
    """

    def __init__(
        self, fields: Sequence[Field], columns: Mapping[str, Column | Values], size: int
    ) -> None:
        self._fields, self._columns, self._has_columns = fields, columns, True
        self._samples: list[Sample | None] = [None] * size

    @classmethod
    def of_samples(cls, samples: Sequence[Sample], fields: Sequence[Field] = ()) -> Batch:
        """Return a batch of samples that have no memory in common, made of such fields."""
        batch = cls(fields, {}, 0)
        batch._samples, batch._has_columns = list(samples), False
        return batch

    @property
    def fields(self) -> Sequence[Field]:
        """What samples hold."""
        return self._fields

    @property
    def listed_keys(self) -> frozenset[str]:
        """The keys whose values stay a list of B, whatever their shapes: images of mixed sizes."""
        return frozenset(
            field.key for field in self._fields if field.is_image and not field.has_pixels
        )

    @property
    def tensors(self) -> dict[str, Values] | None:
        """The batch's values by key, each a tensor with a leading axis of B or a list of B.

        None where the samples hold more than these do: they were asked for and may have been
        changed, were changed one by one, or differ in keys or shapes.
        """
        if not self._has_columns or any(sample is not None for sample in self._samples):
            return None
        return {
            field.key: list(values) if isinstance(values, list) else _tensor(field, values)
            for field, values in self._values()
        }

    @property
    def num_bytes(self) -> int:
        """Bytes of the batch's tensors; Python objects are not counted."""
        if self._has_columns:
            columns = self._columns.values()
            return sum(column.nbytes for column in columns if not isinstance(column, list))
        values = (value for sample in self._samples if sample for value in sample.values())
        return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...

    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...

    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        sample = self._samples[index]
        if sample is None:
            sample = self._samples[index] = self._sample(index)
        return sample

    def _sample(self, index: int) -> Sample:
        sample: Sample = {}
        for field, values in self._values():
            if not isinstance(values, np.ndarray):
                sample[field.key] = values[index]
            elif field.is_image:
                sample[field.key] = _tensor(field, values[index])
            else:
                sample[field.key] = torch.from_numpy(values[index, ...])
        return sample

    def _values(self) -> Iterator[tuple[Field, Column | Values]]:
        for field in self._fields:
            yield field, self._columns[field.key]


def _tensor(field: Field, values: npt.NDArray[Any] | torch.Tensor) -> torch.Tensor:
    """Return values as they are handed out: a tensor on the same memory."""
    if isinstance(values, torch.Tensor):
        return values
    tensor = torch.from_numpy(values)
    return tensor.movedim(-1, -3) if field.is_image else tensor
