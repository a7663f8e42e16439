"""Episodes made to do harm: each is an error of the project's, or harmless; none takes the process.

What could hang, or take all memory, runs in a child with bounds on both.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import shutil
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from typer.testing import CliRunner

from egoloader import ZarrDataset, ZarrEpisode
from egoloader.arrayfile import BYTES_CODECS, encode_vlen_bytes, write_metadata
from egoloader.catalog import find_episodes
from egoloader.cli import app, main
from egoloader.columns import stored_bytes
from egoloader.convert import convert_lerobot
from egoloader.convert.pictures import picture_frames
from egoloader.convert.video import video_frames
from egoloader.decode import MAX_SCANS, jpeg_head, jpeg_size
from egoloader.episode import ANNOTATIONS
from egoloader.errors import (
    ConversionError,
    EgoloaderError,
    EpisodeFormatError,
    FolderNotFoundError,
    FrameError,
    MissingKeyError,
    ReadError,
    SettingsError,
    near_miss,
)
from egoloader.frames import Camera
from egoloader.keymap import is_array_name
from egoloader.overview import overview
from egoloader.shards import crc32c, encode_index
from egoloader.validate import validate_paths
from tests.children import in_a_fork
from tests.entries import entry, keymap
from tests.episodes import HUMAN_FRAMES, edit_attrs, edit_json, ramp, write_human
from tests.lerobot_folders import Folder, coded, write_video
from tests.test_chunkcodec import zstd_blocks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

Change = Callable[[dict[str, Any]], object]

KEY, CAMERA = "left.obs_ee_pose", "images.front_1"
#: What a child may take in memory beyond what it has when it starts.
SLACK_BYTES = 512 * 2**20


def bounded(task: Callable[[], object], *, extra_bytes: int = SLACK_BYTES) -> None:
    """Run a task in a child that has a minute, and so much memory more than now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])

    def limited() -> None:
        limit = pages * os.sysconf("SC_PAGE_SIZE") + extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        task()

    in_a_fork(limited)


def refused(task: Callable[[], object], *words: str, extra_bytes: int = SLACK_BYTES) -> None:
    """Assert, in a bounded child, that a task ends in an error of the project's with such words."""

    def attempt() -> None:
        with pytest.raises(EgoloaderError) as caught:
            task()
        message = str(caught.value)
        assert len(message) < 5000
        assert "MemoryError" not in message
        assert all(word in message for word in words), message

    bounded(attempt, extra_bytes=extra_bytes)


def everything(path: Path) -> Callable[[], object]:
    """Return what reads all rows of all arrays of an episode."""

    def read() -> object:
        episode = ZarrEpisode(path)
        return [episode.read({key: [(0, episode.total_frames)]}) for key in episode.keys]

    return read


@pytest.fixture
def copied(human: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(human, tmp_path / "all" / "ep.zarr"))


# What stands in the place of a file.


def pipe(path: Path) -> None:
    os.mkfifo(path)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def loop(path: Path) -> None:
    path.symlink_to(path.name)


STAND_INS = [pipe, device, loop]
FILES = ["zarr.json", f"{KEY}/zarr.json", f"{KEY}/c/0/0", f"{CAMERA}/c/0"]


@pytest.mark.parametrize("stand_in", STAND_INS)
@pytest.mark.parametrize("file", FILES)
def test_what_is_no_file_is_refused_and_not_waited_for(
    copied: Path, stand_in: Callable[[Path], None], file: str
) -> None:
    (copied / file).unlink()
    stand_in(copied / file)
    refused(everything(copied), "ep.zarr", file.rpartition("/")[2])


@pytest.mark.parametrize("stand_in", STAND_INS)
def test_pipes_and_devices_keep_nobody_from_the_other_episodes(
    copied: Path, stand_in: Callable[[Path], None]
) -> None:
    bad = shutil.copytree(copied, copied.parent / "bad.zarr")
    (bad / "zarr.json").unlink()
    stand_in(bad / "zarr.json")
    stand_in(copied.parent / "beside")

    def look() -> None:
        found = validate_paths([copied.parent], workers=1)
        assert {one.episode for one in found.findings if one.harm == "frames"} == {"bad.zarr"}
        assert [one.name for one in overview(copied.parent)[0]] == ["ep.zarr"]

    bounded(look)


def test_a_huge_file_in_the_place_of_metadata_is_not_read_whole(copied: Path) -> None:
    (copied.parent / "array" / "a").mkdir(parents=True)
    for file in (copied / "zarr.json", copied.parent / "array/zarr.json"):
        file.touch()
        os.truncate(file, 2**40)
    (copied.parent / "array/a/zarr.json").touch()
    os.truncate(copied.parent / "array/a/zarr.json", 2**40)
    refused(lambda: ZarrEpisode(copied), "zarr.json is larger than")

    def look() -> None:
        assert find_episodes(copied.parent) == ["ep.zarr"]

    bounded(look)


# Folders without end.


