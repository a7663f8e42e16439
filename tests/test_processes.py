"""Reading in processes that have a past: their parent's files, locks, threads and codecs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch
import zarr
from torch.utils.data import DataLoader, Dataset
from zarr.codecs import BloscCodec, BytesCodec, ShardingCodec
from zarr.core.codec_pipeline import BatchedCodecPipeline
from zarr.registry import register_pipeline

from egoloader import KeyMap, KeySpec, ZarrDataset, ZarrEpisode, collate, human_keymap
from egoloader.errors import ReadError
from egoloader.files import open_files
from tests.children import in_a_fork, open_below
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, ramp, write_human
from tests.oracle import Oracle

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:Combining a `sharding_indexed` codec"),
]
#: For what hangs where it goes wrong: a batch of a worker, a child.
LIMIT_S = 60


def numbers_alone(**entries: str) -> KeyMap:
    """Return a keymap of the current frame of arrays."""
    specs = {
        key: KeySpec(zarr_key=zarr_key, key_type="proprio_keys")
        for key, zarr_key in entries.items()
    }
    return KeyMap(specs)


def served(ds: Any, workers: int, **options: Any) -> list[dict[str, Any]]:
    """Return every batch of workers, within a limit of time for each."""
    found = DataLoader(
        ds, batch_size=4, num_workers=workers, collate_fn=collate, timeout=LIMIT_S, **options
    )
    return list(found)


@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_case_18_sharded_numbers_are_the_same_in_other_processes(
    tmp_path: Path, start: str
) -> None:
    values = np.arange(100, dtype=np.int64)
    group = foreign_group(tmp_path / "ep.zarr", 100)
    foreign_numbers(group, "sharded", values, chunks=(10,), shards=(20,))
    shards = ShardingCodec(chunk_shape=(10,), codecs=[nested((5,))])
    foreign_numbers(group, "by zarr", values, chunks=(20,), serializer=shards, compressors=None)
    ds = ZarrDataset(tmp_path / "ep.zarr", numbers_alone(sharded="sharded", zarr="by zarr"))
    assert ds.episode.reference_reason("sharded") == ""
    assert ds.episode.reference_reason("by zarr") != ""
    assert ds[99]["sharded"] == ds[99]["zarr"] == 99
    batches = served(ds, 2, multiprocessing_context=start)
    for key in ("sharded", "zarr", "frame_index"):
        assert torch.cat([batch[key] for batch in batches]).tolist() == list(range(100))


def nested(chunk: tuple[int, ...]) -> ShardingCodec:
    """Return shards for inside shards, which only zarr-python reads."""
    return ShardingCodec(chunk_shape=chunk, codecs=[BytesCodec()])


def test_case_23_workers_read_after_their_parent(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 30, annotations=[("reach", 0, 20)])
    ds = ZarrDataset(path, human_keymap(proprio_history=4, horizon=5, annotation_key="language"))
    wanted, oracle = ds[7], Oracle(path)
    batches = served(ds, 2, multiprocessing_context="fork")
    assert sum(len(batch["fps"]) for batch in batches) == 30
    for frame in range(30):
        batch = batches[frame // 4]
        for key, value in oracle.sample(ds.keymap, frame).items():
            found = batch[key][frame % 4]
            assert torch.equal(found, value) if torch.is_tensor(value) else found == value
    assert all(torch.equal(ds[7][key], wanted[key]) for key in ("left.obs_keypoints", "fps"))


# Case 24.


class ForeignPipeline(BatchedCodecPipeline):
    """Stands for another package's codec pipeline; it notes where it was used."""

    used_in: ClassVar[set[int]] = set()

    async def read(self, *args: Any, **kwargs: Any) -> Any:
        self.used_in.add(os.getpid())
        return await super().read(*args, **kwargs)


@pytest.fixture
def foreign_pipeline() -> Iterator[None]:
    register_pipeline(ForeignPipeline)
    name = f"{ForeignPipeline.__module__}.{ForeignPipeline.__qualname__}"
    with zarr.config.set({"codec_pipeline.path": name}):
        yield
    ForeignPipeline.used_in.clear()


