"""Folders to convert that lead elsewhere, or promise more than memory holds."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from egoloader.convert import convert_lerobot
from egoloader.convert.pictures import picture_frames
from egoloader.convert.video import video_frames
from egoloader.errors import (
    ConversionError,
)
from tests.hostile import (
    refused,
)
from tests.lerobot_folders import Folder, coded, write_video

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

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
