"""What the benches of loaders count and refuse: the floor, threads and processes, memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import floor, loader, memory, memory_visit, threads
from bench.__main__ import main
from bench.blocks import Block, Picture
from bench.pairing import WrongAnswerError
from bench.recordings import CAMERA
from bench.result import Result
from bench.serving import (
    CAMERAS,
    Folder,
    Rounds,
    ServingSettings,
    ThreadedLoader,
    many_images,
    one_image,
    write_episodes,
)
from egoloader import KeyMap

SERVING = ServingSettings(
    episodes=2, total_frames=60, batch_size=4, size=(24, 40), jpeg_bytes=(500, 5000), horizon=5
)
TINY = Rounds(blocks=1, batches=3)


@pytest.fixture(scope="module")
def episodes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("episodes")
    return path, write_episodes(SERVING, path, CAMERAS)


def opened(episodes: tuple[Path, dict[str, Any]], keymap: KeyMap) -> Folder:
    return Folder(episodes[0], keymap, episodes[1], SERVING, TINY)


def test_a_block_says_what_it_shows(episodes: tuple[Path, dict[str, Any]]) -> None:
    frames = opened(episodes, many_images(SERVING)).frames
    # Frame 20 of the first episode and frame 0 of the second; offsets -30, -15 and 0.
    shown = [("episode_000.zarr", row) for row in (0, 5, 20)]
    shown += [("episode_001.zarr", 0)] * 3
    per_camera = {
        key: [[Picture(episode, camera, row) for episode, row in steps] for steps in split(shown)]
        for key, camera in zip(
            (f"observations.{camera}" for camera in CAMERAS), CAMERAS, strict=True
        )
    }
    assert frames.images == 9
    assert frames.shown([20, 60]) == per_camera
    assert frames.distinct([20, 60]) == [
        Picture(episode, camera, row)
        for camera in CAMERAS
        for episode, row in (*shown[:3], shown[-1])
    ]
    # The other way round, what is shown last is decoded last.
    assert frames.distinct([60, 20])[-1] == Picture("episode_000.zarr", CAMERAS[-1], 20)


def split(shown: list[Any]) -> list[list[Any]]:
    return [shown[:3], shown[3:]]


@pytest.mark.parametrize("keymap", [one_image(SERVING), many_images(SERVING)])
def test_the_floor_decodes_what_a_block_shows(
    episodes: tuple[Path, dict[str, Any]], keymap: KeyMap
) -> None:
    folder = opened(episodes, keymap)
    block = folder.blocks[1]
    wanted = folder.frames.served(block)
    decoded = floor.Floor(folder.frames, folder.blocks, SERVING.size).answer(block)
    served = ThreadedLoader(folder, num_threads=1).answer(block)
    for got in (decoded, served):
        assert got.frames == wanted.frames
        assert np.array_equal(got.last, wanted.last)
    assert len({index for batch in block.batches for index in batch}) == 12


def test_a_picture_that_is_another_is_refused(episodes: tuple[Path, dict[str, Any]]) -> None:
    folder = opened(episodes, one_image(SERVING))
    block = folder.blocks[0]
    batches = list(ThreadedLoader(folder, num_threads=1).batches(block))
    folder.frames.check(batches, block)
    pixel = batches[1]["observations.images.front_img_1"][2, 0, 5, 7]
    pixel ^= 1
    with pytest.raises(WrongAnswerError, match=r"front_img_1' shows something else than"):
        folder.frames.check(batches, block)
    pixel ^= 1
    with pytest.raises(ValueError, match="shorter"):
        folder.frames.check(batches[:2], block)


def test_the_loader_is_timed_against_the_floor() -> None:
    result = loader.measure_loader(loader.Settings(SERVING, TINY, TINY))
    assert [(row.case, row.contender) for row in result.figures] == [
        (case, contender)
        for case in ("one image a sample", "nine images a sample")
        for contender in ("EpisodeLoader, 1 thread", "floor", "fresh tensors")
    ]
    one, nine = (row.counts for row in result.counts)
    assert one == {"samples": 12, "images": 12, "JPEGs decoded": 12}
    assert (nine["samples"], nine["images"]) == (12, 108)
    assert 12 < nine["JPEGs decoded"] < 108  # past frames repeat the first at an episode's start
    assert [target.bound for target in result.targets] == [0.93, 0.6, 0.95, 0.6]


def test_a_floor_that_skips_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    decode = floor._decode
    monkeypatch.setattr(floor, "_decode", lambda jpegs, buffer: decode(jpegs[:-1], buffer))
    with pytest.raises(WrongAnswerError, match=r"'floor'.*Block\(number=0\).*last picture"):
        loader.measure_loader(loader.Settings(SERVING, TINY, TINY))


def test_a_loader_that_serves_other_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = ThreadedLoader.batches

    def backwards(self: ThreadedLoader, block: Block) -> Iterator[dict[str, Any]]:
        return batches(self, dataclasses.replace(block, batches=block.batches[::-1]))

    monkeypatch.setattr(ThreadedLoader, "batches", backwards)
    with pytest.raises(WrongAnswerError, match="shows something else"):
        loader.measure_loader(loader.Settings(SERVING, TINY, TINY))


def test_threads_are_timed_against_processes() -> None:
    settings = threads.Settings(SERVING, TINY, TINY, num_threads=(2, 1))
    result = threads.measure_threads(settings)
    assert [(row.case, row.contender) for row in result.figures] == [
        ("against processes", "EpisodeLoader, 2 threads"),
        ("against processes", "two processes that only decode"),
        ("against processes", "DataLoader, egoloader.collate"),
        ("against processes", "DataLoader, default_collate"),
        ("by number of threads", "num_threads=2"),
        ("by number of threads", "num_threads=1"),
    ]
    assert [target.bound for target in result.targets] == [0.9, 1.5, 1.5]


@pytest.mark.parametrize("question", [loader, threads])
def test_blocks_are_an_option(
    question: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def measure(settings: Any) -> Result:
        asked.append(settings)
        return Result("shapes", "Which?", {}, {}, (), (), ())

    name = question.__name__.rpartition(".")[2]
    monkeypatch.setattr(question, f"measure_{name}", measure)
    main(["--results", str(tmp_path), name, "--blocks", "3"])
    main(["--results", str(tmp_path), name])
    rounds = [value for value in vars_of(asked[0]) if isinstance(value, Rounds)]
    assert [one.blocks for one in rounds] == [3, 3]
    assert asked[1] == question.Settings()


def vars_of(settings: Any) -> list[Any]:
    return [getattr(settings, field.name) for field in dataclasses.fields(settings)]


MEMORY = memory.Settings(
    few=2,
    many=6,
    rounds=1,
    total_frames=60,
    batch_size=4,
    cache_bytes=2**15,
    size=(24, 40),
    jpeg_bytes=(500, 5000),
)


def test_memory_is_asked_for_twice() -> None:
    result = memory.measure_memory(MEMORY)
    assert [(row.case, row.contender, row.unit) for row in result.figures] == [
        ("peak memory", "after 2 episodes", "MiB"),
        ("peak memory", "after 6 episodes", "MiB"),
        ("resident memory", "after 2 episodes", "MiB"),
        ("resident memory", "after 6 episodes", "MiB"),
        ("growth of the peak from then on", "after 6 episodes", "KiB an episode"),
    ]
    few, many = (row.value.median for row in result.figures[:2])
    assert 0 < few <= many
    assert [row.counts.keys() for row in result.counts] == [{"open files", "threads"}] * 2
    assert result.targets[0].bound == 1.05


def test_growth_is_spread_over_the_episodes_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        {"episodes": 2, "peak_kib": 2048, "resident_kib": 1024, "open_files": 3, "threads": 2},
        {"episodes": 6, "peak_kib": 3072, "resident_kib": 1024, "open_files": 5, "threads": 2},
    ]
    monkeypatch.setattr(memory, "_visit", lambda folder, settings: said)
    result = memory.measure_memory(MEMORY)
    assert [row.value.median for row in result.figures] == [2, 3, 1, 1, 1024 / 4]
    assert (result.targets[0].figure.median, result.targets[0].is_met) == (1.5, False)
    assert [row.counts["open files"] for row in result.counts] == [3, 5]


def test_the_footprint_is_this_processs() -> None:
    before = memory_visit._footprint()
    with Path("/dev/null").open():
        assert memory_visit._footprint()["open_files"] == before["open_files"] + 1
    assert before["peak_kib"] >= before["resident_kib"] > 10_000


def test_memory_settings_that_show_nothing_are_refused() -> None:
    for wrong in ({"few": 5, "many": 5}, {"cache_bytes": 2**30}):
        with pytest.raises(ValueError, match=r"less than many|budget must be full"):
            memory.Settings(**wrong)


def test_one_camera_and_three() -> None:
    assert [spec.zarr_key for spec in one_image(SERVING).values() if spec.is_camera] == [CAMERA]
    cameras = [spec for spec in many_images(SERVING).values() if spec.is_camera]
    assert [spec.zarr_key for spec in cameras] == list(CAMERAS)
    assert {spec.offsets for spec in cameras} == {(-30, -15, 0)}
