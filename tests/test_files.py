"""Open files: bounded in number, never closed under a reader, never taken for their successors."""

from __future__ import annotations

import os
import random
import shutil
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from egoloader import EpisodeWriter, KeyMap, KeySpec, MultiDataset, ZarrEpisode
from egoloader.errors import EgoloaderError, ReadError
from egoloader.files import MAX_OPEN_FILES, OpenFiles, StoredFile, open_files
from tests.children import in_a_fork, open_below
from tests.episodes import foreign_group, foreign_numbers, ramp

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


class Files:
    """A folder of files that hold their own number again and again, behind `OpenFiles`."""

    def __init__(self, folder: Path, number: int, capacity: int) -> None:
        self.folder, self.open = folder, OpenFiles(capacity)
        self.paths = [str(folder / f"{n}") for n in range(number)]
        for n, path in enumerate(self.paths):
            Path(path).write_bytes(self.content(n))

    @staticmethod
    def content(number: int) -> bytes:
        return bytes([number]) * (100 + number)

    def get(self, number: int) -> StoredFile:
        path = self.paths[number]
        return self.open.get(path, StoredFile(path).signature)

    def opened(self) -> list[int]:
        return sorted(int(name) for name in open_below(self.folder))


def test_no_more_files_stay_open_than_the_capacity(tmp_path: Path) -> None:
    files = Files(tmp_path, 20, capacity=8)
    for number in [*range(20), *range(20)]:
        assert files.get(number).read(0, 200) == files.content(number)
        assert len(files.open) <= 8
        assert len(files.opened()) <= 8
    assert files.opened() == list(range(12, 20))


def test_nobody_gets_a_file_that_is_closing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"here")
    file = StoredFile(str(path))
    reference, close, met = weakref.ref(file), os.close, list[StoredFile | None]()

    def close_slowly(number: int) -> None:
        met.append(reference())  # as another thread may, while the system closes it
        close(number)

    assert reference() is file
    monkeypatch.setattr("os.close", close_slowly)
    del file
    monkeypatch.undo()
    assert met == [None]
    assert open_below(tmp_path) == []


def test_the_longest_unused_file_is_closed_first(tmp_path: Path) -> None:
    files = Files(tmp_path, 5, capacity=3)
    for number in (0, 1, 2, 0, 3):
        files.get(number)
    assert files.opened() == [0, 2, 3]
    files.get(2)
    files.get(4)
    assert files.opened() == [2, 3, 4]


def test_a_file_is_opened_once_while_it_is_kept(tmp_path: Path) -> None:
    files = Files(tmp_path, 2, capacity=2)
    assert files.get(0) is files.get(0)
    assert files.opened() == [0]


def test_a_file_in_use_is_closed_when_its_user_is_done(tmp_path: Path) -> None:
    files = Files(tmp_path, 5, capacity=1)
    held = files.get(0)
    for number in range(1, 5):
        files.get(number)
    assert files.opened() == [0, 4]
    assert held.read(0, 100) == bytes(100)
    del held
    assert files.opened() == [4]


def test_a_file_by_another_signature_is_let_go(tmp_path: Path) -> None:
    files = Files(tmp_path, 1, capacity=4)
    before = files.get(0)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "new").replace(tmp_path / "0")
    after = files.get(0)
    assert before.read(0, 3) == bytes(3)
    assert after.read(0, 3) == b"new"
    assert before.signature != after.signature
    del before
    assert files.opened() == [0]


def test_reads_end_with_the_file(tmp_path: Path) -> None:
    file = Files(tmp_path, 3, capacity=1).get(2)
    assert file.size == 102
    assert (file.read(100, 110), file.read(102, 110), file.read(5, 5)) == (b"\2\2", b"", b"")


def test_what_can_not_be_opened_is_an_os_error(tmp_path: Path) -> None:
    signature = Files(tmp_path, 1, capacity=1).get(0).signature
    for path, error in ((tmp_path / "none", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(error):
            OpenFiles(2).get(str(path), signature)
    assert open_below(tmp_path) == []


def test_threads_read_right_while_others_push_their_files_out(tmp_path: Path) -> None:
    files = Files(tmp_path, 16, capacity=2)

    def read(seed: int) -> list[int]:
        rng, wrong = random.Random(seed), []
        for _ in range(800):
            number, start = rng.randrange(16), rng.randrange(90)
            file = files.get(number)
            if file.read(start, start + 10) != bytes([number]) * 10:
                wrong.append(number)
        return wrong

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, range(8))) == [[]] * 8
    assert len(files.open) == len(files.opened()) == 2


