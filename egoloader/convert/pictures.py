"""Camera frames that a LeRobot data set keeps in its parquet files, as PNG or JPEG bytes."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.convert.video import FRAME_LIMIT, RgbScaler
from egoloader.decode import decode_jpeg, jpeg_size
from egoloader.errors import FrameError, require_extra

__all__ = ["is_depth_picture", "picture_frames"]

Image = npt.NDArray[np.uint8]

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_PNG_BIT_DEPTH = 24  # the byte's place: after the signature, the chunk's head, width and height
_BATCH_ROWS = 16  # pictures held at once


def is_depth_picture(path: Path, key: str) -> bool:
    """Return whether the column's first picture is a 16-bit PNG, which holds depth."""
    with closing(_encoded(path, key)) as pictures:
        first = next(pictures, b"")
    return first.startswith(_PNG) and first[_PNG_BIT_DEPTH : _PNG_BIT_DEPTH + 1] == b"\x10"


def picture_frames(path: Path, key: str, size: tuple[int, int] | None) -> Iterator[Image | bytes]:
    """Yield the pictures of one column, in the order of the rows.

    Args:
        path: the parquet file.
        key: the column.
        size: (height, width) to scale to, in pixels; None keeps the picture's.

    Yields:
        JPEG bytes as they are where no size is asked for, else (H, W, 3) uint8, RGB.

    Raises:
        FrameError: an unreadable file, a row without bytes, a format that is neither PNG nor JPEG,
            or a picture that can't be decoded.
    """
    decode = _Decoder(path, key, size)
    for row, data in enumerate(_encoded(path, key)):
        yield decode(data, row)


class _Decoder:
    """Decodes and scales encoded pictures one by one."""

    def __init__(self, path: Path, key: str, size: tuple[int, int] | None) -> None:
        self._av = require_extra("av", "convert")
        self._scale = RgbScaler(size)
        self._keeps_jpeg = size is None
        self._episode, self._key = path.stem, key

    def __call__(self, data: bytes, row: int) -> Image | bytes:
        if data.startswith(_JPEG):
            return self._jpeg(data, row)
        if data.startswith(_PNG):
            return self._scale(self._png(data, row))
        raise self._error(f"{data[:8]!r}… is the start of neither a PNG nor a JPEG picture", row)

    def _jpeg(self, data: bytes, row: int) -> Image | bytes:
        where: dict[str, Any] = {"episode": self._episode, "key": self._key, "frame": row}
        size = jpeg_size(data, **where)
        if self._keeps_jpeg:
            return data
        rgb = np.empty((*size, 3), np.uint8)
        decode_jpeg(data, rgb, stored_size=size, **where)
        return self._scale(self._av.VideoFrame.from_ndarray(rgb, format="rgb24"))

    def _png(self, data: bytes, row: int) -> Any:
        context = self._av.CodecContext.create("png", "r")
        context.thread_count = 1
        context.options = {"err_detect": "crccheck+explode", **FRAME_LIMIT}
        try:
            frames = context.decode(self._av.Packet(data))
        except self._av.FFmpegError as error:
            raise self._error(f"the PNG is truncated or corrupt ({error.strerror})", row) from error
        if len(frames) != 1:
            raise self._error(f"the PNG holds {len(frames)} pictures, not one", row)
        return frames[0]

    def _error(self, message: str, row: int) -> FrameError:
        return FrameError(message, episode=self._episode, key=self._key, frame=row)


def _encoded(path: Path, key: str) -> Generator[bytes, None, None]:
    arrow, parquet = (
        require_extra("pyarrow", "convert"),
        require_extra("pyarrow.parquet", "convert"),
    )
    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            if key not in file.schema_arrow.names:
                raise FrameError(
                    "meta/info.json lists the camera, and the parquet file has no such column",
                    episode=path.stem,
                    key=key,
                )
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=[key]):
                for cell in batch.column(batch.schema.get_field_index(key)):
                    yield _bytes(cell.as_py(), path, key, row)
                    row += 1
    except (arrow.ArrowException, OSError) as error:
        raise FrameError(
            f"the parquet file can't be read: {error}", episode=path.stem, key=key, frame=row
        ) from error


def _bytes(cell: Any, path: Path, key: str, row: int) -> bytes:
    data = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(data, bytes):
        named = f" but the path {cell['path']!r}" if isinstance(cell, dict) else ""
        raise FrameError(
            f"the row holds no picture{named}; only bytes are taken",
            episode=path.stem,
            key=key,
            frame=row,
        )
    return data
