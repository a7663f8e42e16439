"""Workers that the system kills are reported: which, who has the memory, and what to do."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils import signal_handling

from egoloader import MultiDataset, collate, watch_workers, workers
from egoloader.errors import FrameError, WorkerLostError
from egoloader.train.config import compose
from egoloader.train.recipe import fit as fit_recipe
from tests.soak.recordings import KEYMAP, write_recordings
from tests.soak.training import Recorder, trainer
from tests.test_train import ONE_STEP, quietly

FRAMES = 40
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
KILLED = (
    r"^DataLoader worker \(pid \d+\) is killed by signal: Killed\. Memory now: .* available.*"
    r"this process has .* resident, .*shared memory are free\. Where memory "
    r"has run out, use fewer workers, .*EpisodeLoader"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("episodes"), "arm", [FRAMES])


class Victim:
    """Has its process killed at a frame, where a file says so."""

    def __init__(self, sign: Path) -> None:
        self._sign = sign

    def __call__(self, sample: Any) -> Any:
        if int(sample["frame_index"]) == FRAMES // 2 and self._sign.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return sample


@pytest.fixture
def sign(tmp_path: Path) -> Path:
    return tmp_path / "die"


def loader(folder: Path, sign: Path, **options: Any) -> Any:
    data = MultiDataset.from_folder(folder, KEYMAP, transforms=(Victim(sign),))
    options = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60, **options}
    return DataLoader(data, 4, collate_fn=collate, **options)


# What is done below a watch, in a process of its own: PyTorch's error comes out of a signal's
# handler, and leaves behind whatever was open where it came.


def go_through(folder: Path, sign: Path, **options: Any) -> int:
    """Return how many frames came before there were no more."""
    return sum(len(batch["frame_index"]) for batch in loader(folder, sign, **options))


def die_in_an_epoch(folder: Path, sign: Path) -> None:
    sign.touch()
    go_through(folder, sign)


def die_in_the_second_epoch(folder: Path, sign: Path) -> None:
    batches = loader(folder, sign, persistent_workers=True)
    list(batches)
    sign.touch()
    list(batches)


def die_during_a_step(folder: Path, sign: Path) -> None:
    sign.touch()
    batches = iter(loader(folder, sign, prefetch_factor=5))
    next(batches)
    time.sleep(20)  # PyTorch says so in here


def die_in_training(folder: Path, sign: Path) -> None:
    sign.touch()
    trainer(folder, max_epochs=2).fit(Steps(), loader(folder, sign))


def die_in_training_persistently(folder: Path, sign: Path) -> None:
    sign.touch()
    trainer(folder, max_epochs=2).fit(Steps(), loader(folder, sign, persistent_workers=True))


def die_in_validation(folder: Path, sign: Path) -> None:
    sign.touch()
    sound = DataLoader(MultiDataset.from_folder(folder, KEYMAP), 4, collate_fn=collate)
    trainer(folder, max_epochs=2).fit(Steps(), sound, loader(folder, sign))


class Steps(Recorder):
    """Trains one number, whatever it is shown."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.weight * 1.0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def report(task: Callable[[Path, Path], Any], folder: Path, sign: Path) -> tuple[str, str, str]:
    """Return the names of the error and its cause, and what the error says."""
    try:
        with watch_workers():
            return "", "", repr(task(folder, sign))
    except Exception as error:
        return type(error).__name__, type(error.__cause__).__name__, str(error)


@pytest.fixture(scope="module")
def apart() -> Iterator[Callable[..., tuple[str, str, str]]]:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as process:
        yield lambda *arguments: process.submit(report, *arguments).result()


@pytest.mark.parametrize(
    "task",
    [
        die_in_an_epoch,
        die_in_the_second_epoch,
        die_during_a_step,
        die_in_training,
        die_in_training_persistently,
        die_in_validation,
    ],
)
def test_a_killed_worker_is_reported(
    apart: Callable[..., tuple[str, str, str]], folder: Path, sign: Path, task: Any
) -> None:
    kind, cause, said = apart(task, folder, sign)
    assert kind == "WorkerLostError", said
    assert cause in ("RuntimeError", "ConnectionResetError", "EOFError")
    assert re.match(KILLED, said), said


def test_workers_that_do_their_work_are_left_alone(
    apart: Callable[..., tuple[str, str, str]], folder: Path, sign: Path
) -> None:
    assert apart(go_through, folder, sign) == ("", "", str(FRAMES))


# What PyTorch says, and what it does not.

SAID = "DataLoader worker (pid 7) is killed by signal: Killed. "


class Iterates:
    """Stands for a `DataLoader`'s iterator, a connection of whose worker has ended."""

    def __init__(self, task: Callable[[], object]) -> None:
        self._workers = [multiprocessing.get_context("fork").Process(target=task, daemon=True)]
        self._workers[0].start()

    def fail(self, kind: type[Exception]) -> None:
        raise kind("of a connection")

    def end(self) -> None:
        self._workers[0].kill()
        self._workers[0].join()


def kill_itself() -> None:
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> None:
    os._exit(3)