@pytest.fixture
def mixed(tmp_path: Path) -> ZarrEpisode:
    """An episode with an array and a camera for the range reader, and an array for zarr-python."""
    group = foreign_group(tmp_path / "ep.zarr", 40)
    foreign_numbers(group, "ranges", ramp(40, 3), chunks=(10, 3), shards=(40, 3))
    shards = ShardingCodec(chunk_shape=(10, 3), codecs=[nested((5, 3))])
    options = {"chunks": (40, 3), "serializer": shards, "compressors": None}
    foreign_numbers(group, "reference", ramp(40, 3), **options)
    foreign_bytes(group, "frames", [b"%d" % t for t in range(40)], shards=(40,))
    return ZarrEpisode(tmp_path / "ep.zarr")


def assert_refused(ep: ZarrEpisode) -> None:
    with pytest.raises(ReadError, match="ForeignPipeline can't be used in a forked") as caught:
        ep.read({"reference": [(0, 1)]})
    for word in ("ep.zarr", "reference", "'spawn'", "codec_pipeline.path"):
        assert word in str(caught.value)


def assert_ranges_read(ep: ZarrEpisode) -> None:
    found = ep.read({"ranges": [(5, 25)], "frames": [(7, 9)]})
    assert found["ranges"][0].tolist() == ramp(40, 3)[5:25].tolist()
    assert found["frames"] == [[b"7", b"8"]]


@pytest.mark.usefixtures("foreign_pipeline")
def test_case_24_a_foreign_codec_pipeline_is_refused_in_a_forked_child(mixed: ZarrEpisode) -> None:
    (found,) = mixed.read({"reference": [(5, 25)]})["reference"]
    assert found.tolist() == ramp(40, 3)[5:25].tolist()
    assert ForeignPipeline.used_in == {os.getpid()}

    def child() -> None:
        assert_refused(mixed)
        assert_refused(ZarrEpisode(mixed.path))
        assert_ranges_read(mixed)
        assert os.getpid() not in ForeignPipeline.used_in

    in_a_fork(child)
    assert mixed.read({"reference": [(39, 40)]})["reference"][0].tolist() == [[39000, 39001, 39002]]


@pytest.mark.usefixtures("foreign_pipeline")
def test_case_24_a_forked_child_reads_with_zarrs_own_pipeline(mixed: ZarrEpisode) -> None:
    mixed.read({"reference": [(5, 25)]})

    def child() -> None:
        with zarr.config.set({"codec_pipeline.path": OWN_PIPELINE}):
            (found,) = ZarrEpisode(mixed.path).read({"reference": [(5, 25)]})["reference"]
        assert found.tolist() == ramp(40, 3)[5:25].tolist()

    in_a_fork(child)


OWN_PIPELINE = "zarr.core.codec_pipeline.BatchedCodecPipeline"


@pytest.mark.usefixtures("foreign_pipeline")
def test_case_24_workers_say_why_they_refuse(mixed: ZarrEpisode) -> None:
    ds = ZarrDataset(mixed.path, numbers_alone(state="reference"))
    assert ds[3]["state"].tolist() == [3000, 3001, 3002]
    with pytest.raises(ReadError, match="ForeignPipeline can't be used in a forked"):
        served(ds, 1, multiprocessing_context="fork")
    ranges = ZarrDataset(mixed.path, numbers_alone(state="ranges"))
    batches = served(ranges, 1, multiprocessing_context="fork")
    assert torch.cat([batch["state"] for batch in batches]).tolist() == ramp(40, 3).tolist()


# Case 25.


