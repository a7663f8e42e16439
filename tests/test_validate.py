"""Every seeded fault is found where it is, and nothing else, at every level that can see it."""

from __future__ import annotations

import resource
import shutil
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from egoloader import EpisodeWriter, ZarrEpisode, header
from egoloader.errors import SettingsError
from egoloader.validate import Depth, Finding, inspection, validate_episode, validate_paths
from egoloader.validate.finding import join_runs
from egoloader.validate.stored import (
    BLOCK_ROWS,
    MOST_UNREADABLE,
    SAMPLED_BLOCKS,
    blocks,
    read_numbers,
)
from tests.content_faults import FAULTS
from tests.episodes import edit_attrs, edit_json, foreign_group, foreign_numbers
from tests.faults import Found, in_order, places
from tests.recordings import (
    CAMERA,
    CHUNK,
    FPS,
    JOINTS,
    NOTES,
    TOTAL,
    change,
    declare,
    frames,
    numbers,
    write_by_us,
    write_by_zarr,
    write_numbers,
)

DEPTHS: tuple[Depth, ...] = ("metadata", "sampled", "full")
SEEDS = range(2)
#: Checks that decode nothing, and faults of rows that nothing needs to be decoded for, either.
BY_METADATA = {"metadata", "features", "length", "fps", "shards", "consolidated"}
LOST = {
    *("deleted_file", "empty_index_entry", "truncated_file-us"),
    "undeclared_array_without_a_file",
}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of two good recordings, `us` and `zarr`; not to be changed."""
    folder = tmp_path_factory.mktemp("recordings")
    write_by_us(folder / "us")
    write_by_zarr(folder / "zarr")
    return folder


@pytest.fixture(params=["us", "zarr"])
def good(request: pytest.FixtureRequest, recordings: Path, tmp_path: Path) -> Path:
    """A good recording, to be changed."""
    return Path(shutil.copytree(recordings / request.param, tmp_path / "good"))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ZarrEpisode]:
    """The episodes that are opened to be looked at, with what they count."""
    episodes: list[ZarrEpisode] = []

    def kept(path: Path, **options: Any) -> ZarrEpisode:
        episodes.append(ZarrEpisode(path, **options))
        return episodes[-1]

    monkeypatch.setattr(inspection, "ZarrEpisode", kept)
    return episodes


def seed_of(*parts: object) -> int:
    return zlib.crc32(repr(parts).encode())


@pytest.mark.parametrize(
    ("name", "recording"), [(name, one) for name, (_, its) in FAULTS.items() for one in its]
)
def test_a_fault_is_found_where_it_is(
    recordings: Path, tmp_path: Path, opened: list[ZarrEpisode], name: str, recording: str
) -> None:
    for seed in SEEDS:
        episode = Path(shutil.copytree(recordings / recording, tmp_path / str(seed)))
        rng = np.random.default_rng(seed_of(name, recording, seed))
        expected = in_order(FAULTS[name][0](episode, rng))
        by_depth = {depth: validate_episode(episode, f"task/{seed}", depth) for depth in DEPTHS}
        messages = [one.message for one in by_depth["full"]]
        assert places(by_depth["full"]) == expected, messages
        assert {one.episode for one in by_depth["full"]} == {f"task/{seed}"}
        is_lost = bool({name, f"{name}-{recording}"} & LOST)
        by_metadata = without_decoding(expected, is_lost)
        assert places(by_depth["metadata"]) == by_metadata
        assert_sampled(places(by_depth["sampled"]), expected, by_metadata)
        assert all(one.episode == f"task/{seed}" for its in by_depth.values() for one in its)


def without_decoding(expected: Iterable[Found], is_lost: bool) -> list[Found]:
    """Return what is to be found of it where nothing is decoded."""
    found: list[Found] = []
    for check, key, start, end, harm in expected:
        if check in BY_METADATA or (check == "timestamps" and harm == "frames"):
            found.append((check, key, start, end, harm))
        elif is_lost and check == "unreadable":
            found.append(("metadata", key, start, end, harm))
    return found


def assert_sampled(
    sampled: Iterable[Found], expected: Iterable[Found], by_metadata: Iterable[Found]
) -> None:
    """Assert that all of it is found in numbers, whose chunks are all read, and parts elsewhere."""
    by_row = (CAMERA, NOTES)
    numbers_found = {one for one in sampled if one[1] not in by_row}
    assert numbers_found == {one for one in (*expected, *by_metadata) if one[1] not in by_row}
    for check, key, start, end, harm in set(sampled) - numbers_found - set(by_metadata):
        of_it = [one for one in expected if (one[0], one[1], one[4]) == (check, key, harm)]
        whole = any(one[2] is None for one in of_it)
        assert whole or any((o[2] or 0) <= (start or 0) < (end or 0) <= (o[3] or 0) for o in of_it)


def test_nothing_is_decoded_for_metadata(good: Path, opened: list[ZarrEpisode]) -> None:
    assert validate_episode(good, "e", "metadata") == []
    (episode,) = opened
    assert episode.counts.total.chunks == episode.counts.total.rows == 0


def test_all_is_decoded_once_in_full(good: Path, opened: list[ZarrEpisode]) -> None:
    assert validate_episode(good, "e") == []
    counts = opened[0].counts
    assert {key: counts[key].chunks for key in (*numbers(), CAMERA, "annotations")} == {
        **dict.fromkeys(numbers(), 3),
        CAMERA: TOTAL,
        "annotations": 1,
    }
    assert all(counts[key].rows == TOTAL for key in (*numbers(), CAMERA))


def test_large_rows_are_looked_at_and_not_kept(tmp_path: Path) -> None:
    depth = np.random.default_rng(0).random((60, 40, 40), dtype=np.float32) + 1
    depth[7, 3, 3], depth[-5:] = np.nan, 0
    state = numbers()[JOINTS][:60].copy()
    state[3], state[-5:] = np.nan, 0
    path = write_numbers(tmp_path / "e", depth=depth, state=state)
    assert places(validate_episode(path, "e")) == [
        ("not finite", "depth", 7, 8, "frames"),
        ("not finite", "state", 3, 4, "frames"),
        ("zero tail", "depth", 55, 60, "frames"),
        ("zero tail", "state", 55, 60, "frames"),
    ]
    read, _ = read_numbers(ZarrEpisode(path), "depth", "full")
    assert (read.rows.nbytes, read.is_read.all()) == (0, True)


def test_what_zarr_python_reads_is_looked_at_too(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e", 60, zarr_format=2)
    rows = numbers()[JOINTS][:60].copy()
    rows[5] = np.nan
    foreign_numbers(group, "arm/joints", rows, compressors=numcodecs.LZMA())
    group.create_array("words", shape=(60,), dtype="<U4")
    assert places(validate_episode(tmp_path / "e", "e")) == [
        ("codecs", "arm/joints", None, None, "note"),
        ("data type", "words", None, None, "frames"),
        ("not finite", "arm/joints", 5, 6, "frames"),
    ]


def test_stale_consolidated_metadata_of_zarr_v2(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e", 60, zarr_format=2)
    foreign_numbers(group, "a", numbers()[JOINTS][:60])
    zarr.consolidate_metadata(tmp_path / "e", zarr_format=2)
    assert validate_episode(tmp_path / "e", "e") == []
    foreign_numbers(group, "b", numbers()[JOINTS][:60])
    (note,) = validate_episode(tmp_path / "e", "e")
    assert (note.check, note.harm) == ("consolidated", "note")
    assert "differs in b;" in note.message
    (tmp_path / "e/.zmetadata").write_text("{")
    assert places(validate_episode(tmp_path / "e", "e")) == places([note])


def test_annotations_are_no_rows_of_frames(tmp_path: Path) -> None:
    spans = [("a", 0, 2), ("b", 0, 1), ("c", 1, 2)]
    images = {CAMERA: frames()[:2]}
    EpisodeWriter.write(tmp_path / "e", images=images, fps=FPS, embodiment="arm", annotations=spans)
    change(tmp_path / "e", "annotations", 1, b"none")
    assert places(validate_episode(tmp_path / "e", "e")) == [
        ("annotations", "annotations", None, None, "frames")
    ]


def test_findings_that_say_the_same_of_neighbours_are_one() -> None:
    def at(start: int, end: int, message: str = "cut", key: str = "cam") -> Finding:
        return Finding("e", "frame", message, key, start, end)

    whole, note = Finding("e", "features", "none", "cam"), Finding("e", "fps", "none", harm="note")
    apart = [note, whole, at(2, 3), at(4, 5), at(5, 6, "size"), at(6, 7, "size", "other")]
    assert join_runs(apart, 9) == apart
    assert join_runs([at(1, 2), at(2, 4), at(4, 5), at(6, 7)], 9) == [at(1, 5), at(6, 7)]
    assert join_runs([at(0, 4), at(4, 9)], 9) == [Finding("e", "frame", "cut", "cam")]
    assert join_runs([at(0, 4), at(4, 9)], 10) == [at(0, 9)]


def test_a_short_stretch_behind_bad_frames_is_no_frozen_camera(tmp_path: Path) -> None:
    images = {CAMERA: [frames()[0]] * (10 + FPS)}
    EpisodeWriter.write(tmp_path / "e", images=images, fps=FPS, embodiment="arm")
    change(tmp_path / "e", CAMERA, slice(0, 10), b"")
    assert places(validate_episode(tmp_path / "e", "e")) == [
        ("camera frame", CAMERA, 0, 10, "frames")
    ]


@pytest.mark.parametrize("error", [MemoryError("8 PB"), OSError("no such device")])
def test_what_can_not_be_looked_at_is_a_finding(
    good: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    declare(good, JOINTS, dtype="float64")
    monkeypatch.setattr(inspection, "read_numbers", fail)
    features, process = validate_episode(good, "e")
    assert places([features, process]) == [
        ("features", JOINTS, None, None, "content"),
        ("process", None, None, None, "frames"),
    ]
    assert str(error) in process.message


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good recording that is not sampled as a whole."""
    return write_by_us(tmp_path_factory.mktemp("long") / "e", 20 * CHUNK)


