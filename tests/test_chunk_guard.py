"""Bytes that are missing, cut short or flipped: section 8 of DESIGN, as far as reading goes."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BytesCodec, ShardingCodec

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.errors import (
    EgoloaderError,
    EpisodeFormatError,
    MissingChunkError,
    MissingChunkWarning,
    ReadError,
)
from egoloader.shards import decode_index, encode_index, index_size
from tests.episodes import (
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
CAMERA = "images.front_1"
TOTAL = 250


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An intact episode by the writer; tests copy it."""
    return write_human(tmp_path_factory.mktemp("whole") / "ep.zarr", TOTAL)


@pytest.fixture
def stamped(whole: Path, tmp_path: Path) -> Path:
    """An episode by the writer, for a test to break."""
    shutil.copytree(whole, tmp_path / "ep.zarr")
    return tmp_path / "ep.zarr"


def foreign(path: Path, values: npt.NDArray[Any] | None = None, **layout: Any) -> Path:
    """Write an array with zarr-python, which leaves out chunks that hold fill values only."""
    group = foreign_group(path, TOTAL)
    values = ramp(TOTAL, 7) if values is None else values
    layout = {"chunks": (100, 7), "config": {"write_empty_chunks": False}, **layout}
    foreign_numbers(group, KEY, values, **layout)
    return path


def blank_entry(shard: Path, chunk: int, num_chunks: int) -> None:
    """Make a shard's index say that it does not hold a chunk."""
    data = shard.read_bytes()
    size = index_size(num_chunks, has_crc=True)
    index = decode_index(data[-size:], num_chunks, has_crc=True)
    index[chunk] = 2**64 - 1
    shard.write_bytes(data[:-size] + encode_index(index[:, 0], index[:, 1]))


def read(path: Path, key: str = KEY, start: int = 0, stop: int = TOTAL, **options: Any) -> Any:
    return ZarrEpisode(path, **options).read({key: [(start, stop)]})[key][0]


# A stamped episode has every chunk.


@pytest.mark.parametrize("key", [KEY, CAMERA])
@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
def test_case_17_a_stamped_episode_without_a_shard_file_is_refused(
    stamped: Path, key: str, missing_chunks: Any
) -> None:
    shutil.rmtree(stamped / key / "c")
    with pytest.raises(MissingChunkError, match=re.escape(key)) as caught:
        read(stamped, key, missing_chunks=missing_chunks)
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", key)


@pytest.mark.parametrize("missing_chunks", ["error", "fill"])
def test_case_17_a_stamped_episode_with_an_empty_index_entry_is_refused(
    stamped: Path, missing_chunks: Any
) -> None:
    blank_entry(stamped / KEY / "c/0/0", chunk=1, num_chunks=3)
    with pytest.raises(MissingChunkError, match=re.escape(KEY)):
        read(stamped, missing_chunks=missing_chunks)
    # Rows of the chunks that are there still read.
    assert (read(stamped, start=0, stop=100) == ramp(TOTAL, 7)[:100]).all()
    assert (read(stamped, start=200, stop=250) == ramp(TOTAL, 7)[200:]).all()


def test_a_stamped_camera_with_an_empty_index_entry_is_refused(stamped: Path) -> None:
    blank_entry(stamped / CAMERA / "c/0", chunk=7, num_chunks=TOTAL)
    with pytest.raises(MissingChunkError, match=re.escape(CAMERA)):
        read(stamped, CAMERA, 5, 9)
    assert len(read(stamped, CAMERA, 8, 10)) == 2


def test_a_stamped_annotation_that_is_missing_is_refused(tmp_path: Path) -> None:
    spans = [("reach", 0, 4), ("pick", 4, 9)]
    path = write_human(tmp_path / "ep.zarr", 10, annotations=spans)
    assert list(ZarrEpisode(path).annotations()) == spans
    shutil.rmtree(path / "annotations/c")
    with pytest.raises(MissingChunkError, match="annotations"):
        ZarrEpisode(path).annotations()


