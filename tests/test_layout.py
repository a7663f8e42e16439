"""Array metadata: parsed as zarr-python wrote it, and refused where it contradicts itself."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

from egoloader.errors import EpisodeFormatError
from egoloader.layout import ArrayLayout, parse_layout
from tests.episodes import foreign_bytes, foreign_group, foreign_numbers, ramp, write_human

V3: dict[str, Any] = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [250, 7],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [300, 7]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0.0,
    "codecs": [
        {
            "name": "sharding_indexed",
            "configuration": {
                "chunk_shape": [100, 7],
                "codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "zstd", "configuration": {"level": 0, "checksum": False}},
                ],
                "index_codecs": [
                    {"name": "bytes", "configuration": {"endian": "little"}},
                    {"name": "crc32c"},
                ],
                "index_location": "end",
            },
        }
    ],
    "attributes": {},
}
V2: dict[str, Any] = {
    "zarr_format": 2,
    "shape": [250, 7],
    "chunks": [100, 7],
    "dtype": "<f4",
    "fill_value": 0,
    "order": "C",
    "filters": None,
    "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1},
}


def parse(metadata: dict[str, Any]) -> ArrayLayout:
    return parse_layout(metadata, episode="ep.zarr", key="left.obs_ee_pose")


def parse_file(folder: Path) -> ArrayLayout:
    name = "zarr.json" if (folder / "zarr.json").exists() else ".zarray"
    return parse(json.loads((folder / name).read_text()))


def test_a_sharded_array() -> None:
    layout = parse(V3)
    assert (layout.rows, layout.row_shape) == (250, (7,))
    assert layout.chunk_rows == 100
    assert layout.chunk_shape == (100, 7)
    assert layout.shard_shape == layout.object_shape == (300, 7)
    assert layout.chunks_per_shard == (3, 1)
    assert (layout.kind, layout.dtype) == ("numeric", np.dtype("float32"))
    assert layout.codecs == ("bytes", "zstd")
    assert (layout.index_at_end, layout.index_has_crc, layout.index_is_plain) == (True, True, True)
    assert layout.object_path((0, 0)) == "c/0/0"


def test_an_unsharded_array() -> None:
    metadata = {**V3, "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}]}
    layout = parse(metadata)
    assert layout.shard_shape is None
    assert layout.chunk_shape == layout.object_shape == (300, 7)
    assert layout.chunks_per_shard == (1, 1)
    assert layout.codecs == ("bytes",)


def test_an_index_at_the_start_without_crc() -> None:
    metadata = copy.deepcopy(V3)
    sharding = metadata["codecs"][0]["configuration"]
    sharding["index_location"], sharding["index_codecs"] = "start", sharding["index_codecs"][:1]
    layout = parse(metadata)
    assert (layout.index_at_end, layout.index_has_crc, layout.index_is_plain) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize(
    "index_codecs",
    [
        [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}],
        [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}],
    ],
)
def test_an_index_in_other_codecs_is_left_to_zarr(index_codecs: list[Any]) -> None:
    metadata = copy.deepcopy(V3)
    metadata["codecs"][0]["configuration"]["index_codecs"] = index_codecs
    assert not parse(metadata).index_is_plain


@pytest.mark.parametrize(
    ("encoding", "path"),
    [
        ({"name": "default", "configuration": {"separator": "/"}}, "c/2/0"),
        ({"name": "default", "configuration": {"separator": "."}}, "c.2.0"),
        ({"name": "default"}, "c/2/0"),
        ({"name": "v2", "configuration": {"separator": "."}}, "2.0"),
        ({"name": "v2", "configuration": {"separator": "/"}}, "2/0"),
        ({"name": "v2"}, "2.0"),
    ],
)
def test_chunk_paths(encoding: dict[str, Any], path: str) -> None:
    assert parse({**V3, "chunk_key_encoding": encoding}).object_path((2, 0)) == path


@pytest.mark.parametrize("spelling", ["bytes", "variable_length_bytes"])
def test_both_spellings_of_variable_length_bytes(spelling: str) -> None:
    layout = parse({**V3, "data_type": spelling})
    assert (layout.kind, layout.dtype, layout.type_name) == ("bytes", None, spelling)


@pytest.mark.parametrize(
    "name", ["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"]
)
def test_numeric_types(name: str) -> None:
    layout = parse({**V3, "data_type": name})
    assert (layout.kind, layout.dtype) == ("numeric", np.dtype(name))


@pytest.mark.parametrize(
    "data_type",
    [
        "string",
        "complex64",
        "r16",
        "no_such_type",
        {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}},
        {"name": "fixed_length_utf32", "configuration": {"length_bytes": 40}},
    ],
)
def test_types_that_are_neither_numbers_nor_bytes(data_type: Any) -> None:
    assert parse({**V3, "data_type": data_type}).kind == "other"


def test_a_v2_array() -> None:
    layout = parse(V2)
    assert (layout.zarr_format, layout.kind, layout.dtype) == (2, "numeric", np.dtype("float32"))
    assert layout.chunk_shape == layout.object_shape == (100, 7)
    assert layout.codecs == ("bytes", "blosc")
    assert layout.object_path((2, 0)) == "2.0"
    assert parse({**V2, "dimension_separator": "/"}).object_path((2, 0)) == "2/0"


def test_v2_arrays_of_bytes_and_of_others() -> None:
    filters = [{"id": "vlen-bytes"}]
    layout = parse({**V2, "dtype": "|O", "filters": filters, "compressor": None})
    assert (layout.kind, layout.codecs) == ("bytes", ("vlen-bytes",))
    assert parse({**V2, "dtype": "|O", "filters": [{"id": "vlen-utf8"}]}).kind == "other"
    assert parse({**V2, "dtype": "|S4"}).kind == "other"
    assert parse({**V2, "dtype": [["x", "<f4"]]}).kind == "other"


def test_v2_numbers_are_served_in_native_byte_order() -> None:
    assert parse({**V2, "dtype": ">f4"}).dtype == np.dtype("float32")


def test_case_16_an_empty_array_may_have_a_grid_of_zeros() -> None:
    metadata = copy.deepcopy(V3)
    metadata["shape"] = [0]
    metadata["chunk_grid"]["configuration"]["chunk_shape"] = [0]
    metadata["codecs"][0]["configuration"]["chunk_shape"] = [0]
    assert parse(metadata).rows == 0


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in V3.items() if key != name}


def _chunked(shape: list[int], chunks: list[int]) -> dict[str, Any]:
    """Return the metadata of an array without shards."""
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    return {**V3, "shape": shape, "chunk_grid": grid, "codecs": [{"name": "bytes"}]}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {"zarr_format": 3, "node_type": "group", "attributes": {}},
        {**V3, "zarr_format": 4},
        _without("shape"),
        _without("chunk_grid"),
        _without("data_type"),
        _without("codecs"),
        {**V3, "shape": 250},
        {**V3, "shape": [250.0, 7]},
        {**V3, "shape": [-1, 7]},
        {**V3, "shape": []},
        {**V3, "shape": [250]},
        {**V3, "chunk_grid": {"name": "rectangular", "configuration": {}}},
        {**V3, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 7]}}},
        {**V3, "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [250, 7]}}},
        {**V3, "chunk_key_encoding": {"name": "no_such_encoding"}},
        {**V3, "codecs": [None]},
        {**V3, "codecs": {"name": "bytes"}},
        {**V2, "chunks": [100]},
        {**V2, "chunks": None},
        {**V2, "order": "X"},
        {**V2, "compressor": {"id": ["zlib"]}},
        {**V3, "codecs": [{"name": "bytes", "configuration": "little"}]},
        {**V3, "codecs": [{"name": ["bytes"]}]},
    ],
)
def test_metadata_that_can_not_be_right_is_refused(metadata: dict[str, Any]) -> None:
    with pytest.raises(EpisodeFormatError, match=r"left\.obs_ee_pose") as caught:
        parse(metadata)
    assert (caught.value.episode, caught.value.key) == ("ep.zarr", "left.obs_ee_pose")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({**V3, "shape": [250, 2**40]}, "a row has"),
        (_chunked([250, 7], [2**40, 7]), "a chunk has"),
        (_chunked([250, 10**6], [100, 1]), "a row is spread over 1000000 chunks"),
        (_chunked([2**40], [100]), "it has 1099511627776 rows"),
        ({**_chunked([250], [10**9]), "data_type": "bytes"}, "a chunk has"),
        ({**V2, "shape": [250, 2**40], "chunks": [1, 2**40]}, "a row has"),
    ],
)
def test_sizes_that_nobody_records_are_refused(metadata: dict[str, Any], message: str) -> None:
    with pytest.raises(EpisodeFormatError, match=message):
        parse(metadata)


@pytest.mark.parametrize(
    "dtype", ["no_such_type", "(1,f4", "f4,i4", "(3,)<f4", "<f16", "O", None, []]
)
def test_v2_types_that_are_no_numbers_are_not_made_of_text(dtype: Any) -> None:
    assert parse({**V2, "dtype": dtype}).kind == "other"


@pytest.mark.parametrize("data_type", ["<f4", "(1,f4", "O", "longdouble", "", {"name": "f4,i4"}])
def test_v3_types_are_those_of_the_specification(data_type: Any) -> None:
    assert parse({**V3, "data_type": data_type}).kind == "other"


def test_a_type_without_a_name_is_not_taken_for_numbers() -> None:
    assert parse({**V3, "data_type": {"name": None}}).kind == "other"


@pytest.mark.parametrize("separator", ["/../../other/c/", "", "//", None, 3, ["/"]])
def test_a_separator_that_could_lead_out_of_the_episode_is_refused(separator: Any) -> None:
    for metadata in (
        {**V2, "dimension_separator": separator},
        {**V3, "chunk_key_encoding": {"name": "v2", "configuration": {"separator": separator}}},
        {
            **V3,
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": separator}},
        },
    ):
        with pytest.raises(EpisodeFormatError, match="expected, got"):
            parse(metadata)


def test_layouts_as_zarr_python_writes_them(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "ep.zarr", 250)
    foreign_numbers(group, "plain", ramp(250, 7), chunks=(64, 4))
    sharding = ShardingCodec(chunk_shape=(50, 7), codecs=[BytesCodec(), ZstdCodec(), Crc32cCodec()])
    foreign_numbers(
        group, "sharded", ramp(250, 7), chunks=(100, 7), serializer=sharding, compressors=None
    )
    foreign_bytes(group, "cam", [b"x"] * 250, shards=(250,))
    plain = parse_file(tmp_path / "ep.zarr/plain")
    assert (plain.chunk_shape, plain.shard_shape) == ((64, 4), None)
    sharded = parse_file(tmp_path / "ep.zarr/sharded")
    assert (sharded.chunk_shape, sharded.shard_shape) == ((50, 7), (100, 7))
    assert sharded.codecs == ("bytes", "zstd", "crc32c")
    camera = parse_file(tmp_path / "ep.zarr/cam")
    assert (camera.kind, camera.chunk_rows, camera.shard_shape) == ("bytes", 1, (250,))


def test_layouts_as_the_writer_leaves_them(tmp_path: Path) -> None:
    episode = write_human(tmp_path / "ep.zarr", 250)
    numbers = parse_file(episode / "left.obs_keypoints")
    assert (numbers.shape, numbers.chunk_shape) == ((250, 63), (100, 63))
    assert numbers.shard_shape == (300, 63)
    assert numbers.codecs[0] == "bytes"
    assert numbers.codecs[-1] == "crc32c"
    camera = parse_file(episode / "images.front_1")
    assert (camera.rows, camera.chunk_rows, camera.shard_shape) == (250, 1, (250,))
    # JPEGs are not compressed again; each carries a checksum.
    assert camera.codecs == ("vlen-bytes", "crc32c")
