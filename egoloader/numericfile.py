"""An array of numbers on its way to disk, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numcodecs.zstd import Zstd

from egoloader.arrayfile import (
    LARGE_ROW,
    ZSTD_LEVEL,
    Place,
    ShardFile,
    as_array,
    numeric_codecs,
    sharding,
    write_metadata,
)
from egoloader.errors import WriterError

__all__ = ["NumericFile"]


class NumericFile:
    """An array of numbers, written row by row; nothing is on disk before the first `append`.

    Args:
        folder: the array's folder.
        first: its first row, (D…); fixes shape and dtype.
        chunk_rows: rows of one chunk.
        place: named in errors.

    Raises:
        WriterError: `first` is not made of booleans, integers or floats.
    """

    def __init__(
        self, folder: Path, first: npt.ArrayLike, *, chunk_rows: int, place: Place
    ) -> None:
        row = as_array(first, place)
        if row.dtype.kind not in "biuf" or row.dtype.itemsize > 8:
            raise WriterError(
                f"{place}: numbers must be bool, int, uint, or float16 to float64, got {row.dtype}"
            )
        if row.size == 0:
            raise WriterError(f"{place}: a row of shape {row.shape} holds nothing")
        self._folder, self._shape, self._dtype = folder, row.shape, row.dtype.newbyteorder("=")
        self._chunk_rows, self._rows = chunk_rows, 0
        self._chunk = np.zeros((chunk_rows, *row.shape), dtype=self._dtype)
        self._shard = ShardFile(folder, self._chunk.ndim)
        self._row_bytes = row.nbytes
        self._zstd = Zstd(level=ZSTD_LEVEL)
        self.non_finite_rows, self.first_non_finite = 0, -1

    @property
    def feature(self) -> dict[str, Any]:
        """The array's entry in the episode's `features`."""
        return {"dtype": self._dtype.name, "shape": list(self._shape)}

    def check(self, value: npt.ArrayLike, place: Place) -> npt.NDArray[Any]:
        """Return `value` as a row.

        Raises:
            WriterError: it is of another shape or dtype than the first row.
        """
        row = as_array(value, place)
        if row.shape != self._shape:
            raise WriterError(f"{place}: shape {row.shape}, the first row has {self._shape}")
        if row.dtype.newbyteorder("=") != self._dtype:
            raise WriterError(f"{place}: dtype {row.dtype}, the first row has {self._dtype}")
        return row

    def append(self, row: npt.NDArray[Any]) -> None:
        """Append a checked row; a full chunk goes to disk."""
        if self._dtype.kind == "f" and not np.isfinite(row).all():
            if self.non_finite_rows == 0:
                self.first_non_finite = self._rows
            self.non_finite_rows += 1
        self._chunk[self._rows % self._chunk_rows] = row
        self._rows += 1
        if self._rows % self._chunk_rows == 0:
            self._flush()

    def finish(self) -> None:
        """Write the last chunk, the index and the array's metadata."""
        if self._rows % self._chunk_rows:
            self._chunk[self._rows % self._chunk_rows :] = 0
            self._flush()
        self._shard.finish()
        write_metadata(
            self._folder,
            shape=(self._rows, *self._shape),
            chunk=(self._shard.num_chunks * self._chunk_rows, *self._shape),
            data_type=self._dtype.name,
            fill_value=False if self._dtype.kind == "b" else 0,
            codecs=[sharding((self._chunk_rows, *self._shape), numeric_codecs(self._row_bytes))],
        )

    def abandon(self) -> None:
        """Close the file without finishing it."""
        self._shard.abandon()

    def _flush(self) -> None:
        data = self._chunk.astype(self._dtype.newbyteorder("<"), copy=False).tobytes()
        is_large = self._row_bytes >= LARGE_ROW
        self._shard.append(bytes(self._zstd.encode(data)) if is_large else data)
