"""The range reader against zarr-python, on the same files: every layout, window and batch."""

from __future__ import annotations

import dataclasses
import shutil
import struct
import tempfile
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, TransposeCodec
from zarr.core.dtype import VariableLengthBytes

from egoloader import KeyMap, KeySpec, ZarrDataset, ZarrEpisode
from egoloader.arena import Arena
from egoloader.cache import ByteCache
from egoloader.errors import ReadError
from egoloader.plan import ReadPlan
from egoloader.ranges import MergeLimits
from egoloader.reader import join_rows
from tests.episodes import (
    edit_json,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
)
from tests.oracle import Oracle
from tests.range_layouts import arrays_of_bytes, arrays_of_numbers, numeric_layouts, written
from tests.readers import assert_same_rows, checked, named, open_range, open_reference
from tests.strategies import StoredArray, key_specs, row_windows
from tests.writing import DTYPES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fill values are served"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec"),
]


@settings(deadline=None, max_examples=150)
@given(
    stored=st.one_of(arrays_of_numbers(), arrays_of_bytes()),
    limits=st.builds(
        MergeLimits, st.sampled_from([0, 100, 4096]), st.sampled_from([1, 900, 10**6])
    ),
    cache_bytes=st.sampled_from([0, 500, 10**6]),
    data=st.data(),
)
def test_the_range_reader_equals_zarr_python(
    stored: StoredArray, limits: MergeLimits, cache_bytes: int, data: st.DataObject
) -> None:
    with written(stored) as path:
        assert ZarrEpisode(path).reference_reason("a") == ""
        ranges = open_range(path, limits=limits, cache_bytes=cache_bytes, missing_chunks="fill")
        reference = open_reference(path, missing_chunks="fill")
        truth = np.asarray(zarr.open_array(path / "a", mode="r")[...])
        for _ in range(2):
            windows = data.draw(row_windows(stored.total, min_size=1))
            wanted = truth[ranges.plan(windows).rows]
            assert_same_rows(reference.read(windows), wanted, ranges.layout)
            for _ in range(2):
                assert_same_rows(ranges.read(windows), wanted, ranges.layout)


@settings(deadline=None, max_examples=40)
@given(stored=st.one_of(arrays_of_numbers(), arrays_of_bytes()), data=st.data())
def test_an_episode_equals_zarr_python(stored: StoredArray, data: st.DataObject) -> None:
    with written(stored) as path:
        windows = data.draw(row_windows(stored.total, min_size=1))
        truth = np.asarray(zarr.open_array(path / "a", mode="r")[...])
        ep = ZarrEpisode(path, missing_chunks="fill")
        for _ in range(2):
            for rows, (start, stop) in zip(ep.read({"a": windows})["a"], windows, strict=True):
                assert_same_rows(rows, truth[start:stop], ep.layout("a"))
                if isinstance(rows, np.ndarray):
                    rows[...] = 0  # theirs to write to, and nobody else's
        assert ep.counts["a"].reads == 2


@settings(deadline=None, max_examples=60)
@given(stored=arrays_of_bytes(), data=st.data())
def test_a_stream_of_rows_equals_zarr_python(stored: StoredArray, data: st.DataObject) -> None:
    with written(stored) as path:
        truth = zarr.open_array(path / "a", mode="r")[...]
        ep = ZarrEpisode(path, missing_chunks="fill")
        windows = data.draw(row_windows(stored.total, min_size=1))
        plan = ReadPlan(tuple(ep.plan_reads(windows, ep.layout("a").chunk_rows)))
        for arena in (None, Arena()):
            ep.counts.reset()
            # Of an arena, bytes are good until the next ones are asked for.
            found = [(n, bytes(row)) for n, row in ep.bytes_reader("a").stream(plan, arena)]
            assert [row for _, row in sorted(found)] == truth[plan.rows].tolist()
            assert sorted(n for n, _ in found) == list(range(plan.num_rows))
            assert (ep.counts["a"].reads, ep.counts["a"].rows) == (1, plan.num_rows)


