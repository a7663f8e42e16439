"""Several ranks, as real processes over gloo: shares, tails, and going on with more or fewer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.soak.fits import Log, Training
from tests.soak.gloo import JobError, run_job
from tests.soak.ranks import LoaderJob, TrainingJob, Tree, real_frames, train
from tests.soak.recordings import Shown, write_recordings
from tests.soak.training import recorded

LENGTHS = (5, 3, 7, 2, 6, 1)
WORLDS = (1, 2, 3, 1)


def all_jobs(root: Path) -> dict[str, Any]:
    """Return what came of every job, in a process that may fork."""
    return {**trees(root), **cases(root), "failing": error_of(2, lambda rank: 1 // (1 - rank))}


def error_of(world_size: int, task: Callable[[int], Any]) -> str:
    try:
        run_job(world_size, task)
    except JobError as error:
        return str(error)
    return ""


def trees(root: Path) -> dict[str, Any]:
    folder = write_recordings(root / "tree", "arm", LENGTHS)
    frames = sorted(frames_of("arm", LENGTHS))
    found = {}
    for tail in ("spread", "repeat"):
        options = {"batch_size": 2, "pool_size": 3, "seed": 4, "tail": tail}
        loaders = LoaderJob(folder, options)
        found[f"loaders, {tail}"] = Tree(loaders.run, frames, 2, WORLDS, 3, tail).grow()
        saves = root / f"saves-{tail}"
        saves.mkdir()
        trainings = TrainingJob(folder, saves, options)
        found[f"trainings, {tail}"] = Tree(trainings.run, frames, 2, WORLDS, 11, tail).grow()
    return found


def cases(root: Path) -> dict[str, Any]:
    ten = write_recordings(root / "ten", "arm", (6, 4))
    sixteen = write_recordings(root / "sixteen", "arm", (9, 7))
    fives = write_recordings(root / "fives", "arm", (5, 5, 5))
    found: dict[str, Any] = {}

    def job(name: str, folder: Path, resume: Path | None = None, **options: Any) -> None:
        found[name] = train(2, folder, root / name.replace(" ", "-"), resume, **options)

    job("39", ten, data={"batch_size": 5})
    flag = Training(
        lambda: recorded(ten), {"strategy": "ddp", "devices": 2, "use_distributed_sampler": True}
    )
    found["39 flag"] = error_of(2, lambda _rank: flag.run(root / "39-flag"))
    job("38", sixteen, data={"batch_size": 2})
    small = {"data": {"batch_size": 2}, "accumulate_grad_batches": 2}
    job("43", ten, **small)
    for done in (1, 2, 3, 4):
        job(f"43 behind {done}", ten, root / "43" / f"{done}.ckpt", **small)
    for batch_size in (2, 1):
        for run in ("", " again"):
            data = {"batch_size": batch_size, "valid_ratio": 0.34}
            job(f"44 by {batch_size}{run}", fives, data=data)
    return found


def frames_of(embodiment: str, lengths: Sequence[int]) -> list[tuple[str, int]]:
    return [(f"{embodiment}_{n}.zarr", i) for n, total in enumerate(lengths) for i in range(total)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of all jobs; they are forked from a process that is fresh, as they must be."""
    root = tmp_path_factory.mktemp("jobs")
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as host:
        return host.submit(all_jobs, root).result()


def shown(log: Log, epoch: int) -> list[Shown]:
    return [step.shown for step in log.steps if step.epoch == epoch]


def assert_shared(batches: Sequence[Sequence[Shown]], frames: list[tuple[str, int]]) -> None:
    """Assert that ranks have as many batches each, and all frames once together."""
    assert len({len(rank) for rank in batches}) == 1
    assert sorted(one for rank in batches for one in real_frames(rank)) == sorted(frames)


# More ranks, fewer ranks.


@pytest.mark.parametrize("kind", ["loaders", "trainings"])
@pytest.mark.parametrize("tail", ["spread", "repeat"])
def test_one_two_three_ranks_and_back_serve_every_frame_once(
    found: dict[str, Any], kind: str, tail: str
) -> None:
    tally = found[f"{kind}, {tail}"]
    assert tally.wrong == 0
    assert tally.resumes >= {"loaders": 25, "trainings": 6}[kind]
    assert tally.batches > 100


# Cases.


def test_case_38_eight_batches_are_four_for_each_of_two_ranks(found: dict[str, Any]) -> None:
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in found["38"]]
        assert [[len(batch) for batch in rank] for rank in ranks] == [[2, 2, 2, 2]] * 2
        assert_shared(ranks, frames_of("arm", (9, 7)))


def test_case_39_ten_samples_are_five_for_each_of_two_ranks(found: dict[str, Any]) -> None:
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in found["39"]]
        assert [[len(batch) for batch in rank] for rank in ranks] == [[5]] * 2
        assert_shared(ranks, frames_of("arm", (6, 4)))


def test_case_39_a_trainer_that_would_deal_the_frames_again_is_refused(
    found: dict[str, Any],
) -> None:
    assert "SettingsError: the trainer runs 2 processes" in found["39 flag"]
    assert "Trainer(use_distributed_sampler=False)" in found["39 flag"]


@pytest.mark.parametrize("done", [1, 2, 3, 4])
def test_case_43_each_rank_goes_on_with_the_tail_of_its_own_epoch(
    found: dict[str, Any], done: int
) -> None:
    whole, resumed = found["43"], found[f"43 behind {done}"]
    assert [len(shown(log, 0)) for log in whole] == [3, 3]
    assert_shared([shown(log, 0) for log in whole], frames_of("arm", (6, 4)))
    for one, other in zip(whole, resumed, strict=True):
        assert other.steps == one.steps[done:]


def test_case_44_epochs_differ_and_runs_repeat(found: dict[str, Any]) -> None:
    for one, again in zip(found["44 by 2"], found["44 by 2 again"], strict=True):
        assert one.steps == again.steps
        assert shown(one, 0) != shown(one, 1)
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in found["44 by 2"]]
        episodes = {one[0] for rank in ranks for batch in rank for one in batch}
        assert_shared(ranks, [(episode, frame) for episode in episodes for frame in range(5)])


@pytest.mark.parametrize(("batch_size", "batches", "repeats"), [(2, 2, 0), (1, 3, 1)])
def test_case_44_validation_has_five_frames_once_over_two_ranks(
    found: dict[str, Any], batch_size: int, batches: int, repeats: int
) -> None:
    logs = found[f"44 by {batch_size}"]
    trained = {one[0] for log in logs for batch in shown(log, 0) for one in batch}
    (held_out,) = {f"arm_{n}.zarr" for n in range(3)} - trained
    for epoch in (0, 1):
        ranks = [log.validated[epoch * batches : (epoch + 1) * batches] for log in logs]
        assert [len(rank) for rank in ranks] == [batches] * 2
        assert_shared(ranks, [(held_out, frame) for frame in range(5)])
        assert sum(one[3] for rank in ranks for batch in rank for one in batch) == repeats
    assert [len(log.validated) for log in logs] == [2 * batches] * 2


# The jobs themselves.


def test_a_rank_that_fails_is_told(found: dict[str, Any]) -> None:
    assert found["failing"].startswith("rank 1 failed: Traceback")
    assert "ZeroDivisionError" in found["failing"]
