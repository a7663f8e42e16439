"""The long test of many epochs in its short form: what a process holds, and that growth is seen."""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.result import load, save
from bench.table import write_tables
from tests.soak.endurance import WAYS, Epoch, Log, run_way, summarise, unsteady
from tests.soak.footprint import Counts, Footprint

EPOCHS, FRAMES = 4, 479
THREADS, WORKERS, TRAINER = WAYS
FIRST = "pick_place_0.zarr"
_kept: list[Any] = []


@pytest.fixture(scope="module")
def apart() -> Iterator[Callable[..., list[Epoch]]]:
    """Serves in a process of its own, in which nothing else comes and goes."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        yield lambda *args, **options: process.submit(run_way, *args, **options).result()


@pytest.mark.parametrize("way", WAYS)
def test_all_frames_come_and_nothing_grows(apart: Callable[..., list[Epoch]], way: str) -> None:
    epochs = apart(way, EPOCHS)
    assert [(one.served, one.wrong) for one in epochs] == [(FRAMES, 0)] * EPOCHS
    assert unsteady(epochs) == []
    processes = epochs[0].footprint.counts
    assert len(processes) == (3 if way == WORKERS else 1)
    assert all(one.files > 0 and one.threads > 0 for one in processes.values())
    assert sum(one.segments for one in processes.values()) > 0 or way != WORKERS


# Leaks: one a pass over the episodes, in whichever process makes the sample.


def leak_a_file(sample: dict[str, Any]) -> dict[str, Any]:
    if is_first(sample):
        _kept.append(tempfile.TemporaryFile())  # noqa: SIM115
    return sample


def leak_a_thread(sample: dict[str, Any]) -> dict[str, Any]:
    if is_first(sample):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    return sample


def leak_a_segment(sample: dict[str, Any]) -> dict[str, Any]:
    if is_first(sample):
        _kept.append(torch.zeros(5000).share_memory_())
    return sample


def darken(sample: dict[str, Any]) -> dict[str, Any]:
    if is_first(sample):
        sample["wrist"] = sample["wrist"].clamp(max=100)
    return sample


def is_first(sample: dict[str, Any]) -> bool:
    return (sample["episode"], int(sample["frame_index"])) == (FIRST, 0)


@pytest.mark.parametrize(
    ("way", "leak", "noun"),
    [
        (WORKERS, leak_a_file, "files"),
        (WORKERS, leak_a_segment, "segments"),
        (TRAINER, leak_a_thread, "threads"),
    ],
)
def test_what_grows_is_found(
    apart: Callable[..., list[Epoch]], way: str, leak: Any, noun: str
) -> None:
    found = unsteady(apart(way, 3, transforms=(leak,)))
    assert any(f" {noun}, then " in one for one in found), found
    assert all(one.startswith("epoch 3: process ") for one in found)


def test_a_frame_that_is_not_as_it_is_stored_is_found(apart: Callable[..., list[Epoch]]) -> None:
    assert [one.wrong for one in apart(THREADS, 2, transforms=(darken,))] == [1, 1]


def test_frames_that_come_twice_or_not_at_all_are_wrong() -> None:
    batch = {
        "episode": ["a", "a"],
        "frame_index": torch.tensor([0, 1]),
        "front": torch.zeros(2, 3, 4, 4, dtype=torch.uint8),
        "wrist": torch.ones(2, 3, 4, 4, dtype=torch.uint8),
        "joints": torch.tensor([[1.0], [2.0]]),
    }
    whole = Log({})
    whole.see(batch)
    log = Log(stored := dict(list(whole._served)))
    assert sorted(stored) == [("a", 0), ("a", 1)]
    for times in (1, 2, 0, 1):
        log.see_all([batch] * times)
        log.end_epoch()
    assert [(one.served, one.wrong) for one in log.epochs] == [(2, 0), (4, 2), (0, 2), (2, 0)]


def footprint(mib: float = 100, files: int = 5, pid: int = 1) -> Footprint:
    memory = int(mib * 2**20)
    return Footprint({0: Counts(9, 2, 0), pid: Counts(files, 1, 3)}, memory, memory, 50)


def test_a_worker_that_is_another_one_is_a_difference() -> None:
    assert footprint().differences(footprint(mib=7)) == []
    assert footprint().differences(footprint(files=6)) == ["process 1: 5 files, then 6"]
    assert footprint().differences(footprint(pid=2)) == ["processes [0, 1], then [0, 2]"]


@pytest.mark.parametrize(
    ("changes", "are_met"),
    [
        ({}, [True, True, True]),
        ({"wrong": 1}, [False, True, True]),
        ({"footprint": footprint(mib=107)}, [True, True, True]),
        ({"footprint": footprint(mib=109)}, [True, True, False]),
        ({"footprint": footprint(files=6)}, [True, False, True]),
    ],
)
def test_epochs_become_a_result(tmp_path: Path, changes: Any, are_met: list[bool]) -> None:
    good = Epoch(FRAMES, 0, footprint())
    result = summarise({"somehow": [good] * 10 + [replace(good, **changes)] * 5})
    assert [target.is_met for target in result.targets] == are_met
    found = load(save(result, tmp_path))
    assert [row["contender"] for row in found["counts"]] == ["behind epoch 2", "behind epoch 15"]
    assert found["counts"][0]["counts"]["their open files"] == 5
    assert "| somehow: resident | 5 | **100** (100 to 100)" in (write_tables(tmp_path).read_text())