def test_all_zero_chunks_of_a_stamped_episode_are_stored(tmp_path: Path) -> None:
    zeros = np.zeros((TOTAL, 3), dtype=np.float32)
    EpisodeWriter.write(tmp_path / "ep.zarr", numeric={"a": zeros}, fps=30, embodiment="human")
    assert (read(tmp_path / "ep.zarr", "a") == 0).all()


# Elsewhere, Zarr leaves out what holds fill values.


def test_case_17_a_foreign_empty_index_entry_is_fill_values(tmp_path: Path) -> None:
    values = ramp(TOTAL, 7)
    values[100:200] = 0
    path = foreign(tmp_path / "ep.zarr", values, shards=(300, 7))
    assert (read(path) == values).all()


def test_an_empty_index_entry_takes_the_arrays_own_fill_value(tmp_path: Path) -> None:
    values = ramp(TOTAL, 7)
    values[100:200] = 7
    path = foreign(tmp_path / "ep.zarr", values, shards=(300, 7), fill_value=7)
    assert (read(path, start=95, stop=205) == values[95:205]).all()


LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("c/1/0", {}),
    ("c/1/0", {"chunks": (50, 7), "shards": (100, 7)}),
    ("1.0", {"chunk_key_encoding": {"name": "v2", "separator": "."}}),
]


@pytest.mark.parametrize(("chunk", "layout"), LAYOUTS)
def test_case_17_a_foreign_missing_file_is_an_error_that_names_the_way_out(
    tmp_path: Path, chunk: str, layout: dict[str, Any]
) -> None:
    path = foreign(tmp_path / "ep.zarr", **layout)
    (path / KEY / chunk).unlink()
    with pytest.raises(MissingChunkError, match="missing_chunks: fill") as caught:
        read(path)
    assert f"{KEY}/{chunk}" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert (read(path, start=0, stop=100) == ramp(TOTAL, 7)[:100]).all()


@pytest.mark.parametrize(("chunk", "layout"), LAYOUTS)
def test_case_17_fill_serves_fill_values_with_one_warning_a_key(
    tmp_path: Path, chunk: str, layout: dict[str, Any]
) -> None:
    path = foreign(tmp_path / "ep.zarr", **layout)
    (path / KEY / chunk).unlink()
    ep = ZarrEpisode(path, missing_chunks="fill")
    wanted = ramp(TOTAL, 7)
    wanted[100:200] = 0
    with pytest.warns(MissingChunkWarning, match=KEY) as caught:
        found = [ep.read({KEY: [(0, TOTAL)]})[KEY][0] for _ in range(3)]
    assert len(caught) == 1
    assert all((rows == wanted).all() for rows in found)


def test_fill_warns_once_for_each_key(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL)
    for key in ("a", "b", "whole"):
        foreign_numbers(group, key, ramp(TOTAL, 2))
    for key in ("a", "b"):
        for chunk in "02":
            (tmp_path / "ep.zarr" / key / "c" / chunk / "0").unlink()
    ep = ZarrEpisode(tmp_path / "ep.zarr", missing_chunks="fill")
    with pytest.warns(MissingChunkWarning) as caught:
        ep.read({key: [(0, TOTAL)] for key in ("a", "b", "whole")})
    assert len(caught) == 2