@settings(deadline=None, max_examples=60)
@given(
    chunk_rows=st.integers(1, 12),
    shapes=st.lists(st.lists(st.integers(0, 3), max_size=2), min_size=2, max_size=4),
    cache_bytes=st.sampled_from([0, 700, 3000, 10**6]),
    data=st.data(),
)
def test_arrays_read_alike_equal_those_read_alone(
    chunk_rows: int, shapes: list[list[int]], cache_bytes: int, data: st.DataObject
) -> None:
    total, keys = 40, tuple("abcd"[: len(shapes)])
    with tempfile.TemporaryDirectory() as folder:
        group = foreign_group(Path(folder) / "ep.zarr", total)
        values = {}
        for key, shape in zip(keys, shapes, strict=True):
            chunks = (chunk_rows, *(max(1, extent - 1) for extent in shape))
            numbers = np.random.default_rng(len(values)).random((total, *shape))
            shards = data.draw(st.sampled_from([None, (4 * chunk_rows, *chunks[1:])]))
            values[key] = foreign_numbers(group, key, numbers, chunks=chunks, shards=shards)
        cache = ByteCache(cache_bytes)
        together = ZarrEpisode(Path(folder) / "ep.zarr", cache=cache)
        alone = ZarrEpisode(Path(folder) / "ep.zarr", cache=ByteCache(cache_bytes))
        for _ in range(3):
            windows = data.draw(row_windows(total, min_size=1))
            plan = ReadPlan(tuple(together.plan_reads(windows, chunk_rows)))
            for key, parts in zip(keys, together.reader(keys)(plan), strict=True):
                assert join_rows(parts).tolist() == values[key][plan.rows].tolist()
                alone.fetch(key, plan)
        assert cache.num_bytes <= cache_bytes
        costs = [{key: ep.counts[key] for key in keys} for ep in (together, alone)]
        if cache_bytes in (0, 10**6):  # else they push one another out
            assert costs[0] == costs[1]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("layout", [{"chunks": (10, 5)}, {"chunks": (10, 5), "shards": (20, 10)}])
def test_chunks_wider_than_a_row_hold_padding_that_is_not_served(
    tmp_path: Path, layout: dict[str, Any], zarr_format: int
) -> None:
    if zarr_format == 2:
        layout = {"chunks": layout["chunks"]}
    group = foreign_group(tmp_path / "ep.zarr", 20, zarr_format=zarr_format)
    foreign_numbers(group, "a", ramp(20, 3), **layout)
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert ep.reference_reason("a") == ""
    (found,) = ep.read({"a": [(3, 17)]})["a"]
    assert found.tolist() == ramp(20, 3)[3:17].tolist()


@pytest.mark.parametrize("layout", [{"chunks": (10, 1)}, {"chunks": (10, 1), "shards": (20, 1)}])
def test_rows_of_no_numbers_are_read_from_no_chunks(tmp_path: Path, layout: dict[str, Any]) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20)
    foreign_numbers(group, "a", np.zeros((20, 0), np.float32), **layout)
    (found,) = ZarrEpisode(tmp_path / "ep.zarr").read({"a": [(3, 17)]})["a"]
    assert found.shape == (14, 0)


# Batches.


def assert_batches_equal(ds: ZarrDataset, oracle: Oracle, batches: list[list[int]]) -> None:
    """Make batches of frames, and look at them when all are made: none spoils another."""
    made = [ds.__getitems__(frames) for frames in batches]
    for frames, batch in zip(batches, made, strict=True):
        assert [int(sample["frame_index"]) for sample in batch] == frames
        for frame, sample in zip(frames, batch, strict=True):
            for key, wanted in oracle.sample(ds.keymap, frame).items():
                assert sample[key].dtype == wanted.dtype, key
                assert torch.equal(sample[key], wanted), key


