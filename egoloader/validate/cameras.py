"""What is wrong with camera frames: each is decoded, and compared to the one before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from egoloader.decode import decode_pixels, jpeg_size
from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeError, FrameError
from egoloader.validate.finding import Finding
from egoloader.validate.stored import Depth, read_bytes

__all__ = ["check_camera"]

#: Seconds for which a camera may show the very same picture.
MAX_STILL_S = 1.0


def check_camera(episode: ZarrEpisode, key: str, depth: Depth) -> Iterator[Finding]:
    """Find frames that can't be decoded or are of another size, and a camera that stands still."""
    watch = _Watch(episode, key)
    for row, data in read_bytes(episode, key, depth):
        if isinstance(data, Finding):
            yield data
            watch.forget()
            continue
        try:
            watch.decode(row, data)
        except EpisodeError as error:
            yield Finding(episode.name, "camera frame", error.message, key, row, row + 1)
        yield from watch.compare(row, data)
    yield from watch.end(depth)


class _Watch:
    """Decodes one camera's frames, and counts those that repeat the one before."""

    def __init__(self, episode: ZarrEpisode, key: str) -> None:
        self._episode, self._key = episode, key
        feature = (episode.header.features or {}).get(key)
        shape = () if feature is None else feature.shape
        self._size = (shape[0], shape[1]) if len(shape) == 3 else None
        self._pixels = np.empty((0, 0, 3), dtype=np.uint8)
        self._last, self._since, self._row = b"", 0, -2
        self._num_seen = self._num_changes = 0

    def decode(self, row: int, data: bytes) -> None:
        """Decode a frame.

        Raises:
            FrameError: it can't be, or is of another size than the others.
        """
        name = self._episode.name
        size = jpeg_size(data, episode=name, key=self._key, frame=row)
        self._size = self._size or size
        if size != self._size:
            raise FrameError(
                f"{size[0]} x {size[1]} pixels (height x width), the others or the episode's "
                f"metadata have {self._size[0]} x {self._size[1]}",
                episode=name,
                key=self._key,
                frame=row,
            )
        if self._pixels.shape[:2] != size:
            self._pixels = np.empty((*size, 3), dtype=np.uint8)
        try:
            decode_pixels(data, self._pixels, size)
        except ValueError as error:
            message = f"the JPEG is truncated or corrupt ({error})"
            raise FrameError(message, episode=name, key=self._key, frame=row) from error

    def compare(self, row: int, data: bytes) -> Iterator[Finding]:
        """Compare a frame to the one before it; yield a stretch of equal ones that ends with it."""
        self._num_seen += 1
        is_next = row == self._row + 1
        if not is_next or data != self._last:
            self._num_changes += is_next
            yield from self._stretch(row if is_next else self._row + 1)
            self._since, self._last = row, data
        self._row = row

    def forget(self) -> None:
        """Take what comes next for the first frame."""
        self._row, self._last = -2, b""

    def end(self, depth: Depth) -> Iterator[Finding]:
        """Yield what can be said when all frames were looked at."""
        is_still = self._num_seen > self._limit and not self._num_changes
        if is_still and self._num_seen > 1:
            message = f"all {self._num_seen} frames looked at are the same picture"
            yield Finding(self._episode.name, "frozen camera", message, self._key, harm="content")
        elif depth == "full":
            yield from self._stretch(self._row + 1)

    @property
    def _limit(self) -> float:
        return max(MAX_STILL_S * self._episode.fps, 2)

    def _stretch(self, stop: int) -> Iterator[Finding]:
        length = stop - self._since
        if length > self._limit and self._num_changes > 0:
            message = f"{length} frames are the same picture"
            yield Finding(
                self._episode.name,
                "repeated frames",
                message,
                self._key,
                self._since,
                stop,
                "content",
            )