def test_a_missing_file_of_a_zarr_v2_array_is_an_error(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", TOTAL, zarr_format=2)
    foreign_numbers(group, KEY, ramp(TOTAL, 7))
    (tmp_path / "ep.zarr" / KEY / "1.0").unlink()
    with pytest.raises(MissingChunkError, match="missing_chunks: fill"):
        read(tmp_path / "ep.zarr")


def test_a_missing_foreign_camera_frame_is_never_an_empty_picture(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 9)
    foreign_bytes(group, CAMERA, [b"jpeg"] * 9)
    (tmp_path / "ep.zarr" / CAMERA / "c/4").unlink()
    with pytest.raises(MissingChunkError, match="missing_chunks: fill"):
        read(tmp_path / "ep.zarr", CAMERA, 3, 6)


def test_a_missing_chunk_past_the_last_frame_harms_nobody(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 150)
    foreign_numbers(group, KEY, ramp(TOTAL, 7))
    (tmp_path / "ep.zarr" / KEY / "c/2/0").unlink()
    assert (read(tmp_path / "ep.zarr", stop=150) == ramp(150, 7)).all()


def test_a_chunk_that_can_not_be_opened_is_an_error_of_ours(stamped: Path) -> None:
    shard = stamped / KEY / "c/0/0"
    shard.unlink()
    shard.mkdir()
    with pytest.raises(EgoloaderError, match=KEY):
        read(stamped)


def test_missing_chunks_takes_error_or_fill(stamped: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'fill'"):
        ZarrEpisode(stamped, missing_chunks="fil")  # type: ignore[arg-type]


# Bytes that are there and wrong.

BYTE_RANGE = r"bytes \d+ to \d+"


@pytest.mark.parametrize("key", [KEY, CAMERA])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_shard_is_an_error_naming_the_byte_range(
    stamped: Path, key: str, share: float
) -> None:
    shard = stamped / key / ("c/0/0" if key == KEY else "c/0")
    data = shard.read_bytes()
    shard.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(ReadError, match=BYTE_RANGE) as caught:
        read(stamped, key)
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", key)


@pytest.mark.parametrize("key", [KEY, CAMERA])
def test_a_flipped_bit_in_a_chunk_is_an_error_naming_the_byte_range(
    stamped: Path, key: str
) -> None:
    shard = stamped / key / ("c/0/0" if key == KEY else "c/0")
    data = bytearray(shard.read_bytes())
    data[20] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ReadError, match=BYTE_RANGE):
        read(stamped, key, 0, 1)
    # The neighbour chunk is whole.
    assert len(read(stamped, key, 100, 101)) == 1


def test_a_flipped_bit_in_an_annotation_is_an_error(tmp_path: Path) -> None:
    path = write_human(tmp_path / "ep.zarr", 10, annotations=[("reach", 0, 4)])
    chunk = next(file for file in (path / "annotations/c").rglob("*") if file.is_file())
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    with pytest.raises(ReadError, match="annotations"):
        ZarrEpisode(path).annotations()


@pytest.mark.parametrize(
    "layout", [{}, {"compressors": None}, {"shards": (300, 7)}], ids=["zstd", "raw", "sharded"]
)
def test_a_truncated_foreign_chunk_is_an_error_naming_the_byte_range(
    tmp_path: Path, layout: dict[str, Any]
) -> None:
    path = foreign(tmp_path / "ep.zarr", **layout)
    chunk = path / KEY / "c/0/0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    with pytest.raises(ReadError, match=BYTE_RANGE):
        read(path)


def test_a_foreign_index_that_points_past_its_file_is_refused(tmp_path: Path) -> None:
    path = foreign(tmp_path / "ep.zarr", shards=(300, 7))
    shard = path / KEY / "c/0/0"
    size = index_size(3, has_crc=True)
    data = shard.read_bytes()
    index = decode_index(data[-size:], 3, has_crc=True)
    index[1] = (len(data) - 10, 100)
    shard.write_bytes(data[:-size] + encode_index(index[:, 0], index[:, 1]))
    with pytest.raises(ReadError, match=f"cut short.*{BYTE_RANGE}"):
        read(path, start=100, stop=101)
    assert len(read(path, start=0, stop=100)) == 100


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (10**6, f"{BYTE_RANGE}: the shard's index has"),
        (10**12, "a shard has 1000000000000 chunks, the limit is"),
        (10**30, "chunk_shape reaches"),
    ],
)
def test_an_index_that_is_to_be_larger_than_its_file_is_not_asked_for(
    tmp_path: Path, rows: int, message: str
) -> None:
    path = foreign(tmp_path / "ep.zarr", shards=(300, 7))

    def promise(metadata: dict[str, Any]) -> None:
        metadata["chunk_grid"]["configuration"]["chunk_shape"][0] = 100 * rows

    edit_json(path / KEY / "zarr.json", promise)
    with pytest.raises((ReadError, EpisodeFormatError), match=message) as caught:
        read(path, start=0, stop=1)
    assert caught.value.key == KEY


