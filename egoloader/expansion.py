"""How much comes out of what zarr-python is to unpack, found out before it does.

Its codecs believe what a stream says of its size, or go on until memory ends. Heads that say it are
looked at; streams that have none are unpacked once more, a piece at a time, and let go.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from egoloader.decompression import MAX_MEMBERS, Stored, check_blosc, check_zstd
from egoloader.layout import ArrayLayout

__all__ = ["check_expansion", "refusal"]

#: What makes objects out of stored bytes, or runs what is stored in them.
_OBJECT_CODECS = frozenset({"pickle", "json2", "msgpack2", "categorize", "vlen-array"})
_NUMBER_TYPE = re.compile(r"[<>|=]?(bool|u?int\d{1,2}|float\d{2}|[?biuf]\d?)", re.ASCII)
#: Types besides numbers and bytes that are harmless: times, complex numbers, texts.
_OTHER_TYPE = re.compile(
    r"[<>|=]?([mM]8(\[\w{1,8}\])?|c8|c16|[SU]\d{1,6})|complex(64|128)|string"
    r"|numpy\.(datetime|timedelta)64",
    re.ASCII,
)
_PIECE_BYTES, _FED_BYTES = 2**20, 2**16
#: Memory that an lzma stream may ask for.
_LZMA_BYTES = 2**28


def refusal(layout: ArrayLayout) -> str:
    """Return why zarr-python is not asked for an array's rows; empty where it is."""
    is_text = layout.type_name == "|O" and "vlen-utf8" in layout.codecs
    if layout.kind == "other" and not is_text and not _OTHER_TYPE.fullmatch(layout.type_name):
        return f"rows of data type {layout.type_name!r:.80} are no numbers, bytes, times or texts"
    for codec in layout.chain:
        if codec.name.removeprefix("numcodecs.") in _OBJECT_CODECS:
            return f"codec {codec.name!r} makes objects; an episode holds data"
        for name, value in codec.configuration.items():
            is_type = value is not None and ("dtype" in name or name == "astype")
            if is_type and not _NUMBER_TYPE.fullmatch(str(value)):
                return f"codec {codec.name!r} has the {name} {value!r:.80}, not one of numbers"
    return ""


def check_expansion(codec: str, settings: Mapping[str, Any], data: Stored, limit: int) -> None:
    """Check that no more than about `limit` bytes come out of what a codec is to decode.

    Nothing is said of codecs that make little more of their input than it is.

    Args:
        codec: its name in numcodecs or Zarr v3.
        settings: its configuration.
        data: what it is to decode.
        limit: the most bytes that may come out.

    Raises:
        ValueError, EOFError, OSError, lzma.LZMAError, zlib.error: more does, or it is no such data.
    """
    if len(data) > limit:
        raise ValueError(f"{len(data)} bytes on their way to a chunk, the limit is {limit}")
    check = _CHECKS.get(codec.removeprefix("numcodecs."))
    if check is not None:
        check(data, settings, limit)


def _check_lz4(data: Stored, _settings: Mapping[str, Any], limit: int) -> None:
    _check(int.from_bytes(data[:4], "little"), limit)


def _check_gzip(data: Stored, _settings: Mapping[str, Any], limit: int) -> None:
    _drain(lambda: _Zlib(16 + zlib.MAX_WBITS), data, limit)


def _check_zlib(data: Stored, _settings: Mapping[str, Any], limit: int) -> None:
    # What lies behind the stream is passed over.
    _drain_one(_Zlib(zlib.MAX_WBITS), bytes(data), limit)


def _check_bz2(data: Stored, _settings: Mapping[str, Any], limit: int) -> None:
    _drain(bz2.BZ2Decompressor, data, limit)


def _check_lzma(data: Stored, settings: Mapping[str, Any], limit: int) -> None:
    form, filters = settings.get("format", lzma.FORMAT_XZ), settings.get("filters")
    for one in filters or ():
        if one.get("dict_size", 0) > _LZMA_BYTES:
            raise ValueError(f"an lzma filter asks for {one['dict_size']} bytes of memory")
    memory = None if form == lzma.FORMAT_RAW else _LZMA_BYTES
    _drain(lambda: lzma.LZMADecompressor(form, memory, filters), data, limit)


_CHECKS: Mapping[str, Callable[[Stored, Mapping[str, Any], int], None]] = {
    "zstd": lambda data, _settings, limit: check_zstd(data, limit),
    "blosc": lambda data, _settings, limit: check_blosc(data, limit),
    "lz4": _check_lz4,
    "gzip": _check_gzip,
    "zlib": _check_zlib,
    "bz2": _check_bz2,
    "lzma": _check_lzma,
}


def _check(size: int, limit: int) -> None:
    if size > limit:
        raise ValueError(f"more than {limit} bytes come out of it, a chunk's at most")


class _Zlib:
    """zlib's decompressor, asked for pieces as the others are."""

    def __init__(self, bits: int) -> None:
        self._stream = zlib.decompressobj(bits)
        self._data, self._at = b"", 0

    def decompress(self, data: bytes, size: int) -> bytes:
        """Return at most `size` bytes of data, or of what is left of data before."""
        self._data = data or self._data
        while True:
            # A little at a time, as what is not taken in is copied.
            fed = self._stream.unconsumed_tail or self._data[self._at : self._at + _FED_BYTES]
            self._at += 0 if self._stream.unconsumed_tail else len(fed)
            piece = self._stream.decompress(fed, size)
            if piece or not fed or self._stream.eof:
                return piece

    @property
    def eof(self) -> bool:
        """Whether the stream has ended."""
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        """What lies behind its end."""
        return self._stream.unused_data + self._data[self._at :]


def _drain(make: Callable[[], Any], data: Stored, limit: int) -> None:
    """Unpack streams, one behind the other, and keep nothing."""
    rest = bytes(data)
    for _ in range(MAX_MEMBERS):
        rest, limit = _drain_one(make(), rest, limit)
        if not rest:
            return
    raise ValueError(f"more than {MAX_MEMBERS} streams in one chunk")


def _drain_one(stream: Any, data: bytes, limit: int) -> tuple[bytes, int]:
    """Unpack a stream; return what lies behind it and its zeros, and what is left of the limit."""
    size, piece = 0, stream.decompress(data, _PIECE_BYTES)
    while True:
        _check(size := size + len(piece), limit)
        if stream.eof:
            return stream.unused_data.lstrip(b"\0"), limit - size
        if not piece:
            raise EOFError("the stream ends before its end")
        piece = stream.decompress(b"", _PIECE_BYTES)
