"""Decompressors that take no more memory than a chunk may have, and read nothing behind its end.

The libraries believe what a stream's head says of its size; here it is looked at first. Heads are
those of RFC 8878 (zstd), RFC 1952 (gzip) and the Blosc 1 chunk format.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import google_crc32c
import numpy as np
from numcodecs import blosc, zstd

__all__ = [
    "DECOMPRESSORS",
    "MAX_MEMBERS",
    "Decompress",
    "Stored",
    "check_blosc",
    "check_zstd",
]

#: Bytes that hold a chunk on its way through the codecs.
Stored = bytes | memoryview
#: From stored bytes and the most that may come out of them to what comes out.
Decompress = Callable[[Stored, int], Stored]

_CRC_SIZE, _CRC_RESIDUE = 4, 0x48674BC7
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_ZSTD_BLOCK = 2**17
#: Behind 0x50 to 0x5F; such frames hold what is none of the data.
_ZSTD_SKIPPED = b"\x2a\x4d\x18"
#: What frames without a stated size may hold beyond a chunk's before it is tried out: each of their
#: blocks counts as a whole one.
_UNSTATED_BYTES = 2**23
_BLOSC_HEAD = 16
_GZIP = 16 + zlib.MAX_WBITS
#: Writers make one; each costs a copy of all that is behind it.
MAX_MEMBERS = 1000


def _check_size(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"it says that it holds {size} bytes, a chunk has {limit} at most")


def strip_crc32c(data: Stored, _limit: int) -> Stored:
    """Check a crc32c and cut it off.

    Raises:
        ValueError: it does not match.
    """
    # Over data and its own checksum, a crc is the same for all data: no copy to cut it off first.
    checked = data if isinstance(data, bytes) else np.frombuffer(data, np.uint8)
    if google_crc32c.value(checked) != _CRC_RESIDUE:
        raise ValueError("the chunk does not match its crc32c")
    return memoryview(data)[:-_CRC_SIZE]


def unpack_zstd(data: Stored, limit: int) -> Stored:
    """Decompress zstd frames.

    Raises:
        ValueError, RuntimeError: no such frames, or more than `limit` bytes in them.
    """
    check_zstd(data, limit)
    unpacked: bytes = zstd.decompress(data)
    _check_size(len(unpacked), limit)
    return unpacked


def check_zstd(data: Stored, limit: int) -> None:
    """Check that little more than `limit` bytes come out of zstd frames.

    Raises:
        ValueError: no such frames, or more bytes in them.
    """
    stated, unstated = _zstd_sizes(data)
    _check_size(stated, limit)
    if unstated <= limit + _UNSTATED_BYTES:
        return
    try:
        # Into memory of that size, of which only what is written to is taken.
        zstd.decompress(data, np.empty(limit + 1, dtype=np.uint8))
    except RuntimeError as error:
        if "too small" in str(error):
            raise ValueError(f"it holds more than {limit} bytes, a chunk's at most") from error


def _zstd_sizes(data: Stored) -> tuple[int, int]:
    """Return the bytes that zstd frames state, and the most that those hold which state nothing.

    Raises:
        ValueError: the data is not made of whole frames.
    """
    stated = unstated = at = 0
    while at + 8 <= len(data):
        magic = bytes(data[at : at + 4])
        if magic[1:] == _ZSTD_SKIPPED and magic[0] & 0xF0 == 0x50:
            at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
            continue
        if magic != _ZSTD_MAGIC:
            break
        descriptor = data[at + 4]
        is_single = descriptor & 0x20
        width = (1 if is_single else 0, 2, 4, 8)[descriptor >> 6]
        at += 5 + (0 if is_single else 1) + (0, 1, 2, 4)[descriptor & 3]
        size = int.from_bytes(data[at : at + width], "little") + (256 if width == 2 else 0)
        at, most = _zstd_blocks(data, at + width)
        at += 4 if descriptor & 4 else 0  # a checksum
        stated, unstated = (stated + size, unstated) if width else (stated, unstated + most)
    if at != len(data):
        raise ValueError(f"zstd frames of {at} bytes in {len(data)}")
    return stated, unstated


def _zstd_blocks(data: Stored, at: int) -> tuple[int, int]:
    """Return where the blocks of a frame end, and the most bytes that they hold."""
    most = 0
    while at + 3 <= len(data):
        head = int.from_bytes(data[at : at + 3], "little")
        is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
        # Raw bytes, one byte repeated, or compressed.
        most += _ZSTD_BLOCK if kind > 1 else size
        at += 3 + (1 if kind == 1 else size)
        if is_last:
            break
    return at, most


def unpack_gzip(data: Stored, limit: int) -> Stored:
    """Decompress gzip members, one behind the other, and zeros behind them.

    Raises:
        ValueError, EOFError: no such members, or more than `limit` bytes in them.
    """
    parts: list[bytes] = []
    size, rest = 0, bytes(data)
    while rest or not parts:
        member = zlib.decompressobj(_GZIP)
        try:
            parts.append(member.decompress(rest, limit - size + 1))
        except zlib.error as error:
            raise ValueError(f"it is no gzip stream: {error}") from error
        size += len(parts[-1])
        _check_size(size, limit)
        if not member.eof:
            raise EOFError("the gzip stream ends before its end")
        rest = member.unused_data.lstrip(b"\0")
        if len(parts) == MAX_MEMBERS:
            raise ValueError(f"more than {MAX_MEMBERS} gzip members in one chunk")
    return parts[0] if len(parts) == 1 else b"".join(parts)


def unpack_blosc(data: Stored, limit: int) -> Stored:
    """Decompress a Blosc chunk.

    Raises:
        ValueError, RuntimeError: no such chunk, one that is cut, or of more than `limit` bytes.
    """
    check_blosc(data, limit)
    unpacked: bytes = blosc.decompress(data)
    return unpacked


def check_blosc(data: Stored, limit: int) -> None:
    """Check the head of a Blosc chunk.

    Raises:
        ValueError: no such chunk, one that is cut, or of more than `limit` bytes.
    """
    if len(data) < _BLOSC_HEAD:
        raise ValueError(f"{len(data)} bytes are no Blosc chunk")
    size, stored = (int.from_bytes(data[at : at + 4], "little") for at in (4, 12))
    # Blosc trusts this, and would read on behind the end.
    if stored != len(data):
        raise ValueError(f"a Blosc chunk of {stored} bytes that is {len(data)} bytes long")
    _check_size(size, limit)


DECOMPRESSORS: Mapping[str, Decompress] = {
    "zstd": unpack_zstd,
    "gzip": unpack_gzip,
    "blosc": unpack_blosc,
    "crc32c": strip_crc32c,
}