@settings(deadline=None, max_examples=40)
@given(
    entries=st.lists(st.tuples(key_specs(), st.sampled_from("abc")), min_size=1, max_size=5),
    layouts=st.tuples(numeric_layouts((3,)), numeric_layouts((3,))),
    dtypes=st.tuples(*[st.sampled_from(DTYPES)] * 2),
    frames=st.lists(st.integers(0, 39), min_size=1, max_size=12),
    cache_bytes=st.sampled_from([0, 300, 10**6]),
)
def test_a_batch_equals_the_slow_oracle(
    entries: list[tuple[KeySpec, str]],
    layouts: tuple[dict[str, Any], dict[str, Any]],
    dtypes: tuple[str, str],
    frames: list[int],
    cache_bytes: int,
) -> None:
    kinds: dict[str, Any] = {"c": "camera_keys"}
    specs = [
        dataclasses.replace(spec, zarr_key=key, key_type=kinds.get(key, spec.key_type))
        for spec, key in entries
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, 40)
        for key, layout, dtype in zip("ab", layouts, dtypes, strict=True):
            # Other values in every row, which every dtype holds.
            foreign_numbers(group, key, (ramp(45, 3) % 97).astype(dtype), **layout)
        foreign_bytes(group, "c", jpegs(pictures(45, (4, 6))), chunks=(3,), shards=(15,))
        keymap = KeyMap({f"entry {n}": spec for n, spec in enumerate(specs)})
        ds = ZarrDataset(path, keymap, cache_bytes=cache_bytes)
        assert {ds.episode.reference_reason(key) for key in "abc"} == {""}
        batches = [frames, frames[::-1] + frames[:2], [39 - frame for frame in frames]]
        assert_batches_equal(ds, Oracle(path), batches)


