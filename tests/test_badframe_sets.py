"""Bad frames are replaced by what a sampler draws, or a subset holds, and by nothing else."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

from egoloader import (
    EpisodeLoader,
    EpisodePoolSampler,
    KeyMap,
    MultiDataset,
    ZarrDataset,
    ZarrEpisode,
    collate,
)
from egoloader.errors import FrameIndexError, SettingsError, TooManyBadFramesError
from egoloader.frameindex import FrameIndex
from egoloader.peers import FrameSets, Peers
from egoloader.quarantine import MAX_BYTES, BadSpan, add_spans, load_quarantine
from tests.damage import COUNTS, skipping, with_bad_counts, write_damaged, write_ramps
from tests.entries import CAMERA, camera
from tests.episodes import foreign_bytes, foreign_group, jpegs, pictures

pytestmark = [
    pytest.mark.filterwarnings("ignore::egoloader.errors.BadFrameWarning"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]
BAD_ROWS = range(1, 80, 8)
HALF: Any = {"max_bad_fraction": 0.5}


def odd(episode: ZarrEpisode) -> Any:
    return np.arange(episode.total_frames) % 2


def counts(batches: Iterable[Any]) -> list[tuple[int, bool]]:
    """Return of every sample the frame, and whether it is there in the place of another."""
    return [
        pair
        for batch in batches
        for pair in zip(batch["count"].tolist(), batch["is_replaced"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("column", ["frame_filter", "weights"])
@pytest.mark.parametrize("epochs", [6])
def test_what_is_never_drawn_replaces_nothing(tmp_path: Path, column: str, epochs: int) -> None:
    ds = with_bad_counts(tmp_path / "ep", 80, BAD_ROWS, **HALF)
    options: Any = {column: odd}
    loaders = [
        EpisodeLoader(ds, batch_sampler=EpisodePoolSampler(ds, 8, **options), num_threads=n)
        for n in (1, 3)
    ]
    found = [[pair for _ in range(epochs) for pair in counts(loader)] for loader in loaders]
    assert found[0] == found[1]
    replaced = [frame for frame, is_replaced in found[0] if is_replaced]
    assert len(replaced) > 3 * epochs
    assert {frame % 2 for frame, _ in found[0]} == {1}
    assert not {frame for frame, _ in found[0]} & set(BAD_ROWS)
    # Spread over all of the thirty that are left.
    assert len(set(replaced)) > 15


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_know_what_is_drawn(tmp_path: Path, context: str) -> None:
    ds = with_bad_counts(tmp_path / "ep", 80, BAD_ROWS, **HALF)
    own = EpisodeLoader(ds, batch_sampler=EpisodePoolSampler(ds, 8, frame_filter=odd))
    sampler = EpisodePoolSampler(ds, 8, frame_filter=odd)
    workers: Any = {"num_workers": 2, "multiprocessing_context": context, "timeout": 60}
    batches = DataLoader(ds, batch_sampler=sampler, collate_fn=collate, **workers)
    assert counts(batches) == counts(own)


def test_a_set_that_a_copy_does_not_know_is_refused(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 80, BAD_ROWS, **HALF)
    early = pickle.loads(pickle.dumps(ds))
    number = ds.draw_among(range(1, 80, 2))
    assert early[FrameIndex(2, among=number)]["count"] == 2  # no bad one
    with pytest.raises(SettingsError, match="make the sampler of the same dataset, and before"):
        early[FrameIndex(1, among=number)]
    late = pickle.loads(pickle.dumps(ds))
    index = FrameIndex(1, 3, among=number)
    assert late[index]["count"] == ds[index]["count"]


def test_samplers_of_one_dataset_keep_their_own_sets(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 80, BAD_ROWS, **HALF)
    halves = [list(range(start, start + 40)) for start in (0, 40)]
    loaders = [EpisodeLoader(Subset(ds, half), 8, num_threads=1) for half in halves]
    for half, loader in zip(halves, loaders, strict=True):
        found = counts(loader)
        assert [is_replaced for _, is_replaced in found] == [n in BAD_ROWS for n in half]
        assert {frame for frame, _ in found} <= set(half) - set(BAD_ROWS)


@pytest.mark.parametrize("order", [{}, {"shuffle": True}])
def test_a_subset_of_a_subset_replaces_by_what_it_holds(tmp_path: Path, order: Any) -> None:
    ds = with_bad_counts(tmp_path / "ep", 80, BAD_ROWS, **HALF)
    outer = Subset(Subset(ds, [*range(79, 39, -1), -80, -79]), range(30, 42))
    loader = EpisodeLoader(outer, 5, **order)
    held = [*range(49, 39, -1), 0, 1]
    for _ in range(4):
        found = counts(loader)
        assert len(found) == 12
        assert {frame for frame, _ in found} <= set(held) - set(BAD_ROWS)
        assert sum(is_replaced for _, is_replaced in found) == 3  # 49, 41 and 1


def test_indices_of_a_subset_that_lie_outside_are_refused(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 8, [])
    with pytest.raises(FrameIndexError, match="index 8 is outside"):
        EpisodeLoader(Subset(ds, [8]), 1)


def test_too_many_are_counted_among_what_is_drawn(tmp_path: Path) -> None:
    ds = with_bad_counts(tmp_path / "ep", 400, [1, 3], max_bad_fraction=0.1)
    # All of these are bad, if few of all are.
    loader = EpisodeLoader(Subset(ds, [1, 3]), 1, num_threads=1)
    with pytest.raises(TooManyBadFramesError, match="1 frames of 2"):
        next(iter(loader))
    assert ds[1]["is_replaced"]


def test_other_embodiments_of_a_set_replace_nothing(tmp_path: Path) -> None:
    md = skipping(write_damaged(tmp_path))
    among = range(0, len(md), 3)
    number = md.draw_among(among)
    for index in (3, 30, len(md) - 1):
        batch = md.__getitems__([FrameIndex(index, epoch, among=number) for epoch in range(9)])
        record, frame = md.locate(index)
        for sample in batch:
            assert sample["embodiment"] == record.embodiment
            place = (sample["episode"], int(sample["frame_index"]))
            own = place == (record.name, frame)
            assert own or place in [(md.locate(n)[0].name, md.locate(n)[1]) for n in among]


@given(
    sets=st.lists(st.sets(st.integers(0, 30), min_size=1), min_size=1, max_size=3),
    start=st.integers(0, 20),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
)
def test_what_is_within_a_set(sets: list[set[int]], start: int, lengths: list[int]) -> None:
    starts = start + 2 * np.arange(len(lengths)) + np.cumsum([0, *lengths[:-1]])
    peers, known = Peers("arm", starts, np.cumsum(lengths)), FrameSets()
    everyone = [peers.at(n) for n in range(peers.size)]
    assert known.within(peers, 0) is peers
    numbers = [known.add(iter(one)) for one in sets]
    assert len(set(numbers)) == len(set(map(frozenset, sets)))
    for one, number in zip(sets, numbers, strict=True):
        kept = known.within(peers, number)
        assert [kept.at(n) for n in range(kept.size)] == [n for n in everyone if n in one]
        assert (kept.name == peers.name) is False


# Where nothing declares how large a camera's frames are.


def mixed_camera(folder: Path, rows: dict[int, bytes]) -> Path:
    data = jpegs(pictures(20))
    for row, bad in rows.items():
        data[row] = bad
    foreign_bytes(foreign_group(folder / "ep", 20), CAMERA, data)
    return folder / "ep"


@pytest.mark.parametrize("first", [0, 5, 12])
def test_the_first_frame_says_how_large_a_camera_is(tmp_path: Path, first: int) -> None:
    (other,) = jpegs(pictures(1, (24, 40)))
    path = mixed_camera(tmp_path, {0: other[: len(other) // 2], 5: other, 12: other})
    ds = ZarrDataset(path, KeyMap({"cam": camera()}), on_bad_frame="skip", **HALF)
    order = [first, *(n for n in range(20) if n != first)]
    marks = {n: bool(ds[n]["is_replaced"]) for n in order}
    assert [n for n in range(20) if marks[n]] == [0, 5, 12]
    assert ds.bad_frames == {"ep": 3}


def test_a_camera_without_any_frame_is_all_bad(tmp_path: Path) -> None:
    path = mixed_camera(tmp_path, dict.fromkeys(range(20), b"no JPEG"))
    ds = ZarrDataset(path, KeyMap({"cam": camera()}), on_bad_frame="skip", **HALF)
    with pytest.raises(TooManyBadFramesError, match="no JPEG"):
        ds[7]


# The file of what was met.


def test_the_file_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ds = with_bad_counts(tmp_path / "ep", 40, [8], bad_frames_file="bad.json", **HALF)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    copy = pickle.loads(pickle.dumps(ds))
    assert copy[8]["is_replaced"]
    assert [span.start for span in load_quarantine(tmp_path / "bad.json")] == [8]
    assert list((tmp_path / "elsewhere").iterdir()) == []


def blocked(folder: Path) -> Path:
    (folder / "file").write_text("")
    return folder / "file" / "bad.json"


def no_list(folder: Path) -> Path:
    (folder / "bad.json").write_text('{"episode": "ep"}')
    return folder / "bad.json"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (blocked, "can't be written"),
        (no_list, "must hold a list"),
        (lambda folder: folder, "can't be read"),
        (lambda _: "bad\0.json", "can't be written"),
    ],
)
def test_a_file_that_cant_be_written_is_refused_before_training(
    tmp_path: Path, make: Callable[[Path], Any], words: str
) -> None:
    write_ramps(tmp_path / "data/ep", 20)
    options: Any = {"on_bad_frame": "skip", "bad_frames_file": make(tmp_path)}
    with pytest.raises(SettingsError, match=words):
        MultiDataset.from_folder(tmp_path / "data", COUNTS, **options)
    with pytest.raises(SettingsError, match=words):
        ZarrDataset(tmp_path / "data/ep", COUNTS, **options)


def test_what_could_not_be_listed_is_listed_later(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    ds = with_bad_counts(tmp_path / "ep", 40, [8], bad_frames_file=file, **HALF)
    file.write_text("not JSON")
    for _ in range(2):
        with pytest.raises(SettingsError, match="no JSON"):
            ds[8]
    assert ds.bad_frames == {}
    file.write_text("[]")
    assert ds[8]["is_replaced"]
    assert [span.start for span in load_quarantine(file)] == [8]
    assert ds.bad_frames == {"ep": 1}


def test_no_file_grows_beyond_what_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "bad.json"
    add_spans(file, [BadSpan("ep", 1, 2)])
    with pytest.raises(SettingsError, match="would be larger than"):
        add_spans(file, [BadSpan("ep", 3, 4, reason="x" * MAX_BYTES)])
    assert json.loads(file.read_text()) == [
        {"episode": "ep", "start": 1, "end": 2, "key": None, "reason": ""}
    ]
    assert list(tmp_path.iterdir()) == [file]