KINDS = [ConnectionResetError, EOFError]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("task", "said"),
    [(kill_itself, "is killed by signal: Killed"), (leave, "exited unexpectedly with exit code 3")],
)
def test_the_worker_behind_a_connection_that_has_ended_is_named(
    kind: Any, task: Any, said: str
) -> None:
    iterator = Iterates(task)
    with pytest.raises(WorkerLostError) as caught, watch_workers():
        iterator.fail(kind)
    wanted = f"DataLoader worker (pid {iterator._workers[0].pid}) {said}. Memory now: "
    assert str(caught.value).startswith(wanted)
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_whose_worker_lives_is_another_matter(
    kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_DELAY", 0.1)
    iterator = Iterates(signal.pause)
    with pytest.raises(kind, match="of a connection"), watch_workers():
        iterator.fail(kind)
    iterator.end()


@contextmanager
def telling(error: Exception) -> Iterator[Callable[..., None]]:
    """Have the handler of the system's signal raise an error, as PyTorch's does."""

    def tell(*_: Any) -> None:
        raise error

    with watch_workers():  # so that PyTorch's own handler is there, and comes no more
        before = signal.signal(signal.SIGCHLD, tell)
    try:
        signal.signal(signal.SIGCHLD, tell)
        yield tell
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_the_handlers_error_is_ours_wherever_it_comes() -> None:
    with telling(RuntimeError(SAID)) as handler:
        met = []
        with watch_workers():
            try:
                signal.raise_signal(signal.SIGCHLD)
            except WorkerLostError as error:  # in the midst of the watch, before its end
                met.append(error)
        assert signal.getsignal(signal.SIGCHLD) is handler
    assert str(met[0]).startswith("DataLoader worker (pid 7) is killed by signal: Killed. Memory")
    assert str(met[0].__cause__) == SAID


def test_other_errors_of_the_handler_pass() -> None:
    others = RuntimeError("of another handler")
    with telling(others), pytest.raises(RuntimeError) as caught, watch_workers():
        signal.raise_signal(signal.SIGCHLD)
    assert caught.value is others


def test_a_watch_within_another_reports_once() -> None:
    watched = pytest.raises(WorkerLostError)
    with telling(RuntimeError(SAID)), watched as caught, watch_workers(), watch_workers():
        signal.raise_signal(signal.SIGCHLD)
    assert str(caught.value).count("Memory now") == 1


def test_the_figures_are_those_of_the_first_report() -> None:
    first = WorkerLostError(f"{SAID}Memory now: 1")
    said = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    said.__cause__ = first
    with pytest.raises(WorkerLostError) as caught, watch_workers():
        raise said
    assert str(caught.value) == str(first)


def test_the_first_loader_of_a_process_leaves_the_handler_as_it_is(
    folder: Path, sign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal_handling, "_SIGCHLD_handler_set", False)
    before = signal.getsignal(signal.SIGCHLD)
    try:
        with watch_workers():
            ours = signal.getsignal(signal.SIGCHLD)
            assert go_through(folder, sign, num_workers=1) == FRAMES
            assert signal.getsignal(signal.SIGCHLD) is ours
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_where_there_is_no_handler_none_is_put() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        with watch_workers():
            assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_another_thread_watches_without_the_handler() -> None:
    met = []

    def task() -> None:
        try:
            with watch_workers():
                raise RuntimeError(SAID)
        except WorkerLostError as error:
            met.append(error)

    thread = threading.Thread(target=task)
    thread.start()
    thread.join()
    assert len(met) == 1


def test_the_signal_is_told_where_anything_in_the_chain_knows_it() -> None:
    said = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    said.__cause__ = RuntimeError(SAID)
    said.__cause__.__context__ = ConnectionResetError("reset by peer")
    with (
        pytest.raises(
            WorkerLostError, match=r"^DataLoader worker \(pid 7\) is killed by signal: K"
        ),
        watch_workers(),
    ):
        raise said


@pytest.mark.parametrize(
    "said",
    [
        "DataLoader worker (pid(s) 7, 8) exited unexpectedly",
        "DataLoader worker (pid 7) exited unexpectedly with exit code 1",
        "DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that …",
    ],
)
def test_a_worker_that_ends_otherwise_is_reported_too(said: str) -> None:
    with pytest.raises(WorkerLostError) as caught, watch_workers():
        raise RuntimeError(said)
    assert str(caught.value).startswith(said.partition(".")[0] + ". Memory now: ")
    assert "num_workers=0" in str(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("Caught RuntimeError in DataLoader worker process 0."),
        RuntimeError("DataLoader timed out after 5 seconds"),
        FrameError("truncated", episode="e", key="k", frame=3),
        FileNotFoundError("nothing"),
        ConnectionResetError("of another connection"),
        WorkerLostError(f"{SAID}Memory now: 1"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_pass(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, watch_workers():
        raise error
    assert caught.value is error


@quietly
def test_the_recipe_reports_a_lost_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError(SAID)

    monkeypatch.setattr("lightning.Trainer.fit", fail)
    with pytest.raises(WorkerLostError, match="Memory now"):
        fit_recipe(compose([*ONE_STEP, f"output_dir={tmp_path / 'out'}"]))
