"""Reading rows: what it costs, and arrays in every layout that is met in the wild."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import numpy.typing as npt
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from egoloader import ZarrEpisode
from egoloader.chunkcodec import ChunkCodec
from egoloader.counts import KeyCounts, ReadCounts
from egoloader.store import EpisodeFolder
from tests.episodes import (
    edit_json,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    ramp,
    write_human,
)
from tests.strategies import StoredArray, row_windows, stored_arrays

KEY = "left.obs_ee_pose"
CRC_INDEX = 4


def sharded(inner: tuple[int, ...], *codecs: Any, location: Any = "end") -> dict[str, Any]:
    codec = ShardingCodec(chunk_shape=inner, codecs=[*codecs], index_location=location)
    return {"serializer": codec, "compressors": None}


LAYOUTS: dict[str, dict[str, Any]] = {
    "as most": {"chunks": (100, 7), "shards": (300, 7)},
    "unsharded": {"chunks": (100, 7)},
    "gzip": {"chunks": (100, 7), "compressors": GzipCodec()},
    "blosc": {"chunks": (100, 7), "compressors": BloscCodec(cname="zstd")},
    "raw": {"chunks": (100, 7), "compressors": None},
    "checked": {"chunks": (100, 7), "compressors": [ZstdCodec(), Crc32cCodec()]},
    "one chunk": {"chunks": (250, 7)},
    "chunk longer than the array": {"chunks": (1000, 7)},
    "ragged last chunk": {"chunks": (64, 7)},
    "rows alone": {"chunks": (1, 7)},
    "chunks along D": {"chunks": (100, 3)},
    "chunks and shards along D": {"chunks": (50, 2), "shards": (100, 4)},
    "several shards": {"chunks": (30, 7), "shards": (90, 7)},
    "raw in shards": {"chunks": (300, 7), **sharded((100, 7), BytesCodec())},
    "index at start": {"chunks": (300, 7), **sharded((100, 7), BytesCodec(), location="start")},
    "big endian": {"chunks": (100, 7), "serializer": BytesCodec(endian="big")},
    "big endian in shards": {"chunks": (300, 7), **sharded((100, 7), BytesCodec(endian="big"))},
    "gzip in shards": {"chunks": (300, 7), **sharded((100, 7), BytesCodec(), GzipCodec())},
    "gzip around shards": {
        "chunks": (300, 7),
        "serializer": ShardingCodec(chunk_shape=(100, 7), codecs=[BytesCodec()]),
        "compressors": GzipCodec(),
    },
    "shards in shards": {
        "chunks": (300, 7),
        **sharded((100, 7), ShardingCodec(chunk_shape=(50, 7), codecs=[BytesCodec()])),
    },
    "transposed": {"chunks": (100, 7), "filters": [TransposeCodec(order=(1, 0))]},
    "dotted chunk paths": {
        "chunks": (100, 7),
        "chunk_key_encoding": {"name": "v2", "separator": "."},
    },
}
V2_LAYOUTS: dict[str, dict[str, Any]] = {
    "blosc": {"chunks": (100, 7), "compressors": numcodecs.Blosc()},
    "raw": {"chunks": (64, 7), "compressors": None},
    "zstd, slashes": {
        "chunks": (100, 3),
        "compressors": numcodecs.Zstd(),
        "chunk_key_encoding": {"name": "v2", "separator": "/"},
    },
    "column order": {"chunks": (100, 7), "order": "F"},
    "shuffle filter": {"chunks": (100, 7), "filters": [numcodecs.Shuffle(elementsize=4)]},
}
WINDOWS = [(57, 61), (60, 160), (249, 250), (0, 1), (95, 105)]


def padded(total: int, dims: int) -> npt.NDArray[np.float32]:
    """Return a ramp padded to a multiple of 100, with rows that must never be seen."""
    values = np.full((-(-total // 100) * 100, dims), -1, dtype=np.float32)
    values[:total] = ramp(total, dims)
    return values


def same(found: list[Any], wanted: npt.NDArray[Any], windows: list[tuple[int, int]]) -> None:
    for got, (start, stop) in zip(found, windows, strict=True):
        assert got.shape == wanted[start:stop].shape
        assert got.dtype == wanted.dtype
        assert (got == wanted[start:stop]).all()


@pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec")
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_numbers_in_every_layout_read(tmp_path: Path, layout: dict[str, Any]) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, KEY, ramp(250, 7), **layout)
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    same(ep.read({KEY: WINDOWS})[KEY], ramp(250, 7), WINDOWS)
    assert ep.counts[KEY].reads == 1


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("layout", V2_LAYOUTS.values(), ids=V2_LAYOUTS.keys())
def test_zarr_v2_arrays_read(tmp_path: Path, layout: dict[str, Any], order: str) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250, zarr_format=2)
    foreign_numbers(group, KEY, ramp(250, 7, f"{order}f4"), **layout)
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    same(ep.read({KEY: WINDOWS})[KEY], ramp(250, 7), WINDOWS)
    assert ep.counts[KEY].reads == 1
    assert ep.counts[KEY].chunks >= 1


@pytest.mark.parametrize("layout", [{"chunks": (100, 7)}, {"chunks": (100, 7), "shards": (300, 7)}])
def test_case_02_padded_rows_lie_past_the_end(tmp_path: Path, layout: dict[str, Any]) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, KEY, padded(250, 7), **layout)
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    windows = [(95, 105), (240, 250)]
    same(ep.read({KEY: windows})[KEY], ramp(250, 7), windows)
    with pytest.raises(ValueError, match="250"):
        ep.read({KEY: [(240, 251)]})


@pytest.mark.parametrize("shape", [(250,), (250, 2, 3)])
def test_rows_of_any_number_of_axes_read(tmp_path: Path, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape)).reshape(shape)
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "a", values, chunks=(100, *(1,) * (len(shape) - 1)))
    found = ZarrEpisode(tmp_path / "ep.zarr").read({"a": WINDOWS})["a"]
    same(found, values, WINDOWS)


@pytest.mark.parametrize("spelling", ["bytes", "variable_length_bytes"])
@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (1,), "shards": (9,)},
        {"chunks": (1,)},
        {"chunks": (4,), "compressors": GzipCodec()},
        {"chunks": (4,), "compressors": None},
        {"chunks": (2,), "shards": (4,)},
    ],
)
def test_rows_of_bytes_read_in_both_spellings(
    tmp_path: Path, layout: dict[str, Any], spelling: str
) -> None:
    rows = [bytes([t]) * (t + 1) for t in range(9)]
    group = foreign_group(tmp_path / "ep.zarr", 8)
    foreign_bytes(group, "cam", rows, **layout)
    edit_json(tmp_path / "ep.zarr/cam/zarr.json", lambda m: m.update(data_type=spelling))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert ep.read({"cam": [(5, 8), (0, 1)]}) == {"cam": [rows[5:8], rows[:1]]}


@pytest.mark.parametrize("chunk", [1, 2, 9])
def test_zarr_v2_rows_of_bytes_read(tmp_path: Path, chunk: int) -> None:
    rows = [bytes([t]) * (t + 1) for t in range(9)]
    group = foreign_group(tmp_path / "ep.zarr", 8, zarr_format=2)
    foreign_bytes(group, "cam", rows, chunks=(chunk,), compressors=numcodecs.Blosc())
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert ep.read({"cam": [(5, 8), (0, 1)]}) == {"cam": [rows[5:8], rows[:1]]}


@settings(deadline=None, max_examples=50)
@given(stored=stored_arrays(), data=st.data())
def test_any_layout_reads_as_zarr_python_reads_it(stored: StoredArray, data: st.DataObject) -> None:
    windows = data.draw(row_windows(stored.total, min_size=1))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, stored.total, zarr_format=stored.zarr_format)
        write = foreign_bytes if isinstance(stored.rows, list) else foreign_numbers
        write(group, "a", stored.rows, **stored.options)
        truth = zarr.open_group(path, mode="r")["a"]
        assert isinstance(truth, zarr.Array)
        ep = ZarrEpisode(path)
        found = ep.read({"a": windows})["a"]
        for got, (start, stop) in zip(found, windows, strict=True):
            wanted = np.asarray(truth[start:stop])
            assert np.array_equal(np.asarray(got, dtype=wanted.dtype), wanted)
            assert len(got) == stop - start
        assert ep.counts["a"].reads == 1


# What a read costs.


def spy(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[str]:
    """Note every call of a method, which goes on as before."""
    calls: list[str] = []
    original: Callable[..., Any] = getattr(owner, name)

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(owner, name, noted)
    return calls


def test_case_03_a_window_in_one_chunk_is_one_array_call_and_one_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 250))
    selections = [
        spy(monkeypatch, zarr.Array, name)
        for name in ("get_basic_selection", "get_orthogonal_selection", "get_mask_selection")
    ]
    fetches = spy(monkeypatch, EpisodeFolder, "read_range")
    decodes = spy(monkeypatch, ChunkCodec, "decode")
    (found,) = ep.read({KEY: [(100, 200)]})[KEY]
    assert (found == ramp(250, 7)[100:200]).all()
    assert sum(len(calls) for calls in selections) == 0
    assert (len(fetches), len(decodes)) == (2, 1)  # the shard's index, and the chunk
    counted = ep.counts[KEY]
    assert (counted.reads, counted.rows, counted.chunks) == (1, 100, 1)


def test_rows_and_chunks_of_scattered_windows(tmp_path: Path) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 350))
    ep.read({KEY: [(0, 1), (340, 341), (150, 160), (155, 165)]})
    # [0, 165) is one group, as its two chunks are touched anyway; chunk 2 is left out.
    assert (ep.counts[KEY].reads, ep.counts[KEY].rows, ep.counts[KEY].chunks) == (1, 166, 3)


def test_the_camera_decodes_the_chunks_of_its_frames_only(tmp_path: Path) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 90))
    ep.read({"images.front_1": [(5, 6), (70, 71)]})
    counted = ep.counts["images.front_1"]
    assert (counted.reads, counted.rows, counted.chunks) == (1, 2, 2)


def test_requests_and_bytes_are_those_of_the_store(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "raw", ramp(250, 7), compressors=None)
    foreign_numbers(group, "packed", ramp(250, 7))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    ep.read({"raw": [(0, 1), (249, 250)], "packed": [(0, 1), (249, 250)]})
    assert ep.counts["raw"] == KeyCounts(reads=1, rows=2, chunks=2, requests=2, bytes=2 * 2800)
    files = [(tmp_path / "ep.zarr/packed/c" / name / "0").stat().st_size for name in "02"]
    assert (ep.counts["packed"].requests, ep.counts["packed"].bytes) == (2, sum(files))


def test_of_a_shard_only_the_index_and_the_chunks_asked_for_are_fetched(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 3000)
    foreign_numbers(group, "a", ramp(3000, 7), chunks=(3000, 7), **sharded((100, 7), BytesCodec()))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    ep.read({"a": [(0, 1)]})
    ep.counts.reset()
    ep.read({"a": [(150, 160)]})
    index = 30 * 16 + CRC_INDEX
    assert ep.counts["a"].chunks == 1
    assert (ep.counts["a"].bytes - 2800) % index == 0
    assert ep.counts["a"].bytes <= 2800 + 2 * index


def test_counts_add_up_and_reset(tmp_path: Path) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 50))
    assert ep.counts[KEY] == KeyCounts()
    ep.read({KEY: [(0, 10)], "obs_head_pose": [(3, 4)]})
    ep.read({KEY: [(20, 25)]})
    assert (ep.counts[KEY].reads, ep.counts[KEY].rows) == (2, 15)
    assert (ep.counts.total.reads, ep.counts.total.rows) == (3, 16)
    assert set(ep.counts) == {KEY, "obs_head_pose"}
    ep.counts.reset()
    assert ep.counts.total == KeyCounts()
    assert len(ep.counts) == 0


def test_counts_are_a_mapping_of_frozen_sums() -> None:
    counts = ReadCounts()
    counts.of("a").add_read(rows=3, chunks=2)
    counts.of("a").add_read(rows=5, chunks=0)
    counts.of("a").add_chunk()
    counts.of("a").add_request(100)
    counts.of("a").add_request(10)
    counts.of("never read")
    assert dict(counts) == {"a": KeyCounts(reads=2, rows=8, chunks=3, requests=2, bytes=110)}
    assert "KeyCounts(reads=2" in repr(counts)
