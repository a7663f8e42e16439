"""`egoloader validate`: folders, processes, what is printed, and the quarantine file it writes."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from collections.abc import Mapping
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

from egoloader import KeyMap, MultiDataset
from egoloader.cli import app, main
from egoloader.errors import EgoloaderWarning, FolderNotFoundError, SettingsError
from egoloader.quarantine import BadSpan, load_quarantine
from egoloader.train.config import sample_folder
from egoloader.validate import Finding, Validation, folder, quarantine_spans, validate_paths
from tests.content_faults import FAULTS
from tests.entries import entry
from tests.episodes import edit_attrs
from tests.faults import Found, in_order, places
from tests.oracle import slow_rows
from tests.recordings import (
    CAMERA,
    FPS,
    GRIPPER,
    JOINTS,
    NOTES,
    POSE,
    TIMES,
    TOTAL,
    change,
    numbers,
    write_by_us,
    write_by_zarr,
    write_numbers,
)
from tests.victims import die_on_victims

Expected = dict[str, list[Found]]
ALONE = ("--workers", "1")


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    """A folder with an episode for each fault, good ones beside them; and what is to be found."""
    root = tmp_path_factory.mktemp("seeded")
    made = {"us": write_by_us(root / "good/us"), "zarr": write_by_zarr(root / "good/zarr")}
    expected: Expected = {"good/us": [], "good/zarr": []}
    for number, (name, (fault, recordings)) in enumerate(FAULTS.items()):
        for one in recordings:
            episode = Path(shutil.copytree(made[one], root / f"bad/{name}/{one}.zarr"))
            found = in_order(fault(episode, np.random.default_rng(number)))
            expected[f"bad/{name}/{one}.zarr"] = found
    return root, expected


def run(*arguments: str | Path, code: int = 0) -> str:
    """Run the command, which must end with an exit code, and return what it printed."""
    result = CliRunner().invoke(app, ["validate", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.stdout


def by_episode(found: Validation) -> Expected:
    return {
        name: places(one for one in found.findings if one.episode == name)
        for name in found.episodes
    }


def cells(out: str) -> list[list[str]]:
    """Return the cells of a table's rows."""
    rows = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


# Folders and processes.


def test_every_fault_is_found_in_its_episode(seeded: tuple[Path, Expected]) -> None:
    root, expected = seeded
    seen: list[tuple[int, int]] = []
    found = validate_paths([root], workers=2, on_progress=lambda *at: seen.append(at))
    assert by_episode(found) == expected
    assert found.episodes == tuple(sorted(expected))
    assert [one.episode for one in found.findings] == sorted(one.episode for one in found.findings)
    assert seen == [(done, len(expected)) for done in range(1, len(expected) + 1)]
    assert not found.is_good


def test_any_number_of_processes_finds_the_same(tmp_path: Path) -> None:
    for number in range(5):
        path = write_by_us(tmp_path / f"e{number}.zarr", 40)
        change(path, JOINTS, number, np.nan)
    alone = validate_paths([tmp_path], workers=1)
    assert places(alone.findings) == [
        ("not finite", JOINTS, row, row + 1, "frames") for row in range(5)
    ]
    assert validate_paths([tmp_path], workers=3) == alone
    few = validate_paths([tmp_path], workers=3, depth="metadata")
    assert few == Validation(alone.episodes, ())


def test_a_killed_process_leaves_the_other_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbers()[JOINTS][:60]
    for name in ("a_victim", *(f"e{number}" for number in range(9))):
        change(write_numbers(tmp_path / name, 60, **{JOINTS: rows}), JOINTS, 3, np.nan)
    pools: list[int] = []

    class Counted(folder.ProcessPoolExecutor):
        def __init__(self, workers: int, **options: Any) -> None:
            pools.append(workers)
            super().__init__(workers, **options)

    monkeypatch.setattr(folder, "validate_episode", die_on_victims)
    monkeypatch.setattr(folder, "ProcessPoolExecutor", Counted)
    seen: list[tuple[int, int]] = []
    found = validate_paths([tmp_path], workers=2, on_progress=lambda *at: seen.append(at))
    assert seen == [(done, 10) for done in range(1, 11)]
    lost, broken = ("process", None, None, None, "frames"), ("not finite", JOINTS, 3, 4, "frames")
    assert by_episode(found) == {
        name: [lost if "victim" in name else broken] for name in found.episodes
    }
    assert len(found.episodes) == 10
    assert "for want of memory" in found.findings[0].message
    # A pool that is lost, one for the rest, and a process for each of the few that were under way.
    assert pools[:2] == [2, 2]
    assert set(pools[2:]) == {1}
    assert len(pools[2:]) <= 4


