"""Camera frames into the memory of a batch, each distinct one decoded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.decode import decode_jpeg

__all__ = ["FrameDecoder"]

_WHITE = np.float32(255)


class FrameDecoder:
    """Decodes the frames that a batch needs of one episode.

    Args:
        episode: named in errors.
    """

    def __init__(self, episode: str) -> None:
        self._episode = episode
        self._decoded: dict[tuple[str, int, tuple[int, ...]], npt.NDArray[Any]] = {}

    def decode(
        self,
        data: bytes | memoryview,
        out: npt.NDArray[Any],
        *,
        key: str,
        row: int,
        stored_size: tuple[int, int],
    ) -> None:
        """Decode a frame into `out`, or copy it from where it was decoded to before.

        Args:
            data: the JPEG.
            out: (H, W, 3), uint8 in 0…255 or float32 in 0…1; written in full.
            key: the camera.
            row: the frame's row.
            stored_size: the (height, width) that the JPEG must have.

        Raises:
            FrameError: see `decode_jpeg`.
        """
        name = (key, row, out.shape)
        source = self._decoded.get(name)
        if source is not None:
            np.copyto(out, source)
            return
        pixels = out if out.dtype == np.uint8 else np.empty(out.shape, dtype=np.uint8)
        decode_jpeg(
            data, pixels, stored_size=stored_size, episode=self._episode, key=key, frame=row
        )
        if pixels is not out:
            np.divide(pixels, _WHITE, out=out)
        self._decoded[name] = out
