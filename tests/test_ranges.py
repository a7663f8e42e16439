"""Byte ranges merged into requests; and what reads cost, counted and seen from outside."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec

from egoloader import EpisodeWriter, KeyMap, KeySpec, ZarrDataset, ZarrEpisode
from egoloader.cache import ENTRY_BYTES
from egoloader.counts import KeyCounts
from egoloader.errors import PlanError
from egoloader.ranges import MergeLimits, merge_ranges
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, jpegs, pictures, ramp
from tests.oracle import slow_rows
from tests.readers import Reads, no_gaps, open_range, shard_entries

# Merging.


def spans(ranges: list[tuple[int, int]], **limits: int) -> list[tuple[int, int]]:
    return [(one.start, one.stop) for one in merge_ranges(ranges, MergeLimits(**limits))]


def test_ranges_worked_by_hand() -> None:
    apart = [(0, 10), (15, 20), (20, 30), (100, 110)]
    assert spans([], gap_bytes=0) == []
    assert spans(apart, gap_bytes=0) == [(0, 10), (15, 30), (100, 110)]
    assert spans(apart, gap_bytes=4) == [(0, 10), (15, 30), (100, 110)]
    assert spans(apart, gap_bytes=5) == [(0, 30), (100, 110)]
    assert spans(apart, gap_bytes=70) == [(0, 110)]
    assert spans(apart, gap_bytes=70, request_bytes=30) == [(0, 30), (100, 110)]
    assert spans(apart, gap_bytes=70, request_bytes=29) == [(0, 20), (20, 30), (100, 110)]
    assert spans(apart, gap_bytes=70, request_bytes=1) == apart
    assert spans([(0, 100), (100, 130)], gap_bytes=0, request_bytes=50) == [(0, 100), (100, 130)]
    assert spans([(5, 9), (0, 4), (5, 9), (2, 7)], gap_bytes=0) == [(0, 9)]


def test_members_are_numbers_of_the_ranges_asked_for() -> None:
    found = merge_ranges([(50, 60), (0, 10), (10, 20), (0, 10)], MergeLimits(gap_bytes=0))
    assert [(one.start, one.stop, set(one.members)) for one in found] == [
        (0, 20, {1, 2, 3}),
        (50, 60, {0}),
    ]


disjoint_ranges = st.lists(st.integers(0, 2000), max_size=24, unique=True).map(
    lambda ends: list(zip(*[iter(sorted(ends)[: len(ends) // 2 * 2])] * 2, strict=True))
)
any_ranges = st.lists(
    st.tuples(st.integers(0, 2000), st.integers(0, 300)).map(lambda r: (r[0], sum(r)))
)


@given(
    ranges=st.one_of(any_ranges, disjoint_ranges.flatmap(st.permutations)),
    gap=st.integers(0, 400),
    size=st.integers(1, 2500),
)
def test_every_range_lies_in_one_request(
    ranges: list[tuple[int, int]], gap: int, size: int
) -> None:
    found = merge_ranges(ranges, MergeLimits(gap, size))
    members = [number for one in found for number in one.members]
    assert sorted(members) == list(range(len(ranges)))
    assert [one.start for one in found] == sorted(one.start for one in found)
    for one in found:
        within = [ranges[number] for number in one.members]
        assert one.start == min(start for start, _ in within)
        assert one.stop == max(stop for _, stop in within)
        widest = max(stop - start for start, stop in within)
        assert one.stop - one.start <= max(size, widest)
        stop = one.start
        for start, end in sorted(within):
            assert start - stop <= gap
            stop = max(stop, end)


@given(ranges=disjoint_ranges, gap=st.integers(0, 400), size=st.integers(1, 2500))
def test_no_two_requests_could_have_been_one(
    ranges: list[tuple[int, int]], gap: int, size: int
) -> None:
    found = merge_ranges(ranges, MergeLimits(gap, size))
    for one, after in itertools.pairwise(found):
        # Ranges join from the left: the next one was too far away, or too much.
        first = min(ranges[number] for number in after.members)
        assert first[0] - one.stop > gap or first[1] - one.start > size


def test_without_gaps_each_byte_is_asked_for_once() -> None:
    ranges = [(0, 10), (10, 30), (40, 50)]
    assert sum(stop - start for start, stop in spans(ranges, gap_bytes=0)) == 40


@pytest.mark.parametrize("limits", [{"gap_bytes": -1}, {"request_bytes": 0}])
def test_limits_that_can_not_be_meant_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(PlanError, match="gap from 0"):
        MergeLimits(**limits)


# What a read costs. Every cost is counted by the project, and seen again where bytes are read and
# chunks are decoded.

CRC = 4
INDEX_ENTRY = 16


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads.below(tmp_path, monkeypatch)


def raw_shard(path: Path, rows: int) -> None:
    """Write a shard of raw chunks of ten rows, 120 bytes each, in order."""
    sharding = ShardingCodec(chunk_shape=(10, 3), codecs=[BytesCodec()])
    options = {"chunks": (rows, 3), "serializer": sharding, "compressors": None}
    foreign_numbers(foreign_group(path, rows), "a", ramp(rows, 3), **options)
    assert shard_entries(path / "a/c/0/0", rows // 10).tolist() == [
        [120 * n, 120] for n in range(rows // 10)
    ]


def sum_of(reads: int, rows: int, chunks: int, requests: int, num_bytes: int) -> KeyCounts:
    return KeyCounts(reads=reads, rows=rows, chunks=chunks, requests=requests, bytes=num_bytes)


def test_case_02_a_shard_is_fetched_and_its_inner_chunks_are_decoded(
    tmp_path: Path, reads: Reads
) -> None:
    window = [(95, 105)]
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "sharded", ramp(250, 1), chunks=(100, 1), shards=(300, 1))
    foreign_numbers(group, "plain", ramp(250, 1), chunks=(100, 1))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    for key in ("sharded", "plain"):
        (found,) = ep.read({key: window})[key]
        assert found[:, 0].tolist() == [1000 * row for row in range(95, 105)]
    entries = shard_entries(tmp_path / "ep.zarr/sharded/c/0/0", 3)
    index = 3 * INDEX_ENTRY + CRC
    payload = int(entries[:2].sum(axis=0)[1])
    assert ep.counts["sharded"] == sum_of(1, 10, 2, 2, index + payload)
    files = [(tmp_path / f"ep.zarr/plain/c/{n}/0").stat().st_size for n in (0, 1)]
    assert ep.counts["plain"] == sum_of(1, 10, 2, 2, sum(files))
    assert reads.agree_with(ep.counts.total)
    assert reads.ranges == [
        ("ep.zarr/sharded/c/0/0", int(entries.sum(axis=1).max()), index),
        ("ep.zarr/sharded/c/0/0", 0, payload),
        ("ep.zarr/plain/c/0/0", 0, files[0]),
        ("ep.zarr/plain/c/1/0", 0, files[1]),
    ]


def test_case_04_of_a_thousand_frames_the_index_once_and_two_frames_each_time(
    tmp_path: Path, reads: Reads
) -> None:
    frames = jpegs(pictures(125)) * 8
    assert len(frames) == 1000
    path = tmp_path / "ep.zarr"
    EpisodeWriter.write(path, numeric={}, images={"cam": frames}, fps=30, embodiment="human")
    shard = path / "cam/c/0"
    array = open_range(path, "cam", limits=no_gaps)
    wanted, index = [(5, 6), (12, 13)], 1000 * INDEX_ENTRY + CRC
    assert [bytes(row) for row in array.read(wanted)] == [frames[5], frames[12]]
    # Each stored frame is one JPEG, behind its number of rows and its size, with a crc32c.
    entries = shard_entries(shard, 1000)
    payload = [
        ("ep.zarr/cam/c/0", int(entries[t, 0]), 4 + 4 + len(frames[t]) + CRC) for t in (5, 12)
    ]
    index_read = ("ep.zarr/cam/c/0", shard.stat().st_size - index, index)
    assert reads.ranges == [index_read, *payload]
    size = sum(size for _, _, size in payload)
    for _ in range(2):
        reads.clear()
        counted = array.cost(wanted)
        assert counted == sum_of(1, 2, 2, 2, size)
        assert reads.ranges == payload
        assert reads.agree_with(counted)


def test_case_04_first_access_and_with_gaps_read_through(tmp_path: Path, reads: Reads) -> None:
    rows = [b"%04d" % t * 20 for t in range(1000)]
    group = foreign_group(tmp_path / "ep.zarr", 1000)
    foreign_bytes(group, "a", rows, shards=(1000,), compressors=None)
    index, frame = 1000 * INDEX_ENTRY + CRC, 4 + 4 + 80
    wanted = [(5, 6), (12, 13)]
    through = open_range(tmp_path / "ep.zarr", limits=MergeLimits(gap_bytes=6 * frame))
    assert through.cost(wanted) == sum_of(1, 2, 2, 2, index + 8 * frame)
    assert through.cost(wanted) == sum_of(1, 2, 2, 1, 8 * frame)
    less = open_range(tmp_path / "ep.zarr", limits=MergeLimits(gap_bytes=6 * frame - 1))
    assert less.cost(wanted) == sum_of(1, 2, 2, 3, index + 2 * frame)
    reads.clear()
    counted = less.cost(wanted)
    assert counted == sum_of(1, 2, 2, 2, 2 * frame)
    assert reads.agree_with(counted)


LIMITS: dict[str, tuple[MergeLimits, list[tuple[int, int]]]] = {
    "neighbours alone": (no_gaps, [(0, 360), (600, 240), (1200, 120)]),
    "across one chunk, no more": (MergeLimits(120), [(0, 360), (600, 240), (1200, 120)]),
    "across two": (MergeLimits(240), [(0, 840), (1200, 120)]),
    "across all": (MergeLimits(360), [(0, 1320)]),
    "in two halves": (MergeLimits(360, 840), [(0, 840), (1200, 120)]),
    "at most two chunks": (
        MergeLimits(360, 240),
        [(0, 240), (240, 120), (600, 240), (1200, 120)],
    ),
    "one by one": (MergeLimits(360, 1), [(120 * n, 120) for n in (0, 1, 2, 5, 6, 10)]),
}


@pytest.mark.parametrize(("limits", "requests"), LIMITS.values(), ids=LIMITS)
def test_neighbouring_chunks_merge_within_limits(
    tmp_path: Path, reads: Reads, limits: MergeLimits, requests: list[tuple[int, int]]
) -> None:
    raw_shard(tmp_path / "ep.zarr", 200)
    array = open_range(tmp_path / "ep.zarr", limits=limits)
    array.read([(0, 1)])  # and the index is kept
    reads.clear()
    counted = array.cost([(0, 30), (59, 61), (109, 110), (100, 102)])
    assert counted.chunks == 6
    assert [(start, size) for _, start, size in reads.ranges] == requests
    assert reads.agree_with(counted)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_second_access_to_numbers(tmp_path: Path, reads: Reads, cache_bytes: int) -> None:
    raw_shard(tmp_path / "ep.zarr", 200)
    array = open_range(tmp_path / "ep.zarr", cache_bytes=cache_bytes)
    first, second = array.cost([(35, 52)]), array.cost([(35, 52)])
    index = 20 * INDEX_ENTRY + CRC
    assert first == sum_of(1, 17, 3, 2, index + 3 * 120)
    assert second == (sum_of(1, 17, 0, 0, 0) if cache_bytes else sum_of(1, 17, 3, 1, 3 * 120))
    # Of five chunks, three are kept; the others lie on both sides.
    third = array.cost([(25, 65)])
    outside = sum_of(1, 40, 2, 1, 5 * 120) if cache_bytes else sum_of(1, 40, 5, 1, 5 * 120)
    assert third == outside
    assert reads.agree_with(first + second + third)


def test_chunks_kept_within_a_budget_are_decoded_again_once_gone(
    tmp_path: Path, reads: Reads
) -> None:
    raw_shard(tmp_path / "ep.zarr", 200)
    array = open_range(tmp_path / "ep.zarr", cache_bytes=2 * (120 + ENTRY_BYTES))
    found = [array.cost([(row, row + 1)]).chunks for row in (0, 10, 5, 20, 0, 10)]
    assert found == [1, 1, 0, 1, 0, 1]  # chunk 1 was used last when chunk 2 came


def test_second_access_to_a_camera_reads_its_frames_again(tmp_path: Path, reads: Reads) -> None:
    rows = [b"%04d" % t * 20 for t in range(40)]
    foreign_bytes(
        foreign_group(tmp_path / "ep.zarr", 40), "a", rows, shards=(40,), compressors=None
    )
    array = open_range(tmp_path / "ep.zarr", cache_bytes=2**20)
    first, second = array.cost([(5, 8)]), array.cost([(5, 8)])
    assert first == sum_of(1, 3, 3, 2, 40 * INDEX_ENTRY + CRC + 3 * 88)
    assert second == sum_of(1, 3, 3, 1, 3 * 88)
    assert reads.agree_with(first + second)


def test_chunks_that_are_not_stored_cost_nothing(tmp_path: Path, reads: Reads) -> None:
    values = ramp(40, 3)
    values[10:20] = 0
    options: dict[str, Any] = {"config": {"write_empty_chunks": False}, "compressors": None}
    group = foreign_group(tmp_path / "ep.zarr", 40)
    foreign_numbers(group, "a", values, chunks=(10, 3), shards=(40, 3), **options)
    array = open_range(tmp_path / "ep.zarr", limits=no_gaps)
    array.read([(0, 1)])
    assert array.cost([(12, 18)]) == sum_of(1, 6, 0, 0, 0)
    assert array.cost([(5, 25)]) == sum_of(1, 20, 2, 1, 240)


# What a batch costs.


def rows_read(rows: set[int], chunk_rows: int) -> int:
    """Count the rows of a read by DESIGN section 5: rows between two of one or next chunks too."""
    pairs = itertools.pairwise(sorted(rows))
    joined = [b - a - 1 for a, b in pairs if b // chunk_rows - a // chunk_rows <= 1]
    return len(rows) + sum(joined)


@pytest.mark.parametrize("cache_bytes", [0, 2**24])
def test_a_batch_decodes_each_chunk_once(tmp_path: Path, reads: Reads, cache_bytes: int) -> None:
    total, path = 1050, tmp_path / "ep.zarr"
    EpisodeWriter.write(
        path,
        numeric={"pose": ramp(total, 7)},
        images={"cam": jpegs(pictures(125)) * 8 + jpegs(pictures(50))},
        fps=30,
        embodiment="human",
    )
    specs = {
        "state": KeySpec(zarr_key="pose", key_type="proprio_keys", history=4, stride_s=0.5),
        "action": KeySpec(zarr_key="pose", key_type="action_keys", horizon=30),
        "image": KeySpec(zarr_key="cam", key_type="camera_keys"),
        "past": KeySpec(zarr_key="cam", key_type="camera_keys", lag_s=0.5),
    }
    ds = ZarrDataset(path, KeyMap(specs), cache_bytes=cache_bytes)
    frames = np.random.default_rng(0).integers(0, 700, (2, 32)).tolist()
    kept: set[int] = set()
    for batch in frames:
        ds.episode.counts.reset()
        reads.clear()
        assert len(ds.__getitems__(batch)) == 32
        wanted: dict[str, set[int]] = {"pose": set(), "cam": set()}
        for spec, i in itertools.product(specs.values(), batch):
            wanted[spec.zarr_key].update(slow_rows(spec, 30.0, total, i)[0])
        chunks = {row // 100 for row in wanted["pose"]}
        counted = ds.episode.counts
        assert counted["pose"].reads == counted["cam"].reads == 1
        assert counted["pose"].rows == rows_read(wanted["pose"], 100)
        assert counted["pose"].chunks == len(chunks - kept)
        assert counted["cam"].rows == counted["cam"].chunks == rows_read(wanted["cam"], 1)
        assert counted["cam"].rows == len(wanted["cam"])
        assert reads.agree_with(counted.total)
        kept = (kept | chunks) if cache_bytes else set()
