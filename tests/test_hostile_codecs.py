"""What zarr-python is asked to unpack: data, and no more of it than a chunk has."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest

from egoloader import ZarrEpisode
from egoloader.errors import (
    ReadError,
)
from tests.hostile import (
    bounded,
    refused,
)
from tests.test_chunkcodec import zstd_blocks

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

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
