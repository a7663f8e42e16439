"""Hypothesis strategies: arrays in every layout that the range reader knows."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
    ZstdCodec,
)

from tests.episodes import foreign_bytes, foreign_group, foreign_numbers
from tests.strategies import StoredArray
from tests.writing import DTYPES

__all__ = ["arrays_of_bytes", "arrays_of_numbers", "numeric_layouts", "written"]

_floats = [0.0, -0.0, 1.5, float("nan"), float("inf"), float("-inf")]


def _compressors(draw: st.DrawFn) -> list[Any]:
    """Up to two compressors, and checksums before, between and behind them."""
    zstd = st.builds(ZstdCodec, level=st.sampled_from([-7, -1, 0, 3]), checksum=st.booleans())
    blosc = st.builds(
        BloscCodec,
        cname=st.sampled_from(["lz4", "lz4hc", "blosclz", "zstd", "zlib"]),
        clevel=st.sampled_from([0, 1, 9]),
        shuffle=st.sampled_from(["noshuffle", "shuffle", "bitshuffle"]),
    )
    gzip = st.builds(GzipCodec, level=st.sampled_from([0, 1, 9]))
    codec = st.one_of(zstd, blosc, gzip, st.just(Crc32cCodec()))
    return draw(st.lists(codec, max_size=3))


def _stored_v3(draw: st.DrawFn, head: list[Any], chunk: tuple[int, ...]) -> dict[str, Any]:
    """Options of a v3 array whose chunks go through `head` and compressors, in shards or not."""
    compressors = _compressors(draw)
    if not draw(st.booleans()):
        options = {"serializer": head[-1], "filters": head[:-1], "compressors": compressors}
        return {"chunks": chunk, **options}
    sharding = ShardingCodec(
        chunk_shape=chunk,
        codecs=[*head, *compressors],
        index_codecs=[BytesCodec(), *draw(st.sampled_from([[], [Crc32cCodec()]]))],
        index_location=draw(st.sampled_from(["start", "end"])),
    )
    shard = tuple(side * draw(st.integers(1, 4)) for side in chunk)
    return {"chunks": shard, "serializer": sharding, "compressors": None}


@st.composite
def numeric_layouts(draw: st.DrawFn, row_shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of a v3 array of numbers."""
    # Chunks longer than the array and wider than its rows among them.
    chunk = (draw(st.integers(1, 70)), *(draw(st.integers(1, side + 2)) for side in row_shape))
    orders = st.permutations(range(len(chunk))).map(lambda order: TransposeCodec(order=order))
    endian: Any = draw(st.sampled_from(["little", "big"]))
    return _stored_v3(draw, [*draw(st.lists(orders, max_size=2)), BytesCodec(endian=endian)], chunk)


@st.composite
def numeric_layouts_v2(draw: st.DrawFn, row_shape: tuple[int, ...]) -> dict[str, Any]:
    """Options of a v2 array of numbers."""
    codecs = [numcodecs.Zstd(-3), numcodecs.GZip(), numcodecs.Blosc("lz4", shuffle=2), None]
    return {
        "chunks": (draw(st.integers(1, 70)), *(draw(st.integers(1, n + 2)) for n in row_shape)),
        "order": draw(st.sampled_from("CF")),
        "compressors": draw(st.sampled_from(codecs)),
        "filters": draw(st.sampled_from([None, [numcodecs.Zstd()]])),
        "chunk_key_encoding": {"name": "v2", "separator": draw(st.sampled_from("./"))},
    }


@st.composite
def arrays_of_numbers(draw: st.DrawFn) -> StoredArray:
    """Arrays of any bits, whole chunks of fill values among them, which are left out or not."""
    row_shape = draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    is_v2 = draw(st.integers(0, 3)) == 0
    options = draw((numeric_layouts_v2 if is_v2 else numeric_layouts)(row_shape))
    chunk = options["chunks"] if is_v2 else _decode_unit(options)
    fill, values = _numbers(draw, draw(st.integers(1, 60)), row_shape, chunk[0], dtype)
    options |= {"fill_value": fill, "config": {"write_empty_chunks": draw(st.booleans())}}
    if is_v2:
        values = values.astype(dtype.newbyteorder(draw(st.sampled_from("<>"))))
    return StoredArray(values, len(values), 2 if is_v2 else 3, options)


def _decode_unit(options: dict[str, Any]) -> tuple[int, ...]:
    serializer = options["serializer"]
    is_sharded = isinstance(serializer, ShardingCodec)
    return serializer.chunk_shape if is_sharded else options["chunks"]


def _numbers(
    draw: st.DrawFn, rows: int, row_shape: tuple[int, ...], chunk_rows: int, dtype: np.dtype[Any]
) -> tuple[Any, npt.NDArray[Any]]:
    """A fill value, and rows of random bits with chunks of it among them."""
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    high = 2 if dtype.kind == "b" else 256
    values = rng.integers(0, high, (rows, *row_shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]
    fills: list[Any] = [False, True]
    if dtype.kind == "f":
        fills = _floats
    elif dtype.kind in "iu":
        fills = [0, 7, int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)]
    fill = draw(st.sampled_from(fills))
    empty = rng.integers(0, 2, -(-rows // chunk_rows)).astype(bool).repeat(chunk_rows)[:rows]
    values[empty] = fill
    return fill, values


@st.composite
def arrays_of_bytes(draw: st.DrawFn) -> StoredArray:
    """Arrays of variable-length bytes, empty ones among them, one or many a chunk."""
    rows = draw(st.lists(st.sampled_from([b"", b"\0", b"jpeg", b"x" * 300]), min_size=1))
    chunk = draw(st.one_of(st.just(1), st.integers(1, 70)))
    options: dict[str, Any] = {"config": {"write_empty_chunks": draw(st.booleans())}}
    if draw(st.integers(0, 3)) == 0:
        codecs = [numcodecs.Zstd(-3), numcodecs.GZip(), numcodecs.Blosc(), None]
        compressors = draw(st.sampled_from(codecs))
        return StoredArray(
            rows, len(rows), 2, {**options, "chunks": (chunk,), "compressors": compressors}
        )
    stored = _stored_v3(draw, [VLenBytesCodec()], (chunk,))
    return StoredArray(rows, len(rows), 3, {**options, **stored})


@contextlib.contextmanager
def written(stored: StoredArray) -> Iterator[Path]:
    """Write an array with zarr-python, as array `a` of an episode in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, stored.total, zarr_format=stored.zarr_format)
        write = foreign_bytes if isinstance(stored.rows, list) else foreign_numbers
        write(group, "a", stored.rows, **stored.options)
        yield path
