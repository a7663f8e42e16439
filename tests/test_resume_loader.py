"""Going on where a loader stood, and randomness that depends on nothing but the sample."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from egoloader import EpisodeLoader, EpisodePool, EpisodePoolSampler, MultiDataset, collate
from egoloader.errors import LoaderError, SampleError, SettingsError
from tests.soak.positions import Run, Tally, resume_everywhere
from tests.soak.recordings import KEYMAP, show, write_recordings
from tests.soak.runs import DataLoaderRun, LoaderRun, PoolRun, SamplerRun

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
LENGTHS = (5, 3, 7, 2, 6, 1)
TOTAL = sum(LENGTHS)
#: Batches of an epoch, of 4 frames each.
EPOCH = 6
#: Positions at which two epochs are saved, behind which they are compared.
EVERYWHERE = 2 * EPOCH


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("episodes"), "arm", LENGTHS)


@pytest.fixture(scope="module")
def md(folder: Path) -> MultiDataset:
    return MultiDataset.from_folder(folder, KEYMAP)


def sampler(md: MultiDataset, **options: Any) -> EpisodePoolSampler:
    return EpisodePoolSampler(md, **{"batch_size": 4, "pool_size": 3, "seed": 5, **options})


def num_resumes(positions: int, stride: int) -> int:
    """Return how often `resume_everywhere` goes on from a state."""
    return positions + sum(-(-(positions - p) // stride) for p in range(positions))


def assert_all_same(tally: Tally, positions: int, stride: int) -> None:
    assert tally.wrong == 0
    assert tally.resumes == num_resumes(positions, stride)
    assert tally.batches > positions * tally.resumes // 4


# Every position.


@pytest.mark.parametrize("budget", [None, 11])
def test_a_pool_goes_on_at_every_draw(budget: int | None) -> None:
    sizes = None if budget is None else [n + 2 for n in LENGTHS]

    def begin() -> Run:
        pairs = [(f"e{n}", frames) for n, frames in enumerate(LENGTHS)]
        return PoolRun(EpisodePool(pairs, 3, 1, 2, sizes, budget))

    assert_all_same(resume_everywhere(begin, [begin], TOTAL, 7), TOTAL, 7)


@pytest.mark.parametrize("tail", ["spread", "drop", "repeat"])
@pytest.mark.parametrize("batch_size", [3, 5])
def test_a_sampler_goes_on_at_every_position(md: MultiDataset, tail: Any, batch_size: int) -> None:
    def begin() -> Run:
        return SamplerRun(sampler(md, tail=tail, batch_size=batch_size, byte_budget=10**5))

    positions = 2 * len(sampler(md, tail=tail, batch_size=batch_size))
    assert_all_same(resume_everywhere(begin, [begin], positions, 1), positions, 1)


OPTIONS: dict[str, Callable[[MultiDataset], dict[str, Any]]] = {
    "in order": lambda md: {"batch_size": 4},
    "shuffled": lambda md: {"batch_size": 4, "shuffle": True, "seed": 2},
    "small pool": lambda md: {"batch_sampler": sampler(md)},
    "filtered": lambda md: {"batch_sampler": sampler(md, batch_size=2, frame_filter=is_odd)},
    "weighted": lambda md: {"batch_sampler": sampler(md, weights=joints)},
}


def is_odd(episode: Any) -> Any:
    return np.arange(episode.total_frames) % 2


def joints(episode: Any) -> Any:
    return np.arange(episode.total_frames) + 0.5


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_loader_goes_on_at_every_position_with_other_threads(md: MultiDataset, kind: str) -> None:
    def begin(num_threads: int = 2, look_ahead: int | None = None) -> Run:
        options = OPTIONS[kind](md)
        return LoaderRun(
            EpisodeLoader(md, **options, num_threads=num_threads, look_ahead=look_ahead)
        )

    others = [lambda: begin(1, 1), lambda: begin(3), lambda: begin(2, 9)]
    positions = 2 * len(EpisodeLoader(md, **OPTIONS[kind](md)))
    assert positions <= EVERYWHERE
    assert_all_same(resume_everywhere(begin, others, positions, 5), positions, 5)


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_a_dataloader_goes_on_behind_what_came_out_of_it(
    md: MultiDataset, num_workers: int
) -> None:
    def begin() -> Run:
        return DataLoaderRun(md, sampler(md), num_workers)

    def with_none() -> Run:
        return DataLoaderRun(md, sampler(md), 0)

    def as_a_loader() -> Run:
        return LoaderRun(EpisodeLoader(md, batch_sampler=sampler(md), num_threads=1))

    others = [begin, with_none, as_a_loader]
    stride = EVERYWHERE if num_workers else 3
    tally = resume_everywhere(begin, others, EVERYWHERE, stride)
    assert_all_same(tally, EVERYWHERE, stride)


def test_what_workers_drew_ahead_is_not_handed_out(md: MultiDataset) -> None:
    ahead = sampler(md)
    loader: Any = DataLoader(
        md, batch_sampler=ahead, num_workers=1, multiprocessing_context="fork", collate_fn=collate
    )
    batches = iter(loader)
    next(batches)
    state = ahead.state_dict()
    assert ahead.done == state["done"] == 3  # the one handed out, and two ahead of it
    assert ahead.state_dict(handed_out=1)["done"] == 1
    with pytest.raises(SettingsError, match="handed_out is 4, more batches than"):
        ahead.state_dict(handed_out=4)
    with pytest.raises(SettingsError, match="handed_out must be a whole number from 0 on"):
        ahead.state_dict(handed_out=-1)


# The position is absolute.

KINDS: dict[str, Callable[[MultiDataset], Run]] = {
    "sampler": lambda md: SamplerRun(sampler(md, batch_size=3)),
    "loader": lambda md: LoaderRun(EpisodeLoader(md, 3, shuffle=True, num_threads=2)),
    "loader in order": lambda md: LoaderRun(EpisodeLoader(md, 3, num_threads=2)),
    "dataloader": lambda md: DataLoaderRun(md, sampler(md, batch_size=3), 0),
    "dataloader with workers": lambda md: DataLoaderRun(md, sampler(md, batch_size=3), 2),
}


def take(run: Run, count: int) -> tuple[list[Any], dict[str, Any]]:
    """Return the next batches, and the state behind them."""
    batches = run.batches()
    return [next(batches) for _ in range(count)], json.loads(json.dumps(run.save()))


@pytest.mark.parametrize("kind", KINDS)
def test_case_41_saving_at_a_boundary_and_twice_in_an_epoch(tmp_path: Path, kind: str) -> None:
    md = MultiDataset.from_folder(write_recordings(tmp_path, "arm", (17, 13)), KEYMAP)

    def resumed(state: dict[str, Any], count: int) -> tuple[list[Any], dict[str, Any]]:
        run = KINDS[kind](md)
        run.go_on(state)
        return take(run, count)

    whole, _ = take(KINDS[kind](md), 23)
    frames = [sorted(str(one[:2]) for batch in whole[n : n + 10] for one in batch) for n in (0, 10)]
    assert len(set(frames[0])) == 30

    first, state = take(KINDS[kind](md), 10)
    assert (state["epoch"], state["done"]) == (1, 0)
    second, later = resumed(state, 10)
    assert first + second == whole[:20]
    assert (later["epoch"], later["done"]) == (2, 0)
    assert resumed(later, 3)[0] == whole[20:]

    first, state = take(KINDS[kind](md), 3)
    second, later = resumed(state, 4)
    assert (later["epoch"], later["done"]) == (0, 7)
    third, last = resumed(later, 3)
    assert first + second + third == whole[:10]
    assert (last["epoch"], last["done"]) == (1, 0)
    assert resumed(last, 13)[0] == whole[10:]


def test_a_resumed_epoch_is_as_long_as_it_was(md: MultiDataset) -> None:
    loader = EpisodeLoader(md, batch_sampler=sampler(md))
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    other = EpisodeLoader(md, batch_sampler=sampler(md))
    other.load_state_dict(loader.state_dict())
    assert len(other) == len(loader) == EPOCH
    assert len(list(other)) == 2
    assert len(other) == len(list(other)) == EPOCH


def test_going_on_from_another_state_ends_the_iterator_before(md: MultiDataset) -> None:
    loader = EpisodeLoader(md, 4, num_threads=1)
    start = loader.state_dict()
    older = iter(loader)
    first = show(next(older))
    loader.load_state_dict(start)
    with pytest.raises(LoaderError, match="a newer iterator"):
        next(older)
    assert show(next(iter(loader))) == first


def test_states_of_other_data_or_settings_are_refused_by_name(
    md: MultiDataset, folder: Path
) -> None:
    state = EpisodeLoader(md, 4, shuffle=True).state_dict()
    few = MultiDataset.from_folder(folder, KEYMAP, percent=50)
    for other, words in (
        (EpisodeLoader(md, 5, shuffle=True), "batch_size was 4 and is 5"),
        (EpisodeLoader(md, 4, shuffle=True, seed=1), "seed was 0 and is 1"),
        (EpisodeLoader(few, 4, shuffle=True), "number of episodes was 6 and is 3"),
        (EpisodeLoader(md, 4), "was"),
        (EpisodeLoader(md, batch_sampler=sampler(md, seed=0)), "pool_size was 32 and is 3"),
    ):
        before = other.state_dict()
        with pytest.raises(SettingsError, match=f"can't resume: .*{words}"):
            other.load_state_dict(state)
        assert other.state_dict() == before
    with pytest.raises(SettingsError, match="holds no fingerprint"):
        EpisodeLoader(md, 4, shuffle=True).load_state_dict({"epoch": 0, "done": 1})


def test_a_batch_sampler_of_somebody_elses_has_no_position(md: MultiDataset) -> None:
    loader = EpisodeLoader(md, batch_sampler=[[0], [1]])
    with pytest.raises(SettingsError, match="a list has no position to save; leave batch_sampler"):
        loader.state_dict()
    with pytest.raises(SettingsError, match="a list has no position"):
        loader.load_state_dict({})


# Errors.


@pytest.mark.parametrize("bad", [{0}, {2}, {2, 3}, {EPOCH - 1}, {4, EPOCH - 1}])
def test_a_batch_that_fails_keeps_its_position_until_another_is_handed_out(
    folder: Path, md: MultiDataset, bad: set[int]
) -> None:
    def loader(data: MultiDataset) -> EpisodeLoader:
        return EpisodeLoader(data, batch_sampler=sampler(data), num_threads=2)

    intact = loader(md)
    whole = [list(map(show, intact)) for _ in range(2)]
    broken = {batch[-1][:2] for n, batch in enumerate(whole[0]) if n in bad}

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if (sample["episode"], int(sample["frame_index"])) in broken:
            raise ValueError("of the transform")
        return sample

    failing = loader(MultiDataset.from_folder(folder, KEYMAP, transforms=[fail]))
    batches, last = iter(failing), -1
    for number in range(EPOCH):
        if number in bad:
            with pytest.raises(SampleError, match="of the transform"):
                next(batches)
        else:
            assert show(next(batches)) == whole[0][number]
            last = number
        state = failing.state_dict()
        assert (state["epoch"], state["done"]) == divmod(last + 1, EPOCH)
        other = loader(md)
        other.load_state_dict(state)
        assert show(next(iter(other))) == [*whole[0], whole[1][0]][last + 1]
    assert next(batches, None) is None
    state = failing.state_dict()
    assert (state["epoch"], state["done"]) == (1, 0)
    broken.clear()
    assert list(map(show, failing)) == whole[1]


# Randomness.


def draw(sample: dict[str, Any]) -> dict[str, Any]:
    sample["noise"] = np.random.default_rng(int(sample["sample_seed"])).random()
    return sample


def noise(batch: dict[str, Any]) -> list[float]:
    return [float(one) for one in batch["noise"]]


def drawn(batches: Iterator[Any], epochs: int) -> list[list[tuple[str, int, float]]]:
    """Return what the samples of each epoch drew."""
    return [
        [
            one
            for batch in itertools.islice(batches, EPOCH)
            for one in zip(
                batch["episode"], batch["frame_index"].tolist(), noise(batch), strict=True
            )
        ]
        for _ in range(epochs)
    ]


def again_and_again(batches: Any) -> Iterator[Any]:
    while True:
        yield from batches


def test_case_27_what_a_sample_draws_depends_on_seed_epoch_episode_and_frame(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, KEYMAP, transforms=[draw])
    wanted = drawn(again_and_again(DataLoader(md, batch_sampler=sampler(md))), 2)
    flat = [one for epoch in wanted for one in epoch]
    assert len({one[2] for one in flat}) == len(flat) == 2 * TOTAL
    assert {one[:2] for one in wanted[0]} == {one[:2] for one in wanted[1]}
    for num_workers in (0, 1, 4):
        options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": collate}
        if num_workers:
            options |= {"multiprocessing_context": "fork", "timeout": 60}
        loader: Any = DataLoader(md, batch_sampler=sampler(md), **options)
        assert drawn(again_and_again(loader), 2) == wanted
    for num_threads in (1, 4):
        threads = EpisodeLoader(md, batch_sampler=sampler(md), num_threads=num_threads)
        assert drawn(again_and_again(threads), 2) == wanted

    epoch = {one[:2]: one[2] for one in wanted[0]}
    for index in range(TOTAL):  # a plain index stands for epoch 0
        record, frame = md.locate(index)
        assert md[index]["noise"] == epoch[record.name, frame]
    # Whatever else is drawn from: another order, or fewer episodes.
    few = MultiDataset.from_folder(folder, KEYMAP, transforms=[draw], percent=50)
    other = drawn(again_and_again(EpisodeLoader(few, 4, shuffle=True, seed=9)), 1)
    assert 0 < len(other[0]) < 2 * TOTAL
    assert {one[:2]: one[2] for one in other[0][: len(few)]}.items() <= epoch.items()
    seeded = MultiDataset.from_folder(folder, KEYMAP, transforms=[draw], seed=1)
    assert not {seeded[index]["noise"] for index in range(TOTAL)} & set(epoch.values())


def test_case_27_a_resumed_loader_draws_what_an_uninterrupted_one_does(folder: Path) -> None:
    md = MultiDataset.from_folder(folder, KEYMAP, transforms=[draw])
    whole = EpisodeLoader(md, batch_sampler=sampler(md), num_threads=1)
    wanted = [noise(batch) for batch in itertools.islice(again_and_again(whole), 2 * EPOCH)]
    for position in (1, EPOCH, EPOCH + 2):
        first = EpisodeLoader(md, batch_sampler=sampler(md), num_threads=1)
        for _ in itertools.islice(again_and_again(first), position):
            pass
        second = EpisodeLoader(md, batch_sampler=sampler(md), num_threads=3)
        second.load_state_dict(first.state_dict())
        left = itertools.islice(again_and_again(second), 2 * EPOCH - position)
        assert [noise(batch) for batch in left] == wanted[position:]
