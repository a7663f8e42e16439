"""What a plan says of its cost: exactly what reading then costs, in any layout."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, GzipCodec, ShardingCodec
from zarr.codecs.numcodecs import Delta

from egoloader import KeyMap, KeySpec, MultiDataset, ZarrDataset, ZarrEpisode
from egoloader.counts import KeyCounts
from egoloader.errors import MissingChunkError
from egoloader.explanation import Cost, EpisodeReads, RequestRows, cost_by_array, explain
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.sampler import EpisodePoolSampler
from egoloader.selection import SelectionSettings, select_batch
from tests.entries import CAMERA, POSE, camera, entry, keymap
from tests.episodes import (
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    jpegs,
    pictures,
    ramp,
    write_human,
)
from tests.oracle import slow_rows
from tests.strategies import StoredArray, key_specs, stored_arrays

TOTAL = 250
FRAMES = {
    "the first": [0],
    "the middle": [130],
    "the last": [TOTAL - 1],
    "a batch with repeats": [3, 200, 3, 249, 0, 77, 77],
}
NUMBERS: dict[str, dict[str, Any]] = {
    "sharded": {"chunks": (20, 7), "shards": (260, 7)},
    "several shards": {"chunks": (30, 7), "shards": (90, 7)},
    "unsharded": {"chunks": (20, 7)},
    "chunks along D": {"chunks": (20, 3)},
    "chunks and shards along D": {"chunks": (20, 2), "shards": (100, 4)},
    "index at start": {
        "chunks": (260, 7),
        "compressors": None,
        "serializer": ShardingCodec(
            chunk_shape=(20, 7), codecs=[BytesCodec(), GzipCodec()], index_location="start"
        ),
    },
    "rows alone": {"chunks": (1, 7), "shards": (250, 7)},
    "one chunk": {"chunks": (300, 7)},
}
CAMERAS: dict[str, dict[str, Any]] = {
    "sharded": {"chunks": (1,), "shards": (TOTAL,)},
    "unsharded": {"chunks": (1,)},
    "several rows a chunk": {"chunks": (3,), "shards": (30,)},
}
#: Windows with gaps of all sizes: within a chunk, and over several.
KEYMAP = keymap(
    past=entry(history=4, stride_s=1.0),
    future=entry(key_type="action_keys", horizon=9),
    now=camera(),
    before=camera(lag_s=2.0, mask=True),
    memory=camera(offsets=(-90, -89, -2, 0)),
    note=entry("note", "metadata_keys", offsets=(0, -40)),
)


def write_episode(path: Path, numbers: Mapping[str, Any], images: Mapping[str, Any]) -> Path:
    group = foreign_group(path, TOTAL)
    foreign_numbers(group, POSE, ramp(TOTAL, 7), **numbers)
    foreign_numbers(group, "timestamp", np.arange(TOTAL) / 30, chunks=(50,))
    foreign_bytes(group, CAMERA, jpegs(pictures(TOTAL)), **images)
    notes = [json.dumps({"row": row, "text": "x" * (row % 9)}).encode() for row in range(TOTAL)]
    foreign_bytes(group, "note", notes, chunks=(7,), shards=(70,))
    return path


def explained(episode: ZarrEpisode, entries: KeyMap, frames: Sequence[int]) -> EpisodeReads:
    maker = SampleMaker(episode, entries, SampleSettings())
    return explain(maker, np.array(frames, dtype=np.int64))


def counts(cost: Cost) -> KeyCounts:
    """Return what the counts of a read say where a plan said `cost`."""
    return KeyCounts(cost.reads, cost.rows, cost.chunks, cost.requests, cost.read_bytes)


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES.keys())
@pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS.keys())
def test_numbers_cost_what_the_plan_says(
    tmp_path: Path, numbers: dict[str, Any], frames: list[int]
) -> None:
    path = write_episode(tmp_path / "ep.zarr", numbers, CAMERAS["sharded"])
    assert_costs_hold(path, frames)


@pytest.mark.parametrize("frames", FRAMES.values(), ids=FRAMES.keys())
@pytest.mark.parametrize("images", CAMERAS.values(), ids=CAMERAS.keys())
def test_cameras_cost_what_the_plan_says(
    tmp_path: Path, images: dict[str, Any], frames: list[int]
) -> None:
    path = write_episode(tmp_path / "ep.zarr", NUMBERS["sharded"], images)
    assert_costs_hold(path, frames)


def assert_costs_hold(path: Path, frames: list[int]) -> None:
    dataset = ZarrDataset(path, KEYMAP, cache_bytes=0)
    found = explained(dataset.episode, KEYMAP, frames)
    dataset.episode.counts.reset()
    if len(frames) == 1:
        dataset[frames[0]]
    else:
        dataset.__getitems__(frames)
    wanted = {array.zarr_key: counts(array.cost) for array in found.arrays}
    assert dict(dataset.episode.counts) == wanted
    assert set(wanted) == {POSE, CAMERA, "note", "timestamp"}
    for array in found.arrays:
        assert not array.reference_reason
        assert array.cost.wanted_bytes <= array.cost.read_bytes
        assert sum(one.num_bytes for one in array.requests) == array.cost.read_bytes


@settings(deadline=None, max_examples=60)
@given(stored=stored_arrays(), specs=st.lists(key_specs(), min_size=1, max_size=3), data=st.data())
def test_any_layout_costs_what_the_plan_says(
    stored: StoredArray, specs: list[KeySpec], data: st.DataObject
) -> None:
    frames = data.draw(st.lists(st.integers(0, stored.total - 1), min_size=1, max_size=5))
    fields = ("horizon", "history", "stride_s", "lag_s", "offsets", "offsets_s")
    entries = KeyMap(
        {
            f"key {n}": entry(
                "a", "metadata_keys", **{name: getattr(spec, name) for name in fields}
            )
            for n, spec in enumerate(specs)
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, stored.total, zarr_format=stored.zarr_format)
        write = foreign_bytes if isinstance(stored.rows, list) else foreign_numbers
        write(group, "a", stored.rows, **stored.options)
        maker = SampleMaker(ZarrEpisode(path), entries, SampleSettings())
        (found,) = explain(maker, np.array(frames)).arrays
        maker.episode.counts.reset()
        fetched = maker.episode.fetch("a", maker.plan(np.array(frames)).reads["a"])
        assert len(fetched) == found.cost.rows
        assert maker.episode.counts["a"] == counts(found.cost)


def test_planning_reads_shard_indexes_and_nothing_else(tmp_path: Path) -> None:
    path = write_episode(tmp_path / "ep.zarr", NUMBERS["several shards"], CAMERAS["unsharded"])
    episode = ZarrEpisode(path)
    explained(episode, KEYMAP, [130, 20])
    # Rows 20 - 90 to 130 + 9, of shards of 90; three chunks and a crc in each index.
    assert episode.counts[POSE] == KeyCounts(requests=2, bytes=2 * (3 * 16 + 4))
    assert CAMERA not in dict(episode.counts)
    explained(episode, KEYMAP, [130, 20])
    assert episode.counts[POSE].requests == 2


@pytest.mark.parametrize("batch_size", [1, 9, 40])
def test_a_batch_costs_what_training_then_reads(tmp_path: Path, batch_size: int) -> None:
    for number in range(5):
        write_human(tmp_path / f"e{number}.zarr", 30 + 7 * number)
    entries = keymap(past=entry(history=3, stride_s=0.2), now=camera(), before=camera(lag_s=0.3))
    options = SelectionSettings(valid_ratio=0.2, seed=3)
    episodes = [explain(*one) for one in select_batch(tmp_path, entries, options, batch_size)]
    data = MultiDataset.from_folder(
        tmp_path, entries, split="train", valid_ratio=0.2, seed=3, cache_bytes=0
    )
    indices = next(iter(EpisodePoolSampler(data, batch_size, seed=3)))
    makers = [data._maker(number) for number in range(len(data.episodes))]
    data.__getitems__(range(len(data)))  # reads the indexes
    for maker in makers:
        maker.episode.counts.reset()
    batch = data.__getitems__(indices)
    drawn = [(sample["episode"], int(sample["frame_index"])) for sample in batch]
    assert sorted(drawn) == sorted((one.name, frame) for one in episodes for frame in one.frames)
    assert len(episodes) == len({name for name, _ in drawn})
    for key, cost in cost_by_array(episodes).items():
        read = sum((maker.episode.counts[key] for maker in makers), KeyCounts())
        assert read == counts(cost)


def test_a_request_reads_through_gaps_of_a_page(tmp_path: Path) -> None:
    head = 8  # of a chunk of one row: how many rows, and how long it is
    rows = [bytes(size - head) for size in (100, 4096, 100, 4097, 100)]
    group = foreign_group(tmp_path / "ep.zarr", 5)
    foreign_bytes(group, "a", rows, chunks=(1,), shards=(5,), compressors=None)
    entries = keymap(a=entry("a", "metadata_keys", offsets=(0, 2, 4)))
    (found,) = explained(ZarrEpisode(tmp_path / "ep.zarr"), entries, [0]).arrays
    assert found.groups == ((0, 1), (2, 3), (4, 5))
    assert found.requests == (RequestRows((0, 3), 4296), RequestRows((4, 5), 100))
    assert (found.cost.wanted_bytes, found.cost.read_bytes) == (300, 4396)


def test_alternatives_are_counted_sample_by_sample(tmp_path: Path) -> None:
    path = write_episode(tmp_path / "ep.zarr", NUMBERS["chunks along D"], CAMERAS["sharded"])
    frames = [3, 130, 3, 249]
    found = explained(ZarrEpisode(path), KEYMAP, frames)
    for array in found.arrays:
        specs = [KEYMAP[key] for key in array.entries if key in KEYMAP] or [entry("timestamp")]
        side_by_side = 3 if array.zarr_key == POSE else 1
        needed: set[int] = set()
        spans, entry_spans = [], []
        for frame in frames:
            rows = [slow_rows(spec, 30, TOTAL, frame)[0] for spec in specs]
            together = [row for one in rows for row in one]
            needed |= set(together)
            spans.append(range(min(together), max(together) + 1))
            entry_spans += [range(min(one), max(one) + 1) for one in rows]
        for reads, wanted in (
            ((array.cost.span_rows, array.cost.span_chunks), spans),
            ((array.cost.entry_rows, array.cost.entry_chunks), entry_spans),
        ):
            touched = sum(len({row // array.chunk_rows for row in span}) for span in wanted)
            assert reads == (sum(map(len, wanted)), touched * side_by_side)
        assert array.cost.needed_rows == len(needed)
        assert {row for window in array.needed for row in range(*window)} == needed


def test_windows_padding_and_frames_are_told(tmp_path: Path) -> None:
    entries = keymap(
        past=entry(history=4), future=entry(key_type="action_keys", horizon=30), now=camera()
    )
    path = write_human(tmp_path / "ep.zarr", 250)
    found = explained(ZarrEpisode(path), entries, [240, 1])
    assert (found.name, found.total_frames, found.fps) == ("ep.zarr", 250, 30)
    assert (found.num_entries, found.frames, found.kept_arrays) == (3, (240, 1), ())
    pose, front = found.arrays
    assert pose.zarr_key == POSE
    assert pose.entries["past"].windows == ((0, 2), (237, 241))
    assert pose.entries["past"].num_padded == 2
    assert pose.entries["future"].windows == ((1, 31), (240, 250))
    assert pose.entries["future"].num_padded == 20
    assert pose.groups == ((0, 31), (237, 250))
    assert pose.chunk_numbers == (0, 2)
    assert pose.needed == [(0, 31), (237, 250)]
    assert front.requests[-1].rows[1] == 241


def test_what_zarr_python_reads_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numcodecs in Zarr v3 are not in its specification
        foreign_numbers(group, POSE, ramp(TOTAL, 7), chunks=(20, 7), filters=[Delta(dtype="<f4")])
        entries = keymap(past=entry(history=30))
        dataset = ZarrDataset(tmp_path / "ep.zarr", entries, cache_bytes=0)
        (found,) = explained(dataset.episode, entries, [130]).arrays
        dataset[130]
    read, cost = dataset.episode.counts[POSE], found.cost
    assert found.reference_reason == "codec numcodecs.delta"
    assert (read.reads, read.rows, read.chunks) == (1, 30, 2)
    assert (cost.reads, cost.rows, cost.chunks) == (1, 30, 2)
    assert cost.reference_reads == 1
    assert (cost.requests, cost.read_bytes, found.requests) == (0, 0, ())
    # Whole chunks are fetched here, so what is wanted is what zarr-python reads.
    assert cost.wanted_bytes == read.bytes > 0


def test_shards_that_only_zarr_python_can_open_are_wanted_whole(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL)
    with pytest.warns(UserWarning, match="sharding_indexed"):
        foreign_numbers(
            group,
            POSE,
            ramp(TOTAL, 7),
            chunks=(300, 7),
            serializer=ShardingCodec(chunk_shape=(20, 7), codecs=[BytesCodec()]),
            compressors=GzipCodec(),
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = explained(ZarrEpisode(tmp_path / "ep.zarr"), keymap(a=entry(history=50)), [130])
    (array,) = found.arrays
    assert array.reference_reason
    assert array.cost.wanted_bytes == (tmp_path / "ep.zarr" / POSE / "c/0/0").stat().st_size


def test_annotations_are_read_once_and_told_apart(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL)
    foreign_numbers(group, POSE, ramp(TOTAL, 7))
    foreign_annotations(group, [("reach", 0, 40), ("grasp", 40, 90)])
    entries = keymap(
        text=entry("annotations", "annotation_keys"), next=entry(key_type="action_keys", horizon=30)
    )
    dataset = ZarrDataset(tmp_path / "ep.zarr", entries, annotation_cutoff=True, cache_bytes=0)
    maker = SampleMaker(dataset.episode, entries, SampleSettings(annotation_cutoff=True))
    found = explain(maker, np.array([30]))
    assert found.kept_arrays == ("annotations",)
    assert found.arrays[0].groups == ((30, 40),)
    dataset.episode.counts.reset()
    dataset[30]
    assert dict(dataset.episode.counts) == {POSE: counts(found.arrays[0].cost)}


def test_chunks_that_are_not_stored_are_refused_or_cost_nothing(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL)
    foreign_numbers(group, POSE, ramp(TOTAL, 7), chunks=(20, 7))
    (tmp_path / "ep.zarr" / POSE / "c/6/0").unlink()
    entries = keymap(past=entry(history=30))
    with pytest.raises(MissingChunkError, match="c/6/0"):
        explained(ZarrEpisode(tmp_path / "ep.zarr"), entries, [130])
    filled = ZarrDataset(tmp_path / "ep.zarr", entries, missing_chunks="fill", cache_bytes=0)
    with pytest.warns(UserWarning, match="fill values"):
        (found,) = explained(filled.episode, entries, [130]).arrays
    filled[130]
    assert filled.episode.counts[POSE] == counts(found.cost)
    assert (found.cost.chunks, found.cost.requests, found.chunk_numbers) == (1, 1, (5, 6))


def test_costs_add_up() -> None:
    names = list(Cost.__dataclass_fields__)
    one = Cost(**{name: place for place, name in enumerate(names)})
    two = Cost(**{name: 100 * place for place, name in enumerate(names)})
    assert one + two == Cost(**{name: 101 * place for place, name in enumerate(names)})


def test_v2_arrays_cost_what_the_plan_says(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL, zarr_format=2)
    values = foreign_numbers(
        group, POSE, ramp(TOTAL, 7), chunks=(20, 3), compressors=numcodecs.Zstd()
    )
    entries = keymap(past=entry(history=4, stride_s=1.0))
    dataset = ZarrDataset(tmp_path / "ep.zarr", entries, cache_bytes=0)
    (found,) = explained(dataset.episode, entries, [130, 5]).arrays
    batch = dataset.__getitems__([130, 5])
    assert (batch[0]["past"].numpy() == values[[40, 70, 100, 130]]).all()
    assert dataset.episode.counts[POSE] == counts(found.cost)
