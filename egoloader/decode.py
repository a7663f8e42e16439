"""From the bytes of one camera frame to pixels: strict, and never in wrong colours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from egoloader.errors import FrameError

__all__ = ["MAX_PIXELS", "check_size", "decode_jpeg", "decode_pixels", "jpeg_head", "jpeg_size"]

#: Largest image that is decoded, in pixels.
MAX_PIXELS = 64_000_000
#: Times that a JPEG may go over its picture, scan by scan. Progressive ones have some ten; a scan
#: takes a few bytes, and the decoder as long as any other.
MAX_SCANS = 64
#: Pixels that all scans together may go over, where a picture is large; some scans may all.
SCANNED_PIXELS, LEAST_SCANS = 2**30, 16

#: Longest head that is worth comparing others with.
_LONGEST_HEAD = 4096
_START_OF_SCAN = 0xDA
#: Frames, one after the other pass of which is sharpened: they have many scans.
_PROGRESSIVE = (0xC2, 0xCA)
#: Markers in the range of those of frames that are none.
_NO_FRAMES = (0xC4, 0xC8, 0xCC)

Pixels = npt.NDArray[np.uint8]


def jpeg_size(data: bytes | memoryview, *, episode: str, key: str, frame: int) -> tuple[int, int]:
    """Return a JPEG's (height, width) in pixels, from its header.

    Raises:
        FrameError: no JPEG, a colour space that has no exact RGB (CMYK, YCCK), or too many pixels
            or scans.
    """

    def refuse(message: str) -> FrameError:
        return FrameError(message, episode=episode, key=key, frame=frame)

    if not data:
        raise refuse("the frame is empty; it was lost when the episode was recorded or copied")
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError as error:
        raise refuse(f"{len(data)} bytes that are no JPEG ({error})") from error
    if colorspace in ("CMYK", "YCCK"):
        raise refuse(f"the JPEG is {colorspace}, which has no exact RGB; convert it to RGB first")
    if height * width > MAX_PIXELS:
        raise refuse(f"{height} x {width} pixels are more than the limit of {MAX_PIXELS}")
    if not _single_scan(data, len(data)):
        scans = bytes(data).count(b"\xff\xda")
        most = min(MAX_SCANS, max(LEAST_SCANS, SCANNED_PIXELS // max(height * width, 1)))
        if scans > most:
            raise refuse(f"{scans} scans of {height} x {width} pixels, the limit is {most}")
    return int(height), int(width)


def jpeg_head(data: bytes | memoryview) -> bytes:
    """Return all of a JPEG that `jpeg_size` looks at: what comes before its pixels.

    Empty where that is long, can't be told, or is not all, as there are several scans.
    """
    return bytes(data[: _single_scan(data, _LONGEST_HEAD)])


def _single_scan(data: bytes | memoryview, longest: int) -> int:
    """Return where the only scan of a JPEG starts; 0 where there may be others.

    Args:
        data: the JPEG.
        longest: bytes within which the scan's head must begin.
    """
    at, components, is_single = 2, 0, False
    while at + 4 <= min(len(data), longest) and data[at] == 0xFF:
        marker, body = data[at + 1], at + 4
        at += 2 + (data[at + 2] << 8 | data[at + 3])
        if at > len(data) or at < body + 1:
            return 0
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES and at >= body + 6:
            components, is_single = data[body + 5], marker not in _PROGRESSIVE
        if marker == _START_OF_SCAN:
            return at if is_single and data[body] == components else 0
    return 0


def check_size(
    data: bytes | memoryview, stored_size: tuple[int, int], *, episode: str, key: str, frame: int
) -> None:
    """Check from a JPEG's header that it has the (height, width) that it must have.

    Raises:
        FrameError: it has another, or see `jpeg_size`.
    """
    size = jpeg_size(data, episode=episode, key=key, frame=frame)
    if size != stored_size:
        raise FrameError(
            f"the JPEG is {size[0]} x {size[1]} pixels (height x width), the episode says or its "
            f"other frames have {stored_size[0]} x {stored_size[1]}",
            episode=episode,
            key=key,
            frame=frame,
        )


def decode_jpeg(
    data: bytes | memoryview,
    out: Pixels,
    *,
    stored_size: tuple[int, int],
    episode: str,
    key: str,
    frame: int,
) -> None:
    """Decode a JPEG into `out`, as RGB; a gray one gets three equal channels.

    Args:
        data: the JPEG's bytes.
        out: see `decode_pixels`.
        stored_size: the (height, width) that the JPEG must have.
        episode: named in errors.
        key: named in errors.
        frame: named in errors.

    Raises:
        FrameError: truncated, corrupt, of another size than `stored_size`, or see `jpeg_size`.
    """
    check_size(data, stored_size, episode=episode, key=key, frame=frame)
    try:
        decode_pixels(data, out, stored_size)
    except ValueError as error:
        raise FrameError(
            f"the JPEG is truncated or corrupt ({error})", episode=episode, key=key, frame=frame
        ) from error


def decode_pixels(data: bytes | memoryview, out: Pixels, stored_size: tuple[int, int]) -> None:
    """Decode a JPEG of a checked size into `out`.

    Where `out` is of another size than the JPEG, it is decoded at the nearest DCT scale that is
    not smaller, then resized, bilinear with antialiasing.

    Args:
        data: the JPEG's bytes.
        out: (H, W, 3) uint8, C-contiguous; written in full.
        stored_size: the JPEG's (height, width).

    Raises:
        ValueError: it is truncated or corrupt.
    """
    if out.shape[:2] == stored_size:
        simplejpeg.decode_jpeg(data, buffer=out)
    else:
        _decode_resized(data, out)


def _decode_resized(data: bytes | memoryview, out: Pixels) -> None:
    # Importing torch takes a second or more, and writers and converters can do without it.
    import torch

    height, width = out.shape[:2]
    pixels: npt.NDArray[Any] = simplejpeg.decode_jpeg(data, min_height=height, min_width=width)
    if pixels.shape == out.shape:
        out[:] = pixels
        return
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    resized = torch.nn.functional.interpolate(
        image, size=(height, width), mode="bilinear", antialias=True
    )
    out[:] = resized[0].permute(1, 2, 0).numpy()
