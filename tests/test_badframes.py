"""`on_bad_frame: skip`: what can't be read is replaced, the same way wherever it is read."""

from __future__ import annotations

import multiprocessing
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from egoloader import EpisodeLoader, MultiDataset, ZarrDataset, collate
from egoloader.frameindex import FrameIndex
from egoloader.peers import Peers
from tests.children import in_a_fork
from tests.damage import (
    BAD,
    BAD_HEAD,
    BAD_ROWS,
    COUNTS,
    ENTRIES,
    INDICES,
    PLACES,
    SERVED,
    Served,
    assert_true,
    bad_samples,
    served,
    skipping,
    slow_served,
    with_bad_counts,
    write_damaged,
)
from tests.entries import CAMERA, camera, keymap
from tests.episodes import foreign_bytes, foreign_group, jpegs, pictures
from tests.orders import surprise
from tests.soak.training import QUIET

pytestmark = [
    pytest.mark.filterwarnings("ignore::egoloader.errors.BadFrameWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings(*QUIET),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_damaged(tmp_path_factory.mktemp("episodes"))


def served_in_order(folder: Path, order: Sequence[int], size: int) -> Served:
    """Read a fresh dataset in batches of a size."""
    md, found = skipping(folder), Served()
    for start in range(0, len(order), size):
        some = order[start : start + size]
        found |= served(some, collate(md.__getitems__(some)))
    return found


def shuffled(seed: int) -> list[int]:
    return [int(n) for n in np.random.default_rng(seed).permutation(len(PLACES))]


def assert_same(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    assert list(found) == list(wanted)
    for key, value in wanted.items():
        is_same = torch.equal(found[key], value) if torch.is_tensor(value) else found[key] == value
        assert is_same, key


# What comes in the place of a bad frame.


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("mixed_sizes", ["error", "list"])
@pytest.mark.parametrize("image_dtype", ["uint8", "float32", "jpeg"])
def test_bad_samples_are_replaced_whole_and_others_untouched(
    folder: Path, image_dtype: Any, mixed_sizes: Any, epoch: int
) -> None:
    options: Any = {"image_dtype": image_dtype, "mixed_sizes": mixed_sizes, "seed": 7}
    plain = MultiDataset.from_folder(folder, ENTRIES, **options)
    bad = bad_samples(BAD_HEAD if image_dtype == "jpeg" else BAD_ROWS)
    wanted = slow_served(bad, seed=7, epoch=epoch)
    order = [FrameIndex(n, epoch, n % 3 == 0) for n in shuffled(0) + shuffled(1)]
    batch = skipping(folder, **options).__getitems__(order)
    assert len(set(bad)) >= 13
    for index, sample in zip(order, batch, strict=True):
        assert bool(sample.pop("is_replaced")) == (index in bad)
        assert_true(sample, folder, *wanted[index])
        assert_same(sample, plain[index.at(PLACES.index(wanted[index]))])
        assert bool(sample["is_repeat"]) == (index % 3 == 0)


def test_transforms_see_what_is_served(folder: Path) -> None:
    def note(sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "noted": (sample["episode"], int(sample["frame_index"]))}

    md = skipping(folder, transforms=[note])
    found = {index: sample["noted"] for index, sample in enumerate(md.__getitems__(INDICES))}
    assert found == SERVED


def test_samples_of_several_kinds_share_a_batch(tmp_path: Path) -> None:
    for name, size in {"a": (8, 12), "b": (16, 24)}.items():
        features = {CAMERA: {"dtype": "jpeg", "shape": [*size, 3]}}
        rows = jpegs(pictures(6, size))
        rows[2] = rows[2][:-6]
        foreign_bytes(foreign_group(tmp_path / name, 6, features=features), CAMERA, rows)
    options: Any = {"on_bad_frame": "skip", "max_bad_fraction": 0.5}
    md = MultiDataset.from_folder(tmp_path, keymap(cam=camera()), **options)
    for sample, index in zip(md.__getitems__([2, 8, 1, 7, 2]), [2, 8, 1, 7, 2], strict=True):
        assert bool(sample["is_replaced"]) == (index in (2, 8))
        assert sample["cam"].shape[1:] == ((8, 12) if sample["episode"] == "a" else (16, 24))
        assert_same(sample, md[index])


# The same, however it is read.


def every_way(folder: Path) -> dict[str, Served]:
    md, order = skipping(folder), shuffled(2)
    lists = [order[start : start + 7] for start in range(0, len(order), 7)]

    def gathered(batches: Iterable[Mapping[str, Any]]) -> Served:
        pairs = zip(lists, batches, strict=True)
        return {
            index: place for some, batch in pairs for index, place in served(some, batch).items()
        }

    fork: Any = {"num_workers": 2, "multiprocessing_context": "fork", "timeout": 60}
    found = {
        "alone": {n: served([n], collate([md[n]]))[n] for n in reversed(INDICES)},
        "pickled": gathered(
            collate(pickle.loads(pickle.dumps(md)).__getitems__(some)) for some in lists
        ),
        "workers": gathered(
            DataLoader(skipping(folder), batch_sampler=lists, collate_fn=collate, **fork)
        ),
    }
    for threads in (1, 3):
        loader = EpisodeLoader(skipping(folder), batch_sampler=lists, num_threads=threads)
        found[f"{threads} threads"] = gathered(loader)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        jobs = [
            processes.submit(served_in_order, folder, shuffled(seed), size)
            for seed, size in ((3, 5), (4, 40))
        ]
        found |= {f"process {n}": job.result() for n, job in enumerate(jobs)}
    return found


def test_the_same_replacements_whatever_reads_them(folder: Path) -> None:
    for way, found in every_way(folder).items():
        assert found == SERVED, way


some_index = st.one_of(st.sampled_from(BAD), st.sampled_from(INDICES))


@settings(deadline=None, max_examples=25)
@given(batches=st.lists(st.lists(some_index, min_size=1, max_size=9), min_size=1, max_size=6))
def test_the_same_replacements_whatever_the_batches(folder: Path, batches: list[list[int]]) -> None:
    md = skipping(folder)
    for some in batches:
        for index, place in served(some, collate(md.__getitems__(some))).items():
            assert place == SERVED[index]


def test_other_epochs_and_seeds_draw_others(folder: Path) -> None:
    for seed in (0, 1):
        md = skipping(folder, seed=seed)
        for epoch in (0, 1, 2):
            some = [FrameIndex(index, epoch) for index in BAD]
            wanted = slow_served(seed=seed, epoch=epoch)
            found = served(some, collate(md.__getitems__(some)))
            assert found == {index: wanted[index] for index in BAD}
            others = sum(found[index] != SERVED[index] for index in BAD)
            assert (others > len(BAD) // 2) == ((seed, epoch) != (0, 0))


# Spread.


@given(runs=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=6))
def test_peers_are_the_frames_of_all_runs(runs: list[tuple[int, int]]) -> None:
    starts, lengths, at = [], [], 0
    for gap, length in runs:
        starts.append(at + gap)
        lengths.append(length)
        at += gap + length
    wanted = [
        start + n for start, length in zip(starts, lengths, strict=True) for n in range(length)
    ]
    peers = Peers("arm", np.array(starts), np.cumsum(lengths))
    assert [peers.at(place) for place in range(peers.size)] == wanted


def far_from_even(frames: Sequence[Any], options: Sequence[Any]) -> float:
    """Return how far draws are from even over all that may be drawn, in standard deviations."""
    counted = Counter(frames)
    assert set(counted) <= set(options)
    even = [len(frames) / len(options)] * len(options)
    return surprise([([counted[one] for one in options], even)])


def test_one_frames_replacements_are_spread_over_its_embodiment(folder: Path) -> None:
    options: Any = {"on_bad_frame": "skip", "max_bad_fraction": 0.5, "seed": 11}
    md = MultiDataset.from_folder(folder, COUNTS, **options)
    index = PLACES.index(("arm_2", 6))
    batch = md.__getitems__([FrameIndex(index, epoch) for epoch in range(1200)])
    found = [(sample["episode"], int(sample["frame_index"])) for sample in batch]
    arms = [place for place in PLACES if place[0].startswith("arm") and place != PLACES[index]]
    assert len(arms) == 99
    assert abs(far_from_even(found, arms)) < 4


def test_many_frames_replacements_are_spread_and_good(tmp_path: Path) -> None:
    odd = range(1, 80, 2)
    ds = with_bad_counts(tmp_path / "ep", 80, odd, max_bad_fraction=0.5, seed=2)
    found = []
    for epoch in range(12):
        batch = ds.__getitems__([FrameIndex(row, epoch) for row in odd])
        assert all(sample["is_replaced"] for sample in batch)
        found += [int(sample["count"]) for sample in batch]
    assert abs(far_from_even(found, range(0, 80, 2))) < 4
    assert ds.bad_frames == {"ep": 40}
    options: Any = {"on_bad_frame": "skip", "max_bad_fraction": 0.5, "seed": 3}
    other = ZarrDataset(tmp_path / "ep", COUNTS, **options).__getitems__(odd)
    assert sum(int(one["count"]) != row for one, row in zip(other, found, strict=False)) > 30


# Memory and processes.


def test_failed_attempts_leave_batches_in_recycled_memory_alone(folder: Path) -> None:
    md = skipping(folder, image_dtype="float32")
    lists = [shuffled(seed)[:48] for seed in range(12)]  # of more than is worth recycling
    assert sum(any(n in BAD for n in some) for some in lists) > 8
    loader = EpisodeLoader(md, batch_sampler=lists, num_threads=2, look_ahead=2)
    held: list[tuple[list[int], Any]] = []
    for some, batch in zip(lists, loader, strict=True):
        held = [*held[-2:], (some, batch)]
        for indices, one in held:
            assert len(served(indices, one)) == 48
            for b, index in enumerate(indices):
                sample = {key: values[b] for key, values in one.items()}
                assert_true(sample, folder, *SERVED[index])


def test_what_was_met_stays_in_its_process(folder: Path) -> None:
    md = skipping(folder)
    found = served(BAD[:4], collate(md.__getitems__(BAD[:4])))
    counts = md.bad_frames
    assert sum(counts.values()) >= 4

    def child() -> None:
        assert md.bad_frames == {}
        assert served(BAD[2:], collate(md.__getitems__(BAD[2:]))) == {n: SERVED[n] for n in BAD[2:]}
        assert found == {n: SERVED[n] for n in BAD[:4]}
        assert md.bad_frames["hand_0"] == 1

    in_a_fork(child)
    again = pickle.loads(pickle.dumps(md))
    assert again.bad_frames == {}
    assert md.bad_frames == counts
    one = ZarrDataset(folder / "arm_0", ENTRIES, on_bad_frame="skip", max_bad_fraction=0.5)
    copy = pickle.loads(pickle.dumps(one))
    assert_same(copy[3], one[3])
    assert copy.bad_frames == one.bad_frames
    assert set(copy.bad_frames) == {"arm_0"}
