"""What the benches against other formats answer and refuse: HDF5 and Lance."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from zarr.codecs import GzipCodec

from bench import hdf5, lance
from bench.hdf5_samples import HdfSamples, write_hdf5
from bench.lance_batches import LanceBatches, write_lance
from bench.pairing import WrongAnswerError
from bench.recordings import CAMERA, Recording, make_jpegs, write_folder, write_recording
from bench.zarr_samples import rewrite_numbers
from egoloader import human_keymap
from egoloader.errors import MissingExtraError

TINY: dict[str, Any] = {"rounds": 2, "size": (24, 40), "jpeg_bytes": (500, 5000), "horizon": 5}
HDF5 = hdf5.Settings(total_frames=130, **TINY)
LANCE = lance.Settings(episodes=2, total_frames=60, batch_size=4, **TINY)
KEYMAP = human_keymap("keypoints", horizon=5, proprio_history=4)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return write_recording(tmp_path_factory.mktemp("episodes") / "ep.zarr", 130, jpegs(), seed=0)


def jpegs() -> list[bytes]:
    return make_jpegs((24, 40), (500, 5000), seed=0)


def numbers(recording: Recording, key: str) -> Any:
    stored: Any = zarr.open_array(recording.path / key, mode="r")
    return stored[: recording.total_frames]


def test_h5py_serves_the_recording(recording: Recording, tmp_path: Path) -> None:
    write_hdf5(tmp_path / "ep.hdf5", recording)
    poses = numbers(recording, "left.obs_wrist_pose")
    with HdfSamples(tmp_path / "ep.hdf5", KEYMAP, cache_bytes=0) as samples:
        for frame, history, horizon in (
            (0, [0, 0, 0, 0], [0, 1, 2, 3, 4]),
            (98, [95, 96, 97, 98], [98, 99, 100, 101, 102]),
            (128, [125, 126, 127, 128], [128, 129, 129, 129, 129]),
        ):
            sample = samples.sample(frame)
            assert sample.keys() == set(KEYMAP)
            assert np.array_equal(sample["left.obs_wrist_pose"], poses[history])
            assert np.array_equal(sample["left.action_wrist_pose"], poses[horizon])
            jpeg = sample["observations.images.front_img_1"]
            assert jpeg == recording.jpeg(CAMERA, frame)


def test_gzip_holds_the_same_numbers(recording: Recording, tmp_path: Path) -> None:
    rewrite_numbers(recording.path, tmp_path / "gzip.zarr", GzipCodec(level=1))
    for key in ("left.obs_keypoints", "obs_head_pose"):
        before: Any = zarr.open_array(recording.path / key, mode="r")
        after: Any = zarr.open_array(tmp_path / "gzip.zarr" / key, mode="r")
        assert [type(codec).__name__ for codec in after.compressors] == ["GzipCodec"]
        assert (before.chunks, before.shards) == (after.chunks, after.shards)
        assert np.array_equal(before[:], after[:])


def test_h5py_is_timed_with_and_without_caches() -> None:
    result = hdf5.measure_hdf5(HDF5)
    off, on = "page cache warm, chunk caches off", "page cache warm, chunk caches on"
    contenders = ["egoloader", "h5py, gzip-1", "egoloader, gzip-1"]
    assert [(row.cache, row.contender) for row in result.figures] == [
        (cache, contender) for cache in (off, on) for contender in contenders
    ]
    assert [(target.sense, target.bound) for target in result.targets] == [
        ("at least", 1.2),
        ("at least", 1.5),
    ]


def test_an_hdf5_sample_of_another_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = HdfSamples.sample
    monkeypatch.setattr(HdfSamples, "sample", lambda self, frame: sample(self, max(0, frame - 1)))
    with pytest.raises(
        WrongAnswerError, match=r"'h5py, gzip-1' answers question \[0, 25, .*\] otherwise"
    ):
        hdf5.measure_hdf5(HDF5)


@pytest.fixture(scope="module")
def alone() -> Iterator[Executor]:
    """Runs functions in a process of their own: Lance takes exception to later forks."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        yield process


@pytest.mark.parametrize(
    ("library", "measure"),
    [
        ("h5py", lambda: hdf5.measure_hdf5(HDF5)),
        ("lance", lambda: lance.measure_lance(LANCE)),
    ],
)
def test_a_library_that_is_not_there_names_its_extra(
    library: str, measure: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"'{library}'.*pip install 'egoloader\[bench\]'"):
        measure()


def check_lance_serves_the_recordings() -> None:
    with tempfile.TemporaryDirectory() as folder:
        recordings = write_folder(Path(folder) / "episodes", 2, 12, jpegs(), seed=0)
        first, second = recordings.values()
        poses = [numbers(one, "right.obs_wrist_pose") for one in (first, second)]
        assert not np.array_equal(*poses)
        heads = [numbers(first, "obs_head_pose")[11], *numbers(second, "obs_head_pose")[:2]]
        write_lance(Path(folder) / "frames.lance", recordings)
        batches = LanceBatches(Path(folder) / "frames.lance", KEYMAP, recordings)
        # The last frame of the first episode, the first two of the second; one comes twice.
        batch = batches.batch([11, 12, 13, 11])
    assert batch.keys() == set(KEYMAP)
    history = [poses[0][[8, 9, 10, 11]], poses[1][[0, 0, 0, 0]], poses[1][[0, 0, 0, 1]]]
    assert np.array_equal(batch["right.obs_wrist_pose"], [*history, history[0]])
    horizon = [poses[0][[11] * 5], poses[1][:5], poses[1][1:6]]
    assert np.array_equal(batch["right.action_wrist_pose"], [*horizon, horizon[0]])
    assert np.array_equal(batch["obs_head_pose"], [*heads, heads[0]])
    shown = [first.jpeg(CAMERA, 11), second.jpeg(CAMERA, 0), second.jpeg(CAMERA, 1)]
    assert batch["observations.images.front_img_1"] == [*shown, shown[0]]


def check_lance_is_timed_with_and_without_a_cache() -> None:
    result = lance.measure_lance(LANCE)
    assert [row.contender for row in result.figures] == ["egoloader", "Lance"] * 2
    assert len({row.cache for row in result.figures}) == 2
    assert [(target.sense, target.bound) for target in result.targets] == [("at least", 1.0)] * 2


def check_a_lance_batch_in_another_order_is_refused() -> None:
    batch = LanceBatches.batch

    def backwards(self: LanceBatches, indices: Sequence[int]) -> dict[str, Any]:
        return batch(self, indices[::-1])

    with (
        mock.patch.object(LanceBatches, "batch", backwards),
        pytest.raises(WrongAnswerError, match="'Lance' answers"),
    ):
        lance.measure_lance(LANCE)


@pytest.mark.parametrize(
    "check",
    [
        check_lance_serves_the_recordings,
        check_lance_is_timed_with_and_without_a_cache,
        check_a_lance_batch_in_another_order_is_refused,
    ],
)
def test_lance(check: Callable[[], None], alone: Executor) -> None:
    alone.submit(check).result()
