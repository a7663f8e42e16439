"""Hypothesis strategies: keymap entries, row windows, and arrays in any layout."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    VLenBytesCodec,
    ZstdCodec,
)

from egoloader import KeySpec

#: Frame rates, odd ones and those below one a second among them.
rates = st.one_of(
    st.sampled_from([30.0, 29.97, 10.0, 50.0, 0.5, 240.0]), st.floats(0.1, 500.0, allow_nan=False)
)
seconds = st.one_of(
    st.sampled_from([0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.0]), st.floats(1e-3, 20.0, allow_nan=False)
)


@st.composite
def key_specs(draw: st.DrawFn) -> KeySpec:
    """Entries of numbers with every kind of window."""
    fields: dict[str, Any] = draw(
        st.one_of(
            st.just({}),
            st.fixed_dictionaries({"horizon": st.integers(1, 40)}),
            st.fixed_dictionaries({"history": st.integers(1, 12)}),
            st.fixed_dictionaries({"history": st.integers(1, 12), "stride_s": seconds}),
            st.fixed_dictionaries({"lag_s": seconds}),
            st.fixed_dictionaries(
                {"offsets": st.lists(st.integers(-60, 60), min_size=1, max_size=6).map(tuple)}
            ),
            st.fixed_dictionaries(
                {
                    "offsets_s": st.lists(
                        st.floats(-9, 9, allow_nan=False), min_size=1, max_size=6
                    ).map(tuple)
                }
            ),
        )
    )
    key_type = draw(st.sampled_from(["action_keys", "proprio_keys"]))
    return KeySpec(zarr_key="a", key_type=key_type, mask=True, **fields)


#: Frame rates of recordings, and rates of grids; latencies in whole milliseconds.
recorded_rates = st.sampled_from([10.0, 15.0, 29.97, 30.0, 50.0, 60.0])
grid_rates = st.sampled_from([1.0, 5.0, 10.0, 15.0, 20.0, 29.97, 30.0, 50.0, 100.0])
latencies = st.integers(-300, 300).map(lambda ms: ms / 1000)


@st.composite
def timed_specs(draw: st.DrawFn, rates: st.SearchStrategy[float] = grid_rates) -> KeySpec:
    """Entries of poses that are read by time, with every kind of window and interpolation."""
    late = latencies.filter(bool)
    window = draw(st.sampled_from(["horizon_s", "history_s", "counted"]))
    fields: dict[str, Any] = {"latency_s": draw(late)}
    if window == "counted":
        counted = draw(key_specs())
        for name in ("horizon", "history", "stride_s", "lag_s", "offsets", "offsets_s"):
            fields[name] = getattr(counted, name)
    else:
        rate = draw(rates)
        fields[window] = draw(st.integers(1, 30)) / rate
        fields |= {"rate_hz": rate, "latency_s": draw(st.none() | st.just(0) | late)}
    fields["interpolation"] = draw(st.sampled_from(["nearest", "linear", "slerp"]))
    key_type = draw(st.sampled_from(["action_keys", "proprio_keys"]))
    return KeySpec(zarr_key="a", key_type=key_type, mask=True, **fields)


@st.composite
def row_windows(
    draw: st.DrawFn, rows: int, *, min_size: int = 0, max_size: int = 8
) -> list[tuple[int, int]]:
    """Half-open windows within `rows`, in any order, overlapping or not."""

    def window(ends: tuple[int, int]) -> tuple[int, int]:
        return min(ends), max(ends) + 1

    row = st.integers(0, rows - 1)
    windows = st.tuples(row, row).map(window)
    short = st.tuples(row, st.integers(1, 4)).map(lambda w: (w[0], min(rows, w[0] + w[1])))
    return draw(st.lists(st.one_of(windows, short), min_size=min_size, max_size=max_size))


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array to write with zarr-python: the rows and the options of `create_array`."""

    rows: Any
    total: int
    zarr_format: int
    options: dict[str, Any]


numeric_dtypes = st.sampled_from(
    ["float32", "float64", "float16", "int64", "int32", "uint8", "int8", "uint16", "bool"]
)


def _v3_compressors(draw: st.DrawFn) -> list[Any]:
    codecs: list[Any] = [None, ZstdCodec(level=1), GzipCodec(level=1), BloscCodec(cname="lz4")]
    chosen = draw(st.sampled_from(codecs))
    checked = [Crc32cCodec()] if draw(st.booleans()) else []
    return [*([chosen] if chosen else []), *checked]


@st.composite
def stored_arrays(draw: st.DrawFn) -> StoredArray:
    """Arrays of numbers or of bytes, of up to 60 rows, in any layout that zarr-python writes."""
    rows = draw(st.integers(1, 60))
    total = draw(st.integers(1, rows))
    if draw(st.booleans()):
        return _bytes_array(draw, rows, total)
    row_shape = draw(st.sampled_from([(), (3,), (2, 3)]))
    dtype = np.dtype(draw(numeric_dtypes))
    values = _values(rows, row_shape, dtype)
    chunk = (draw(st.integers(1, 70)), *(draw(st.integers(1, side)) for side in row_shape))
    options: dict[str, Any] = {"chunks": chunk}
    if draw(st.booleans()) and draw(st.booleans()):
        swapped = dtype.newbyteorder(draw(st.sampled_from("<>")))
        options["order"] = draw(st.sampled_from("CF"))
        return StoredArray(values.astype(swapped), total, 2, options)
    codecs = _v3_compressors(draw)
    order = BytesCodec(endian=draw(st.sampled_from(["little", "big"])))
    if draw(st.booleans()):
        options["chunks"] = tuple(side * draw(st.integers(1, 4)) for side in chunk)
        options["serializer"] = ShardingCodec(
            chunk_shape=chunk,
            codecs=[order, *codecs],
            index_location=draw(st.sampled_from(["start", "end"])),
        )
        options["compressors"] = None
    else:
        options["serializer"], options["compressors"] = order, codecs or None
    return StoredArray(values, total, 3, options)


def _values(rows: int, row_shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    ramp = np.arange(1, rows * int(np.prod(row_shape, dtype=int)) + 1).reshape(rows, *row_shape)
    return (ramp % 3 == 0) if dtype.kind == "b" else (ramp % 127).astype(dtype)


def _bytes_array(draw: st.DrawFn, rows: int, total: int) -> StoredArray:
    values = [draw(st.binary(max_size=6)) for _ in range(rows)]
    chunk = draw(st.integers(1, 70))
    options: dict[str, Any] = {"chunks": (chunk,)}
    if draw(st.booleans()) and draw(st.booleans()):
        return StoredArray(values, total, 2, options)
    codecs = _v3_compressors(draw)
    if draw(st.booleans()):
        options["chunks"] = (chunk * draw(st.integers(1, 4)),)
        options["serializer"] = ShardingCodec(
            chunk_shape=(chunk,),
            codecs=[VLenBytesCodec(), *codecs],
            index_location=draw(st.sampled_from(["start", "end"])),
        )
        options["compressors"] = None
    else:
        options["compressors"] = codecs or None
    return StoredArray(values, total, 3, options)