def test_a_shard_that_ends_early_behind_an_index_at_its_start_is_refused(tmp_path: Path) -> None:
    sharding = ShardingCodec(chunk_shape=(100, 7), codecs=[BytesCodec()], index_location="start")
    path = foreign(tmp_path / "ep.zarr", chunks=(300, 7), serializer=sharding, compressors=None)
    shard = path / KEY / "c/0/0"
    shard.write_bytes(shard.read_bytes()[:-9])
    with pytest.raises(ReadError, match=f"cut short.*{BYTE_RANGE}"):
        read(path, start=200, stop=201)
    assert (read(path, start=0, stop=200) == ramp(200, 7)).all()


@settings(deadline=None, max_examples=50)
@given(place=st.integers(0, 10**9), bit=st.integers(0, 7), is_camera=st.booleans())
def test_no_flipped_bit_of_a_stamped_shard_passes_unseen(
    whole: Path, place: int, bit: int, is_camera: bool
) -> None:
    key, name = (CAMERA, "c/0") if is_camera else (KEY, "c/0/0")
    shard = whole / key / name
    intact = shard.read_bytes()
    broken = bytearray(intact)
    broken[place % len(broken)] ^= 1 << bit
    try:
        shard.write_bytes(broken)
        with pytest.raises(ReadError):
            read(whole, key)
    finally:
        shard.write_bytes(intact)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("rows", [0, 4, 6, 2**32 - 1])
def test_a_chunk_of_bytes_that_claims_another_number_of_rows_is_refused(
    tmp_path: Path, zarr_format: int, rows: int
) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 20, zarr_format=zarr_format)
    foreign_bytes(group, "cam", [b"0123456789"] * 20, chunks=(5,), compressors=None)
    chunk = tmp_path / "ep.zarr/cam" / ("c/0" if zarr_format == 3 else "0")
    chunk.write_bytes(rows.to_bytes(4, "little") + chunk.read_bytes()[4:])
    with pytest.raises(ReadError, match=f"{rows} rows"):
        read(tmp_path / "ep.zarr", "cam", 0, 20)


@settings(deadline=None, max_examples=50)
@given(edits=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), max_size=6))
def test_whatever_stands_in_a_foreign_chunk_only_errors_of_ours_come_out(
    edits: list[tuple[int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ep.zarr"
        group = foreign_group(path, 20)
        foreign_numbers(group, "a", ramp(20, 7), chunks=(10, 7))
        foreign_bytes(group, "cam", [b"0123456789"] * 20, chunks=(5,), compressors=None)
        foreign_bytes(group, "shard", [b"0123456789"] * 20, chunks=(1,), shards=(20,))
        for file in ("a/c/0/0", "cam/c/0", "shard/c/0"):
            data = bytearray((path / file).read_bytes())
            for place, value in edits:
                data[place % len(data)] = value
            (path / file).write_bytes(data)
        for key in ("a", "cam", "shard"):
            with contextlib.suppress(EgoloaderError):
                assert len(read(path, key, 0, 20)) == 20


def test_a_half_written_episode_is_refused(stamped: Path) -> None:
    edit_attrs(stamped, egoloader={"version": 1, "complete": False})
    with pytest.raises(ValueError, match=r"ep\.zarr.*half-written"):
        ZarrEpisode(stamped)


def test_broken_annotations_are_named(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 10)
    foreign_annotations(group, [("reach", 0, 4)])
    edit_json(tmp_path / "ep.zarr/annotations/zarr.json", lambda m: m.pop("shape"))
    with pytest.raises(ValueError, match="annotations"):
        ZarrEpisode(tmp_path / "ep.zarr").annotations()
