"""What a loader leaves behind, however its iteration ends: no thread, no hang, no open file."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from egoloader import EpisodeDataModule, EpisodeLoader, MultiDataset, ZarrDataset, collate
from egoloader.errors import FrameIndexError, LoaderError
from tests.children import in_a_fork
from tests.entries import camera, entry, keymap
from tests.episodes import write_human
from tests.threads import LIMIT, left_behind, running

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
ENTRIES = keymap(cam=camera(history=2), pose=entry(history=2))
TOTAL = 24


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    assert left_behind() == []
    yield
    assert left_behind() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    write_human(root / "a.zarr", 15)
    write_human(root / "b.zarr", TOTAL - 15)
    return root


@pytest.fixture
def md(folder: Path) -> MultiDataset:
    return MultiDataset.from_folder(folder, ENTRIES)


def doze(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.01)
    return sample


def loader(ds: Any, **options: Any) -> EpisodeLoader:
    return EpisodeLoader(ds, 4, **{"num_threads": 2, **options})


def frames(batches: Any) -> list[int]:
    return [frame for batch in batches for frame in batch["frame_index"].tolist()]


ALL = [*range(15), *range(TOTAL - 15)]


# The ends of an iteration.


def break_off(batches: EpisodeLoader) -> None:
    for batch in batches:
        assert len(batch["pose"]) == 4
        break


def drop(batches: EpisodeLoader) -> None:
    walk = iter(batches)
    next(walk)
    next(walk)


def never_begin(batches: EpisodeLoader) -> None:
    iter(batches)


def exhaust(batches: EpisodeLoader) -> None:
    frames(batches)


def fail_in_the_loop(batches: EpisodeLoader) -> None:
    def walk() -> None:
        for _ in batches:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        walk()


def fail_in_a_generator(batches: EpisodeLoader) -> None:
    def walk() -> Iterator[Any]:
        yield from batches

    for _ in walk():
        break


#: And how many batches they take.
ENDS: dict[Callable[[EpisodeLoader], None], int] = {
    break_off: 1,
    drop: 2,
    never_begin: 0,
    exhaust: 6,
    fail_in_the_loop: 1,
    fail_in_a_generator: 1,
}


@pytest.mark.parametrize("transforms", [(), (doze,)], ids=["idle", "busy"])
@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_no_thread_is_left(
    folder: Path, end: Callable[[EpisodeLoader], None], transforms: Any
) -> None:
    ds = MultiDataset.from_folder(folder, ENTRIES, transforms=transforms)
    batches = loader(ds)
    gc.disable()  # it is not needed
    try:
        for _ in range(2):
            end(batches)
            assert left_behind() == []
        taken = 2 * ENDS[end] % 6
        assert frames(batches) == ALL[4 * taken :]
        assert frames(batches) == ALL
        assert left_behind() == []
    finally:
        gc.enable()


def test_no_thread_is_left_behind_an_error(md: MultiDataset) -> None:
    batches = EpisodeLoader(md, batch_sampler=[[0], [99], [1], [2], [3]], num_threads=2)
    gc.disable()
    try:
        with pytest.raises(FrameIndexError) as caught:
            frames(batches)
        del caught
        assert left_behind() == []
    finally:
        gc.enable()


def test_an_exhausted_iterator_has_no_threads_though_it_is_held(md: MultiDataset) -> None:
    walk = iter(loader(md))
    try:
        assert frames(walk) == ALL
        for thread in running():
            thread.join(1)
        assert running() == []
        assert next(walk, None) is None
    finally:
        del walk  # which a failed test's traceback would keep


def test_a_deleted_loader_leaves_its_iterator_at_work(md: MultiDataset) -> None:
    batches = loader(md)
    walk = iter(batches)
    first = next(walk)
    gone = weakref.ref(batches)
    del batches
    assert gone() is None
    assert frames([first, *walk]) == ALL


def test_a_newer_iterator_goes_on_in_the_place_of_an_older(md: MultiDataset) -> None:
    batches = loader(md)
    older = iter(batches)
    kept = [next(older), next(older)]
    newer = iter(batches)
    for _ in range(2):
        with pytest.raises(LoaderError, match=r"a newer iterator .* would show frames twice"):
            next(older)
    kept += [next(newer)]
    del older  # and its threads
    kept += newer
    assert frames(kept) == ALL
    for batch in kept:
        assert batch["pose"][:, 1, 0].tolist() == [1000 * frame for frame in frames([batch])]


def test_two_loaders_at_once(md: MultiDataset) -> None:
    one, two = iter(loader(md)), iter(loader(md))
    kept: list[dict[str, Any]] = []
    for _ in range(3):
        kept += [next(one), next(two), next(two)]
    assert frames(kept[0::3]) == ALL[:12]
    assert frames([batch for n, batch in enumerate(kept) if n % 3]) == ALL
    del two
    assert frames(one) == ALL[12:]
    for batch in kept:
        assert batch["pose"][:, 1, 0].tolist() == [1000 * frame for frame in frames([batch])]


def test_a_loader_inside_a_thread(md: MultiDataset) -> None:
    batches = loader(md)
    walk = iter(batches)
    found = [next(walk)]
    seen: list[int] = []

    def work() -> None:
        found.extend(walk)  # one that another thread began
        seen.extend(frames(batches))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive()
    assert seen == frames(found) == ALL


class Cycle:
    """Holds something that only the garbage collector can free."""

    def __init__(self, held: Any) -> None:
        self.held, self.itself = held, self


@pytest.mark.parametrize("kind", ["loader", "training", "validation"])
def test_collecting_an_iterator_does_not_wait_for_its_threads(folder: Path, kind: str) -> None:
    # The collector comes at any time, in a thread that holds any lock: here, one that a transform
    # is waiting for.
    lock, begun, collected = threading.Lock(), threading.Event(), threading.Event()
    num_made = itertools.count()

    def wait(sample: dict[str, Any]) -> dict[str, Any]:
        if next(num_made) >= 2:  # behind the first batch
            begun.set()
            with lock:
                pass
        return sample

    def collect() -> None:
        gc.collect()
        collected.set()

    options: dict[str, Any] = {"batch_size": 2, "num_threads": 1}
    module = EpisodeDataModule(folder, ENTRIES, valid_ratio=0.5, transforms=[wait], **options)
    module.setup("fit")
    batches: Any = {
        "loader": EpisodeLoader(module.sources["human"], **options),
        "training": module.train_dataloader(),
        "validation": module.val_dataloader(),
    }[kind]
    gc.collect()
    gc.disable()
    try:
        cycle = Cycle(iter(batches))
        with lock:
            next(cycle.held)
            assert begun.wait(LIMIT)
            del cycle
            collector = threading.Thread(target=collect)  # this one could not give up
            collector.start()
            is_collected = collected.wait(3)
        collector.join()
        assert is_collected
    finally:
        gc.enable()


# Other processes.


def assert_is_refused(walk: Iterator[Any]) -> None:
    with pytest.raises(LoaderError, match=r"process.*iterate over the loader anew"):
        next(walk)


def test_a_forked_child_goes_on_with_threads_of_its_own(folder: Path) -> None:
    ds = MultiDataset.from_folder(folder, ENTRIES, transforms=[doze])
    batches = loader(ds)
    walk = iter(batches)
    taken = [next(walk)]

    def child() -> None:
        assert_is_refused(walk)
        assert frames(batches) == ALL[4 * len(taken) :]  # where this process stood
        assert frames(batches) == ALL
        assert ds[3]["pose"][1, 0] == 3000

    for _ in range(4):  # at whatever the threads are doing
        in_a_fork(child)
        taken.append(next(walk))
    assert frames([*taken, *walk]) == ALL


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_process_of_multiprocessing_iterates_anew(folder: Path, start: str) -> None:
    md = MultiDataset.from_folder(folder, ENTRIES)
    walk = iter(loader(md))
    taken = [next(walk)]
    context: Any = multiprocessing.get_context(start)
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, Subset(md, range(2, TOTAL)), walk if start == "fork" else None)
    process = context.Process(target=send_frames, args=arguments)
    process.start()
    assert receiver.poll(3 * LIMIT)
    assert receiver.recv() == ALL[2:]
    process.join(LIMIT)
    assert process.exitcode == 0
    assert frames([*taken, *walk]) == ALL


def send_frames(sender: Any, ds: Any, walk: Iterator[Any] | None) -> None:
    if walk is not None:
        assert_is_refused(walk)
    half_used = iter(loader(ds))
    next(half_used)
    sender.send(frames(loader(ds)))


def test_datasets_pickle_while_threads_use_them(folder: Path, md: MultiDataset) -> None:
    for ds in (md, Subset(md, range(TOTAL)), ZarrDataset(folder / "a.zarr", ENTRIES)):
        walk = iter(loader(ds))
        next(walk)
        again = pickle.loads(pickle.dumps(ds))
        assert frames(loader(again)) == ALL[: len(ds)]
        assert frames(walk) == ALL[4 : len(ds)]


def test_forked_workers_of_a_dataloader_start_while_threads_are_busy(folder: Path) -> None:
    ds = MultiDataset.from_folder(folder, ENTRIES, transforms=[doze])
    walk = iter(loader(ds))
    next(walk)
    taken: list[dict[str, Any]] = []
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    workers = DataLoader(Subset(ds, range(4, TOTAL)), 4, collate_fn=collate, timeout=60, **options)
    for batch in workers:
        taken.append(next(walk))
        assert torch.equal(batch["cam"], taken[-1]["cam"])
    assert frames(taken) == ALL[4:]
