"""Decoding chunks: what each codec makes of good bytes, and what becomes of bad ones."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import blosc, zstd
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from egoloader import ZarrEpisode
from egoloader.chunkcodec import ChunkCodec, unread_reason
from egoloader.decompression import unpack_zstd
from egoloader.errors import EgoloaderError, ReadError
from egoloader.layout import ArrayLayout, parse_layout
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human
from tests.readers import BYTE_RANGE, attempt, checked, named, shard_entries
from tests.strategies import row_windows
from tests.writing import DTYPES, bits

KEY, CAMERA = "left.obs_ee_pose", "images.front_1"


def one_chunk(
    *chain: Any,
    chunk: tuple[int, ...] = (10, 3),
    data_type: str = "float32",
    fill_value: Any = 0,
) -> ArrayLayout:
    """Return the layout of an array of one chunk; `chain` holds names or (name, configuration)."""
    pairs = [(step, {}) if isinstance(step, str) else step for step in chain]
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": chunk,
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "fill_value": fill_value,
        "codecs": [{"name": name, "configuration": configuration} for name, configuration in pairs],
    }
    return parse_layout(metadata, episode="ep.zarr", key="a")


def codec(*chain: Any, **array: Any) -> ChunkCodec:
    layout = one_chunk(*chain, **array)
    assert unread_reason(layout) == ""
    return ChunkCodec(layout)


def vlen(rows: list[bytes]) -> bytes:
    sized = [struct.pack("<I", len(row)) + row for row in rows]
    return struct.pack("<I", len(rows)) + b"".join(sized)


def zstd_blocks(kind: int, blocks: list[bytes], size: int | None = None) -> bytes:
    """Return a zstd frame that does not state its size, as streaming compressors leave it.

    Blocks are stored as they are (kind 0), or are one byte that stands for `size` (kind 1).
    """
    frame = b"\x28\xb5\x2f\xfd\x00\x38"
    for number, block in enumerate(blocks, 1):
        head = (number == len(blocks)) | kind << 1 | (size or len(block)) << 3
        frame += head.to_bytes(3, "little") + block
    return frame


# Good bytes.

COMPRESSIONS: dict[str, tuple[tuple[str, ...], Callable[[bytes], bytes]]] = {
    "raw": ((), bytes),
    "zstd": (("zstd",), lambda data: zstd.compress(data, -5)),
    "gzip": (("gzip",), gzip.compress),
    "zstd in two frames": (("zstd",), lambda b: zstd.compress(b[:7], 1) + zstd.compress(b[7:], 1)),
    "zstd of a size not stated": (("zstd",), lambda b: zstd_blocks(0, [b[:7], b[7:]])),
    "gzip in two members": (("gzip",), lambda b: gzip.compress(b[:7]) + gzip.compress(b[7:])),
    "gzip with padding": (("gzip",), lambda data: gzip.compress(data) + bytes(3)),
    "blosc": (("blosc",), lambda data: blosc.compress(data, b"lz4", 5, 2)),
    "crc32c": (("crc32c",), checked),
    "zstd, crc32c": (("zstd", "crc32c"), lambda data: checked(zstd.compress(data, 1))),
    "crc32c, gzip": (("crc32c", "gzip"), lambda data: gzip.compress(checked(data))),
    "blosc, zstd, crc32c": (
        ("blosc", "zstd", "crc32c"),
        lambda data: checked(zstd.compress(blosc.compress(data, b"zstd", 1, 1), 1)),
    ),
}


@pytest.mark.parametrize(("names", "compress"), COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_numbers_and_bytes_come_out_of_every_compression(
    names: tuple[str, ...], compress: Callable[[bytes], bytes]
) -> None:
    stored = compress(ramp(10, 3).tobytes())
    rows = [b"", b"jpeg", b"\0" * 99]
    for kind in (bytes, memoryview):
        found = codec("bytes", *names).decode(kind(stored))
        assert isinstance(found, np.ndarray)
        assert found.tolist() == ramp(10, 3).tolist()
        texts = codec("vlen-bytes", *names, chunk=(3,), data_type="bytes", fill_value="")
        assert [bytes(row) for row in texts.decode(kind(compress(vlen(rows))))] == rows


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_of_either_byte_order_come_out_native(dtype: str, endian: str) -> None:
    values = bits((10, 3), dtype)
    stored = values.astype(values.dtype.newbyteorder("<" if endian == "little" else ">"))
    found = codec(("bytes", {"endian": endian}), data_type=dtype).decode(stored.tobytes())
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.dtype(dtype)
    assert found.dtype.isnative
    assert found.tobytes() == values.tobytes()


@given(orders=st.lists(st.permutations(range(3)), max_size=3))
def test_transposes_are_undone_in_turn(orders: list[list[int]]) -> None:
    values = bits((2, 3, 4), "int32")
    stored = values
    for order in orders:
        stored = stored.transpose(order)
    steps = [("transpose", {"order": order}) for order in orders]
    found = codec(*steps, "bytes", chunk=(2, 3, 4), data_type="int32").decode(stored.tobytes())
    assert isinstance(found, np.ndarray)
    assert (found == values).all()


FILLS: list[tuple[str, Any, bytes]] = [
    ("float32", 0.0, struct.pack("f", 0.0)),
    ("float32", -0.0, struct.pack("f", -0.0)),
    ("float32", 0.1, struct.pack("f", 0.1)),
    ("float64", "NaN", struct.pack("d", float("nan"))),
    ("float64", "-Infinity", struct.pack("d", float("-inf"))),
    ("float16", "Infinity", struct.pack("e", float("inf"))),
    ("int8", -128, struct.pack("b", -128)),
    ("int64", -(2**63), struct.pack("q", -(2**63))),
    ("uint64", 2**64 - 1, struct.pack("Q", 2**64 - 1)),
    ("bool", True, b"\1"),
    ("bool", False, b"\0"),
]


@pytest.mark.parametrize(("dtype", "fill", "stored"), FILLS)
def test_a_chunk_of_fill_values(dtype: str, fill: Any, stored: bytes) -> None:
    found = codec("bytes", data_type=dtype, fill_value=fill).filled()
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.shape) == (np.dtype(dtype), (10, 3))
    assert found.tobytes() == stored * 30


@pytest.mark.parametrize(
    ("dtype", "fill"),
    [
        *[("uint8", -1), ("int8", 128), ("uint64", 2**64), ("int64", 1.5), ("uint8", 0.5)],
        *[("int32", "NaN"), ("float32", "one"), ("float64", [0]), ("bool", "true")],
    ],
)
def test_no_fill_value_is_made_up_for_one_that_the_dtype_does_not_have(
    dtype: str, fill: Any
) -> None:
    layout = one_chunk("bytes", data_type=dtype, fill_value=fill)
    assert unread_reason(layout) == f"fill value {fill!r}"


@pytest.mark.parametrize(
    "step",
    [
        ("bytes", {"endian": ["little"]}),
        ("bytes", {"endian": {}}),
        ("transpose", {"order": [0, "1"]}),
        ("transpose", {"order": [0, 1.0]}),
        ("transpose", {"order": [False, True]}),
    ],
)
def test_settings_of_codecs_that_can_not_be_meant_are_left_to_zarr_python(step: Any) -> None:
    assert unread_reason(one_chunk(step, *["bytes"][: step[0] != "bytes"]))


def test_a_chunk_of_fill_bytes_is_empty_rows() -> None:
    found = codec("vlen-bytes", chunk=(4,), data_type="bytes", fill_value="").filled()
    assert list(found) == [b""] * 4


# Bad bytes.

BAD = (ValueError, RuntimeError, OSError, EOFError)


@pytest.mark.parametrize("size", [0, 1, 119, 121, 240])
@pytest.mark.parametrize(("names", "compress"), COMPRESSIONS.values(), ids=COMPRESSIONS)
def test_another_number_of_bytes_is_refused(
    names: tuple[str, ...], compress: Callable[[bytes], bytes], size: int
) -> None:
    with pytest.raises(BAD):
        codec("bytes", *names).decode(compress(bytes(size)))


@given(data=st.binary(max_size=60), name=st.sampled_from(["zstd", "gzip", "blosc", "crc32c"]))
def test_bytes_that_no_codec_made_are_refused_as_it_says(data: bytes, name: str) -> None:
    heads = {"zstd": b"\x28\xb5\x2f\xfd", "gzip": b"\x1f\x8b\x08\0", "blosc": b"\2\1\x21\4"}
    for stored in (data, heads.get(name, b"") + data):
        with pytest.raises(BAD):
            codec("bytes", name).decode(stored)


@pytest.mark.parametrize("size", range(5))
def test_a_chunk_shorter_than_its_checksum_is_refused(size: int) -> None:
    with pytest.raises(BAD):
        codec("bytes", "crc32c").decode(bytes(size))


@pytest.mark.parametrize("rows", [0, 1, 2, 4, 5])
def test_another_number_of_rows_of_bytes_is_refused(rows: int) -> None:
    texts = codec("vlen-bytes", chunk=(3,), data_type="bytes", fill_value="")
    with pytest.raises(BAD, match=f"{rows} rows, not 3"):
        texts.decode(vlen([b"jpeg"] * rows))


@settings(deadline=None, max_examples=200)
@given(
    rows=st.lists(st.binary(max_size=5), min_size=1, max_size=4),
    place=st.integers(0, 10**6),
    value=st.integers(0, 2**32 - 1),
    cut=st.integers(-3, 3),
)
def test_heads_that_lie_never_make_other_rows_of_the_same_bytes(
    rows: list[bytes], place: int, value: int, cut: int
) -> None:
    stored = bytearray(vlen(rows))
    place %= len(stored) - 3
    stored[place : place + 4] = struct.pack("<I", value % (2 * len(stored)) if cut else value)
    data = bytes(stored[:cut]) if cut < 0 else bytes(stored) + bytes(cut)
    texts = codec("vlen-bytes", chunk=(len(rows),), data_type="bytes", fill_value="")
    try:
        found = [bytes(row) for row in texts.decode(data)]
    except BAD:
        return
    assert len(found) == len(rows)
    assert vlen(found) == data


# Bad bytes of an episode: an error that names them, never a wrong value.


def numbers(path: Path, **options: Any) -> Path:
    """Write 40 rows in chunks of 10, none of which compresses well; return the first chunk."""
    values = np.random.default_rng(0).integers(0, 2**31, (40, 6)).astype(np.int32)
    foreign_numbers(foreign_group(path, 40), "a", values, **{"chunks": (10, 6), **options})
    return next(file for file in sorted((path / "a/c").rglob("*")) if file.is_file())


CHECKED: dict[str, dict[str, Any]] = {
    "crc32c": {"compressors": Crc32cCodec()},
    "zstd, crc32c": {"compressors": [ZstdCodec(), Crc32cCodec()]},
    "crc32c, blosc": {"compressors": [Crc32cCodec(), BloscCodec(cname="lz4")]},
    "crc32c, zstd in shards": {"compressors": [Crc32cCodec(), ZstdCodec()], "shards": (40, 6)},
    "zstd's own": {"compressors": ZstdCodec(checksum=True)},
    "gzip's own": {"compressors": GzipCodec()},
}


@pytest.mark.parametrize("options", CHECKED.values(), ids=CHECKED)
def test_no_flipped_bit_of_a_checked_chunk_passes(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "ep.zarr"
    file = numbers(path, **options)
    (wanted,) = ZarrEpisode(path).read({"a": [(0, 10)]})["a"]
    data = file.read_bytes()
    size = int(shard_entries(file, 4)[0].sum()) if "shards" in options else len(data)
    passed = 0
    for place in range(size):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        file.write_bytes(broken)
        found = attempt(ZarrEpisode(path), "a", [(0, 10)])
        if isinstance(found, ReadError):
            assert named(found, "a", "a/c/0/0")
            assert found.__cause__ is not None
        else:  # a bit of a header may be one that decides nothing
            assert (found[0] == wanted).all()
            passed += 1
    assert passed < 10


TRUNCATED: dict[str, Any] = {
    "raw": None,
    "zstd": ZstdCodec(),
    "gzip": GzipCodec(),
    "blosc": BloscCodec(cname="lz4"),
    "blosc that packs nothing": BloscCodec(clevel=0),
}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("compressor", TRUNCATED.values(), ids=TRUNCATED)
def test_no_truncated_chunk_passes(tmp_path: Path, compressor: Any, share: float) -> None:
    file = numbers(tmp_path / "ep.zarr", compressors=compressor)
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    with pytest.raises(ReadError) as caught:
        ZarrEpisode(tmp_path / "ep.zarr").read({"a": [(3, 4)]})
    assert named(caught.value, "a", "a/c/0/0")
    assert caught.value.__cause__ is not None


@settings(deadline=None, max_examples=60)
@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_unchecked_zstd_says_what_zarr_python_says(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("zstd") / "ep.zarr"
    file = numbers(path, compressors=ZstdCodec())
    data = bytearray(file.read_bytes())
    data[place % len(data)] ^= 1 << bit
    file.write_bytes(data)
    try:
        wanted = np.asarray(zarr.open_array(path / "a", mode="r")[:10])
    except Exception:
        with pytest.raises(ReadError, match=BYTE_RANGE):
            ZarrEpisode(path).read({"a": [(0, 10)]})
    else:
        assert (ZarrEpisode(path).read({"a": [(0, 10)]})["a"][0] == wanted).all()


LARGE = bytes(2**26)
#: As much, in 2 KB.
SMALL_BOMB = zstd_blocks(1, [b"\0"] * 512, 2**17)
BOMBS: dict[str, tuple[Any, Callable[[], bytes]]] = {
    "zstd": (ZstdCodec(), lambda: zstd.compress(LARGE, 1)),
    "zstd behind a small frame": (ZstdCodec(), lambda: zstd.compress(b"x", 1) + SMALL_BOMB),
    "zstd of a size not stated": (ZstdCodec(), lambda: SMALL_BOMB),
    "gzip": (GzipCodec(), lambda: gzip.compress(LARGE, 1)),
    "gzip behind a small member": (GzipCodec(), lambda: gzip.compress(b"x") + gzip.compress(LARGE)),
    "blosc": (BloscCodec(), lambda: blosc.compress(LARGE, b"zstd", 5, 1)),
}


@pytest.mark.parametrize(("compressor", "make"), BOMBS.values(), ids=BOMBS)
def test_a_chunk_takes_no_more_memory_than_its_declared_size(
    tmp_path: Path, compressor: Any, make: Callable[[], bytes]
) -> None:
    file = numbers(tmp_path / "ep.zarr", compressors=compressor)
    file.write_bytes(make())
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    tracemalloc.start()
    try:
        with pytest.raises(ReadError, match=BYTE_RANGE):
            ep.read({"a": [(3, 4)]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**24


@pytest.fixture(scope="module")
def stamped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode by the writer; tests that break it mend it."""
    return write_human(
        tmp_path_factory.mktemp("stamped") / "ep.zarr", 130, annotations=[("pick", 0, 80)]
    )


