"""A camera on its way to disk: JPEGs taken as they are, pixels encoded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from egoloader.arrayfile import (
    BYTES_CODECS,
    Place,
    ShardFile,
    as_array,
    encode_vlen_bytes,
    sharding,
    write_metadata,
)
from egoloader.decode import MAX_PIXELS, jpeg_size
from egoloader.errors import FrameError, WriterError

__all__ = ["CameraFile", "JpegSettings"]

_SUBSAMPLINGS = frozenset({"444", "422", "420", "440", "411"})


@dataclass(frozen=True, slots=True)
class JpegSettings:
    """How frames that come as pixels are encoded.

    Attributes:
        quality: 1…100.
        subsampling: of the chroma: `420`, `422`, `440`, `411` or `444`.

    Raises:
        WriterError: a value that can't be meant.
    """

    quality: int
    subsampling: str

    def __post_init__(self) -> None:
        if type(self.quality) is not int or not 1 <= self.quality <= 100:
            raise WriterError(f"jpeg_quality must be a whole number in 1…100, got {self.quality!r}")
        if self.subsampling not in _SUBSAMPLINGS:
            raise WriterError(
                f"jpeg_subsampling must be one of {sorted(_SUBSAMPLINGS)}, got {self.subsampling!r}"
            )


class CameraFile:
    """A camera: one JPEG a row, one chunk a JPEG; nothing is on disk before the first `append`.

    Args:
        folder: the array's folder.
        first: its first frame, which fixes the size.
        jpeg: how pixels are encoded.
        place: named in errors.

    Raises:
        WriterError: `first` is no image.
    """

    def __init__(self, folder: Path, first: Any, *, jpeg: JpegSettings, place: Place) -> None:
        if isinstance(first, bytes):
            self._size = _jpeg_size(first, place)
        else:
            self._size = _pixel_size(_as_pixels(first, place))
        self._folder, self._jpeg, self._rows = folder, jpeg, 0
        self._shard = ShardFile(folder, 1)

    @property
    def feature(self) -> dict[str, Any]:
        """The array's entry in the episode's `features`."""
        return {"dtype": "jpeg", "shape": [*self._size, 3]}

    def check(self, image: Any, place: Place) -> bytes:
        """Return `image` as a JPEG.

        Raises:
            WriterError: it is of another size than the first frame, or can't be decoded whole.
        """
        if isinstance(image, bytes):
            self._check_size(_jpeg_size(image, place), place)
            _check_decodes(image, place)
            return bytes(image)
        pixels = _as_pixels(image, place)
        self._check_size(_pixel_size(pixels), place)
        return self._encode(pixels, place)

    def append(self, jpeg: bytes) -> None:
        """Append a checked JPEG; it goes to disk at once."""
        self._shard.append(encode_vlen_bytes([jpeg]))
        self._rows += 1

    def finish(self) -> None:
        """Write the index and the array's metadata."""
        self._shard.finish()
        write_metadata(
            self._folder,
            shape=(self._rows,),
            chunk=(self._rows,),
            data_type="variable_length_bytes",
            fill_value="",
            codecs=[sharding((1,), BYTES_CODECS)],
        )

    def abandon(self) -> None:
        """Close the file without finishing it."""
        self._shard.abandon()

    def _check_size(self, size: tuple[int, int], place: Place) -> None:
        if size != self._size:
            raise WriterError(
                f"{place}: {size[0]} x {size[1]} pixels (height x width), the first frame has "
                f"{self._size[0]} x {self._size[1]}"
            )

    def _encode(self, pixels: npt.NDArray[np.uint8], place: Place) -> bytes:
        try:
            jpeg = simplejpeg.encode_jpeg(
                np.ascontiguousarray(pixels),
                quality=self._jpeg.quality,
                colorspace="RGB",
                colorsubsampling=self._jpeg.subsampling,
            )
        except ValueError as error:
            raise WriterError(f"{place}: the image can't be encoded: {error}") from error
        return bytes(jpeg)


def _as_pixels(image: Any, place: Place) -> npt.NDArray[np.uint8]:
    pixels = as_array(image, place)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise WriterError(
            f"{place}: pixels must be (H, W, 3) uint8 RGB, got {pixels.shape} {pixels.dtype}; "
            "JPEGs come as bytes"
        )
    if not 0 < pixels.shape[0] * pixels.shape[1] <= MAX_PIXELS:
        raise WriterError(
            f"{place}: {pixels.shape[0]} x {pixels.shape[1]} pixels; an image has at least one "
            f"and at most {MAX_PIXELS}"
        )
    return pixels


def _pixel_size(pixels: npt.NDArray[np.uint8]) -> tuple[int, int]:
    return pixels.shape[0], pixels.shape[1]


def _jpeg_size(jpeg: bytes, place: Place) -> tuple[int, int]:
    try:
        return jpeg_size(jpeg, episode=place.episode, key=place.key, frame=place.frame)
    except FrameError as error:
        raise WriterError(str(error)) from error


def _check_decodes(jpeg: bytes, place: Place) -> None:
    """Refuse a JPEG that a strict decoder refuses: one that is cut short, above all.

    At an eighth of its size all of the data is still read, and little else is computed.
    """
    try:
        simplejpeg.decode_jpeg(jpeg, min_height=1, min_width=1)
    except ValueError as error:
        raise WriterError(f"{place}: the JPEG is truncated or corrupt ({error})") from error
