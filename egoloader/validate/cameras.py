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
    decoder, watch = _Decoder(episode, key), _Watch(episode, key)
    for row, data in read_bytes(episode, key, depth):
        if isinstance(data, Finding):
            yield data
            continue
        try:
            decoder.decode(row, data)
        except EpisodeError as error:
            yield Finding(episode.name, "camera frame", error.message, key, row, row + 1)
        else:
            watch.compare(row, data)
    yield from decoder.findings()
    yield from watch.findings()


class _Decoder:
    """Decodes one camera's frames, and keeps what size they are of."""

    def __init__(self, episode: ZarrEpisode, key: str) -> None:
        self._episode, self._key = episode, key
        self._pixels = np.empty((0, 0, 3), dtype=np.uint8)
        self._rows: dict[tuple[int, ...], list[int]] = {}

    def decode(self, row: int, data: bytes) -> None:
        """Decode a frame.

        Raises:
            FrameError: it can't be.
        """
        name = self._episode.name
        size = jpeg_size(data, episode=name, key=self._key, frame=row)
        if self._pixels.shape[:2] != size:
            self._pixels = np.empty((*size, 3), dtype=np.uint8)
        try:
            decode_pixels(data, self._pixels, size)
        except ValueError as error:
            message = f"the JPEG is truncated or corrupt ({error})"
            raise FrameError(message, episode=name, key=self._key, frame=row) from error
        self._rows.setdefault(size, []).append(row)

    def findings(self) -> Iterator[Finding]:
        """Yield the frames of another size than is declared, or than most have."""
        feature = (self._episode.header.features or {}).get(self._key)
        shape = () if feature is None else feature.shape
        wanted, whose = shape[:2], "the episode's metadata says"
        if len(shape) != 3:
            wanted = max(self._rows, key=lambda size: len(self._rows[size]), default=())
            whose = "most frames have"
        for size, rows in self._rows.items():
            if size != wanted:
                message = (
                    f"{size[0]} x {size[1]} pixels (height x width), "
                    f"{whose} {wanted[0]} x {wanted[1]}"
                )
                for row in rows:
                    yield Finding(
                        self._episode.name, "camera frame", message, self._key, row, row + 1
                    )


class _Watch:
    """Counts the frames of one camera that repeat the one before."""

    def __init__(self, episode: ZarrEpisode, key: str) -> None:
        self._episode, self._key = episode, key
        self._limit = max(MAX_STILL_S * episode.fps, 2)
        self._last, self._since, self._row = b"", 0, -1
        self._first, self._num_seen, self._has_changed = 0, 0, False
        self._still: list[tuple[int, int]] = []

    def compare(self, row: int, data: bytes) -> None:
        """Compare a frame to the last one that was looked at."""
        is_same = data == self._last
        if not self._num_seen:
            self._first = self._since = row
        elif not is_same or row != self._row + 1:
            self._has_changed |= not is_same
            self._end_stretch()
            self._since = row
        self._num_seen += 1
        self._row, self._last = row, data

    def findings(self) -> Iterator[Finding]:
        """Yield what can be said when all frames were looked at."""
        name, key = self._episode.name, self._key
        if not self._has_changed:
            if self._row + 1 - self._first > self._limit:
                message = f"all {self._num_seen} frames looked at are the same picture"
                yield Finding(name, "frozen camera", message, key, harm="content")
            return
        self._end_stretch()
        for start, stop in self._still:
            message = f"{stop - start} frames are the same picture"
            yield Finding(name, "repeated frames", message, key, start, stop, "content")

    def _end_stretch(self) -> None:
        """Keep the stretch of equal frames that ends with the last one, where it is long."""
        if self._row + 1 - self._since > self._limit:
            self._still.append((self._since, self._row + 1))