def test_processes_that_can_not_even_start_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken(folder.ProcessPoolExecutor):
        def submit(self, *_: Any, **__: Any) -> Any:
            raise BrokenProcessPool("it is gone")

    for number in range(9):
        shutil.copytree(f"{sample_folder()}/pick_place_0.zarr", tmp_path / f"{number}.zarr")
    monkeypatch.setattr(folder, "ProcessPoolExecutor", Broken)
    found = validate_paths([tmp_path], workers=2)
    assert set(map(len, by_episode(found).values())) == {1}
    assert places(found.findings) == 9 * [("process", None, None, None, "frames")]


def test_an_episode_is_called_by_its_own_name(tmp_path: Path, monkeypatch: Any) -> None:
    write_by_us(tmp_path / "task/e.zarr", 40)
    assert validate_paths([tmp_path / "task/e.zarr"]).episodes == ("e.zarr",)
    assert validate_paths([tmp_path / "task"]).episodes == ("e.zarr",)
    assert validate_paths([tmp_path]).episodes == ("task/e.zarr",)
    monkeypatch.chdir(tmp_path / "task/e.zarr")
    assert validate_paths(["."]).episodes == ("e.zarr",)
    assert validate_paths([tmp_path, tmp_path / "task"], workers=1).episodes == (
        "e.zarr",
        "task/e.zarr",
    )


def test_episodes_in_a_zarr_group_are_found(tmp_path: Path) -> None:
    root = zarr.create_group(tmp_path / "all")
    root.create_group("task")
    write_by_us(tmp_path / "all/task/e.zarr", 40)
    assert validate_paths([tmp_path / "all"]) == Validation(("task/e.zarr",), ())


def test_an_episode_that_is_none_is_found(tmp_path: Path) -> None:
    write_by_us(tmp_path / "good.zarr", 40)
    shutil.copytree(tmp_path / "good.zarr", tmp_path / "cut.zarr")
    (tmp_path / "cut.zarr/zarr.json").unlink()
    (tmp_path / "empty.zarr").mkdir()
    found = validate_paths([tmp_path], workers=1)
    none = [("metadata", None, None, None, "frames")]
    assert by_episode(found) == {"cut.zarr": none, "empty.zarr": none, "good.zarr": []}
    assert all("was the copy interrupted?" in one.message for one in found.findings)


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": 1.5}, {"depth": "all"}])
def test_options_that_can_not_be_meant_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(SettingsError):
        validate_paths([sample_folder()], **options)


def test_paths_without_episodes_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FolderNotFoundError, match=path.name):
            validate_paths([sample_folder(), path])


# What is printed.


def test_good_episodes_end_with_0(tmp_path: Path) -> None:
    assert run(sample_folder(), *ALONE) == "6 episodes, 0 of them bad\n"
    noted = edit_attrs(write_by_us(tmp_path / "e.zarr", 40), fps=...)
    out = run(noted)
    assert out.endswith("1 episode, 0 of them bad\n")
    assert cells(out)[-1][:5] == ["e.zarr", "", "", "fps", "note"]


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    """A folder of a good episode and one of three faults, one of content."""
    write_by_us(tmp_path / "all/good.zarr", 60)
    path = write_by_us(tmp_path / "all/bad.zarr", 60)
    change(path, CAMERA, 7, b"[no JPEG]")
    change(path, TIMES, slice(30, None), lambda times: times + 1)
    edit_attrs(path, fps=29)
    shutil.rmtree(path / GRIPPER)
    return tmp_path / "all"


BAD_CELLS = [
    ["bad.zarr", GRIPPER, "", "metadata", "frames"],
    ["bad.zarr", CAMERA, "7 to 8", "camera frame", "frames"],
    ["bad.zarr", TIMES, "30 to 31", "timestamps", "content"],
]