# Many episodes.


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of 100 episodes of 30 frames, each with numbers of its own; not to be changed."""
    folder = tmp_path_factory.mktemp("hundred")
    for n in range(100):
        write(folder / f"{n:03}.zarr", 100_000 * n)
    return folder


def write(path: Path, first: int, **options: Any) -> Path:
    """Write 30 rows of two arrays: a ramp from `first` on."""
    numeric = {key: ramp(30, 2, "int64") + first for key in ("a", "b")}
    EpisodeWriter.write(path, numeric=numeric, **{"fps": 30, "embodiment": "human", **options})
    return path


def test_case_32_a_hundred_episodes_leave_at_most_64_files_open(hundred: Path) -> None:
    keymap = KeyMap({"a": KeySpec(zarr_key="a", key_type="metadata_keys")})
    md = MultiDataset.from_folder(hundred, keymap, cache_bytes=0)
    order = random.Random(0).sample(range(len(md)), 600)
    for index in order:
        assert md[index]["a"].tolist() == ramp_row(index // 30, index % 30)
        assert len(open_files()) <= MAX_OPEN_FILES
    assert {index // 30 for index in order} == set(range(100))
    assert 0 < len(open_below(hundred)) <= MAX_OPEN_FILES == 64

    def child() -> None:
        assert len(open_files()) == 0
        assert open_below(hundred) == []
        for index in order[:200]:
            assert md[index]["a"].tolist() == ramp_row(index // 30, index % 30)
        assert 0 < len(open_below(hundred)) <= MAX_OPEN_FILES

    before = open_below(hundred)
    in_a_fork(child)
    assert open_below(hundred) == before
    assert md[0]["a"].tolist() == ramp_row(0, 0)


def ramp_row(episode: int, row: int) -> list[int]:
    return [100_000 * episode + 1000 * row, 100_000 * episode + 1000 * row + 1]


def test_case_32_episodes_kept_by_the_hundred_leave_at_most_64_files_open(hundred: Path) -> None:
    episodes = [ZarrEpisode(path) for path in sorted(hundred.iterdir())]
    for _ in range(2):
        for n, ep in enumerate(episodes):
            found = ep.read({"a": [(3, 5)], "b": [(7, 8)]})
            assert found["a"][0].tolist() == [ramp_row(n, 3), ramp_row(n, 4)]
            assert found["b"][0].tolist() == [ramp_row(n, 7)]
            assert len(open_below(hundred)) <= 64


def test_threads_over_a_hundred_episodes_read_right(hundred: Path) -> None:
    episodes = [ZarrEpisode(path) for path in sorted(hundred.iterdir())]
    most: list[int] = []

    def read(seed: int) -> list[int]:
        rng, wrong = random.Random(seed), []
        for _ in range(250):
            n, row = rng.randrange(100), rng.randrange(30)
            (found,) = episodes[n].read({"a": [(row, row + 1)]})["a"]
            if found.tolist() != [ramp_row(n, row)]:
                wrong.append(n)
            most.append(len(open_files()))
        return wrong

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(read, range(6))) == [[]] * 6
    assert max(most) <= 64
    assert len(open_below(hundred)) <= 64


def test_a_child_forked_amid_reads_is_not_held_up(hundred: Path) -> None:
    episodes = [ZarrEpisode(path) for path in sorted(hundred.iterdir())]
    is_over = threading.Event()

    def read_on(seed: int) -> None:
        rng = random.Random(seed)
        while not is_over.is_set():
            episodes[rng.randrange(100)].read({"a": [(0, 1)], "b": [(0, 30)]})

    def child() -> None:
        for n in (3, 99, 50):
            (found,) = episodes[n].read({"a": [(7, 8)]})["a"]
            assert found.tolist() == [ramp_row(n, 7)]

    threads = [threading.Thread(target=read_on, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            in_a_fork(child)
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)


# Episodes that change while they are open: what was there, or an error, never some of each.


def outcome(ep: ZarrEpisode, *keys: str) -> set[str]:
    """Read all rows of arrays; return which recordings they are of, or that it was refused."""
    try:
        found = ep.read({key: [(0, 30)] for key in keys})
    except EgoloaderError as error:
        return {"refused" if "ep.zarr" in str(error) else f"unnamed: {error}"}
    return {"old" if np.array_equal(found[key][0], ramp(30, 2)) else "new" for key in keys}


@pytest.mark.parametrize("asked_before", [[], ["a"], ["b", "a"]], ids=repr)
def test_an_overwritten_episode_is_the_old_one_or_refused(
    tmp_path: Path, asked_before: list[str]
) -> None:
    ep = ZarrEpisode(write(tmp_path / "ep.zarr", 0))
    for key in asked_before:
        assert outcome(ep, key) == {"old"}
    write(tmp_path / "ep.zarr", 7_000_000, fps=10, overwrite=True)
    assert ep.fps == 30  # and numbers of the new recording would not go with that
    assert outcome(ep, "a", "b") in ({"old"}, {"refused"})
    open_files().forget()  # as when others have pushed the files out
    assert outcome(ep, "a", "b") in ({"old"}, {"refused"})
    assert outcome(ZarrEpisode(tmp_path / "ep.zarr"), "a", "b") == {"new"}


def test_a_replaced_shard_whose_file_was_closed_is_refused(tmp_path: Path) -> None:
    ep = ZarrEpisode(write(tmp_path / "ep.zarr", 0))
    ep.read({"a": [(0, 1)]})
    write(tmp_path / "other.zarr", 7_000_000)
    (tmp_path / "other.zarr/a/c/0/0").replace(tmp_path / "ep.zarr/a/c/0/0")
    open_files().forget()
    fresh = ZarrEpisode(tmp_path / "ep.zarr")
    assert outcome(fresh, "a") == {"new"}
    # What is kept of the old one may still be served; what is not kept can't be had.
    assert outcome(ep, "a") in ({"old"}, {"refused"})


def test_a_replaced_shard_of_which_nothing_is_kept_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ep.zarr"
    group = foreign_group(path, 30)
    foreign_numbers(group, "a", ramp(30, 2), chunks=(10, 2), shards=(30, 2))
    ep = ZarrEpisode(path)
    ep.read({"a": [(0, 1)]})
    shard = path / "a/c/0/0"
    shutil.copy(shard, tmp_path / "copy")
    (tmp_path / "copy").replace(shard)
    os.utime(shard, ns=(1, 1))
    open_files().forget()
    with pytest.raises(ReadError, match=r"a/c/0/0 was replaced .* open it anew") as caught:
        ep.read({"a": [(20, 21)]})
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", "a")
    assert ZarrEpisode(path).read({"a": [(20, 21)]})["a"][0].tolist() == [[20000, 20001]]


def test_a_chunk_file_that_was_replaced_is_not_served_from_what_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "ep.zarr"
    foreign_numbers(foreign_group(path, 30), "a", ramp(30, 2), chunks=(30, 2))
    ep = ZarrEpisode(path)
    assert outcome(ep, "a") == {"old"}
    other = tmp_path / "other.zarr"
    foreign_numbers(foreign_group(other, 30), "a", ramp(30, 2) + 7, chunks=(30, 2))
    (other / "a/c/0/0").replace(path / "a/c/0/0")
    assert outcome(ep, "a") in ({"new"}, {"refused"})


def test_a_removed_episode_is_the_old_one_or_refused(tmp_path: Path) -> None:
    ep = ZarrEpisode(write(tmp_path / "ep.zarr", 0))
    ep.read({"a": [(0, 1)]})
    shutil.rmtree(tmp_path / "ep.zarr")
    assert outcome(ep, "a") in ({"old"}, {"refused"})
    open_files().forget()
    assert outcome(ep, "a") in ({"old"}, {"refused"})
    assert outcome(ep, "b") == {"refused"}