def test_folders_without_end_are_refused(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * 200).mkdir(parents=True)
    with pytest.raises(SettingsError, match="more than 64 folders lead to"):
        find_episodes(tmp_path)


def test_links_that_lead_on_in_two_ways_each_are_refused(copied: Path) -> None:
    folders = copied.parent.parent / "folders"
    for number in range(50):
        (folders / str(number)).mkdir(parents=True)
        for name in "ab":
            target = folders / str(number + 1) if number < 49 else copied.parent
            (folders / str(number) / name).symlink_to(target)
    refused(lambda: find_episodes(folders / "0"), "ways by links")


def test_arrays_are_listed_however_deep_the_folders_are(copied: Path) -> None:
    edit_attrs(copied, features=...)
    copied.joinpath(*["d"] * 400).mkdir(parents=True)

    def look() -> None:
        sys.setrecursionlimit(300)
        assert CAMERA in ZarrEpisode(copied).keys

    bounded(look)


# Names.

NAMES = ["a\0b", "x" * 300, "\ud800", "a/../../b", "/etc", "..", "a\\b", "", "a//b", "a/", "./a"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_no_path_in_the_episode_is_that_of_no_array(copied: Path, name: str) -> None:
    assert not is_array_name(name)
    edit_attrs(copied, features={name: {"dtype": "float32", "shape": [7]}})
    episode = ZarrEpisode(copied)
    with pytest.raises(MissingKeyError):
        episode.read({name: [(0, 1)]})
    assert overview(copied)[0][0].problems
    assert not validate_paths([copied], workers=1).is_good


# What zarr-python is asked for where egoloader does not know a codec: data, and so much of it.


def foreign(
    path: Path, stored: bytes, *, v2: dict[str, Any] | None = None, **v3: Any
) -> Callable[[], object]:
    """Return what reads the one chunk of an array `a` of 4 rows, of bytes as they are given."""
    (path / "a").mkdir(parents=True)
    attrs = {"total_frames": 4, "fps": 30, "embodiment": "arm"}
    if v2 is not None:
        (path / ".zgroup").write_text('{"zarr_format": 2}')
        (path / ".zattrs").write_text(json.dumps(attrs))
        array = {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<f4", "order": "C"}
        array |= {"fill_value": 0, "filters": None, "compressor": None}
        (path / "a/.zarray").write_text(json.dumps(array | v2))
        (path / "a/0").write_bytes(stored)
    else:
        group = {"zarr_format": 3, "node_type": "group", "attributes": attrs}
        (path / "zarr.json").write_text(json.dumps(group))
        array = {"zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "float32"}
        array["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": [4]}}
        array |= {"fill_value": 0, "codecs": [{"name": "bytes"}]}
        array["chunk_key_encoding"] = {"name": "default"}
        (path / "a/zarr.json").write_text(json.dumps(array | v3))
        (path / "a/c").mkdir()
        (path / "a/c/0").write_bytes(stored)
    return lambda: ZarrEpisode(path).read({"a": [(0, 4)]})


class Trap:
    """Makes a file where its pickle is loaded."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self._file,)


OBJECTS: dict[str, dict[str, Any]] = {
    "a filter": {"filters": [{"id": "pickle"}]},
    "a compressor": {"compressor": {"id": "pickle"}},
    "objects": {"dtype": "|O", "filters": [{"id": "pickle"}], "fill_value": None},
    "behind bytes": {
        "dtype": "|O",
        "filters": [{"id": "vlen-bytes"}, {"id": "pickle"}],
        "fill_value": "",
    },
    "around bytes": {
        "dtype": "|O",
        "filters": [{"id": "vlen-bytes"}],
        "compressor": {"id": "pickle"},
        "fill_value": "",
    },
    "around texts": {
        "dtype": "|O",
        "filters": [{"id": "vlen-utf8"}],
        "compressor": {"id": "pickle"},
        "fill_value": "",
    },
    "behind delta": {"filters": [{"id": "delta", "dtype": "<f4"}, {"id": "pickle"}]},
    "structures with objects": {"dtype": [["x", "|O"]], "filters": [{"id": "pickle"}]},
    "objects without a codec": {"dtype": "|O", "fill_value": None},
    "JSON": {"dtype": "|O", "filters": [{"id": "json2"}], "fill_value": None},
    "MessagePack": {"dtype": "|O", "filters": [{"id": "msgpack2"}], "fill_value": None},
    "categories": {
        "filters": [{"id": "categorize", "labels": ["a"], "dtype": "|O", "astype": "|u1"}]
    },
    "arrays": {"dtype": "|O", "filters": [{"id": "vlen-array", "dtype": "<f4"}]},
    "texts as numbers": {"filters": [{"id": "delta", "dtype": "<U99"}]},
    "wide texts": {
        "filters": [{"id": "astype", "encode_dtype": "|S1", "decode_dtype": "<U9999999"}]
    },
}


@pytest.mark.parametrize("array", OBJECTS.values(), ids=OBJECTS)
def test_nothing_that_is_stored_is_run_or_made_an_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, array: dict[str, Any]
) -> None:
    # Later versions of numcodecs refuse it themselves, unless they are told not to.
    monkeypatch.setattr(numcodecs.Pickle, "decode", lambda _, data, out=None: pickle.loads(data))
    read = foreign(tmp_path / "ep", pickle.dumps(Trap(tmp_path / "sprung")), v2=array)
    with pytest.raises(ReadError, match=r"makes objects|data type|not one of numbers"):
        read()
    assert not (tmp_path / "sprung").exists()


ZEROS = bytes(2**26)
#: Zlib, LZ4 and Blosc of the same, and a stream that does not say how long it is.
REPEATED = zstd_blocks(1, [b"\0"] * 2**11, 2**17)
BOMBS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "zstd": ("zstd", lambda: numcodecs.Zstd().encode(ZEROS)),
    "zstd of a size not stated": ("zstd", lambda: REPEATED),
    "gzip": ("gzip", lambda: numcodecs.GZip(1).encode(ZEROS)),
    "zlib": ("zlib", lambda: numcodecs.Zlib(1).encode(ZEROS)),
    "bz2": ("bz2", lambda: numcodecs.BZ2(1).encode(ZEROS[: 2**22]) * 16),
    "lzma": ("lzma", lambda: numcodecs.LZMA(preset=0).encode(ZEROS[: 2**22]) * 16),
    "lz4": ("lz4", lambda: numcodecs.LZ4().encode(ZEROS)),
    "blosc": ("blosc", lambda: numcodecs.Blosc("zstd").encode(ZEROS)),
}


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("name", "make"), BOMBS.values(), ids=BOMBS)
def test_zarr_python_is_not_asked_to_unpack_more_than_a_chunk(
    tmp_path: Path, name: str, make: Callable[[], bytes], version: int
) -> None:
    layout: dict[str, Any] = {"codecs": [{"name": "bytes"}]}
    for one in ("shuffle", name, name):
        layout["codecs"].append({"name": f"numcodecs.{one}", "configuration": {}})
    layout["codecs"][1]["configuration"]["elementsize"] = 4
    if version == 2:
        filters = [{"id": "shuffle", "elementsize": 4}, {"id": name}]
        layout = {"v2": {"filters": filters, "compressor": {"id": name}}}
    twice = numcodecs.get_codec({"id": name}).encode(make())
    read = foreign(tmp_path / "ep", twice, **layout)
    assert ZarrEpisode(tmp_path / "ep").reference_reason("a")

    def attempt() -> None:
        with pytest.raises(ReadError, match=r"a chunk has \d+ at most|a chunk's at most"):
            read()

    bounded(attempt)


def test_bits_that_are_unpacked_again_and_again_stay_within_a_chunk(tmp_path: Path) -> None:
    filters = [{"id": "packbits"}] * 12
    refused(foreign(tmp_path / "ep", bytes(2**10), v2={"filters": filters}), "the limit is")


@pytest.mark.parametrize("text", [{}, {"filters": [{"id": "vlen-utf8"}]}])
@pytest.mark.parametrize("head", [2**32 - 1, 5, 4])
def test_rows_that_are_counted_wrongly_make_no_room(
    tmp_path: Path, head: int, text: dict[str, Any]
) -> None:
    array = {"dtype": "|O", "filters": [{"id": "vlen-bytes"}, {"id": "shuffle"}], "fill_value": ""}
    lengths = struct.pack("<IIIII", head, 2**32 - 1, 2**31, 0, 1)
    refused(foreign(tmp_path / "ep", lengths, v2=array | text), "a/0")
    texts: dict[str, Any] = {"data_type": "string", "codecs": [VLEN_TEXT], "fill_value": ""}
    refused(foreign(tmp_path / "ep3", lengths, **texts), "a/c/0")


VLEN_TEXT = {"name": "vlen-utf8", "configuration": {}}


def test_a_fill_value_of_nan_is_none_that_changed(tmp_path: Path) -> None:
    array = {"filters": [{"id": "delta", "dtype": "<f4"}], "fill_value": float("nan")}
    read: Any = foreign(tmp_path / "ep", np.ones(4, dtype="<f4").tobytes(), v2=array)
    assert read()["a"][0].tolist() == [1, 2, 3, 4]


def test_metadata_beside_an_array_is_not_read_by_zarr_python(tmp_path: Path) -> None:
    steps = np.ones(4, dtype="<f4").tobytes()
    read = foreign(tmp_path / "ep", steps, v2={"filters": [{"id": "delta", "dtype": "<f4"}]})
    os.mkfifo(tmp_path / "ep/a/.zattrs")

    def look() -> None:
        found: Any = read()
        assert found["a"][0].tolist() == [1, 2, 3, 4]

    bounded(look)


# Annotations, and what else is said in words and numbers.


def annotated(path: Path, *rows: bytes) -> Path:
    """Put rows into the annotations of an episode, whatever they are."""
    shutil.rmtree(path / ANNOTATIONS)
    write_metadata(
        path / ANNOTATIONS,
        shape=(len(rows),),
        chunk=(len(rows),),
        data_type="variable_length_bytes",
        fill_value="",
        codecs=BYTES_CODECS,
    )
    chunk = encode_vlen_bytes(rows)
    (path / ANNOTATIONS / "c").mkdir()
    (path / ANNOTATIONS / "c/0").write_bytes(chunk + crc32c(chunk))
    return path


def span(text: str, start: int = 0, end: int = 20) -> bytes:
    return json.dumps({"text": text, "start_idx": start, "end_idx": end}).encode()


HOSTILE_ROWS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "deep": (lambda: [b"[" * 10**6], "row 0 is no annotation"),
    "a number of many digits": (lambda: [b"9" * 10**4], "row 0 is no annotation"),
    "many": (lambda: [b"{}"] * (2**17 + 1), "131073 rows; annotations are at most"),
    "long": (lambda: [span("x" * 2**23), span("y" * 2**23)], "they have at most 16777216"),
}


@pytest.mark.parametrize(("make", "message"), HOSTILE_ROWS.values(), ids=HOSTILE_ROWS)
def test_annotations_are_bounded(
    copied: Path, make: Callable[[], list[bytes]], message: str
) -> None:
    refused(ZarrEpisode(annotated(copied, *make())).annotations, "annotations", message)


def test_many_annotations_that_are_promised_are_not_looked_for(copied: Path) -> None:
    def promise(array: dict[str, Any]) -> None:
        array["shape"] = [10**14]
        array["chunk_grid"]["configuration"]["chunk_shape"] = [1]

    edit_json(copied / ANNOTATIONS / "zarr.json", promise)
    refused(ZarrEpisode(copied).annotations, "rows, the limit is")


def test_numbers_are_no_annotations(copied: Path) -> None:
    shutil.rmtree(copied / ANNOTATIONS)
    shutil.copytree(copied / KEY, copied / ANNOTATIONS)
    refused(ZarrEpisode(copied).annotations, "are no annotations")
    assert not validate_paths([copied], workers=1).is_good


TEXT = keymap(text=entry(ANNOTATIONS, "annotation_keys"))
NEXT = keymap(next=entry(KEY, "action_keys", horizon=4))


def test_spans_that_overlap_make_no_text_without_end(copied: Path) -> None:
    path = annotated(copied, *[span("x" * 2**14)] * 100)
    refused(lambda: ZarrDataset(path, TEXT)[5], "frame 5", "1638598 characters")


@pytest.mark.parametrize("far", [10**30, -(10**30)])
def test_spans_may_lie_as_far_away_as_numbers_go(copied: Path, far: int) -> None:
    path = annotated(copied, span("a", min(far, 0), max(far, 20)), span("b", far, far + 1))
    dataset = ZarrDataset(path, NEXT, annotation_cutoff=True)
    assert dataset[5]["next"].shape == (4, 7)
    assert ZarrDataset(path, TEXT)[5]["text"] == "a"


@pytest.mark.parametrize("fps", [1e-300, 1e-7, 1e7, 1e300, 5e-324, 1.7e308, 10**300])
def test_frame_rates_that_nothing_records_at_are_refused(copied: Path, fps: float) -> None:
    with pytest.raises(EpisodeFormatError, match="fps must be above 0 Hz"):
        ZarrEpisode(edit_attrs(copied, fps=fps))


@pytest.mark.parametrize("fps", [1e-6, 1e6])
def test_windows_reach_as_far_as_keymaps_and_rates_let_them(copied: Path, fps: float) -> None:
    far: dict[str, Any] = {
        "past": {"lag_s": 1e9},
        "steps": {"history": 1000, "stride_s": 1e9},
        "both": {"offsets_s": (-1e9, 0, 1e9)},
    }
    entries = keymap(**{key: entry(KEY, mask=True, **fields) for key, fields in far.items()})
    sample = ZarrDataset(edit_attrs(copied, fps=fps), entries)[7]
    rows = {"past": 0, "steps": [7] * 1000, "both": [0, 7, HUMAN_FRAMES - 1]}
    for key, wanted in rows.items():
        assert sample[key][..., 0].tolist() == (1000 * np.array(wanted)).tolist()
    assert sample["both_is_pad"].tolist() == [True, False, True]


def test_messages_do_not_quote_megabytes(copied: Path) -> None:
    for attrs in ({"embodiment": ["x" * 10**6]}, {"features": ["x" * 10**6]}):
        with pytest.raises(EpisodeFormatError) as caught:
            ZarrEpisode(edit_attrs(copied, **attrs))
        assert len(str(caught.value)) < 5000


# What people see of it.

ANSI, BELL = "\x1b[31m\x1b]0;title\x07", "\x07"
NAUGHTY = f"[red]{ANSI}[/nothing]\ud800\r\u202e"


def test_what_episodes_say_does_not_steer_the_terminal(copied: Path) -> None:
    edit_attrs(copied, embodiment=f"arm{NAUGHTY}", task_description=NAUGHTY * 10**5)
    edit_json(copied / KEY / "zarr.json", lambda a: a.update(data_type={"name": NAUGHTY}))
    edit_json(copied / CAMERA / "zarr.json", lambda a: a["codecs"].append({"name": NAUGHTY}))
    copied.rename(copied.parent / f"-\n[bold]{ANSI}.zarr")
    for command in (["inspect"], ["validate", "--workers", "1"], ["validate", "--json"]):
        found = CliRunner().invoke(app, [*command, str(copied.parent)])
        assert isinstance(found.exception, SystemExit | None), found.exception
        assert not {"\x1b", BELL, "\r", "\ud800", "\u202e"} & set(found.output)
        assert "[red]" in found.output or command != ["inspect"]
        assert len(found.output) < 10**5


def test_errors_do_not_steer_the_terminal(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied / "zarr.json" / ANSI
    arguments = ["validate", str(copied), "--workers", "1", "--quarantine", str(file)]
    monkeypatch.setattr(sys, "argv", ["egoloader", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert not {"\x1b", BELL} & set(capsys.readouterr().err)


# What is converted.

TEMPLATES = [
    "/etc/{episode_index}.parquet",
    "../../{episode_index:06d}.parquet",
    "data/../../{episode_index}",
    "data/{episode_index.__class__}",
    "data/{episode_index:>1000000000}",
    "data/{episode_index:0100d}",
    "data/{0}",
    "data/{",
    "data/{{episode_index}}",
    "data/{other}",
    "data/\0{episode_index}",
    "",
]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["data_path", "video_path"])
def test_templates_name_files_below_the_folder(tmp_path: Path, template: str, name: str) -> None:
    folder = Folder(tmp_path / "src", info={name: template})
    folder.write_meta()
    refused(lambda: convert_lerobot(folder.root, tmp_path / "out"), name)


def test_a_cameras_name_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "src", cameras=["../../../etc"])
    folder.write_meta()
    refused(lambda: convert_lerobot(folder.root, tmp_path / "out"), "leads out of the folder")


LINES: dict[str, tuple[str, bytes | int, str]] = {
    "without an end": ("episodes.jsonl", 2**40, "is larger than"),
    "deep": ("episodes.jsonl", b"[" * 10**6, "is not JSON"),
    "deep info": ("info.json", b'{"a":' * 10**6, "is not JSON"),
    "endless info": ("info.json", 2**40, "is larger than"),
    "far": ("episodes.jsonl", b'{"episode_index": 1%s, "length": 3}' % (b"0" * 400), "an episode"),
    "before": ("episodes.jsonl", b'{"episode_index": -1, "length": 3}', "an episode -1"),
    "long": ("episodes.jsonl", b'{"episode_index": 0, "length": 1%s}' % (b"0" * 99), "frames"),
}


@pytest.mark.parametrize(("name", "content", "message"), LINES.values(), ids=LINES)
def test_what_a_folder_says_of_itself_is_bounded(
    tmp_path: Path, name: str, content: bytes | int, message: str
) -> None:
    folder = Folder(tmp_path / "src")
    folder.write_meta()
    file = folder.root / "meta" / name
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        os.truncate(file, content)
    refused(lambda: convert_lerobot(folder.root, tmp_path / "out"), message)


@pytest.mark.parametrize("fps", [10**400, 1e-300, 1e300])
def test_a_frame_rate_that_can_not_be_is_an_error(tmp_path: Path, fps: float) -> None:
    folder = Folder(tmp_path / "src", info={"fps": fps}, cameras=())
    folder.build()

    def convert() -> None:
        report = convert_lerobot(folder.root, tmp_path / "out")
        raise ConversionError(str(report.failed))

    refused(convert, "fps")


def test_a_video_that_lists_other_files_is_not_followed(tmp_path: Path) -> None:
    write_video(tmp_path / "other.mp4", [coded(0)] * 3)
    (tmp_path / "list.mp4").write_text("ffconcat version 1.0\nfile other.mp4\n")
    assert len(list(video_frames(tmp_path / "other.mp4", "here", None, 1))) == 3
    with pytest.raises(ConversionError, match="can't be decoded"):
        list(video_frames(tmp_path / "list.mp4", "here", None, 1))


def test_a_picture_that_says_it_is_huge_takes_no_memory(tmp_path: Path) -> None:
    head = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(2**16))), (b"IEND", b"")]
    picture = b"\x89PNG\r\n\x1a\n"
    for name, data in chunks:
        crc = zlib.crc32(name + data)
        picture += struct.pack(">I", len(data)) + name + data + struct.pack(">I", crc)
    table = pa.table({"cam": [{"bytes": picture}]})
    pq.write_table(table, tmp_path / "rows.parquet")
    refused(lambda: list(picture_frames(tmp_path / "rows.parquet", "cam", None)), "frame 0")


def test_rows_that_are_promised_and_not_there_take_no_memory(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "src", cameras=())
    folder.write_meta()
    # A thousand million equal numbers are some hundred bytes.
    folder.parquet(0).parent.mkdir(parents=True)
    with pq.ParquetWriter(folder.parquet(0), pa.schema([("x", pa.int8())])) as writer:
        part = pa.table({"x": pa.array(np.zeros(2**24, np.int8))})
        for _ in range(7):
            writer.write_table(part)

    def convert() -> None:
        report = convert_lerobot(folder.root, tmp_path / "out")
        raise ConversionError(report.failed[0])

    refused(convert, "the file promises 117440512 rows")


# What metadata says of an array, and what is stored of it.


def grid(shape: list[int], chunk: list[int]) -> Change:
    def change(array: dict[str, Any]) -> None:
        array["shape"] = shape
        array["chunk_grid"]["configuration"]["chunk_shape"] = chunk
        array["codecs"] = [{"name": "bytes"}]

    return change


def whole(**metadata: Any) -> Change:
    return lambda array: array.update(metadata)


def chain(*codecs: Any) -> Change:
    return whole(codecs=list(codecs), chunk_grid=CHUNKS)


CHUNKS = {"name": "regular", "configuration": {"chunk_shape": [100, 7]}}
BYTES = {"name": "bytes"}
METADATA: dict[str, Change] = {
    "many axes": grid([1] * 10**5, [1] * 10**5),
    "33 axes": grid([1] * 33, [1] * 33),
    "numbers of 4000 digits": grid([int("9" * 4000)] * 300, [int("9" * 4000)] * 300),
    "an extent beyond 64 bits": grid([2**64, 7], [2**64, 7]),
    "many codecs": chain(BYTES, *[{"name": "crc32c"}] * 50_000),
    "a thousand zstd": chain(BYTES, *[{"name": "zstd"}] * 1000),
    "a codec without a name": chain({}),
    "a codec's name is a list": chain({"name": ["bytes"]}),
    "a codec's settings are a list": chain({"name": "bytes", "configuration": ["little"]}),
    "a byte order is a list": chain({"name": "bytes", "configuration": {"endian": ["little"]}}),
    "an order of texts": chain({"name": "transpose", "configuration": {"order": [0, "a"]}}, BYTES),
    "an order of floats": chain({"name": "transpose", "configuration": {"order": [0, 1.0]}}, BYTES),
    "an order of bools": chain(
        {"name": "transpose", "configuration": {"order": [False, True]}}, BYTES
    ),
    "a type that is a program": whole(data_type="(" * 10**5 + "f4"),
    "a type of a million fields": whole(data_type="f4," * 10**6),
    "a type that is a list": whole(data_type={"name": [["a", "f4"]]}),
    "a type of a gigabyte": whole(data_type="S1000000000"),
    "storage transformers": whole(storage_transformers=[{"name": "indirect"}]),
    "a grid that is a list": whole(chunk_grid=[1]),
    "an encoding that is a text": whole(chunk_key_encoding="default"),
    "attributes of megabytes": whole(shape="x" * 10**7),
}
STORED_NUMBERS = ramp(HUMAN_FRAMES, 7).tobytes().ljust(2800, b"\0")


@pytest.mark.parametrize("change", METADATA.values(), ids=METADATA)
def test_metadata_that_asks_for_too_much_is_refused(copied: Path, change: Change) -> None:
    edit_json(copied / KEY / "zarr.json", change)
    refused(everything(copied), KEY)

    def look() -> None:
        overview(copied)
        assert not validate_paths([copied], workers=1).is_good

    bounded(look)


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


@pytest.mark.parametrize("name", ["zarr.json", f"{KEY}/zarr.json"])
@pytest.mark.parametrize(
    "text",
    [nested(10**6), b"9" * 10**5, b'{"a": "\xff"}', b"[1]", b"\xff\xfe", b'{"a": 1e}', b"NaN", b""],
    ids=["deep", "long number", "no text", "list", "byte order", "no number", "NaN", "empty"],
)
def test_text_that_is_no_metadata_is_refused(copied: Path, name: str, text: bytes) -> None:
    (copied / name).write_bytes(text)
    refused(everything(copied), "zarr.json")


def test_of_a_name_that_comes_twice_the_last_counts_as_for_zarr_python(copied: Path) -> None:
    file = copied / KEY / "zarr.json"
    text = file.read_text().replace('"shape":', '"shape": [1, 1], "shape":', 1)
    file.write_text(text)
    assert zarr.open_array(copied / KEY, mode="r").shape == ZarrEpisode(copied).layout(KEY).shape


def sparse(path: Path) -> None:
    os.truncate(path, 2**42)


def test_more_bytes_than_a_chunk_can_have_are_not_read(copied: Path) -> None:
    edit_json(copied / KEY / "zarr.json", chain(BYTES))
    sparse(copied / KEY / "c/0/0")
    refused(everything(copied), KEY, "bytes 0 to 4398046511104", "the limit is")


def test_more_bytes_than_a_chunk_of_a_shard_can_have_are_not_read(copied: Path) -> None:
    # The index is at the end, and says that all before it is the only chunk.
    shard = copied / KEY / "c/0/0"
    size = 2**42
    with shard.open("r+b") as file:
        file.seek(size)
        file.write(encode_index([0], [size]))
    refused(everything(copied), KEY, f"bytes 0 to {size}", "the limit is")


def test_a_shard_of_more_chunks_than_can_be_listed_is_refused(copied: Path) -> None:
    def promise(array: dict[str, Any]) -> None:
        array["shape"] = [2**26, 7]
        array["chunk_grid"]["configuration"]["chunk_shape"] = [2**26, 7]
        array["codecs"][0]["configuration"]["chunk_shape"] = [1, 7]

    edit_json(copied / KEY / "zarr.json", promise)
    sparse(copied / KEY / "c/0/0")
    refused(everything(copied), KEY, "a shard has 67108864 chunks")


def test_an_index_that_is_larger_than_its_file_is_not_made_room_for(copied: Path) -> None:
    def promise(array: dict[str, Any]) -> None:
        array["shape"] = [2**24, 7]
        array["chunk_grid"]["configuration"]["chunk_shape"] = [2**24, 7]
        array["codecs"][0]["configuration"]["chunk_shape"] = [1, 7]

    edit_json(copied / KEY / "zarr.json", promise)
    refused(everything(copied), KEY, "index", extra_bytes=2**27)


LIES = {
    "overlapping": ([0, 4], [100, 100]),
    "in the index": ([40, 60], [36, 16]),
    "beyond 64 bits": ([2**64 - 8, 0], [16, 10]),
    "behind the end": ([2**62, 0], [2**62, 10]),
    "empty": ([2**64 - 1, 2**64 - 1], [2**64 - 1, 2**64 - 1]),
    "half empty": ([2**64 - 1, 2**64 - 1], [0, 5]),
    "of no bytes": ([0, 0], [0, 0]),
}


@pytest.mark.parametrize(("offsets", "lengths"), LIES.values(), ids=LIES)
@pytest.mark.parametrize("key", [KEY, CAMERA])
def test_an_index_that_lies_is_an_error_at_the_rows_it_lies_of(
    tmp_path: Path, key: str, offsets: list[int], lengths: list[int]
) -> None:
    path = write_human(tmp_path / "ep.zarr", 2, chunk_rows=1)
    (shard,) = (file for file in (path / key / "c").rglob("*") if file.is_file())
    shard.write_bytes(shard.read_bytes()[:-36] + encode_index(offsets, lengths))
    refused(everything(path), "ep.zarr", key)


def test_rows_of_fill_bytes_are_bounded(copied: Path) -> None:
    edit_json(copied / CAMERA / "zarr.json", grid([2**24], [2**24]))
    refused(everything(copied), CAMERA, "rows of bytes, the limit is")


def test_a_stream_of_blocks_that_grow_is_not_unpacked(copied: Path) -> None:
    """Each of these blocks is 10 bytes, and holds 128 kB."""
    edit_json(copied / KEY / "zarr.json", chain(BYTES, {"name": "zstd"}))
    block = bytes.fromhex("5400001000000100fbff39c002")
    last = bytes([block[0] | 1]) + block[1:]
    data = b"\x28\xb5\x2f\xfd\x00\x58" + block * 2**13 + last
    (copied / KEY / "c/0/0").write_bytes(data)
    refused(everything(copied), KEY, "holds more than 2800 bytes")


# Pictures.


def scans(count: int, height: int, width: int) -> bytes:
    """Return a progressive gray JPEG of so many scans, each of some bytes."""

    def segment(marker: int, body: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(body) + 2) + body

    jpeg = b"\xff\xd8" + segment(0xDB, b"\0" + bytes([1] * 64))
    jpeg += segment(0xC2, struct.pack(">BHHB3B", 8, height, width, 1, 1, 0x11, 0))
    jpeg += segment(0xC4, b"\0\1" + bytes(16)) + segment(0xC4, b"\x10\1" + bytes(15) + b"\xe0")
    jpeg += segment(0xDA, bytes([1, 1, 0, 0, 0, 0])) + bytes(height * width // 512 + 1)
    run = segment(0xDA, bytes([1, 1, 0, 1, 63, 0])) + b"\x7f\xff\0" * (height * width // 2**21 + 1)
    return jpeg + run * (count - 1) + b"\xff\xd9"


@pytest.mark.parametrize("make", [scans, lambda n, h, w: sequential(n, h, w)])
def test_a_jpeg_of_scans_without_end_is_refused_before_it_is_decoded(
    make: Callable[[int, int, int], bytes],
) -> None:
    where: dict[str, Any] = {"episode": "ep", "key": "cam", "frame": 3}
    for count in (3, MAX_SCANS):
        assert jpeg_size(make(count, 80, 120), **where) == (80, 120)
        assert jpeg_head(make(count, 80, 120)) == b""
    with pytest.raises(FrameError, match="frame 3: 5000 scans of 80 x 120"):
        jpeg_size(make(5000, 80, 120), **where)


def test_a_large_picture_has_fewer_scans() -> None:
    where: dict[str, Any] = {"episode": "ep", "key": "cam", "frame": 3}
    assert jpeg_size(scans(16, 8000, 8000), **where) == (8000, 8000)
    assert jpeg_size(scans(40, 4000, 6000), **where) == (4000, 6000)
    for count, height, width in ((17, 8000, 8000), (45, 4000, 6000)):
        with pytest.raises(FrameError, match=f"the limit is {count - 1}"):
            jpeg_size(scans(count, height, width), **where)


def sequential(count: int, height: int, width: int) -> bytes:
    """Return a baseline JPEG of three components, each scan of one of them."""
    jpeg = bytearray(scans(1, height, width))
    frame = jpeg.index(b"\xff\xc2")
    components = b"".join(bytes([n, 0x11, 0]) for n in (1, 2, 3))
    start = b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + components
    head = bytes(jpeg[:frame]) + start + bytes(jpeg[frame + 13 : jpeg.index(b"\xff\xda")])
    one = b"".join(b"\xff\xda" + bytes([0, 8, 1, n % 3 + 1, 0, 0, 63, 0, 0]) for n in range(count))
    return head + one + b"\xff\xd9"


def test_a_camera_counts_the_scans_of_each_frame(copied: Path) -> None:
    camera = Camera("ep", CAMERA, (80, 120))
    camera.check(scans(10, 80, 120), 0)
    with pytest.raises(FrameError, match="frame 1: 65 scans of 80 x 120 pixels, the limit is 64"):
        camera.check(scans(65, 80, 120), 1)


@pytest.mark.parametrize("size", [(10**9, 10**9), (60000, 60000), (8001, 8000)])
def test_no_memory_is_taken_for_pictures_larger_than_any(
    copied: Path, size: tuple[int, int]
) -> None:
    edit_attrs(copied, features={CAMERA: {"dtype": "jpeg", "shape": [*size, 3]}})
    cameras = keymap(cam=entry(CAMERA, "camera_keys"))
    refused(lambda: ZarrDataset(copied, cameras)[0], CAMERA, "the limit is 64000000")


# An episode that promises as much as one may, and holds next to nothing.


def test_validation_takes_no_memory_for_rows_that_are_not_there(copied: Path) -> None:
    edit_attrs(copied, total_frames=10**8)
    for file in copied.glob("*/zarr.json"):
        edit_json(file, lambda array: array["shape"].__setitem__(0, 10**8))
    shutil.rmtree(copied / CAMERA)

    def look() -> None:
        found = validate_paths([copied], workers=1)
        assert {KEY, CAMERA} <= {one.key for one in found.findings if one.is_bad}

    bounded(look, extra_bytes=3 * 2**30)


def test_a_name_among_very_many_is_not_looked_for_letter_by_letter() -> None:
    many = [f"left.obs_ee_pose{n:06d}" for n in range(20_000)]
    assert near_miss("left.obs_ee_pos000007", many[:90]) == "did you mean 'left.obs_ee_pose000007'?"
    assert near_miss("left.obs_ee_pos000007", many).startswith("there are: ")
    assert len(near_miss("x" * 10**6, ["y" * 10**6] * 3)) < 1000


def deepen(folder: Path, name: str, levels: int) -> None:
    """Make folders in one another, beyond what a path can name."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def test_folders_beyond_what_a_path_can_name_are_an_error(copied: Path) -> None:
    before = overview(copied)[0][0].num_bytes
    deepen(copied / KEY, "d" * 250, 20)
    assert overview(copied)[0][0].num_bytes == before
    assert stored_bytes(ZarrDataset(copied, NEXT))["ep.zarr"] > before
    deepen(copied.parent, "d" * 250, 20)
    with pytest.raises(FolderNotFoundError, match="it can't be searched"):
        find_episodes(copied.parent)


@pytest.mark.parametrize("codec", ["zstd", "numcodecs.zlib"])
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_frames_that_unpack_to_much_more_than_is_stored_are_refused(
    copied: Path, codec: str
) -> None:
    def pack(array: dict[str, Any]) -> None:
        array["chunk_grid"]["configuration"]["chunk_shape"] = [1]
        array["codecs"] = [{"name": "vlen-bytes"}, {"name": codec, "configuration": {}}]

    frame = struct.pack("<II", 1, 2**26) + bytes(2**26)
    packed = numcodecs.get_codec({"id": codec.removeprefix("numcodecs."), "level": 9}).encode(frame)
    shutil.rmtree(copied / CAMERA / "c")
    (copied / CAMERA / "c").mkdir()
    for row in range(HUMAN_FRAMES):
        (copied / CAMERA / "c" / str(row)).write_bytes(packed)
    edit_json(copied / CAMERA / "zarr.json", pack)
    cameras = keymap(cam=entry(CAMERA, "camera_keys"))
    dataset = ZarrDataset(copied, cameras)
    refused(lambda: dataset.__getitems__(list(range(HUMAN_FRAMES))), CAMERA, "at most")
    bounded(lambda: validate_paths([copied], depth="sampled", workers=1))
