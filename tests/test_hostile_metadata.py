"""Metadata that asks for too much, and stored bytes that are more than a chunk has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import zarr

from egoloader import ZarrEpisode
from egoloader.overview import overview
from egoloader.shards import encode_index
from egoloader.validate import validate_paths
from tests.episodes import HUMAN_FRAMES, edit_json, ramp, write_human
from tests.hostile import (
    CAMERA,
    KEY,
    Change,
    bounded,
    everything,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

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
