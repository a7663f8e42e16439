"""Mixtures of sources: which a step takes, where an epoch ends, every frame once per pass."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import EpisodeDataModule
from egoloader.errors import SampleError, SettingsError
from tests.episodes import foreign_group, foreign_numbers, ramp
from tests.soak.positions import resume_everywhere
from tests.soak.recordings import KEYMAP, Shown, show, write_recordings
from tests.soak.runs import MixtureRun
from tests.soak.training import OneOf, recorded

#: Frames of each source's episodes; in batches of 4, passes of 4 and of 7 batches.
LENGTHS = {"arm": (5, 3, 7), "human": (9, 4, 8, 6)}
PASSES = {"arm": 4, "human": 7}
TOTALS = {name: sum(lengths) for name, lengths in LENGTHS.items()}
MIXTURES = list(itertools.product(("all", "weighted"), ("cycle", "ends")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("episodes")
    for name, lengths in LENGTHS.items():
        write_recordings(root, name, lengths)
    return root


def module(folder: Path, **options: Any) -> EpisodeDataModule:
    data = recorded(folder, **options)
    data.setup("fit")
    return data


Step = dict[str, Shown]


def epochs(data: EpisodeDataModule) -> Iterator[list[Step]]:
    """Yield the steps of one epoch after the other."""
    loader = data.train_dataloader()
    while True:
        size = len(loader)
        steps = [{name: show(batch[name]) for name in batch} for batch in loader]
        assert len(steps) == size
        yield steps


def take(data: EpisodeDataModule, count: int) -> list[list[Step]]:
    return list(itertools.islice(epochs(data), count))


def of_source(steps: list[Step], name: str) -> list[Shown]:
    return [step[name] for step in steps if name in step]


def ends_by_hand(picks: list[tuple[str, ...]]) -> list[int]:
    """Return the lengths of epochs that end with the first source that ends."""
    left, sizes, size = dict(PASSES), [], 0
    for names in picks:
        size += 1
        for name in names:
            left[name] -= 1
        ended = [name for name in names if not left[name]]
        for name in ended:
            left[name] = PASSES[name]
        if ended:
            sizes.append(size)
            size = 0
    return sizes


@pytest.mark.parametrize(("combine", "at_end"), MIXTURES)
def test_every_frame_comes_once_per_pass_of_its_source(
    folder: Path, combine: str, at_end: str
) -> None:
    found = take(module(folder, combine=combine, at_end=at_end), 12)
    steps = list(itertools.chain.from_iterable(found))
    assert all(set(step) == set(PASSES) if combine == "all" else len(step) == 1 for step in steps)
    for name, length in PASSES.items():
        batches = of_source(steps, name)
        assert len(batches) > 2 * length
        orders = []
        for start in range(0, len(batches) - length + 1, length):
            frames = [one[:2] for batch in batches[start : start + length] for one in batch]
            assert len(set(frames)) == len(frames) == TOTALS[name]
            assert {episode.split("_")[0] for episode, _ in frames} == {name}
            orders.append(frames)
        assert all(one != other for one, other in itertools.pairwise(orders))


@pytest.mark.parametrize(("combine", "length"), [("all", 7), ("weighted", 11)])
def test_epochs_of_sources_that_start_over(folder: Path, combine: str, length: int) -> None:
    found = take(module(folder, combine=combine, at_end="cycle"), 3)
    assert [len(epoch) for epoch in found] == [length] * 3


@pytest.mark.parametrize("combine", ["all", "weighted"])
def test_an_epoch_ends_with_its_first_source_and_the_others_frames_carry(
    folder: Path, combine: str
) -> None:
    found = take(module(folder, combine=combine, at_end="ends"), 10)
    picks = [tuple(step) for epoch in found for step in epoch]
    assert [len(epoch) for epoch in found] == ends_by_hand(picks)
    assert len({len(epoch) for epoch in found}) > 2


def test_weights_decide_how_often_a_source_comes(folder: Path) -> None:
    def picks(count: int, **options: Any) -> list[str]:
        data = module(folder, combine="weighted", **options)
        return [next(iter(step)) for epoch in take(data, count // 11) for step in epoch]

    often = Counter(picks(440, weights={"human": 3, "arm": 1}))
    assert abs(often["human"] / often.total() - 0.75) < 0.1  # 4 standard deviations
    alike = Counter(picks(440))
    assert abs(alike["human"] / alike.total() - 0.5) < 0.1
    twice = picks(33, weights={"arm": 2.5, "human": 1})
    assert twice == picks(33, weights={"human": 1.0, "arm": 2.5}, num_threads=3)
    assert twice != picks(33, weights={"arm": 2.5, "human": 1}, seed=8)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"combine": "weighted", "weights": {"arm": 1}}, "embodiment 'human' has no weight"),
        (
            {"combine": "weighted", "weights": {"arm": 1, "humn": 1}},
            "there is a weight for 'humn'; did you mean 'human'",
        ),
        ({"combine": "weighted", "weights": {"arm": 0, "human": 1}}, "weight of 'arm' must be"),
        ({"weights": {"arm": 1, "human": 1}}, "weights are for combine: weighted"),
        ({"combine": "weigthed"}, "combine is 'weigthed'; did you mean 'weighted'"),
        ({"at_end": "end"}, "at_end is 'end'; did you mean 'ends'"),
    ],
)
def test_mixtures_that_can_not_be_meant(folder: Path, options: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        module(folder, **options)


@pytest.mark.parametrize(("combine", "at_end"), MIXTURES)
def test_going_on_at_every_position(folder: Path, combine: str, at_end: str) -> None:
    def begin(num_threads: int = 2) -> MixtureRun:
        return MixtureRun(recorded(folder, combine=combine, at_end=at_end, num_threads=num_threads))

    tally = resume_everywhere(begin, [lambda: begin(1), lambda: begin(3)], 14, 4)
    assert tally.wrong == 0
    assert tally.resumes == 14 + sum(-(-left // 4) for left in range(1, 15))


@pytest.mark.parametrize(("combine", "at_end"), MIXTURES)
def test_a_resumed_epoch_is_as_long_as_it_was(folder: Path, combine: str, at_end: str) -> None:
    whole = [len(epoch) for epoch in take(module(folder, combine=combine, at_end=at_end), 3)]
    data = module(folder, combine=combine, at_end=at_end)
    for size in whole:
        for done in range(size):
            other = module(folder, combine=combine, at_end=at_end)
            other.load_state_dict(data.state_dict())
            assert len(other.train_dataloader()) == size
            assert len(list(other.train_dataloader())) == size - done
            next(iter(data.train_dataloader()))


@pytest.mark.parametrize(("before", "now", "sizes"), [
    (1, 2, [6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11]),  # 11 batches of one rank, 6 of two
    (2, 1, [12, 11, 10, 9, 8, 7]),
])  # fmt: skip
def test_other_ranks_have_their_share_of_the_batches_that_a_weighted_epoch_has_left(
    folder: Path, before: int, now: int, sizes: list[int]
) -> None:
    def of(world_size: int) -> EpisodeDataModule:
        data = OneOf(folder, KEYMAP, batch_size=4, valid_ratio=0, combine="weighted")
        data.world_size = world_size
        data.setup("fit")
        return data

    data, found = of(before), []
    for _ in sizes:
        other = of(now)
        other.load_state_dict(data.state_dict())
        found.append(len(other.train_dataloader()))
        next(iter(data.train_dataloader()))
    assert found[1:] == sizes[1:]


def test_a_batch_that_fails_keeps_its_position(folder: Path) -> None:
    whole = [step for epoch in take(module(folder, combine="weighted"), 2) for step in epoch]
    ((_, shown),) = whole[5].items()
    broken = {shown[0][:2]}

    def fail(sample: dict[str, Any]) -> dict[str, Any]:
        if (sample["episode"], int(sample["frame_index"])) in broken:
            raise ValueError("of the transform")
        return sample

    data = module(folder, combine="weighted", transforms=[fail], num_threads=2)
    batches = iter(data.train_dataloader())
    for _ in range(5):
        next(batches)
    for _ in range(2):
        with pytest.raises(SampleError, match="of the transform"):
            next(iter(data.train_dataloader()))
        assert (data.state_dict()["step"], data.state_dict()["done"]) == (5, 5)
    broken.clear()
    left = [{name: show(one[name]) for name in one} for one in data.train_dataloader()]
    assert left == whole[5:11]


# A source of nothing.


def test_case_38_an_embodiment_without_frames_is_refused_by_name(tmp_path: Path) -> None:
    write_recordings(tmp_path, "arm", (5, 3, 7))
    for name in "ab":
        empty = foreign_group(tmp_path / f"leg_{name}.zarr", 0, embodiment="leg")
        foreign_numbers(empty, "joints", ramp(0, 2))
    with pytest.raises(SettingsError, match=r"'leg'.*no .*frames"):
        module(tmp_path)


def test_case_38_an_embodiment_of_which_a_filter_keeps_nothing_is_refused_by_name(
    folder: Path,
) -> None:
    def of_arms(episode: Any) -> Any:
        return np.full(episode.total_frames, episode.embodiment == "arm")

    with pytest.raises(SettingsError, match=r"'human'.*of_arms' keeps no frame"):
        module(folder, frame_filter=of_arms)


def test_one_keymap_and_one_source_need_no_mixture(tmp_path: Path) -> None:
    write_recordings(tmp_path, "arm", (5, 3, 7))
    found = take(EpisodeDataModule(tmp_path, KEYMAP, batch_size=4, valid_ratio=0), 2)
    assert [[set(step) for step in epoch] for epoch in found] == [[{"arm"}] * 4] * 2
