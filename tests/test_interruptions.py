"""SIGKILL at any moment: whole episodes only, and the same once more finishes the job."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from egoloader.convert import LeRobotSettings
from tests.lerobot_folders import TOP, Folder
from tests.soak.casualties import Converting, Leaving, Writing
from tests.soak.forks import Forks, Task
from tests.soak.interruptions import (
    Toll,
    Trial,
    interrupt,
    stop_everywhere,
    summarise,
)
from tests.soak.saboteurs import Careless, Hasty, Open
from tests.soak.victims import CONVERTER, WRITER, Victim
from tests.soak.wholeness import Contents, contents_of, differences, episodes_in, find_faults

RECOVERING = Victim(
    WRITER,
    "in place of one moved aside",
    partial(Writing, total=25, options={"overwrite": True}),
    before=partial(Leaving, totals=(21, 25)),
    keeps=False,
)
REPLACING = Victim(
    WRITER,
    "in place of another",
    partial(Writing, total=25, options={"overwrite": True}),
    before=partial(Writing, total=21),
    keeps=False,
)


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as running:
        yield running


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Folder(tmp_path_factory.mktemp("set"), dict.fromkeys(range(3), 40), (TOP,)).build()


def converting(folder: Path, source: Path, overwrite: bool = False) -> Task:
    return Converting(folder, source, LeRobotSettings(workers=1, overwrite=overwrite))


def test_a_writer_at_random_moments(forks: Forks, tmp_path: Path) -> None:
    victim = Victim(WRITER, "new", partial(Writing, total=150), refusal="EpisodeExistsError")
    toll = interrupt(forks, victim, tmp_path, 8, seed=4)
    assert (toll.kills, toll.faults) == (8, ())


def test_a_converter_at_random_moments(forks: Forks, tmp_path: Path, source: Path) -> None:
    victim = Victim(CONVERTER, "video", partial(converting, source=source))
    toll = interrupt(forks, victim, tmp_path, 8, seed=4)
    assert (toll.kills, toll.faults) == (8, ())


@pytest.mark.parametrize("victim", [REPLACING, RECOVERING], ids=lambda victim: victim.case)
def test_a_writer_that_replaces_before_its_operations_on_files(
    forks: Forks, tmp_path: Path, victim: Victim
) -> None:
    toll = stop_everywhere(forks, victim, tmp_path, every=6)
    assert toll.faults == ()
    assert toll.landings["mid-write"] > 10


@pytest.mark.parametrize(
    ("saboteur", "fault"),
    [
        (Hasty, "ep.zarr is not whole: lacks"),
        (Open, ".ep.zarr.partial is not whole, and opens"),
        (Careless, "the same once more ends with 1"),
    ],
)
def test_bad_writers_are_found_out(
    forks: Forks, tmp_path: Path, saboteur: Callable[[Task], Task], fault: str
) -> None:
    victim = Victim(WRITER, "bad", lambda folder: saboteur(Writing(folder, 25)))
    trial = Trial(forks, victim, tmp_path)
    _, faults = trial.kill_before(trial.count_operations() // 2)
    assert fault in "\n".join(faults)


def test_a_converter_that_begins_anew_is_found_out(
    forks: Forks, tmp_path: Path, source: Path
) -> None:
    victim = Victim(CONVERTER, "anew", partial(converting, source=source, overwrite=True))
    trial = Trial(forks, victim, tmp_path)
    landing, faults = trial.kill_before(trial.count_operations() // 2)
    assert landing == "mid-write"
    assert faults == ["episode_000000.zarr was whole, and was written again"]


def test_one_that_fails_by_itself_is_found_out(forks: Forks, tmp_path: Path) -> None:
    trial = Trial(forks, REPLACING, tmp_path)
    shutil.rmtree(tmp_path / "start" / "ep.zarr")
    (tmp_path / "start" / "ep.zarr" / "other.zarr").mkdir(parents=True)  # is not replaced
    _, faults = trial.kill_at(10.0)
    assert any("it was not killed, and failed" in one for one in faults)


class TestFaults:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        for name in ("a.zarr", "b.zarr"):
            (tmp_path / "episodes").mkdir(exist_ok=True)
            Writing(tmp_path / "episodes", 3)()
            (tmp_path / "episodes" / "ep.zarr").rename(tmp_path / "episodes" / name)
        return tmp_path / "episodes"

    @pytest.fixture
    def whole(self, folder: Path) -> dict[str, Contents]:
        return episodes_in(folder)

    def test_none(self, folder: Path, whole: dict[str, Contents], tmp_path: Path) -> None:
        assert find_faults(folder, [whole]) == []
        shutil.copytree(folder / "a.zarr", folder / ".a.zarr.partial")
        shutil.copytree(folder / "a.zarr", folder / ".a.zarr.partial.old0")
        (folder / ".b.zarr.partial").mkdir()
        assert find_faults(folder, [whole]) == []
        assert find_faults(folder, [{}, whole]) == []
        assert find_faults(tmp_path / "nothing", [whole]) == []

    def test_a_file_of_other_bytes(self, folder: Path, whole: dict[str, Contents]) -> None:
        (folder / "b.zarr" / "action" / "c" / "0" / "0").write_bytes(b"0")
        text = "b.zarr is not whole: differs in ['action/c/0/0'] of 1"
        assert text in find_faults(folder, [whole])

    def test_what_was_not_to_be_there(self, folder: Path, whole: dict[str, Contents]) -> None:
        (folder / "lock").touch()
        (folder / ".c.zarr.partial").mkdir()
        (folder / ".a.zarr.tmp").mkdir()
        assert find_faults(folder, [whole]) == [
            "lock is no episode that was to be written",
            ".a.zarr.tmp is no folder that an episode is written in",
            ".c.zarr.partial is no folder that an episode is written in",
        ]

    def test_a_hidden_one_that_opens(self, folder: Path, whole: dict[str, Contents]) -> None:
        shutil.copytree(folder / "a.zarr", folder / ".a.zarr.partial")
        (folder / ".a.zarr.partial" / "action" / "zarr.json").unlink()
        assert find_faults(folder, [whole]) == [".a.zarr.partial is not whole, and opens"]

    def test_what_readers_find_amiss(self, folder: Path, whole: dict[str, Contents]) -> None:
        (folder / "b.zarr" / "zarr.json").unlink()
        (folder / "c").mkdir()
        faults = find_faults(folder, [whole, {"b.zarr": contents_of(folder / "b.zarr")}])
        text = "\n".join(faults)
        assert "find_episodes finds ['a.zarr', 'b.zarr'], and ['a.zarr', 'b.zarr', 'c']" in text
        assert re.search(r"MultiDataset: .*b\.zarr'.* was the copy interrupted", text)
        assert "egoloader validate: Finding(episode='b.zarr'" in text


def test_differences() -> None:
    assert differences({"a": b"1", "b": None}, {"a": b"1", "b": None}) == ""
    found, wanted = {"a": b"1", "b": None}, {"a": b"2", "c": None}
    assert differences(found, wanted) == (
        "lacks ['c'] of 1; has also ['b'] of 1; differs in ['a'] of 1"
    )


def test_kills_become_a_result(tmp_path: Path) -> None:
    good = [Toll(who, "x", {"mid-write": 90, "after": 20}, ()) for who in (WRITER, CONVERTER)]
    bad = Toll(WRITER, "y", {"between": 3}, ("between: a fault",))
    assert all(target.is_met for target in summarise(good, good[:1]).targets)
    result = summarise([good[0], good[0]], [bad])
    assert [target.is_met for target in result.targets] == [False, True, False, True, True]
    assert result.settings["faults"] == ["between: a fault"]
    row = result.counts[-1]
    assert (row.case, row.contender) == ("each operation: y", WRITER)
    assert row.counts == {
        "kills": 3, "before": 0, "mid-write": 0, "between": 3, "after": 0, "wrong": 1
    }  # fmt: skip


def test_contents_hold_hidden_files_and_empty_folders(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / ".b").write_bytes(b"1")
    assert contents_of(tmp_path) == {"a": None, ".b": b"1"}
    assert set(episodes_in(tmp_path)) == {"a"}