def test_bad_episodes_end_with_1(bad: Path) -> None:
    out = run(bad, code=1)
    assert [row[:5] for row in cells(out) if row[0]] == BAD_CELLS
    assert "3 findings" in out
    assert out.endswith("2 episodes, 1 of them bad\n")


def test_json_is_what_was_found(bad: Path) -> None:
    printed = json.loads(run(bad, "--json", code=1))
    found = validate_paths([bad], workers=1)
    assert printed["episodes"] == list(found.episodes) == ["bad.zarr", "good.zarr"]
    assert [Finding(**one) for one in printed["findings"]] == list(found.findings)
    assert printed["findings"] == [asdict(one) for one in found.findings]
    assert json.loads(run(bad / "good.zarr", "--json")) == {
        "episodes": ["good.zarr"],
        "findings": [],
    }


def test_levels_look_at_less(bad: Path) -> None:
    for level in ("metadata", "sampled", "full"):
        printed = json.loads(run(bad, *ALONE, "--json", "--level", level, code=1))
        found = validate_paths([bad], depth=level, workers=1)  # type: ignore[arg-type]
        assert [Finding(**one) for one in printed["findings"]] == list(found.findings)
    (one,) = json.loads(run(bad, *ALONE, "--json", "--level", "metadata", code=1))["findings"]
    assert one["key"] == GRIPPER


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no folder at this path"),
        (["."], "the folder holds no episodes"),
        (["SAMPLES", "--level", "ful"], "did you mean 'full'?"),
        (["SAMPLES", "--workers", "0"], "workers must be a whole number from 1 on"),
        (["SAMPLES", "drawer_open_0.zarr"], "are both called 'drawer_open_0.zarr'"),
        (
            ["SAMPLES", "--quarantine", "file/q.json", *ALONE],
            "quarantine file file/q.json can't be",
        ),
    ],
)
def test_refusals_are_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    given = [sample_folder() if text == "SAMPLES" else text for text in arguments]
    (tmp_path / "file").write_text("")
    if "drawer_open_0.zarr" in given:
        shutil.copytree(f"{sample_folder()}/drawer_open_0.zarr", tmp_path / "drawer_open_0.zarr")
    monkeypatch.setattr(sys, "argv", ["egoloader", "validate", *given])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("egoloader: ")
    assert message in line


# The quarantine file.


def test_the_quarantine_file_lists_what_is_not_to_be_served(bad: Path) -> None:
    file = bad.parent / "bad.json"
    run(bad, *ALONE, "--quarantine", file, code=1)
    gripper, jpeg = load_quarantine(file)
    assert gripper == BadSpan("bad.zarr", 0, None, GRIPPER, gripper.reason)
    assert gripper.reason.startswith("metadata: features declares this array")
    assert jpeg == BadSpan("bad.zarr", 7, 8, CAMERA, jpeg.reason)
    assert jpeg.reason.startswith("camera frame: 9 bytes that are no JPEG")
    run(bad, *ALONE, "--quarantine", file, code=1)
    assert load_quarantine(file) == (gripper, jpeg)
    run(bad / "good.zarr", "--quarantine", bad.parent / "good.json")
    assert load_quarantine(bad.parent / "good.json") == ()