@pytest.mark.parametrize("layout", [{}, {"chunks": (4,)}, {"compressors": None}], ids=repr)
def test_encoded_frames_and_parsed_rows_outlive_their_batch(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    frames = jpegs(pictures(20))
    group = foreign_group(tmp_path / "ep.zarr", 20)
    foreign_bytes(group, "cam", frames, **layout, shards=(20,))
    foreign_bytes(group, "notes", [b'{"row": %d}' % t for t in range(20)], **layout)
    keymap = KeyMap(
        {
            "cam": KeySpec(zarr_key="cam", key_type="camera_keys", offsets=(-1, 0)),
            "notes": KeySpec(zarr_key="notes", key_type="metadata_keys"),
        }
    )
    ds = ZarrDataset(tmp_path / "ep.zarr", keymap, image_dtype="jpeg")
    batches = [[3, 9, 3], [15], list(range(20))]
    for rows, batch in zip(batches, [ds.__getitems__(rows) for rows in batches], strict=True):
        for row, sample in zip(rows, batch, strict=True):
            assert sample["cam"] == [frames[max(0, row - 1)], frames[row]]
            assert sample["notes"] == {"row": row}


# What is left to zarr-python, and why.


def _in_shards(chunk: tuple[int, ...], *codecs: Any, **options: Any) -> dict[str, Any]:
    """Options of an array of (30, 4) in one shard."""
    sharding = ShardingCodec(chunk_shape=chunk, codecs=codecs, **options)
    return {"chunks": (30, 4), "serializer": sharding, "compressors": None}


def _unspecified(name: str, **configuration: Any) -> Any:
    """Make a codec that zarr-python warns of: it isn't in Zarr's specification."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(zarr.codecs.numcodecs, name)(**configuration)


NUMBERS = ramp(30, 4)
TEXTS = NUMBERS.astype(np.dtypes.StringDType())
V2 = {"zarr_format": 2, "chunks": (10, 4), "compressors": None}
V3 = {"zarr_format": 3, "chunks": (10, 4)}
LEFT_TO_ZARR: dict[str, tuple[str, npt.NDArray[Any], dict[str, Any]]] = {
    "delta filter": ("codec delta", NUMBERS, {**V2, "filters": [numcodecs.Delta("<f4")]}),
    "shuffle filter": ("codec shuffle", NUMBERS, {**V2, "filters": [numcodecs.Shuffle(4)]}),
    "checksum filter": ("codec crc32c", NUMBERS, {**V2, "filters": [numcodecs.CRC32C()]}),
    "lz4": ("codec lz4", NUMBERS, {**V2, "compressors": numcodecs.LZ4()}),
    "zlib": ("codec zlib", NUMBERS, {**V2, "compressors": numcodecs.Zlib()}),
    "v2 times": ("data type <M8[s]", NUMBERS.astype("M8[s]"), V2),
    "v2 complex numbers": ("data type <c8", NUMBERS.astype("c8"), V2),
    "v2 fixed bytes": ("data type |S8", NUMBERS.astype("S8"), V2),
    "times": ("data type numpy.datetime64", NUMBERS.astype("M8[s]"), V3),
    "durations": ("data type numpy.timedelta64", NUMBERS.astype("m8[ms]"), V3),
    "v2 texts": ("data type |O", TEXTS, V2),
    "texts": ("data type string", TEXTS, V3),
    "complex numbers": ("data type complex64", NUMBERS.astype("c8"), V3),
    "v3 lz4": ("codec numcodecs.lz4", NUMBERS, {**V3, "compressors": _unspecified("LZ4")}),
    "v3 delta": (
        "codec numcodecs.delta",
        NUMBERS,
        {**V3, "filters": _unspecified("Delta", dtype="float32")},
    ),
    "shards in shards": (
        "no codec bytes",
        NUMBERS,
        _in_shards((10, 4), ShardingCodec(chunk_shape=(5, 4), codecs=[BytesCodec()])),
    ),
    "gzip around shards": (
        "a shard index in other codecs",
        NUMBERS,
        {**_in_shards((10, 4), BytesCodec()), "compressors": GzipCodec()},
    ),
    "transposed shards": (
        "no codec bytes",
        NUMBERS,
        {
            "chunks": (30, 4),
            "filters": [TransposeCodec(order=(1, 0))],
            "serializer": ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()]),
            "compressors": None,
        },
    ),
    "big endian index": (
        "a shard index in other codecs",
        NUMBERS,
        _in_shards((10, 4), BytesCodec(), index_codecs=[BytesCodec(endian="big"), Crc32cCodec()]),
    ),
}


@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize(("reason", "values", "options"), LEFT_TO_ZARR.values(), ids=LEFT_TO_ZARR)
def test_numbers_that_are_left_to_zarr_python_read_right(
    tmp_path: Path, reason: str, values: npt.NDArray[Any], options: dict[str, Any]
) -> None:
    options = dict(options)
    group = foreign_group(tmp_path / "ep.zarr", 30, zarr_format=options.pop("zarr_format", 3))
    foreign_numbers(group, "a", values, **options)
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert ep.reference_reason("a") == reason
    windows = [(3, 17), (29, 30), (5, 6)]
    for found, (start, stop) in zip(ep.read({"a": windows})["a"], windows, strict=True):
        assert found.dtype == values.dtype
        assert (found == values[start:stop]).all()


def _edited(path: Path, **metadata: Any) -> ZarrEpisode:
    edit_json(path / "a/zarr.json", lambda stored: stored.update(metadata))
    return ZarrEpisode(path, missing_chunks="fill")


#: Fill values of v3, as metadata spells them, that zarr-python knows how to read.
STRANGE_FILLS: list[tuple[str, Any]] = [
    ("float32", "0x7fc00001"),
    ("float64", "0x3ff8000000000000"),
    ("float16", "0x7e01"),
    ("float32", "1.5"),
]


@pytest.mark.parametrize(("dtype", "fill"), STRANGE_FILLS)
def test_a_strange_fill_value_is_left_to_zarr_python(tmp_path: Path, dtype: str, fill: str) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 30)
    foreign_numbers(group, "a", NUMBERS.astype(dtype), chunks=(10, 4))
    (tmp_path / "ep.zarr/a/c/1/0").unlink()
    ep = _edited(tmp_path / "ep.zarr", fill_value=fill)
    assert ep.reference_reason("a") == f"fill value {fill!r}"
    truth = np.asarray(zarr.open_array(tmp_path / "ep.zarr/a", mode="r")[...])
    (found,) = ep.read({"a": [(5, 25)]})["a"]
    assert_same_rows(found, truth[5:25], ep.layout("a"))


def test_a_fill_value_of_bytes_is_left_to_zarr_python(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 9)
    foreign_bytes(group, "a", [b"x"] * 9, chunks=(3,), fill_value=b"none")
    (tmp_path / "ep.zarr/a/c/1").unlink()
    ep = ZarrEpisode(tmp_path / "ep.zarr", missing_chunks="fill")
    assert ep.reference_reason("a") == "fill value 'bm9uZQ=='"
    assert ep.read({"a": [(2, 5)]})["a"] == [[b"x", b"none", b"none"]]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_two_byte_strings_a_row_are_left_to_zarr_python(tmp_path: Path, zarr_format: Any) -> None:
    rows = np.array([[b"%d" % t, b"x" * t] for t in range(9)], dtype=object)
    group = foreign_group(tmp_path / "ep.zarr", 9, zarr_format=zarr_format)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = group.create_array(
            "a", shape=rows.shape, chunks=(4, 1), dtype=VariableLengthBytes(), fill_value=b""
        )
    array[...] = rows
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert ep.reference_reason("a") == "several byte strings a row"
    (found,) = ep.read({"a": [(2, 7)]})["a"]
    assert [list(row) for row in found] == rows[2:7].tolist()


# Shards that are wrong: an error that names what is, never a wrong value.


FRAMES = KeyMap({"cam": KeySpec(zarr_key="a", key_type="camera_keys")})


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shard of an episode of 20 frames of bytes by zarr-python, five a chunk; copy it."""
    path = tmp_path_factory.mktemp("shard") / "ep.zarr"
    rows = [b"%d" % t * 9 for t in range(20)]
    foreign_bytes(foreign_group(path, 20), "a", rows, chunks=(5,), shards=(20,))
    return path / "a/c/0"


def set_entry(data: bytes, chunk: int, offset: int, size: int) -> bytes:
    """Return a shard of four chunks with another entry in its index, which is right otherwise."""
    index = bytearray(data[-68:-4])
    index[16 * chunk : 16 * chunk + 16] = struct.pack("<QQ", offset, size)
    return data[:-68] + checked(bytes(index))


WRONG_SHARDS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "index crc": (lambda data: data[:-1] + bytes([data[-1] ^ 1]), True),
    "index": (lambda data: data[:-60] + bytes([data[-60] ^ 1]) + data[-59:], True),
    "only an index": (lambda data: data[-68:], False),
    "half an index": (lambda data: data[-30:], True),
    "nothing": (lambda _: b"", True),
    "a byte less": (lambda data: data[:-1], True),
    "a byte ahead": (lambda data: b"\0" + data, True),
    "an entry behind the end": (lambda data: set_entry(data, 1, len(data), 40), False),
    "an entry over the end": (lambda data: set_entry(data, 1, len(data) - 5, 6), False),
    "an endless entry": (lambda data: set_entry(data, 1, 0, 2**64 - 2), False),
    "an entry from nowhere": (lambda data: set_entry(data, 1, 2**64 - 2, 40), False),
    "half a hole": (lambda data: set_entry(data, 1, 2**64 - 1, 40), False),
    "the other half": (lambda data: set_entry(data, 1, 0, 2**64 - 1), False),
    "an empty entry": (lambda data: set_entry(data, 1, 3, 0), True),
    "part of a chunk": (lambda data: set_entry(data, 1, 0, 30), True),
}


