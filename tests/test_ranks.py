"""Several ranks, as real processes over gloo: shares, tails, and going on with more or fewer."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from tests.soak.fits import Log, Training
from tests.soak.gloo import JobError, run_job
from tests.soak.ranks import LoaderJob, TrainingJob, Tree, real_frames, train
from tests.soak.recordings import Shown, write_recordings
from tests.soak.training import recorded

LENGTHS = (5, 3, 7, 2, 6, 1)
WORLDS = (1, 2, 3, 1)


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
    found: dict[str, Any] = {"failing": error_of(2, lambda rank: 1 // (1 - rank))}

    def job(name: str, folder: Path, resume: Path | None = None, **options: Any) -> None:
        found[name] = train(2, folder, root / name.replace(" ", "-"), resume, **options)

    job("39", ten, data={"batch_size": 5})
    flag = Training(
        lambda: recorded(ten), {"strategy": "ddp", "devices": 2, "use_distributed_sampler": True}
    )
    found["39 flag"] = error_of(2, lambda _rank: flag.run(root / "39-flag"))
    job("38", sixteen, data={"batch_size": 2})
    small: dict[str, Any] = {"data": {"batch_size": 2}, "accumulate_grad_batches": 2}
    job("43", ten, **small)
    for done in (1, 2, 3, 4):
        job(f"43 behind {done}", ten, root / "43" / f"{done}.ckpt", **small)
    for name, batch_size in (("44 by 2", 2), ("44 by 2 again", 2), ("44 by 1", 1)):
        job(name, fives, data={"batch_size": batch_size, "valid_ratio": 0.34})
    return found


def frames_of(embodiment: str, lengths: Sequence[int]) -> list[tuple[str, int]]:
    return [(f"{embodiment}_{n}.zarr", i) for n, total in enumerate(lengths) for i in range(total)]


def in_a_fresh_process(jobs: Callable[[Path], dict[str, Any]], root: Path) -> dict[str, Any]:
    """Return what came of jobs, whose ranks are forked from a process that has not trained."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as host:
        return host.submit(jobs, root).result()


def shown(log: Log, epoch: int) -> list[Shown]:
    return [step.shown for step in log.steps if step.epoch == epoch]


def assert_shared(batches: Sequence[Sequence[Shown]], frames: list[tuple[str, int]]) -> None:
    """Assert that ranks have as many batches each, and all frames once together."""
    assert len({len(rank) for rank in batches}) == 1
    assert sorted(one for rank in batches for one in real_frames(rank)) == sorted(frames)


def test_one_two_three_ranks_and_back_serve_every_frame_once(tmp_path: Path) -> None:
    for name, tally in in_a_fresh_process(trees, tmp_path).items():
        assert (name, tally.wrong) == (name, 0)
        assert tally.resumes >= (15 if "loaders" in name else 6)
        assert tally.batches > 100


def test_two_ranks(tmp_path: Path) -> None:
    """Cases 38, 39, 43 and 44: one test, as starting processes takes most of its time."""
    found = in_a_fresh_process(cases, tmp_path)
    check_case_38(found["38"])
    check_case_39(found["39"], found["39 flag"])
    for done in (1, 2, 3, 4):
        check_case_43(found["43"], found[f"43 behind {done}"], done)
    check_case_44_in_training(found["44 by 2"], found["44 by 2 again"])
    check_case_44_in_validation(found["44 by 2"], batches=2, repeats=0)
    check_case_44_in_validation(found["44 by 1"], batches=3, repeats=1)
    assert found["failing"].startswith("rank 1 failed: Traceback")
    assert "ZeroDivisionError" in found["failing"]


def check_case_38(logs: list[Log]) -> None:
    """Eight batches are four for each of two ranks."""
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in logs]
        assert [[len(batch) for batch in rank] for rank in ranks] == [[2, 2, 2, 2]] * 2
        assert_shared(ranks, frames_of("arm", (9, 7)))


def check_case_39(logs: list[Log], refusal: str) -> None:
    """Ten samples are five for each of two ranks; who would deal them again is refused."""
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in logs]
        assert [[len(batch) for batch in rank] for rank in ranks] == [[5]] * 2
        assert_shared(ranks, frames_of("arm", (6, 4)))
    assert "SettingsError: the trainer runs 2 processes" in refusal
    assert "Trainer(use_distributed_sampler=False)" in refusal


def check_case_43(whole: list[Log], resumed: list[Log], done: int) -> None:
    """Each rank goes on with the tail of its own epoch, behind half a step, too."""
    assert [len(shown(log, 0)) for log in whole] == [3, 3]
    assert_shared([shown(log, 0) for log in whole], frames_of("arm", (6, 4)))
    for one, other in zip(whole, resumed, strict=True):
        assert other.steps == one.steps[done:]


def check_case_44_in_training(logs: list[Log], again: list[Log]) -> None:
    """Epochs differ, and runs repeat."""
    for one, other in zip(logs, again, strict=True):
        assert one.steps == other.steps
        assert shown(one, 0) != shown(one, 1)
    for epoch in (0, 1):
        ranks = [shown(log, epoch) for log in logs]
        episodes = {one[0] for rank in ranks for batch in rank for one in batch}
        assert len(episodes) == 2
        assert_shared(ranks, [(episode, frame) for episode in episodes for frame in range(5)])


def check_case_44_in_validation(logs: list[Log], *, batches: int, repeats: int) -> None:
    """Five frames come once over two ranks, in as many batches; what fills them up is marked."""
    trained = {one[0] for log in logs for batch in shown(log, 0) for one in batch}
    (held_out,) = {f"arm_{n}.zarr" for n in range(3)} - trained
    assert [len(log.validated) for log in logs] == [2 * batches] * 2
    for epoch in (0, 1):
        ranks = [log.validated[epoch * batches : (epoch + 1) * batches] for log in logs]
        assert_shared(ranks, [(held_out, frame) for frame in range(5)])
        assert sum(one[3] for rank in ranks for batch in rank for one in batch) == repeats
