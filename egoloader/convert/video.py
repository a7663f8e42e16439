"""Frames of a video file, in the order they are shown, as RGB arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from egoloader.decode import MAX_PIXELS
from egoloader.errors import ConversionError, require_extra

if TYPE_CHECKING:
    from av import VideoFrame

__all__ = ["FRAME_LIMIT", "RgbScaler", "video_frames"]

Image = npt.NDArray[np.uint8]

#: What a decoder is told, so that it makes no room for pictures larger than any.
FRAME_LIMIT = {"max_pixels": str(MAX_PIXELS)}
#: A file is what it holds, whatever it is called: one that lists others would lead to them.
_CONTAINERS = {
    "format_whitelist": "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,ogg",
    "protocol_whitelist": "file",
}


class RgbScaler:
    """Turns decoded frames into RGB arrays of one size.

    The frame's own colour matrix and range are honoured. Frames that shrink are area-averaged,
    frames that grow in either direction are scaled bicubically.
    """

    def __init__(self, size: tuple[int, int] | None) -> None:
        """Make one for frames of `size`, (height, width) in pixels; None keeps each frame's."""
        self._size = size
        self._kinds = require_extra("av.video.reformatter", "convert").Interpolation
        self._reformatter: Any = require_extra("av.video.reformatter", "convert").VideoReformatter()

    def __call__(self, frame: VideoFrame) -> Image:
        """Return the frame as (H, W, 3) uint8."""
        height, width = self._size or (frame.height, frame.width)
        grows = height > frame.height or width > frame.width
        kind = self._kinds.BICUBIC if grows else self._kinds.AREA
        if (height, width) == (frame.height, frame.width):
            kind = self._kinds.BILINEAR
        # One thread: the processes of a conversion already fill the cores.
        rgb = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=kind, threads=1
        )
        return np.ascontiguousarray(rgb.to_ndarray())


def video_frames(
    path: Path, where: str, size: tuple[int, int] | None, threads: int
) -> Iterator[Image]:
    """Yield every frame of the file's first video stream, in the order they are shown.

    Args:
        path: the file.
        where: what to call the video in an error, such as the episode and the key.
        size: (height, width) to scale to, in pixels; None keeps the frame's.
        threads: decoder threads.

    Yields:
        (H, W, 3) uint8, RGB.

    Raises:
        ConversionError: no video in the file, or a frame that can't be decoded without damage.
    """
    av = require_extra("av", "convert")
    scale = RgbScaler(size)
    count = 0
    try:
        with av.open(str(path), options=dict(_CONTAINERS)) as container:
            if not container.streams.video:
                raise ConversionError(f"{where}: {path.name} holds no video stream")
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            stream.codec_context.thread_count = threads
            # Without it, damage is painted over and passed on as a frame.
            stream.codec_context.options = {"err_detect": "explode", **FRAME_LIMIT}
            for frame in container.decode(stream):
                if frame.is_corrupt:
                    raise ConversionError(
                        f"{where}, frame {count}: {path.name} is damaged; it can't be decoded"
                    )
                yield scale(frame)
                count += 1
    except av.FFmpegError as error:
        raise ConversionError(
            f"{where}, at or after frame {count}: {path.name} can't be decoded: {error.strerror}"
        ) from error
