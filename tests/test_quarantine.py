"""Quarantine files: what they may hold, and adding to them."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import (
    MultiDataset,
    ZarrDataset,
    quarantine,
)
from egoloader.errors import QuarantineWarning, SettingsError
from egoloader.quarantine import BadSpan, add_spans, load_quarantine, merge_spans
from tests.damage import write_list
from tests.soak.recordings import KEYMAP, write_recordings

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_recordings(tmp_path_factory.mktemp("recordings"), "arm", (4, 3))


END = 20  # of every episode here
some_spans = st.lists(
    st.builds(
        lambda episode, start, size, key, reason: BadSpan(
            episode, start, size and start + size, key, reason
        ),
        st.sampled_from(["a", "sub/b"]),
        st.integers(0, 12),
        st.one_of(st.none(), st.integers(1, 5)),
        st.sampled_from([None, "pose", "images.front_1"]),
        st.sampled_from(["", "no JPEG"]),
    ),
    max_size=12,
)
Cell = tuple[str, str | None, str, int]


def cells(spans: Sequence[BadSpan]) -> set[Cell]:
    """Return each frame of spans with its episode, key and reason."""
    return {
        (span.episode, span.key, span.reason, frame)
        for span in spans
        for frame in range(span.start, END if span.end is None else span.end)
    }


@settings(deadline=None, max_examples=200)
@given(spans=some_spans)
def test_merging_keeps_every_frame_in_as_few_spans_as_can_be(spans: list[BadSpan]) -> None:
    merged, wanted = merge_spans(spans), cells(spans)
    assert cells(merged) == wanted
    firsts = {one for one in wanted if (*one[:3], one[3] - 1) not in wanted}
    assert len(merged) == len(firsts)
    assert [(one.episode, one.start) for one in merged] == sorted(
        (episode, frame) for episode, _, _, frame in firsts
    )
    # A span to the end stays one, however long the episode is.
    endless = {(one.episode, one.key, one.reason) for one in spans if one.end is None}
    assert {(one.episode, one.key, one.reason) for one in merged if one.end is None} == endless
    assert merge_spans(reversed(merged)) == merged


def test_what_was_added_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "er" / "bad.json"
    first = [
        BadSpan("a", 3, 5, "pose", "NaN"),
        BadSpan("b"),
        BadSpan("é\ud800", 1, None, None, "ü"),
    ]
    add_spans(file, first)
    assert sorted(load_quarantine(file), key=repr) == sorted(first, key=repr)
    add_spans(file, [BadSpan("a", 5, 6, "pose", "NaN"), BadSpan("a", 4, 6, None, "jump")])
    entries = json.loads(file.read_text())
    assert entries[:2] == [
        {"episode": "a", "start": 3, "end": 6, "key": "pose", "reason": "NaN"},
        {"episode": "a", "start": 4, "end": 6, "key": None, "reason": "jump"},
    ]
    assert [path.name for path in file.parent.iterdir()] == ["bad.json"]


def test_an_entry_needs_no_more_than_an_episode(tmp_path: Path) -> None:
    file = write_list(tmp_path / "bad.json", {"episode": "a"}, {"episode": "b", "end": 3})
    assert load_quarantine(file) == (BadSpan("a"), BadSpan("b", 0, 3))
    assert [span.is_whole for span in load_quarantine(file)] == [True, False]


def of_a(**fields: Any) -> dict[str, Any]:
    return {"episode": "a", **fields}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (3, "an entry is an object with an episode, got 3"),
        (None, "an entry is an object"),
        (["a"], "an entry is an object"),
        ({"start": 0}, "an entry is an object with an episode"),
        (of_a(episode=""), "episode must be a path, got ''"),
        (of_a(episode=None), "episode must be a path"),
        (of_a(episode=3), "episode must be a path"),
        (of_a(start=-1), "start must be a whole number from 0 on, got -1"),
        (of_a(start=1.0), "start must be"),
        (of_a(start="0"), "start must be"),
        (of_a(start=True), "start must be"),
        (of_a(start=None), "start must be"),
        (of_a(start=3, end=3), "end must be a whole number from 4 on, got 3"),
        (of_a(start=3, end=0), "end must be"),
        (of_a(end=0), "end must be a whole number from 1 on"),
        (of_a(end="5"), "end must be"),
        (of_a(end=5.5), "end must be"),
        (of_a(end=False), "end must be"),
        (of_a(key=3), "key must be the name of an array or null, got 3"),
        (of_a(reason=None), "reason must be a text, got None"),
        (of_a(reason=["x"]), "reason must be a text"),
        (of_a(strat=3), "there is no 'strat'; did you mean 'start'"),
        (of_a(frames=[1, 2]), "there is no 'frames'; there are: 'end', 'episode', 'key'"),
    ],
)
def test_a_malformed_entry_is_named(tmp_path: Path, entry: Any, words: str) -> None:
    file = write_list(tmp_path / "bad.json", of_a(), entry)
    with pytest.raises(SettingsError) as caught:
        load_quarantine(file)
    assert str(caught.value).startswith(f"{file}, entry 1: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "can't be read: .*No such file"),
        (b"", "is no JSON"),
        (b"[{]", "is no JSON"),
        (b'[{"episode": "\xff"}]', "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"episode": "a"}', "must hold a list"),
        (b"[" + 300 * b" " + b"]", "is larger than 256 bytes"),
    ],
)
def test_a_broken_file_is_named(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: Any, words: str
) -> None:
    file = tmp_path / "bad.json"
    if content is not None:
        file.write_bytes(content)
    if content is None or len(content) < 1000:
        monkeypatch.setattr(quarantine, "MAX_BYTES", 256)
    adds = lambda: add_spans(file, [BadSpan("a")])  # noqa: E731
    reads = [
        lambda: load_quarantine(file),
        lambda: MultiDataset.from_folder(recordings, KEYMAP, quarantine=file),
        lambda: ZarrDataset(recordings / "arm_0.zarr", KEYMAP, quarantine=file),
    ]
    for one in [*reads, *([] if content is None else [adds])]:
        with pytest.raises(SettingsError, match=words) as caught:
            one()
        assert str(file) in str(caught.value)
    assert content is None or file.read_bytes() == content


@pytest.mark.parametrize("path", [3, True, ["bad.json"], "a\0b", "."])
def test_what_is_no_path_is_refused(recordings: Path, path: Any) -> None:
    with pytest.raises(SettingsError, match="quarantine"):
        MultiDataset.from_folder(recordings, KEYMAP, quarantine=path)
    with pytest.raises(SettingsError, match="quarantine"):
        ZarrDataset(recordings / "arm_0.zarr", KEYMAP, quarantine=path)


def test_a_file_of_another_folder_is_refused(recordings: Path, tmp_path: Path) -> None:
    file = write_list(tmp_path / "bad.json", {"episode": "amr_1.zarr"}, {"episode": "x"})
    with pytest.raises(SettingsError, match=r"none of the folder's .*did you mean 'arm_1\.zarr'"):
        MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    write_list(file, {"episode": "amr_1.zarr"}, {"episode": "x"})
    add_spans(file, [BadSpan("arm_1.zarr", 0, 2)])
    with pytest.warns(
        QuarantineWarning, match=r"2 episodes .*'amr_1\.zarr' is .*mean 'arm_1\.zarr'"
    ):
        assert len(MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)) == 5
    assert len(MultiDataset.from_folder(recordings, KEYMAP, quarantine=write_list(file))) == 7


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"start": 9}, r"'arm_1\.zarr' starts at frame 9 of 3"),
        ({"key": "jonts"}, r"of key 'jonts', which is not there; did you mean"),
    ],
)
def test_entries_that_leave_out_nothing_are_named(
    recordings: Path, tmp_path: Path, entry: dict[str, Any], words: str
) -> None:
    file = write_list(tmp_path / "bad.json", {"episode": "arm_1.zarr", **entry})
    with pytest.warns(QuarantineWarning, match=words):
        md = MultiDataset.from_folder(recordings, KEYMAP, quarantine=file)
    assert len(md) == 7
    with pytest.warns(QuarantineWarning, match=words):
        ZarrDataset(recordings / "arm_1.zarr", KEYMAP, quarantine=file)


def test_a_share_is_taken_of_what_is_not_in_quarantine(recordings: Path, tmp_path: Path) -> None:
    for number in range(2):
        file = write_list(
            tmp_path / f"{number}.json", {"episode": f"arm_{number}.zarr", "key": "joints"}
        )
        for seed in range(6):
            options: Any = {"percent": 50, "seed": seed, "quarantine": file}
            (left,) = MultiDataset.from_folder(recordings, KEYMAP, **options).episodes
            assert left.name == f"arm_{1 - number}.zarr"


def add_twenty(file: Path, number: int, barrier: Any) -> None:
    barrier.wait(timeout=60)
    for step in range(20):
        add_spans(file, [BadSpan(f"{number}.zarr", 2 * step, 2 * step + 1, None, "bad")])


def test_several_processes_add_to_one_file(tmp_path: Path) -> None:
    file, context = tmp_path / "new" / "bad.json", multiprocessing.get_context("fork")
    barrier = context.Barrier(4)
    children = [context.Process(target=add_twenty, args=(file, n, barrier)) for n in range(4)]
    for child in children:
        child.start()
    seen = [0]
    while any(child.is_alive() for child in children):
        if file.exists():
            seen.append(len(load_quarantine(file)))
    assert [child.exitcode for child in children] == [0] * 4
    assert seen == sorted(seen)
    wanted = {(f"{n}.zarr", None, "bad", 2 * step) for n in range(4) for step in range(20)}
    assert cells(load_quarantine(file)) == wanted
    assert [path.name for path in file.parent.iterdir()] == ["bad.json"]
