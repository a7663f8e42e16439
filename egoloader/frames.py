"""Camera frames into the memory of a batch, each distinct one decoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.decode import check_size, decode_pixels, jpeg_head
from egoloader.errors import FrameError

__all__ = ["Camera"]

_WHITE = np.float32(255)


class Camera:
    """One camera of one episode: checks and decodes its frames.

    Args:
        episode: named in errors.
        key: the camera, named in errors.
        size: the (height, width) in pixels that its frames must have.
    """

    def __init__(self, episode: str, key: str, size: tuple[int, int]) -> None:
        self.episode, self.key, self.size = episode, key, size
        # A head that was checked: one camera's frames tend to begin alike, up to their pixels.
        self._head: bytes | None = None

    def check(self, data: bytes | memoryview, row: int) -> None:
        """Check from a JPEG's head that it has the size that it must have.

        Raises:
            FrameError: it has another, or see `jpeg_size`.
        """
        head = self._head
        if head and bytes(data[: len(head)]) == head:
            return
        check_size(data, self.size, episode=self.episode, key=self.key, frame=row)
        if head is None:
            self._head = jpeg_head(data)

    def decode(self, data: bytes | memoryview, outs: Sequence[npt.NDArray[Any]], row: int) -> None:
        """Decode a frame into memory, once for each size that is asked for.

        Args:
            data: the JPEG.
            outs: (H, W, 3) each, all uint8 in 0…255 or all float32 in 0…1; written in full.
            row: the frame's row.

        Raises:
            FrameError: truncated, corrupt, or see `check`.
        """
        self.check(data, row)
        decoded: dict[tuple[int, ...], npt.NDArray[Any]] = {}
        for out in outs:
            source = decoded.setdefault(out.shape, out)
            if source is not out:
                np.copyto(out, source)
                continue
            pixels = out if out.dtype == np.uint8 else np.empty(out.shape, dtype=np.uint8)
            try:
                decode_pixels(data, pixels, self.size)
            except ValueError as error:
                raise FrameError(
                    f"the JPEG is truncated or corrupt ({error})",
                    episode=self.episode,
                    key=self.key,
                    frame=row,
                ) from error
            if pixels is not out:
                np.divide(pixels, _WHITE, out=out)