@pytest.mark.parametrize(("spoil", "has_cause"), WRONG_SHARDS.values(), ids=WRONG_SHARDS)
def test_a_shard_that_is_wrong_is_named(
    shard: Path, tmp_path: Path, spoil: Callable[[bytes], bytes], has_cause: bool
) -> None:
    path = Path(shutil.copytree(shard.parents[2], tmp_path / "ep.zarr"))
    (path / "a/c/0").write_bytes(spoil(shard.read_bytes()))
    samples = ZarrDataset(path, FRAMES, image_dtype="jpeg")
    # Threads have memory of their own for stored bytes, and a new one has none yet.
    in_thread = ThreadPoolExecutor(1).submit(samples.__getitem__, 7)
    for read in (lambda: ZarrEpisode(path).read({"a": [(7, 8)]}), in_thread.result):
        with pytest.raises(ReadError) as caught:
            read()
        assert named(caught.value, "a", "a/c/0")
        assert (caught.value.__cause__ is not None) == has_cause


@pytest.mark.parametrize("keep", [0, 30, 100])
def test_a_shard_cut_short_while_it_is_open_is_named(
    shard: Path, tmp_path: Path, keep: int
) -> None:
    path = Path(shutil.copytree(shard.parents[2], tmp_path / "ep.zarr"))
    samples = ZarrDataset(path, FRAMES, image_dtype="jpeg")
    ep = samples.episode
    before = ep.read({"a": [(0, 5)]})
    with (path / "a/c/0").open("r+b") as file:
        file.truncate(keep)
    for read in (lambda: ep.read({"a": [(17, 18)]}), lambda: samples[17]):
        with pytest.raises(ReadError, match="cut short while it was open") as caught:
            read()
        assert named(caught.value, "a", "a/c/0")
    if keep == 100:  # where the first chunk is still whole
        assert ep.read({"a": [(0, 5)]}) == before