def test_sampling_looks_at_little(long: Path, opened: list[ZarrEpisode]) -> None:
    assert validate_episode(long, "e", "sampled") == []
    counts = opened[0].counts
    assert {key: counts[key].chunks for key in numbers()} == dict.fromkeys(numbers(), 12)
    assert counts[CAMERA].chunks == 2 * 12


@pytest.mark.parametrize(
    "name",
    ["frozen_camera", "no_quaternion_of_norm_1", "no_rotations", "other_rate", "deleted_file"],
)
def test_sampling_finds_what_spoils_everything(long: Path, tmp_path: Path, name: str) -> None:
    episode = Path(shutil.copytree(long, tmp_path / "e"))
    expected = FAULTS[name][0](episode, np.random.default_rng(1))
    findings = validate_episode(episode, "e", "sampled")
    assert {one.check for one in findings} >= {
        "metadata" if check == "unreadable" else check for check, *_ in expected
    }
    assert {one.key for one in findings} == {key for _, key, *_ in expected}


def test_sampled_blocks_are_spread_evenly() -> None:
    assert list(blocks(5, 2, "full")) == [(0, 2), (2, 4), (4, 5)]
    assert list(blocks(5, 2, "sampled")) == list(blocks(5, 2, "full"))
    assert list(blocks(5, 2, "metadata")) == []
    few = list(blocks(1000, 10, "sampled"))
    assert (len(few), few[0], few[-1]) == (SAMPLED_BLOCKS, (0, 10), (990, 1000))
    gaps = np.diff([start for start, _ in few])
    assert set(gaps.tolist()) == {90}


def test_a_level_is_one_of_three(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="did you mean 'sampled'"):
        validate_episode(tmp_path, "e", "sample")  # type: ignore[arg-type]


@pytest.mark.parametrize("key", [JOINTS, CAMERA])
def test_what_was_never_stored_is_found_without_being_listed(good: Path, key: str) -> None:
    total = header.MAX_FRAMES
    edit_attrs(good, total_frames=total, features=...)
    for path in list(good.glob("*/zarr.json")):
        if path.parent.name != key:
            shutil.rmtree(path.parent)
    edit_json(good / key / "zarr.json", lambda metadata: _lengthen(metadata, total))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    findings = validate_episode(good, "e")
    assert findings[-1].end == total
    assert "the rest is not looked at" in findings[-1].message
    assert len(findings) <= MOST_UNREADABLE + BLOCK_ROWS + 2
    # Flags of all frames, and no list of them: KiB.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 700_000


def _lengthen(metadata: dict[str, Any], rows: int) -> None:
    metadata["shape"][0] = rows


@pytest.mark.parametrize("paths", [[], "folder", Path("folder")])
def test_paths_are_a_list(paths: Any) -> None:
    with pytest.raises(SettingsError, match="paths is a list"):
        validate_paths(paths)