def test_case_25_four_workers_read_blosc_after_their_parent(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    group = foreign_group(tmp_path / "ep.zarr", 160)
    # Chunks of several blocks of blosc's, which its own threads share.
    values = rng.integers(0, 1000, (160, 20_000)).astype(np.float32)
    options = {"chunks": (40, 20_000), "compressors": BloscCodec(cname="zstd")}
    foreign_numbers(group, "sharded", values, **options, shards=(160, 20_000))
    foreign_numbers(group, "plain", values, **options)
    ds = ZarrDataset(tmp_path / "ep.zarr", numbers_alone(one="sharded", two="plain"))
    assert {ds.episode.reference_reason(key) for key in ("sharded", "plain")} == {""}
    assert torch.equal(ds[150]["one"], torch.from_numpy(values[150]))
    batches = served(ds, 4, multiprocessing_context="fork")
    for key in ("one", "two"):
        found = torch.cat([batch[key] for batch in batches])
        assert torch.equal(found, torch.from_numpy(values))
    assert torch.equal(ds[10]["two"], torch.from_numpy(values[10]))


# Forks without a DataLoader, and workers that stay.


@pytest.fixture(scope="module")
def human_120(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode by the writer; not to be changed."""
    return write_human(tmp_path_factory.mktemp("human") / "ep.zarr", 120)


KEY, CAMERA = "left.obs_ee_pose", "images.front_1"


def read_all(ep: ZarrEpisode) -> tuple[npt.NDArray[Any], list[bytes]]:
    found = ep.read({KEY: [(0, 120)], CAMERA: [(0, 120)]})
    return found[KEY][0], list(found[CAMERA][0])  # type: ignore[return-value]


def test_children_and_grandchildren_open_their_own_files(tmp_path: Path) -> None:
    ep = ZarrEpisode(write_human(tmp_path / "ep.zarr", 120))
    numbers, frames = read_all(ep)
    assert len(open_below(tmp_path)) == 2
    before = ep.counts[KEY]

    def assert_fresh() -> None:
        assert open_below(tmp_path) == []
        assert len(open_files()) == 0
        assert ep.counts.total.reads == 0
        found = read_all(ep)
        assert found[1] == frames
        assert (found[0] == numbers).all()
        # Nothing was left of the parent: the index and both chunks were read anew.
        assert (ep.counts[KEY].chunks, ep.counts[KEY].requests) == (2, before.requests)
        assert len(open_below(tmp_path)) == 2

    def child() -> None:
        assert_fresh()
        in_a_fork(assert_fresh)
        assert len(open_below(tmp_path)) == 2

    for _ in range(3):
        in_a_fork(child)
    assert ep.counts[KEY] == before
    assert len(open_below(tmp_path)) == 2
    assert (read_all(ep)[0] == numbers).all()


def test_a_child_forked_amid_threads_that_read_serves_samples(human_120: Path) -> None:
    keymap = human_keymap(mode="cartesian", proprio_history=4)
    ds = ZarrDataset(human_120, keymap, cache_bytes=4000)
    wanted = {i: ds[i] for i in (0, 60, 119)}
    is_over = threading.Event()

    def read_on(first: int) -> None:
        while not is_over.is_set():
            ds.__getitems__(list(range(first, 120, 7)))

    def child() -> None:
        for i, sample in wanted.items():
            found = ds[i]
            assert all(torch.equal(found[key], sample[key]) for key in ds.keymap.sample_keys)

    threads = [threading.Thread(target=read_on, args=(first,)) for first in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            in_a_fork(child)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(LIMIT_S)
    assert not any(thread.is_alive() for thread in threads)


class Reporting(Dataset[Any]):
    """Samples of an episode, with what reading has cost their process so far."""

    def __init__(self, ds: ZarrDataset) -> None:
        self.ds = ds

    def __len__(self) -> int:
        return len(self.ds)

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        state = self.ds.__getitems__(indices)
        counted = self.ds.episode.counts[KEY]
        cost = {"pid": os.getpid(), "chunks": counted.chunks, "requests": counted.requests}
        return [{"state": one["state"], **cost} for one in state]


def test_persistent_workers_keep_what_they_read_over_epochs(human_120: Path) -> None:
    ds = ZarrDataset(human_120, numbers_alone(state=KEY))
    for _ in range(3):
        ds.__getitems__(range(120))
    loader: DataLoader[Any] = DataLoader(
        Reporting(ds),
        batch_size=10,
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
        timeout=LIMIT_S,
    )
    epochs = [list(loader) for _ in range(2)]
    for batches in epochs:
        states = torch.cat([batch["state"] for batch in batches])
        assert torch.equal(states, torch.from_numpy(ramp(120, 7)))
    pids = [{int(batch["pid"][0]) for batch in batches} for batches in epochs]
    assert pids[0] == pids[1]
    assert len(pids[0]) == 2
    assert os.getpid() not in pids[0]
    # Each worker fetched the index and two chunks, in its first epoch; one request a chunk.
    for batch in epochs[1]:
        assert (int(batch["chunks"][0]), int(batch["requests"][0])) == (2, 3)
    assert max(int(batch["chunks"][0]) for batch in epochs[0]) == 2
    del loader
