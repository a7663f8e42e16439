"""Bytes that are stored as a camera's frame, and are none, or another than was recorded."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import simplejpeg

from tests.jpegs import CMYK, PROGRESSIVE, RGB_STORED

__all__ = ["hostile_picture"]

#: Start of frame: baseline, and progressive.
_FRAMES = (b"\xff\xc0", b"\xff\xc2")


def hostile_picture(rng: random.Random, jpeg: bytes) -> tuple[bytes, str]:
    """Return what takes a JPEG's place, and what it is."""
    make = rng.choice(_KINDS)
    return make(rng, jpeg), make.__name__.strip("_")


def _empty(_: random.Random, _jpeg: bytes) -> bytes:
    return b""


def _noise(rng: random.Random, _: bytes) -> bytes:
    return rng.randbytes(rng.randint(1, 2000))


def _head_then_noise(rng: random.Random, jpeg: bytes) -> bytes:
    return jpeg[: rng.randint(2, len(jpeg))] + rng.randbytes(rng.randint(1, 500))


def _cut(rng: random.Random, jpeg: bytes) -> bytes:
    return jpeg[: rng.randint(0, len(jpeg) - 1)]


def _cut_and_ended(rng: random.Random, jpeg: bytes) -> bytes:
    """Return a cut JPEG with an end marker, as tools that repair them make it."""
    return _cut(rng, jpeg) + b"\xff\xd9"


def _longer(rng: random.Random, jpeg: bytes) -> bytes:
    return jpeg + rng.randbytes(rng.randint(1, 100))


def _flipped(rng: random.Random, jpeg: bytes) -> bytes:
    data = bytearray(jpeg)
    for _ in range(rng.choice([1, 1, 2, 8, 40])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _of_another_size(rng: random.Random, _: bytes) -> bytes:
    size = rng.choice([(16, 25), (8, 8), (24, 16), (1, 1), (600, 800), (1, 4000)])
    return _encode(rng, (*size, 3), colorspace="RGB")


def _gray(rng: random.Random, _: bytes) -> bytes:
    return _encode(rng, (16, 24, 1), colorspace="GRAY", colorsubsampling="Gray")


def _encode(rng: random.Random, shape: tuple[int, ...], **options: str) -> bytes:
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(0, 256, shape, dtype=np.uint8)
    return bytes(simplejpeg.encode_jpeg(pixels, **options))


def _other_kind(rng: random.Random, _: bytes) -> bytes:
    return rng.choice([PROGRESSIVE, PROGRESSIVE, RGB_STORED, CMYK])


def _damaged_other_kind(rng: random.Random, jpeg: bytes) -> bytes:
    return rng.choice([_flipped, _cut, _cut_and_ended])(rng, _other_kind(rng, jpeg))


def _bomb(rng: random.Random, jpeg: bytes) -> bytes:
    """Return a small JPEG whose head says that it is large."""
    sizes = [(65500, 65500), (65535, 1), (1, 65535), (8000, 8000), (8001, 8000), (0, 0), (0, 24)]
    height, width = rng.choice([*sizes, (3000, 3000)])
    source = rng.choice([jpeg, jpeg, PROGRESSIVE])
    data = bytearray(source)
    at = max(source.find(frame) for frame in _FRAMES)
    data[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    return bytes(data)


def _many_scans(rng: random.Random, _: bytes) -> bytes:
    """Return a progressive JPEG that asks for passes over all pixels without end."""
    last = PROGRESSIVE.rfind(b"\xff\xda")
    scans = PROGRESSIVE[last:-2] * rng.choice([2, 90, 5000])
    data = bytearray(PROGRESSIVE[:last] + scans + PROGRESSIVE[-2:])
    at, side = data.find(_FRAMES[1]), rng.choice([16, 2000, 8000])
    data[at + 5 : at + 9] = side.to_bytes(2, "big") + (side if side > 16 else 24).to_bytes(2, "big")
    return bytes(data)


def _other_head(rng: random.Random, jpeg: bytes) -> bytes:
    """Return a JPEG with another kind of frame, bits a sample, or components."""
    data = bytearray(jpeg)
    at = jpeg.find(_FRAMES[0])
    place = at + rng.choice([1, 3, 4, 9, 10, 11, 12])
    data[place] = rng.choice([0, 1, 2, 4, 8, 12, 0xC1, 0xC3, 0xC9, 0x44, 0xFF, rng.randrange(256)])
    return bytes(data)


def _markers(rng: random.Random, jpeg: bytes) -> bytes:
    """Return segments of any kind and length, between a start and the rest of a JPEG."""
    parts = [b"\xff\xd8"]
    for _ in range(rng.randint(1, 6)):
        size = rng.choice([0, 1, 2, 3, 20, 65535])
        marker = rng.choice(b"\xc4\xdb\xda\xdd\xe0\xee\xfe\xd0\xc0\x01")
        parts.append(bytes([0xFF, marker]) + size.to_bytes(2, "big"))
        parts.append(rng.randbytes(rng.choice([max(size - 2, 0) % 1000, 5])))
    return b"".join(parts) + jpeg[2:]


def _something_else(rng: random.Random, _: bytes) -> bytes:
    texts = [
        b"\x89PNG\r\n\x1a\n" + bytes(50),
        b"GIF89a" + bytes(20),
        b"null",
        b"<svg/>",
        b"\xff\xd8",
    ]
    return rng.choice([*texts, b"\xff\xd8\xff\xd9", bytes(5000), b"\xff" * 5000])


_KINDS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _empty, _noise, _head_then_noise, _head_then_noise, _cut, _cut, _cut_and_ended, _longer,
    _flipped, _flipped, _of_another_size, _gray, _other_kind, _damaged_other_kind, _bomb, _bomb,
    _other_head, _markers, _something_else, _many_scans,
)  # fmt: skip