def test_a_quarantine_file_that_is_none_is_refused_before_anything_is_looked_at(
    bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(*_: Any, **__: Any) -> Any:
        raise AssertionError("it was looked at")

    (bad.parent / "notes.txt").write_text("no JSON")
    monkeypatch.setattr("egoloader.validate.validate_paths", look)
    for file in (bad.parent / "notes.txt", bad):
        arguments = ["validate", str(bad), *ALONE, "--quarantine", str(file)]
        stopped = CliRunner().invoke(app, arguments).exception
        assert isinstance(stopped, SettingsError)
        assert f"the quarantine file {file} " in str(stopped)


def test_what_was_found_is_told_where_the_quarantine_file_cant_be_written(bad: Path) -> None:
    (bad.parent / "file").write_text("")
    result = CliRunner().invoke(
        app, ["validate", str(bad), *ALONE, "--quarantine", str(bad.parent / "file/bad.json")]
    )
    assert isinstance(result.exception, SettingsError)
    assert result.stdout.endswith("2 episodes, 1 of them bad\n")


def test_content_and_notes_are_not_in_quarantine() -> None:
    harms: list[Any] = ["content", "note", "frames"]
    findings = [Finding("e", "c", "m", "k", 1, 2, harm) for harm in harms]
    assert quarantine_spans(findings) == [BadSpan("e", 1, 2, "k", "c: m")]


SERVED = KeyMap(
    {
        "image": entry(CAMERA, "camera_keys", lag_s=0.2),
        "past": entry(history=3, stride_s=0.1),
        "next": entry(JOINTS, "action_keys", horizon=5),
        "text": entry("annotations", "annotation_keys"),
        "note": entry(NOTES, "metadata_keys", optional=True),
    }
)


def test_what_is_left_of_seeded_episodes_is_served(
    seeded: tuple[Path, Expected], tmp_path: Path
) -> None:
    root, expected = seeded
    file = tmp_path / "bad.json"
    run(root, *ALONE, "--quarantine", file, code=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EgoloaderWarning)  # an episode has no fps
        data = MultiDataset.from_folder(root, SERVED, quarantine=file)
    served: dict[str, list[int]] = {name: [] for name in expected}
    for start in range(0, len(data), 64):
        for sample in data.__getitems__(range(start, min(start + 64, len(data)))):
            served[sample["episode"]].append(int(sample["frame_index"]))
    for name, found in expected.items():
        assert served[name] == readable(found, total_frames(data, name)), name


def total_frames(data: MultiDataset, name: str) -> int:
    return next((one.total_frames for one in data.episodes if one.name == name), TOTAL)


def readable(found: list[Found], total: int) -> list[int]:
    """Return the frames whose samples read nothing of what must not be served, slowly."""
    used: Mapping[str, Any] = {spec.zarr_key: spec for spec in SERVED.values()}
    bad = [one[1:4] for one in found if one[4] == "frames" and one[1] in (None, TIMES, *used)]
    if any(start is None for _, start, _ in bad):
        return []
    rows = {(key, row) for key, start, end in bad for row in range(start or 0, end or 0)}
    return [
        frame
        for frame in range(total)
        if (TIMES, frame) not in rows
        and not any(
            (key, row) in rows
            for key, spec in used.items()
            if not spec.is_annotation
            for row in slow_rows(spec, FPS, total, frame)[0]
        )
    ]


def test_every_left_out_episode_is_a_bad_one(seeded: tuple[Path, Expected]) -> None:
    _, expected = seeded
    partly = [name for name, found in expected.items() if 0 < len(readable(found, TOTAL)) < TOTAL]
    none = [name for name, found in expected.items() if not readable(found, TOTAL)]
    assert min(len(partly), len(none)) > 20
    assert POSE in {key for found in expected.values() for _, key, *_ in found}


def test_a_quarantine_that_lists_what_was_repaired_is_told_of(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_by_us(tmp_path / f"all/{name}.zarr", 40)
    whole = Path(shutil.copytree(tmp_path / "all/a.zarr", tmp_path / "whole"))
    change(tmp_path / "all/a.zarr", JOINTS, 3, np.nan)
    file = tmp_path / "bad.json"
    first = CliRunner().invoke(app, ["validate", str(tmp_path / "all"), "--quarantine", str(file)])
    assert (first.exit_code, first.stderr) == (1, "")
    shutil.rmtree(tmp_path / "all/a.zarr")
    whole.rename(tmp_path / "all/a.zarr")
    again = CliRunner().invoke(app, ["validate", str(tmp_path / "all"), "--quarantine", str(file)])
    assert again.exit_code == 0
    assert "still lists a.zarr, in which nothing was found" in again.stderr


def test_an_episode_that_is_listed_twice_is_looked_at_once(tmp_path: Path) -> None:
    path = write_by_us(tmp_path / "all/e.zarr", 40)
    found = validate_paths([tmp_path / "all", path, tmp_path / "all"], workers=1)
    assert found.episodes == ("e.zarr",)
