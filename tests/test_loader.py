"""`EpisodeLoader`: the sampler's batches in the sampler's order, whatever the threads do."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, ConcatDataset, DataLoader, RandomSampler, Subset

from egoloader import EpisodeLoader, EpisodePoolSampler, MultiDataset, ZarrDataset, collate
from egoloader.batch import Batch
from egoloader.errors import (
    FrameError,
    FrameIndexError,
    IndexKindError,
    SampleError,
    SettingsError,
)
from egoloader.gathering import EpisodeRecord
from egoloader.sample import SampleSettings
from tests.entries import CAMERA, camera, entry, keymap
from tests.episodes import foreign_bytes, foreign_group, jpegs, pictures, write_human
from tests.threads import LIMIT

ENTRIES = keymap(
    cam=camera(), past=camera(history=2, mask=True), next=entry(horizon=4, mask=True), now=entry()
)
TOTALS = (17, 9, 14)
TOTAL = sum(TOTALS)
Ids = list[tuple[str, int]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for number, total in enumerate(TOTALS):
        write_human(root / f"{number}.zarr", total)
    return root


@pytest.fixture(scope="module")
def md(folder: Path) -> MultiDataset:
    return MultiDataset.from_folder(folder, ENTRIES)


def ids(batch: dict[str, Any]) -> Ids:
    return list(zip(batch["episode"], batch["frame_index"].tolist(), strict=True))


def order(batches: Any) -> list[Ids]:
    return [ids(batch) for batch in batches]


def assert_same(found: Any, wanted: Any) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert list(one) == list(other)
        for key, value in other.items():
            same = torch.equal(one[key], value) if torch.is_tensor(value) else one[key] == value
            assert same, key


# Values and order.


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("kind", ["one episode", "many", "subset", "nested subset"])
def test_batches_are_those_of_a_dataloader(
    folder: Path, md: MultiDataset, kind: str, num_threads: int
) -> None:
    ds: Any = {
        "one episode": ZarrDataset(folder / "2.zarr", ENTRIES),
        "many": md,
        "subset": Subset(md, list(range(38, 3, -2))),
        "nested subset": Subset(Subset(md, list(range(5, 40))), torch.arange(20, 2, -1)),  # type: ignore[arg-type]
    }[kind]
    rng = random.Random(1)
    batches = [rng.choices(range(len(ds)), k=rng.randrange(1, 9)) for _ in range(12)]
    found = list(EpisodeLoader(ds, batch_sampler=batches, num_threads=num_threads))
    assert_same(found, DataLoader(ds, batch_sampler=batches))
    assert_same(found, DataLoader(ds, batch_sampler=batches, collate_fn=collate))


@pytest.mark.parametrize("batch_size", [1, 7, 10, 40, 41, None])
def test_without_shuffle_frames_come_in_the_datasets_order(
    md: MultiDataset, batch_size: int | None
) -> None:
    loader = EpisodeLoader(md, batch_size, num_threads=2)
    size = batch_size or 32
    for _ in range(2):
        found = order(loader)
        assert len(loader) == len(found) == -(-TOTAL // size)
        assert [len(one) for one in found[:-1]] == [size] * (len(found) - 1)
        flat = [one for batch in found for one in batch]
        assert flat == [(f"{n}.zarr", i) for n, total in enumerate(TOTALS) for i in range(total)]


class Hold:
    """A transform that holds a batch back until the one behind it is done.

    Batches are of one frame, and as many as one group run at once.
    """

    def __init__(self, group: int) -> None:
        self.finished: list[int] = []
        self._group = group
        self._done = [threading.Event() for _ in range(17)]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        frame = int(sample["frame_index"])
        if frame % self._group < self._group - 1:
            assert self._done[frame + 1].wait(LIMIT)
        self.finished.append(frame)
        self._done[frame].set()
        return sample


def test_batches_come_in_order_though_the_last_is_done_first(folder: Path) -> None:
    hold = Hold(group=4)
    ds = ZarrDataset(folder / "0.zarr", keymap(now=entry()), transforms=[hold])
    batches = [[i] for i in range(16)]
    loader = EpisodeLoader(ds, batch_sampler=batches, num_threads=4, look_ahead=4)
    assert [int(batch["frame_index"]) for batch in loader] == list(range(16))
    assert hold.finished == [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12]


def dawdle(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.004 * (int(sample["frame_index"]) * 7 % 5))
    return sample


@pytest.mark.parametrize("look_ahead", [1, 3, 9])
def test_slow_batches_do_not_change_the_order(folder: Path, look_ahead: int) -> None:
    slow = MultiDataset.from_folder(folder, keymap(now=entry()), transforms=[dawdle])
    batches = [[k, (11 * k) % TOTAL] for k in range(TOTAL)]
    loader = EpisodeLoader(slow, batch_sampler=batches, num_threads=3, look_ahead=look_ahead)
    numbered = [slow.locate(index) for index in range(TOTAL)]
    wanted = [[(numbered[i][0].name, numbered[i][1]) for i in batch] for batch in batches]
    assert order(loader) == wanted


@pytest.mark.parametrize(("num_threads", "look_ahead"), [(1, 1), (2, 2), (3, 3), (3, 1), (2, None)])
def test_as_many_batches_as_the_look_ahead_are_begun_and_no_more(
    folder: Path, num_threads: int, look_ahead: int | None
) -> None:
    limit = look_ahead or num_threads + 1
    begun: list[int] = []
    are_ahead = threading.Semaphore(0)

    def note(sample: dict[str, Any]) -> dict[str, Any]:
        begun.append(int(sample["frame_index"]))
        are_ahead.release()
        if begun[-1] == 0:  # the first batch waits for all that may begin beside it
            for _ in range(min(num_threads, limit)):
                assert are_ahead.acquire(timeout=LIMIT)
        return sample

    ds = ZarrDataset(folder / "0.zarr", keymap(now=entry()), transforms=[note])
    batches = iter(EpisodeLoader(ds, 1, num_threads=num_threads, look_ahead=look_ahead))
    assert begun == []
    for taken in range(17):
        assert int(next(batches)["frame_index"]) == taken
        assert len(begun) <= taken + limit
        if taken == 0:
            assert len(begun) >= min(num_threads, limit)


# Shuffling.


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**63), batch_size=st.integers(1, TOTAL + 2))
def test_the_seed_decides_and_every_frame_comes_once_an_epoch(
    md: MultiDataset, seed: int, batch_size: int
) -> None:
    def epochs(num_threads: int) -> list[list[Ids]]:
        loader = EpisodeLoader(md, batch_size, shuffle=True, seed=seed, num_threads=num_threads)
        return [order(loader) for _ in range(2)]

    first, second = epochs(num_threads=1)
    assert epochs(num_threads=3) == [first, second]
    flat = [[one for batch in epoch for one in batch] for epoch in (first, second)]
    assert flat[0] != flat[1]
    assert len(set(flat[0])) == len(flat[0]) == TOTAL
    assert set(flat[0]) == set(flat[1])
    assert [len(batch) for batch in first] == [len(batch) for batch in second]


def test_seeds_differ_and_a_pass_broken_off_goes_on(md: MultiDataset) -> None:
    def loader(seed: int) -> EpisodeLoader:
        return EpisodeLoader(md, 8, shuffle=True, seed=seed, num_threads=1)

    whole = loader(3)
    passes = [order(whole) for _ in range(3)]
    assert order(loader(4)) != passes[0]
    broken = loader(3)
    assert order(broken) == passes[0]
    assert ids(next(iter(broken))) == passes[1][0]
    iter(broken)
    assert [order(broken), order(broken)] == [passes[1][1:], passes[2]]


# Samplers.


def test_any_iterable_of_indices_is_a_batch_sampler(md: MultiDataset) -> None:
    wanted = [[md[i]["frame_index"].item() for i in batch] for batch in ([3, 39], [7])]
    for batches in (
        [[3, 39], [7]],
        ((3, -1), range(7, 8)),
        [torch.tensor([3, 39]), np.array([7])],
        [[torch.tensor(3), np.int64(39)], [np.uint8(7)]],
    ):
        loader = EpisodeLoader(md, batch_sampler=batches, num_threads=2)  # type: ignore[arg-type]
        assert len(loader) == 2
        for _ in range(2):
            assert [batch["frame_index"].tolist() for batch in loader] == wanted
    noise = torch.Generator().manual_seed(0)
    sampler = BatchSampler(RandomSampler(md, generator=noise), 7, drop_last=True)
    loader = EpisodeLoader(md, batch_sampler=sampler)
    assert len(loader) == TOTAL // 7
    first, second = order(loader), order(loader)
    assert first != second
    assert [len(batch) for batch in first] == [7] * (TOTAL // 7)


def test_a_batch_sampler_without_a_length(md: MultiDataset) -> None:
    class Pairs:
        def __iter__(self) -> Iterator[list[int]]:
            return ([i, i] for i in range(5))

    loader = EpisodeLoader(md, batch_sampler=Pairs())
    for _ in range(2):
        assert [batch["frame_index"].tolist() for batch in loader] == [[i, i] for i in range(5)]
    with pytest.raises(TypeError, match="len"):
        len(loader)


WRONG: list[tuple[dict[str, Any], str]] = [
    *(({"batch_size": size}, "batch_size") for size in (0, -1, 2.5, True, "4")),
    *(({"num_threads": number}, "num_threads") for number in (0, 1.0, "2", True)),
    *(({"look_ahead": number}, "look_ahead") for number in (0, -2, 1.5, "3", False)),
    *(({"shuffle": True, "seed": seed}, "seed") for seed in (-1, 0.5, "a")),
    ({"shuffle": "no"}, "shuffle"),
    ({"pin_memory": "no"}, "pin_memory"),
    ({"batch_sampler": 3}, "batch_sampler"),
    ({"batch_sampler": iter([[0]])}, "only once; give a list"),
    ({"batch_sampler": [[0]], "batch_size": 2}, "batch_sampler excludes batch_size and shuffle"),
    ({"batch_sampler": [[0]], "shuffle": True}, "batch_sampler excludes batch_size and shuffle"),
]


@pytest.mark.parametrize(("options", "words"), WRONG, ids=[words for _, words in WRONG])
def test_wrong_options_are_refused_by_name(
    md: MultiDataset, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        EpisodeLoader(md, **options)


def test_a_sampler_of_other_data_is_refused(md: MultiDataset) -> None:
    part = MultiDataset(md.folder, md.episodes[:1], md.keymaps, md.settings)
    for data, other in ((md, part), (part, md)):
        with pytest.raises(SettingsError, match="EpisodePoolSampler was made of other data"):
            EpisodeLoader(data, batch_sampler=EpisodePoolSampler(other))
    EpisodeLoader(part, batch_sampler=EpisodePoolSampler(part))


def test_what_is_no_index_is_named(md: MultiDataset) -> None:
    with pytest.raises(
        IndexKindError, match=r"whole number, got \[1, 2\].*is DataLoader's batch_samp"
    ):
        md[[1, 2]]  # type: ignore[index]
    for wrong in (1.5, "a", None):
        with pytest.raises(IndexKindError, match=f"an index is a whole number, got {wrong!r}$"):
            md.__getitems__([0, wrong])  # type: ignore[list-item]


def test_other_datasets_are_refused_by_what_they_are(md: MultiDataset) -> None:
    wrong: Any
    for wrong in ([1, 2], ConcatDataset([md]), Subset(ConcatDataset([md]), [0]), None):
        with pytest.raises(SettingsError, match=r"needs a ZarrDataset.*(list|Concat|None)"):
            EpisodeLoader(wrong)
    with pytest.raises(SettingsError, match="no episodes with frames"):
        EpisodeLoader(Subset(md, []), shuffle=True)
    assert list(EpisodeLoader(Subset(md, []))) == []


# Errors.


def test_a_corrupt_frame_is_an_error_in_its_batchs_place(tmp_path: Path) -> None:
    rows = jpegs(pictures(12))
    rows[5] = rows[5][:-40]
    features = {CAMERA: {"dtype": "jpeg", "shape": [16, 24, 3]}}
    foreign_bytes(foreign_group(tmp_path / "ep.zarr", 12, features=features), CAMERA, rows)
    loader = EpisodeLoader(ZarrDataset(tmp_path / "ep.zarr", keymap(cam=camera())), 2)
    for _ in range(2):
        batches = iter(loader)
        assert [next(batches)["frame_index"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
        with pytest.raises(FrameError) as caught:
            next(batches)
        assert (caught.value.episode, caught.value.key) == ("ep.zarr", CAMERA)
        assert caught.value.frame == 5
        assert str(caught.value).startswith(f"episode 'ep.zarr', key '{CAMERA}', frame 5: ")
        assert isinstance(caught.value.__cause__, ValueError)
        assert [batch["frame_index"].tolist() for batch in batches] == [[6, 7], [8, 9], [10, 11]]


def test_a_failing_transform_is_an_error_in_its_batchs_place(folder: Path) -> None:
    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if int(sample["frame_index"]) in (3, 8):
            raise KeyError("no such thing")
        return sample

    ds = ZarrDataset(folder / "1.zarr", keymap(now=entry()), transforms=[fail])
    batches = iter(EpisodeLoader(ds, 2, num_threads=2))
    found: list[Any] = []
    for _ in range(5):
        try:
            found.append(next(batches)["frame_index"].tolist())
        except SampleError as error:
            found.append((error.episode, error.frame, "fail" in str(error), error.__cause__))
    assert found[0::2] == [[0, 1], [4, 5], found[4]]
    assert found[1][:3] == ("1.zarr", 3, True)
    assert found[4][:3] == ("1.zarr", 8, True)
    assert {type(one[3]) for one in (found[1], found[4])} == {KeyError}
    assert next(batches, None) is None


def test_a_samplers_errors_come_in_their_place(md: MultiDataset) -> None:
    class Failing:
        def __iter__(self) -> Iterator[list[int]]:
            yield [0]
            yield [1]
            raise ZeroDivisionError("of the sampler")

    batches = iter(EpisodeLoader(md, batch_sampler=Failing(), num_threads=2, look_ahead=6))
    assert [next(batches)["frame_index"].tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(ZeroDivisionError, match="of the sampler"):
        next(batches)
    assert next(batches, None) is None
    wrong: list[Any] = [[0], [TOTAL], [1], [], [2], [1.5], [3]]
    batches = iter(EpisodeLoader(md, batch_sampler=wrong, num_threads=2))
    for number, kind in enumerate((FrameIndexError, SettingsError, TypeError)):
        assert next(batches)["frame_index"].tolist() == [number]
        with pytest.raises(kind):
            next(batches)
    assert [batch["frame_index"].tolist() for batch in batches] == [[3]]


# Many frames.

EPISODES = 10_000


def records(frames: int, tmp_path: Path) -> MultiDataset:
    listed = [EpisodeRecord(f"{n:05}.zarr", frames, "human") for n in range(EPISODES)]
    return MultiDataset(tmp_path, listed, {"human": ENTRIES}, SampleSettings())


def test_case_26_index_memory_grows_with_episodes_not_with_frames(tmp_path: Path) -> None:
    sizes = []
    for frames in (1, 100):
        gc.collect()
        tracemalloc.start()
        many = records(frames, tmp_path)
        sizes.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        assert len(many) == EPISODES * frames
    assert sizes[1] < 1.02 * sizes[0]
    assert sizes[1] < 300 * EPISODES
    assert len(pickle.dumps(many)) < 100 * EPISODES
    assert many.locate(654_321) == (many.episodes[6543], 21)
    assert many.locate(-1) == (many.episodes[-1], 99)
    met, waiting = set(), [many]
    while waiting:
        one: Any = waiting.pop()
        if id(one) not in met and not isinstance(one, type):
            met.add(id(one))
            size = len(one) if isinstance(one, list | tuple | dict | set | np.ndarray) else 0
            assert size <= EPISODES + 1
            waiting += gc.get_referents(one) if not callable(one) else []
    assert len(met) > EPISODES


class Indices:
    """A dataset of one episode of a million frames that are nothing but their indices."""

    seed, spared = 0, dict[str, Any]()

    def __len__(self) -> int:
        return 10**6

    def frames_by_episode(self) -> list[tuple[str, int]]:
        return [("long", len(self))]

    def make_batch(self, indices: Sequence[int], allocate: Any) -> Batch:
        return Batch.of_samples([{"index": int(index)} for index in indices])


@pytest.mark.parametrize(("shuffle", "limit"), [(False, 2**20), (True, 40 * 10**6)])
def test_case_26_drawing_makes_no_python_object_a_frame(shuffle: bool, limit: int) -> None:
    gc.collect()
    tracemalloc.start()
    batches = iter(EpisodeLoader(Indices(), 64, shuffle=shuffle, num_threads=1))
    found = [next(batches)["index"] for _ in range(4)]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len({index for batch in found for index in batch}) == 4 * 64
    # Arrays of 8 bytes a frame, where they are shuffled; a list of Python's own takes 40 more.
    assert peak < limit