@settings(deadline=None, max_examples=150)
@given(
    key=st.sampled_from([KEY, CAMERA, "annotations"]),
    edits=st.lists(st.tuples(st.integers(0, 10**9), st.integers(1, 255)), min_size=1, max_size=3),
    is_open=st.booleans(),
    data=st.data(),
)
def test_whichever_bytes_of_a_stamped_episode_change_no_value_is_wrong(
    stamped: Path, key: str, edits: list[tuple[int, int]], is_open: bool, data: st.DataObject
) -> None:
    rows = ZarrEpisode(stamped).layout(key).rows
    windows = data.draw(row_windows(rows, min_size=1, max_size=3))
    file = stamped / key / ("c/0/0" if key == KEY else "c/0")
    intact = file.read_bytes()
    broken = bytearray(intact)
    for place, change in edits:
        broken[place % len(broken)] ^= change
    ep = ZarrEpisode(stamped)
    wanted = ZarrEpisode(stamped).read({key: windows})[key]
    if is_open:
        ep.read({key: windows[:1]})
    try:
        file.write_bytes(broken)
        found = attempt(ep, key, windows)
    finally:
        file.write_bytes(intact)
    if isinstance(found, EgoloaderError):
        assert (found.episode, found.key) == ("ep.zarr", key)  # type: ignore[attr-defined]
        return
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


def test_zstd_limits_hold_behind_frames_that_are_skipped() -> None:
    packed = zstd.compress(bytes(2**20), 1)
    skipped = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert bytes(unpack_zstd(skipped + packed, 2**20)) == bytes(2**20)
    for data in (skipped + packed, packed + skipped + packed, packed + b"more"):
        with pytest.raises(ValueError, match="bytes"):
            unpack_zstd(data, 2**19)
