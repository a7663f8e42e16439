"""Opening episodes: attributes, keys, annotations, and windows of rows."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.errors import (
    EpisodeFormatError,
    EpisodeNotFoundError,
    MissingKeyError,
    ReadError,
    RowRangeError,
)
from tests.episodes import (
    KEYPOINT_ARRAYS,
    edit_attrs,
    edit_json,
    foreign_annotations,
    foreign_bytes,
    foreign_group,
    foreign_numbers,
    ramp,
    write_human,
)

KEY = "left.obs_ee_pose"


@pytest.fixture(scope="module")
def human(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_human(
        tmp_path_factory.mktemp("human") / "ep.zarr",
        120,
        fps=25,
        task_name="pick",
        task_description="pick the cup",
        annotations=[("reach", 0, 80), ("hold", 40, 120)],
        attrs={"intrinsics": {"fx": 600.5}, "operator": "a"},
    )


# Attributes.


def test_what_an_episode_says_of_itself(human: Path) -> None:
    ep = ZarrEpisode(human)
    assert (ep.total_frames, ep.fps, ep.fps_assumed, ep.embodiment) == (120, 25.0, False, "human")
    assert set(ep.keys) == {*KEYPOINT_ARRAYS, "images.front_1", "annotations"}
    assert ep.attrs["intrinsics"] == {"fx": 600.5}
    assert ep.attrs["operator"] == "a"
    assert (ep.attrs["task_name"], ep.attrs["task_description"]) == ("pick", "pick the cup")
    assert ep.attrs["features"]["images.front_1"]["dtype"] == "jpeg"
    assert ep.attrs["features"][KEY]["shape"] == [7]


def test_a_path_may_be_a_string_or_relative(human: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(human.parent)
    assert ZarrEpisode("ep.zarr").name == "ep.zarr"
    monkeypatch.chdir(human)
    ep = ZarrEpisode(".")
    assert ep.name == "ep.zarr"
    assert (ep.read({KEY: [(3, 4)]})[KEY][0] == ramp(120, 7)[3:4]).all()


@pytest.mark.parametrize("rate", [30, 29.97, 0.5, 1000])
def test_fps_is_a_number_above_zero(copied: Path, rate: float) -> None:
    ep = ZarrEpisode(edit_attrs(copied, fps=rate))
    assert ep.fps == rate
    assert isinstance(ep.fps, float)


def test_absent_fps_is_assumed_to_be_30(copied: Path) -> None:
    ep = ZarrEpisode(edit_attrs(copied, fps=...))
    assert (ep.fps, ep.fps_assumed) == (30.0, True)


@pytest.mark.parametrize(
    "rate",
    [
        None,
        0,
        0.0,
        -30,
        float("nan"),
        float("inf"),
        True,
        "30",
        [30],
        pytest.param(10**400, id="beyond floats"),
    ],
)
def test_a_wrong_fps_is_an_error(copied: Path, rate: Any) -> None:
    with pytest.raises(EpisodeFormatError, match="fps") as caught:
        ZarrEpisode(edit_attrs(copied, fps=rate))
    assert caught.value.episode == "ep.zarr"


@pytest.mark.parametrize("total", [..., None, -1, 1.5, "120", True, [120], 10**13])
def test_a_wrong_number_of_frames_is_an_error(copied: Path, total: Any) -> None:
    with pytest.raises(EpisodeFormatError, match="total_frames"):
        ZarrEpisode(edit_attrs(copied, total_frames=total))


@pytest.mark.parametrize("embodiment", [..., None, "", 3])
def test_a_wrong_embodiment_is_an_error(copied: Path, embodiment: Any) -> None:
    with pytest.raises(EpisodeFormatError, match="embodiment"):
        ZarrEpisode(edit_attrs(copied, embodiment=embodiment))


@pytest.mark.parametrize(
    "features", [[], "all", {KEY: "float32"}, {KEY: {}}, {KEY: {"dtype": "f4", "shape": "7"}}]
)
def test_wrong_features_are_an_error(copied: Path, features: Any) -> None:
    with pytest.raises(EpisodeFormatError, match="feature"):
        ZarrEpisode(edit_attrs(copied, features=features))


@pytest.mark.parametrize(
    "stamp", [None, True, "yes", {}, {"version": 1}, {"version": 1, "complete": "true"}]
)
def test_a_stamp_that_does_not_say_complete_is_refused(copied: Path, stamp: Any) -> None:
    with pytest.raises(EpisodeFormatError, match=r"ep\.zarr.*half-written"):
        ZarrEpisode(edit_attrs(copied, egoloader=stamp))


def test_without_features_the_arrays_in_the_group_are_listed(copied: Path) -> None:
    ep = ZarrEpisode(edit_attrs(copied, features=...))
    assert set(ep.keys) == {*KEYPOINT_ARRAYS, "images.front_1", "annotations"}


def test_names_with_slashes_and_leading_digits_are_listed_and_read(tmp_path: Path) -> None:
    names = ["left/obs_ee_pose", "0_first", "a.b/c.d"]
    numeric = {name: ramp(20, 3) + n for n, name in enumerate(names)}
    EpisodeWriter.write(tmp_path / "ep.zarr", numeric=numeric, fps=30, embodiment="human")
    for features in (ZarrEpisode(tmp_path / "ep.zarr").attrs["features"], ...):
        ep = ZarrEpisode(edit_attrs(tmp_path / "ep.zarr", features=features))
        assert set(names) <= set(ep.keys)
        for name in names:
            assert (ep.read({name: [(3, 9)]})[name][0] == numeric[name][3:9]).all()


# Where there is no episode.


def test_a_wrong_path_is_one_clear_error(human: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for path, words in [
        (tmp_path / "nothing.zarr", "nothing"),
        (tmp_path / "empty", "no Zarr group"),
        (tmp_path / "file", "file"),
        (human.parent, "no Zarr group"),
    ]:
        with pytest.raises(EpisodeNotFoundError, match=words) as caught:
            ZarrEpisode(path)
        assert str(path) in str(caught.value)
        assert isinstance(caught.value, FileNotFoundError)


def test_an_array_is_no_episode(human: Path) -> None:
    with pytest.raises(EpisodeFormatError, match="array"):
        ZarrEpisode(human / KEY)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "null", '{"node_type": "group"', "\x00"])
def test_broken_metadata_is_an_error(copied: Path, text: str) -> None:
    (copied / "zarr.json").write_text(text)
    with pytest.raises(EpisodeFormatError, match=r"zarr\.json"):
        ZarrEpisode(copied)
    (copied / "zarr.json").write_text(json.dumps({"zarr_format": 3, "node_type": "group"}))
    with pytest.raises(EpisodeFormatError, match="total_frames"):
        ZarrEpisode(copied)


def test_metadata_beyond_16_megabytes_is_refused(copied: Path) -> None:
    with (copied / "zarr.json").open("a") as file:
        file.write(" " * (16 * 2**20))
    with pytest.raises(EpisodeFormatError, match="larger"):
        ZarrEpisode(copied)


def test_broken_array_metadata_is_named(copied: Path) -> None:
    (copied / KEY / "zarr.json").write_text("{")
    with pytest.raises(EpisodeFormatError, match=r"left\.obs_ee_pose") as caught:
        ZarrEpisode(copied).read({KEY: [(0, 1)]})
    assert caught.value.key == KEY


@pytest.mark.parametrize("name", ["zarr.json", f"{KEY}/zarr.json", f"{KEY}/c/0/0"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(copied: Path, name: str) -> None:
    (copied / name).unlink()
    os.mkfifo(copied / name)
    with pytest.raises(ReadError, match=f"{name}.*regular file"):
        ZarrEpisode(copied).read({KEY: [(0, 1)]})


def test_a_pipe_beside_what_zarr_python_reads_is_not_waited_for(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20, zarr_format=2)
    foreign_numbers(group, KEY, ramp(20, 7), compressors=numcodecs.Zlib(1))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert "zlib" in ep.reference_reason(KEY)
    (tmp_path / "ep.zarr" / KEY / ".zattrs").unlink()
    os.mkfifo(tmp_path / "ep.zarr" / KEY / ".zattrs")
    assert (ep.read({KEY: [(3, 5)]})[KEY][0] == ramp(20, 7)[3:5]).all()


@pytest.mark.parametrize("key", ["a\0b", "\ud800", "x" * 300, "/".join("x" * 3000), "../ep.zarr"])
def test_names_that_no_path_holds_are_those_of_no_array(copied: Path, key: str) -> None:
    ep = ZarrEpisode(edit_attrs(copied, features={key: {"dtype": "float32", "shape": [7]}}))
    with pytest.raises((MissingKeyError, ReadError)) as caught:
        ep.read({key: [(0, 1)]})
    assert (caught.value.episode, caught.value.key) == (copied.name, key)


def test_a_zarr_v2_group_is_an_episode(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20, zarr_format=2, fps=10)
    foreign_numbers(group, KEY, ramp(20, 7))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    assert (ep.total_frames, ep.fps, ep.keys) == (20, 10.0, (KEY,))


# Windows of rows.


def test_windows_come_in_the_order_asked_for(human: Path) -> None:
    ep = ZarrEpisode(human)
    windows = [(57, 61), (60, 90), (0, 1), (60, 90), (119, 120)]
    found = ep.read({KEY: windows, "obs_head_pose": [(5, 7)]})
    assert list(found) == [KEY, "obs_head_pose"]
    for got, (start, stop) in zip(found[KEY], windows, strict=True):
        assert got.dtype == np.float32
        assert (got == ramp(120, 7)[start:stop]).all()
    assert (found["obs_head_pose"][0] == ramp(120, 7)[5:7]).all()
    assert ep.counts[KEY].reads == 1


def test_a_camera_gives_lists_of_bytes(human: Path) -> None:
    found = ZarrEpisode(human).read({"images.front_1": [(7, 9), (8, 9)]})["images.front_1"]
    assert [[type(row) for row in window] for window in found] == [[bytes, bytes], [bytes]]
    assert found[0][1] == found[1][0]
    assert found[0][0][:2] == b"\xff\xd8"


def test_stored_dtypes_are_kept(tmp_path: Path) -> None:
    clock = np.arange(20, dtype=np.int64) + 10**18
    EpisodeWriter.write(
        tmp_path / "ep.zarr", numeric={"clock_ns": clock}, fps=30, embodiment="human"
    )
    (found,) = ZarrEpisode(tmp_path / "ep.zarr").read({"clock_ns": [(3, 5)]})["clock_ns"]
    assert found.dtype == np.int64
    assert found.tolist() == [10**18 + 3, 10**18 + 4]


def test_results_share_no_memory_and_can_be_written_to(human: Path) -> None:
    first, second = ZarrEpisode(human).read({KEY: [(10, 20), (15, 25)]})[KEY]
    assert not np.shares_memory(first, second)
    first[...] = -1
    assert (second == ramp(120, 7)[15:25]).all()


@pytest.mark.parametrize(
    "window", [(0, 121), (119, 121), (120, 121), (-1, 1), (5, 5), (6, 5), (-3, -1), (500, 501)]
)
def test_windows_outside_the_episode_are_refused(human: Path, window: tuple[int, int]) -> None:
    ep = ZarrEpisode(human)
    with pytest.raises(RowRangeError, match="120") as caught:
        ep.read({KEY: [(0, 1), window]})
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", KEY)
    assert isinstance(caught.value, ValueError)
    assert not isinstance(caught.value, IndexError)
    assert ep.counts[KEY].reads == 0


def test_no_windows_give_no_arrays(human: Path) -> None:
    ep = ZarrEpisode(human)
    assert ep.read({}) == {}
    assert ep.read({KEY: []}) == {KEY: []}
    assert ep.counts.total.reads == 0


def test_a_missing_array_is_a_key_error_with_the_near_miss(human: Path) -> None:
    with pytest.raises(MissingKeyError, match=r"did you mean 'left\.obs_ee_pose'") as caught:
        ZarrEpisode(human).read({"left.obs_eepose": [(0, 1)]})
    assert isinstance(caught.value, KeyError)
    assert "\\" not in str(caught.value)


def test_a_short_array_ends_where_it_ends(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20)
    foreign_numbers(group, KEY, ramp(15, 7))
    with pytest.raises(RowRangeError, match="15"):
        ZarrEpisode(tmp_path / "ep.zarr").read({KEY: [(10, 16)]})


def test_opening_reads_no_array(human: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("an array was opened")

    monkeypatch.setattr(zarr, "open_array", refuse)
    ep = ZarrEpisode(human)
    assert ep.total_frames == 120
    assert ep.counts.total.requests == 0


# Annotations.


def test_annotations_are_spans_in_frames(human: Path) -> None:
    assert list(ZarrEpisode(human).annotations()) == [("reach", 0, 80), ("hold", 40, 120)]


def test_an_episode_without_annotations_has_none(tmp_path: Path) -> None:
    write_human(tmp_path / "ep.zarr", 5)
    assert list(ZarrEpisode(tmp_path / "ep.zarr").annotations()) == []
    group = foreign_group(tmp_path / "bare.zarr", 5)
    foreign_numbers(group, KEY, ramp(5, 7))
    assert list(ZarrEpisode(tmp_path / "bare.zarr").annotations()) == []


def test_foreign_annotations_read(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 5)
    foreign_annotations(group, [("péndulo; 2", 0, 3), ("", 3, 99)])
    found = ZarrEpisode(tmp_path / "ep.zarr").annotations()
    assert list(found) == [("péndulo; 2", 0, 3), ("", 3, 99)]


def test_case_16_empty_annotations_with_a_shard_of_zero(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 20)

    def empty(metadata: dict[str, Any]) -> None:
        metadata["shape"] = [0]
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = [0]
        sharding = {
            "chunk_shape": [0],
            "codecs": [{"name": "vlen-bytes"}],
            "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        }
        metadata["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]

    edit_json(path / "annotations/zarr.json", empty)
    for attrs in ({}, {"features": ...}):
        ep = ZarrEpisode(edit_attrs(path, **attrs))
        assert (ep.read({KEY: [(0, 20)]})[KEY][0] == ramp(20, 7)).all()
        assert list(ep.annotations()) == []
        assert KEY in ep.keys


@pytest.mark.parametrize(
    "row",
    [
        b"{",
        b"[" * 100_000,
        b"\xff\xfe",
        b"[]",
        b"3",
        b'{"text": "a", "start_idx": 0}',
        b'{"text": 1, "start_idx": 0, "end_idx": 2}',
        b'{"text": "a", "start_idx": "0", "end_idx": 2}',
        b'{"text": "a", "start_idx": 0, "end_idx": 2.5}',
    ],
)
def test_a_row_that_is_no_annotation_is_named(tmp_path: Path, row: bytes) -> None:
    good = json.dumps({"text": "a", "start_idx": 0, "end_idx": 2}).encode()
    group = foreign_group(tmp_path / "ep.zarr", 5)
    foreign_bytes(group, "annotations", [good, row])
    with pytest.raises(EpisodeFormatError, match="row 1") as caught:
        ZarrEpisode(tmp_path / "ep.zarr").annotations()
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", "annotations")


@pytest.mark.parametrize("rows", [100_001, 2**26])
def test_more_annotations_than_anybody_makes_are_refused(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "ep.zarr"
    foreign_annotations(foreign_group(path, 5), [("a", 0, 3)])
    edit_json(path / "annotations/zarr.json", lambda metadata: metadata.update(shape=[rows]))
    ep = ZarrEpisode(path, missing_chunks="fill")
    for look in (ep.annotations, lambda: ep.check_stored("annotations")):
        with pytest.raises(EpisodeFormatError, match=f"has {rows} rows") as caught:
            look()
        assert caught.value.key == "annotations"


# Processes.


def test_episodes_pickle_as_path_and_settings(human: Path) -> None:
    ep = ZarrEpisode(human, missing_chunks="fill", name="a/ep.zarr")
    fresh = len(pickle.dumps(ep))
    ep.read({KEY: [(0, 120)], "images.front_1": [(0, 9)]})
    again = pickle.loads(pickle.dumps(ep))
    assert len(pickle.dumps(ep)) == fresh < 1000
    assert (again.name, again.total_frames) == ("a/ep.zarr", 120)
    assert again.counts.total.reads == 0
    assert (again.read({KEY: [(3, 9)]})[KEY][0] == ramp(120, 7)[3:9]).all()


def read_in_a_child(folder: Path, ep: ZarrEpisode) -> Any:
    """Fork, read rows 40 to 80 in the child, and return them."""
    result = folder / "result.npy"

    def read() -> None:
        np.save(result, ep.read({KEY: [(40, 80)]})[KEY][0])
        assert ep.counts[KEY].reads == 1

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(timeout=60)
    if child.is_alive():
        child.kill()
        pytest.fail("the child still reads after 60 s")
    assert child.exitcode == 0
    return np.load(result)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_case_23_a_forked_child_reads_after_its_parent(human: Path, tmp_path: Path) -> None:
    ep = ZarrEpisode(human)
    ep.read({KEY: [(0, 120)]})
    for _ in range(2):
        assert (read_in_a_child(tmp_path, ep) == ramp(120, 7)[40:80]).all()
    assert ep.counts[KEY].reads == 1
    assert (ep.read({KEY: [(3, 4)]})[KEY][0] == ramp(120, 7)[3:4]).all()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_case_25_a_forked_child_reads_blosc_after_its_parent(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 120)
    foreign_numbers(group, KEY, ramp(120, 7), compressors=zarr.codecs.BloscCodec(cname="lz4"))
    ep = ZarrEpisode(tmp_path / "ep.zarr")
    ep.read({KEY: [(0, 120)]})
    assert (read_in_a_child(tmp_path, ep) == ramp(120, 7)[40:80]).all()


@pytest.mark.parametrize("key", ["../other.zarr/{key}", "./{key}", "/{key}", "a/../{key}", "..\\x"])
def test_no_key_leads_out_of_the_episode(human: Path, tmp_path: Path, key: str) -> None:
    shutil.copytree(human, tmp_path / "other.zarr")
    shutil.copytree(human, tmp_path / "ep.zarr")
    name = key.format(key=KEY)
    path = edit_attrs(tmp_path / "ep.zarr", features={name: {"dtype": "float32", "shape": [7]}})
    episode = ZarrEpisode(path)
    assert not episode.has(name)
    with pytest.raises(MissingKeyError):
        episode.read({name: [(0, 1)]})
