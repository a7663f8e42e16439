"""What the writer leaves on disk, against zarr-python and a parser of shard files of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
import zarr
from numcodecs.zstd import Zstd

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.camerafile import CameraFile
from egoloader.catalog import find_episodes
from egoloader.errors import (
    EpisodeExistsError,
    EpisodeNotFoundError,
    NonFiniteWarning,
    WriterError,
)
from egoloader.store import MAX_METADATA_BYTES
from tests.episodes import jpegs, pictures, ramp

DTYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
)
HEAD: dict[str, Any] = {"fps": 30, "embodiment": "robot"}


def bits(shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Return an array of all kinds of bit patterns, none of them NaN or inf."""
    rng = np.random.default_rng(len(shape))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    values = rng.integers(0, 256, (*shape, np.dtype(dtype).itemsize), dtype=np.uint8)
    numbers = values.view(dtype)[..., 0]
    return np.where(np.isfinite(numbers), numbers, np.dtype(dtype).type(-0.0))


def same_bytes(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def stored(path: Path, key: str) -> npt.NDArray[Any]:
    """Read an array back with zarr-python."""
    return np.asarray(zarr.open_array(path / key, mode="r")[...])


def files(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def checked(data: bytes) -> bytes:
    """Strip a crc32c, little endian, off the end; it must match."""
    assert google_crc32c.value(data[:-4]) == struct.unpack("<I", data[-4:])[0]
    return data[:-4]


def shard_chunks(array: Path) -> list[bytes]:
    """Parse an array's one shard by its metadata, without the project; check every crc32c."""
    meta = json.loads((array / "zarr.json").read_text())
    (sharding,) = meta["codecs"]
    config = sharding["configuration"]
    assert config["index_location"] == "end"
    assert [c["name"] for c in config["index_codecs"]] == ["bytes", "crc32c"]
    assert config["codecs"][-1] == {"name": "crc32c"}
    shard = meta["chunk_grid"]["configuration"]["chunk_shape"]
    assert shard[1:] == config["chunk_shape"][1:] == meta["shape"][1:]
    assert shard[0] % config["chunk_shape"][0] == 0
    assert shard[0] - config["chunk_shape"][0] < meta["shape"][0] <= shard[0]
    (file,) = [path for path in (array / "c").rglob("*") if path.is_file()]
    data, count = file.read_bytes(), shard[0] // config["chunk_shape"][0]
    index = struct.unpack(f"<{2 * count}Q", checked(data[-16 * count - 4 :]))
    chunks, end = [], 0
    for offset, length in zip(index[::2], index[1::2], strict=True):
        assert offset == end, "chunks lie in order, without gaps, and none is left out"
        chunks.append(checked(data[offset : offset + length]))
        end = offset + length
    assert end == len(data) - 16 * count - 4
    return chunks


def quantisation(jpeg: bytes) -> int:
    """Return the step of the lowest luminance frequency, from a JPEG's first DQT segment."""
    place = jpeg.index(b"\xff\xdb")
    assert jpeg[place + 4] == 0, "8 bit, table 0"
    return jpeg[place + 5]


class TestNumbers:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_dtype_and_rank_reads_back_exactly(self, tmp_path: Path, dtype: str) -> None:
        shapes = {"scalar": (101,), "vector": (101, 3), "grid": (101, 21, 3)}
        values = {key: bits(shape, dtype) for key, shape in shapes.items()}
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric=values, **HEAD)
        features = ZarrEpisode(tmp_path / "ep.zarr").attrs["features"]
        for key, wanted in values.items():
            assert same_bytes(stored(tmp_path / "ep.zarr", key), wanted)
            assert features[key] == {"dtype": dtype, "shape": [*wanted.shape[1:]], "names": None}

    @pytest.mark.parametrize("total", [1, 99, 100, 101, 250])
    def test_every_length_reads_back_exactly(self, tmp_path: Path, total: int) -> None:
        values = {"a": ramp(total, 7), "b": ramp(total, 1, "float64")[:, 0]}
        EpisodeWriter.write(
            tmp_path / "ep.zarr", numeric=values, images={"cam": pictures(total)}, **HEAD
        )
        episode = ZarrEpisode(tmp_path / "ep.zarr")
        assert episode.total_frames == total
        for key, wanted in values.items():
            assert same_bytes(stored(episode.path, key), wanted)
            np.testing.assert_array_equal(episode.read({key: [(0, total)]})[key][0], wanted)
            assert episode.layout(key).chunk_rows == 100
            assert len(shard_chunks(episode.path / key)) == -(-total // 100)
        assert len(shard_chunks(episode.path / "cam")) == total
        assert stored(episode.path, "cam").shape == (total,)

    def test_chunk_rows_are_settable(self, tmp_path: Path) -> None:
        EpisodeWriter.write(tmp_path / "e", numeric={"a": ramp(20, 2)}, chunk_rows=7, **HEAD)
        assert same_bytes(stored(tmp_path / "e", "a"), ramp(20, 2))
        chunks = [Zstd().decode(chunk) for chunk in shard_chunks(tmp_path / "e" / "a")]
        rows = [np.frombuffer(chunk, "<f4").reshape(7, 2) for chunk in chunks]
        np.testing.assert_array_equal(np.concatenate(rows)[:20], ramp(20, 2))
        np.testing.assert_array_equal(np.concatenate(rows)[20:], np.zeros((1, 2)))

    def test_chunks_of_zeros_are_stored(self, tmp_path: Path) -> None:
        values = {"a": np.zeros((250, 3), np.float32), "b": np.zeros(250, bool)}
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric=values, **HEAD)
        for key in values:
            assert len(shard_chunks(tmp_path / "ep.zarr" / key)) == 3
            assert same_bytes(stored(tmp_path / "ep.zarr", key), values[key])

    def test_byte_order_strides_lists_and_reused_buffers(self, tmp_path: Path) -> None:
        wanted = ramp(103, 4)
        buffer = np.empty(4, np.float32)
        with EpisodeWriter(tmp_path / "ep.zarr", **HEAD) as writer:
            for t in range(103):
                buffer[:] = wanted[t]
                row = wanted[t].tolist()
                writer.add_frame(
                    numeric={
                        "reused": buffer,
                        "big": wanted[t].astype(">f4"),
                        "strided": np.repeat(wanted[t], 2)[::2],
                        "list": row,
                    }
                )
                buffer[:] = -1
        for key in ("reused", "big", "strided"):
            assert same_bytes(stored(tmp_path / "ep.zarr", key), wanted)
        assert same_bytes(stored(tmp_path / "ep.zarr", "list"), wanted.astype(np.float64))

    @pytest.mark.parametrize("key", ["left.obs_pose", "a/b", "a/b.c/d", "1st", "two words", "ü"])
    def test_names_with_dots_slashes_and_digits(self, tmp_path: Path, key: str) -> None:
        EpisodeWriter.write(
            tmp_path / "ep.zarr", numeric={key: ramp(3, 2), "x": ramp(3, 1)}, **HEAD
        )
        assert same_bytes(stored(tmp_path / "ep.zarr", key), ramp(3, 2))
        # zarr-python lists the hierarchy, and would warn of a folder that is no node.
        members = dict(zarr.open_group(tmp_path / "ep.zarr", mode="r").members(max_depth=None))
        arrays = {name for name, node in members.items() if isinstance(node, zarr.Array)}
        assert arrays == {key, "x", "annotations"}
        assert set(ZarrEpisode(tmp_path / "ep.zarr").keys) == arrays
        assert find_episodes(tmp_path) == ["ep.zarr"]


class TestNonFinite:
    def test_one_warning_a_key_says_how_many_and_where(self, tmp_path: Path) -> None:
        a, b = ramp(120, 3), ramp(120, 2, "float64")
        a[7, 1], a[7, 2], a[110, 0], b[3] = np.nan, np.inf, np.nan, -np.inf
        values = {"a": a, "b": b, "fine": ramp(120, 1)}
        with pytest.warns(NonFiniteWarning) as caught:
            EpisodeWriter.write(tmp_path / "ep.zarr", numeric=values, **HEAD)
        texts = [str(warning.message) for warning in caught]
        assert len(texts) == 2
        assert "ep.zarr', key 'a': 2 of 120 rows" in texts[0]
        assert "first at frame 7" in texts[0]
        assert "key 'b': 1 of 120 rows" in texts[1]
        assert "first at frame 3" in texts[1]
        assert same_bytes(stored(tmp_path / "ep.zarr", "a"), a)
        assert same_bytes(stored(tmp_path / "ep.zarr", "b"), b)


class TestCameras:
    def test_jpegs_are_kept_byte_for_byte(self, tmp_path: Path) -> None:
        colour = jpegs(pictures(3))
        gray = simplejpeg.encode_jpeg(
            np.full((16, 24, 1), 9, np.uint8), colorspace="GRAY", colorsubsampling="Gray"
        )
        with_tail = colour[0] + bytes(300)  # cameras pad their frames
        rows = [*colour, gray, with_tail]
        EpisodeWriter.write(tmp_path / "ep.zarr", images={"images.front_1": rows}, **HEAD)
        assert stored(tmp_path / "ep.zarr", "images.front_1").tolist() == rows
        chunks = shard_chunks(tmp_path / "ep.zarr" / "images.front_1")
        assert chunks == [struct.pack("<II", 1, len(row)) + row for row in rows]
        feature = ZarrEpisode(tmp_path / "ep.zarr").attrs["features"]["images.front_1"]
        assert feature == {"dtype": "jpeg", "shape": [16, 24, 3], "names": None}

    def test_what_zarr_reads_can_be_written_again(self, tmp_path: Path) -> None:
        EpisodeWriter.write(tmp_path / "a", images={"cam": pictures(3)}, **HEAD)
        EpisodeWriter.write(tmp_path / "b", images={"cam": stored(tmp_path / "a", "cam")}, **HEAD)
        assert files(tmp_path / "a") == files(tmp_path / "b")

    # The standard's luminance table starts with 16; libjpeg scales it by quality.
    @pytest.mark.parametrize(
        ("options", "step", "subsampling"),
        [
            ({}, 5, "420"),
            ({"jpeg_quality": 60}, 13, "420"),
            ({"jpeg_quality": 95, "jpeg_subsampling": "444"}, 2, "444"),
            ({"jpeg_subsampling": "422"}, 5, "422"),
        ],
    )
    def test_quality_and_subsampling(
        self, tmp_path: Path, options: dict[str, Any], step: int, subsampling: str
    ) -> None:
        frames = pictures(5)
        EpisodeWriter.write(tmp_path / "ep.zarr", images={"cam": frames}, **options, **HEAD)
        for frame, jpeg in zip(frames, stored(tmp_path / "ep.zarr", "cam"), strict=True):
            assert simplejpeg.decode_jpeg_header(jpeg) == (16, 24, "YCbCr", subsampling)
            assert quantisation(jpeg) == step
            # Flat pictures: only rounding separates them, and R, G, B are where they were.
            np.testing.assert_allclose(simplejpeg.decode_jpeg(jpeg).astype(int), frame, atol=6)

    def test_pixels_and_jpegs_mix_and_need_not_be_contiguous(self, tmp_path: Path) -> None:
        frames = pictures(4)
        wide = np.repeat(frames, 2, axis=2)
        with EpisodeWriter(tmp_path / "ep.zarr", **HEAD) as writer:
            writer.add_frame(images={"cam": frames[0]})
            writer.add_frame(images={"cam": jpegs(frames)[1]})
            writer.add_frame(images={"cam": wide[2, :, ::2]})
        rows = stored(tmp_path / "ep.zarr", "cam")
        assert rows[1] == jpegs(frames)[1]
        for t in (0, 1, 2):
            decoded = simplejpeg.decode_jpeg(rows[t]).astype(int)
            np.testing.assert_allclose(decoded, frames[t], atol=6)


class TestChecksums:
    @pytest.mark.parametrize("key", ["numbers", "cam", "annotations"])
    def test_a_flipped_bit_anywhere_is_noticed(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "ep.zarr"
        EpisodeWriter.write(
            path,
            numeric={"numbers": ramp(5, 2)},
            images={"cam": pictures(5, (8, 8))},
            annotations=[("pick", 0, 2), ("place", 2, 5)],
            chunk_rows=2,
            **HEAD,
        )
        (file,) = [p for p in (path / key / "c").rglob("*") if p.is_file()]
        data = file.read_bytes()
        array = zarr.open_array(path / key, mode="r")
        for place in range(0, len(data), 1 + len(data) // 150):
            broken = bytearray(data)
            broken[place] ^= 1 << place % 8
            file.write_bytes(broken)
            with pytest.raises(ValueError, match="checksum"):
                array[...]
        file.write_bytes(data)
        assert np.size(array[...]) == {"numbers": 10, "cam": 5, "annotations": 2}[key]


class TestAttributes:
    def test_everything_that_was_declared_is_there(self, tmp_path: Path) -> None:
        attrs = {"intrinsics": {"front": [[1.5, 0], [0, 1.5]]}, "robot": None, "ids": (1, 2)}
        EpisodeWriter.write(
            tmp_path / "ep.zarr",
            numeric={"left.obs_pose": ramp(4, 3), "x": ramp(4, 1)},
            images={"cam": pictures(4)},
            task_name="pick",
            task_description="Pick the bottle",
            attrs=attrs,
            names={"left.obs_pose": ["x", "y", "z"], "cam": ["height", "width", "channel"]},
            fps=29.97,
            embodiment="human",
        )
        assert dict(ZarrEpisode(tmp_path / "ep.zarr").attrs) == {
            "intrinsics": {"front": [[1.5, 0], [0, 1.5]]},
            "robot": None,
            "ids": [1, 2],
            "fps": 29.97,
            "embodiment": "human",
            "task_name": "pick",
            "task_description": "Pick the bottle",
            "total_frames": 4,
            "features": {
                "left.obs_pose": {"dtype": "float32", "shape": [3], "names": ["x", "y", "z"]},
                "x": {"dtype": "float32", "shape": [1], "names": None},
                "cam": {
                    "dtype": "jpeg",
                    "shape": [16, 24, 3],
                    "names": ["height", "width", "channel"],
                },
                "annotations": {"dtype": "json", "shape": [], "names": None},
            },
            "egoloader": {"version": 1, "complete": True},
        }

    def test_what_the_caller_changes_later_is_not_written(self, tmp_path: Path) -> None:
        attrs = {"calibration": {"focal": 1.0}}
        names = {"x": ["a"]}
        with EpisodeWriter(tmp_path / "ep.zarr", attrs=attrs, names=names, **HEAD) as writer:
            attrs["calibration"]["focal"] = float("nan")
            names["x"].append("b")
            writer.add_frame(numeric={"x": np.zeros(1)})
        written = ZarrEpisode(tmp_path / "ep.zarr").attrs
        assert written["calibration"] == {"focal": 1.0}
        assert written["features"]["x"]["names"] == ["a"]

    @pytest.mark.parametrize("spans", [[], [("only", 0, 1)], [("pick ✓", 0, 3), ("b", 1, 4)]])
    def test_annotations(self, tmp_path: Path, spans: list[tuple[str, int, int]]) -> None:
        numpy_spans = [(text, np.int64(start), np.int32(end)) for text, start, end in spans]
        values = {"x": ramp(4, 1)}
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric=values, annotations=numpy_spans, **HEAD)
        assert ZarrEpisode(tmp_path / "ep.zarr").annotations() == tuple(spans)
        rows = [json.loads(row) for row in stored(tmp_path / "ep.zarr", "annotations")]
        assert rows == [{"text": t, "start_idx": a, "end_idx": b} for t, a, b in spans]


REFUSED_ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    *[(f"fps_{fps}", {"fps": fps}, "fps must be") for fps in (0, -1, None, True, "30")],
    ("fps_nan", {"fps": float("nan")}, "fps must be above 0"),
    ("fps_inf", {"fps": float("inf")}, "finite"),
    ("embodiment_empty", {"embodiment": ""}, "embodiment must name"),
    ("embodiment_none", {"embodiment": None}, "embodiment must name"),
    ("task_name", {"task_name": None}, "task_name must be a string"),
    ("task_description", {"task_description": 3}, "task_description must be a string"),
    ("attrs_nan", {"attrs": {"a": {"b": [1.0, float("nan")]}}}, r"attrs\['a'\] must be what JSON"),
    ("attrs_inf", {"attrs": {"a": -float("inf")}}, r"attrs\['a'\] must be what JSON"),
    ("attrs_array", {"attrs": {"k": np.eye(3)}}, r"attrs\['k'\].*\.tolist\(\)"),
    ("attrs_bytes", {"attrs": {"k": b"raw"}}, r"attrs\['k'\] must be what JSON"),
    ("attrs_key", {"attrs": {"k": [{1: "a", "1": "b"}]}}, "key 1 is no string"),
    ("attrs_top_key", {"attrs": {3: "a"}}, "key 3 is no string"),
    *[
        (f"attrs_{own}", {"attrs": {own: 1}}, f"attrs may not set '{own}'")
        for own in ("fps", "total_frames", "features", "egoloader", "embodiment", "task_name")
    ],
    ("attrs_large", {"attrs": {"a": "x" * MAX_METADATA_BYTES}}, "attributes take"),
    ("names_set", {"names": {"x": {"a"}}}, r"names\['x'\] must be what JSON"),
    ("quality_0", {"jpeg_quality": 0}, "jpeg_quality must be"),
    ("quality_101", {"jpeg_quality": 101}, "jpeg_quality must be"),
    ("quality_float", {"jpeg_quality": 85.0}, "jpeg_quality must be"),
    ("subsampling", {"jpeg_subsampling": "4:2:0"}, "jpeg_subsampling must be one of"),
    *[(f"chunk_{n}", {"chunk_rows": n}, "chunk_rows must be") for n in (0, -1, 1.5, True)],
    *[
        (f"span_{start}_{end}", {"annotations": [("a", start, end)]}, "annotations need 0 <= start")
        for start, end in ((3, 3), (4, 3), (-1, 3))
    ],
    *[
        (f"span_{span}", {"annotations": [span]}, "annotations are")
        for span in (("a", 0.0, 1), ("a", 0, "1"), (None, 0, 1), ("a", 0), ("a", False, 1), 3)
    ],
    ("span_nan", {"annotations": [("a", 0, float("inf"))]}, "annotations are"),
]


class TestRefusedArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [pytest.param(options, message, id=name) for name, options, message in REFUSED_ARGUMENTS],
    )
    def test_before_anything_is_made(
        self, tmp_path: Path, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(WriterError, match=message):
            EpisodeWriter(tmp_path / "ep.zarr", **{**HEAD, **options})
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("argument", ["fps", "embodiment"])
    def test_fps_and_embodiment_are_required(self, tmp_path: Path, argument: str) -> None:
        given = {name: value for name, value in HEAD.items() if name != argument}
        with pytest.raises(TypeError, match=argument):
            EpisodeWriter(tmp_path / "ep.zarr", **given)

    @pytest.mark.parametrize("path", ["..", "a/..", "/"])
    def test_a_path_without_a_name(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(WriterError, match="ends in no name"):
            EpisodeWriter(path, overwrite=True, **HEAD)

    def test_a_parent_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        for path in ("file/ep.zarr", "file/sub/ep.zarr"):
            with pytest.raises(WriterError, match="is a file, not a folder"):
                EpisodeWriter(tmp_path / path, **HEAD)

    def test_an_annotation_past_the_end(self, tmp_path: Path) -> None:
        with pytest.raises(WriterError, match=r"'late' \[2, 6\) reaches past the 5 frames"):
            EpisodeWriter.write(
                tmp_path / "ep.zarr",
                numeric={"x": ramp(5, 1)},
                annotations=[("fits", 0, 5), ("late", 2, 6)],
                **HEAD,
            )
        assert list(tmp_path.iterdir()) == []


class TestRefusedWholeArrays:
    @pytest.mark.parametrize(
        ("arrays", "message"),
        [
            ({"numeric": {"a": ramp(5, 1), "b": ramp(4, 1)}}, r"lengths \{'a': 5, 'b': 4\}"),
            (
                {"numeric": {"a": ramp(5, 1)}, "images": {"cam": pictures(6)}},
                r"lengths \{'a': 5, 'cam': 6\}",
            ),
            ({"images": {"c": pictures(2), "d": jpegs(pictures(3))}}, "one row a frame"),
            ({"numeric": {"a": 3.0}}, "key 'a': it needs an axis of frames"),
            ({"numeric": {"a": [[1.0], [1.0, 2.0]]}}, "key 'a': it can't become an array"),
            ({"images": {"cam": pictures(2)[0]}}, r"must be \(T, H, W, 3\)"),
            ({"images": {"cam": jpegs(pictures(1))[0]}}, "one image was given"),
            ({"numeric": {"a": ramp(0, 3)}}, "at least one frame"),
            ({}, "at least one frame"),
            ({"numeric": {"a": ramp(2, 1)}, "images": {"a": pictures(2)}}, "numeric and an image"),
        ],
    )
    def test_is_refused(self, tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
        with pytest.raises(WriterError, match=message):
            EpisodeWriter.write(tmp_path / "ep.zarr", **arrays, **HEAD)
        assert list(tmp_path.iterdir()) == []

    def test_no_name_but_those_of_arrays(self, tmp_path: Path) -> None:
        with pytest.raises(WriterError, match="names are given for 'y', which has no rows"):
            EpisodeWriter.write(
                tmp_path / "ep.zarr", numeric={"x": ramp(2, 1)}, names={"y": ["a"]}, **HEAD
            )

    @pytest.mark.parametrize(
        ("key", "message"),
        [
            *[
                (key, "can't be a path inside")
                for key in ("", "/a", "a/", "a//b", "../x", "a/../b", ".", ".hidden", "__x", "a\\b")
            ],
            *[(key, "can't be a path inside") for key in ("zarr.json", "a/zarr.json", "a\0b", 3)],
            *[(key, "can't be a path inside") for key in ("a\nb", "\ud800", "x" * 256)],
            ("annotations", "pass spans as `annotations`"),
            ("annotations/c", "inside array 'annotations'"),
            *[
                (key, "is taken: every sample carries it")
                for key in ("fps", "embodiment", "episode", "frame_index", "is_replaced")
            ],
        ],
    )
    def test_names_that_arrays_cannot_have(self, tmp_path: Path, key: Any, message: str) -> None:
        for arrays in ({"numeric": {key: ramp(2, 1)}}, {"images": {key: pictures(2)}}):
            with pytest.raises(WriterError, match=message):
                EpisodeWriter.write(tmp_path / "ep.zarr", **arrays, **HEAD)
        assert list(tmp_path.iterdir()) == []

    def test_an_array_inside_another(self, tmp_path: Path) -> None:
        values = {"a/b": ramp(2, 1), "a": ramp(2, 1)}
        with pytest.raises(WriterError, match="array 'a/b' would lie inside array 'a'"):
            EpisodeWriter.write(tmp_path / "ep.zarr", numeric=values, **HEAD)

    def test_a_recorded_timestamp_is_allowed(self, tmp_path: Path) -> None:
        values = np.linspace(0, 1, 3)
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric={"timestamp": values}, **HEAD)
        assert same_bytes(stored(tmp_path / "ep.zarr", "timestamp"), values)


GOOD_JPEGS = jpegs(pictures(8))
NOISE = np.random.default_rng(1).integers(0, 256, (16, 24, 4), dtype=np.uint8)
DETAILED = simplejpeg.encode_jpeg(NOISE[..., :3].copy(), quality=90)
CMYK = simplejpeg.encode_jpeg(NOISE, colorspace="CMYK", colorsubsampling="444")
CUT = DETAILED[: len(DETAILED) * 7 // 10]


def good_frame(t: int) -> dict[str, dict[str, Any]]:
    return {
        "numeric": {"a": ramp(8, 3)[t], "b": np.int64(t)},
        "images": {"cam": pictures(8)[t], "taken": GOOD_JPEGS[t]},
    }


def frame_with(t: int, **changes: Any) -> dict[str, dict[str, Any]]:
    """Return a good frame with some arrays changed; `...` takes one away."""
    frame = good_frame(t)
    for key, value in changes.items():
        part = frame["images" if key in ("cam", "taken", "other") else "numeric"]
        part[key] = value
        if value is ...:
            del part[key]
    return frame


# What is wrong whether the frame is the first or not.
BAD_FRAMES: dict[str, tuple[dict[str, Any], str]] = {
    "complex": ({"a": np.zeros(3, complex)}, "'a', frame {t}: .*complex128"),
    "object": ({"a": [None, 1, 2]}, "'a', frame {t}: .*object"),
    "text": ({"a": "abc"}, "'a', frame {t}: "),
    "longdouble": ({"a": np.zeros(3, np.longdouble)}, "'a', frame {t}: .*float128"),
    "ragged": ({"a": [[1], [1, 2]]}, "'a', frame {t}: it can't become an array"),
    "empty row": ({"a": np.zeros((0,), np.float32)}, "'a', frame {t}: .*shape \\(0,\\)"),
    "float image": ({"cam": np.zeros((16, 24, 3))}, r"'cam', frame {t}: .*float64"),
    "gray pixels": ({"cam": np.zeros((16, 24), np.uint8)}, r"'cam', frame {t}: .*\(16, 24\)"),
    "alpha": ({"cam": np.zeros((16, 24, 4), np.uint8)}, r"'cam', frame {t}: .*\(16, 24, 4\)"),
    "channels first": ({"cam": np.zeros((3, 16, 24), np.uint8)}, "'cam', frame {t}: pixels must"),
    "no pixels": ({"cam": np.zeros((0, 24, 3), np.uint8)}, "'cam', frame {t}: .*0 x 24 pixels"),
    "wide": ({"cam": np.zeros((1, 65501, 3), np.uint8)}, "'cam', frame {t}: .*pixels"),
    "bytearray": ({"taken": bytearray(GOOD_JPEGS[0])}, "'taken', frame {t}: .*come as bytes"),
    "empty JPEG": ({"taken": b""}, "'taken', frame {t}: the frame is empty"),
    "no JPEG": ({"taken": b"\x89PNG" * 9}, "'taken', frame {t}: .*no JPEG"),
    "CMYK": ({"taken": CMYK}, "'taken', frame {t}: the JPEG is (CMYK|YCCK)"),
    "cut JPEG": ({"taken": CUT}, "'taken', frame {t}: the JPEG is truncated"),
    "cut JPEG with an end": ({"taken": CUT + b"\xff\xd9"}, "'taken', frame {t}: .*is truncated"),
    "JPEG header only": ({"taken": GOOD_JPEGS[0][:620]}, "'taken', frame {t}: "),
}
# What only disagrees with the first frame.
CHANGED_FRAMES: dict[str, tuple[dict[str, Any], str]] = {
    "other dtype": ({"a": np.zeros(3)}, "'a', frame {t}: dtype float64, the first row has float32"),
    "other integer": ({"b": np.int32(1)}, "'b', frame {t}: dtype int32"),
    "other shape": ({"a": np.zeros(4, np.float32)}, r"'a', frame {t}: shape \(4,\)"),
    "more axes": ({"a": np.zeros((1, 3), np.float32)}, r"'a', frame {t}: shape \(1, 3\)"),
    "other size": ({"cam": pictures(1, (16, 16))[0]}, "'cam', frame {t}: 16 x 16 pixels"),
    "other JPEG size": ({"taken": jpegs(pictures(1, (8, 24)))[0]}, "'taken', frame {t}: 8 x 24"),
    "pixels of other size": ({"taken": pictures(1, (8, 24))[0]}, "'taken', frame {t}: 8 x 24"),
    "number missing": ({"b": ...}, r"frame {t}: .*missing \['b'\], unknown \[\]"),
    "number added": ({"c": 1.0}, r"frame {t}: .*missing \[\], unknown \['c'\]"),
    "camera missing": ({"cam": ...}, r"frame {t}: .*images keys .*missing \['cam'\]"),
    "camera added": ({"other": GOOD_JPEGS[0]}, r"frame {t}: .*unknown \['other'\]"),
}


class TestRefusedFrames:
    """A refused frame leaves no trace, wherever it comes: the good ones around it are exact."""

    @pytest.mark.parametrize("name", BAD_FRAMES)
    @pytest.mark.parametrize("at", [0, 3])
    def test_bad_frame(self, tmp_path: Path, name: str, at: int) -> None:
        self.check(tmp_path / "ep.zarr", *BAD_FRAMES[name], at)

    @pytest.mark.parametrize("name", CHANGED_FRAMES)
    def test_changed_frame(self, tmp_path: Path, name: str) -> None:
        self.check(tmp_path / "ep.zarr", *CHANGED_FRAMES[name], 3)

    def check(self, path: Path, changes: dict[str, Any], message: str, at: int) -> None:
        with EpisodeWriter(path, chunk_rows=2, **HEAD) as writer:
            for t in range(8):
                if t == at:
                    wanted = f"episode '{path}', (key )?{message.format(t=at)}"
                    with pytest.raises(WriterError, match=wanted):
                        writer.add_frame(**frame_with(t, **changes))
                writer.add_frame(**good_frame(t))
        assert same_bytes(stored(path, "a"), ramp(8, 3))
        assert same_bytes(stored(path, "b"), np.arange(8))
        assert stored(path, "taken").tolist() == GOOD_JPEGS
        for t, jpeg in enumerate(stored(path, "cam")):
            decoded = simplejpeg.decode_jpeg(jpeg).astype(int)
            np.testing.assert_allclose(decoded, pictures(8)[t], atol=6)

    def test_a_refused_first_frame_fixes_nothing(self, tmp_path: Path) -> None:
        with EpisodeWriter(tmp_path / "ep.zarr", **HEAD) as writer:
            with pytest.raises(WriterError, match="no JPEG"):
                writer.add_frame(numeric={"x": 1}, images={"cam": b"nothing"})
            with pytest.raises(WriterError, match="can't be a path"):
                writer.add_frame(numeric={"../x": 1})
            with pytest.raises(WriterError, match="got neither"):
                writer.add_frame()
            writer.add_frame(numeric={"y": np.float32(2)})
        assert set(ZarrEpisode(tmp_path / "ep.zarr").keys) == {"y", "annotations"}
        assert not (tmp_path / "ep.zarr" / "x").exists()

    def test_frames_after_the_end(self, tmp_path: Path) -> None:
        writer = EpisodeWriter(tmp_path / "ep.zarr", **HEAD)
        writer.add_frame(**good_frame(0))
        writer.close()
        with pytest.raises(WriterError, match="no frame can be added: it is closed"):
            writer.add_frame(**good_frame(1))
        writer.close()
        writer.discard()
        assert ZarrEpisode(tmp_path / "ep.zarr").total_frames == 1
        thrown = EpisodeWriter(tmp_path / "other.zarr", **HEAD)
        thrown.discard()
        with pytest.raises(WriterError, match="no frame can be added: it was discarded"):
            thrown.add_frame(**good_frame(1))
        thrown.close()
        assert [path.name for path in tmp_path.iterdir()] == ["ep.zarr"]


class TestStorageFailure:
    def test_a_row_half_stored_ends_the_episode(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        append = CameraFile.append

        def full(self: CameraFile, jpeg: bytes) -> None:
            if jpeg == GOOD_JPEGS[3]:
                raise OSError(28, "No space left on device")
            append(self, jpeg)

        monkeypatch.setattr(CameraFile, "append", full)
        writer = EpisodeWriter(tmp_path / "ep.zarr", **HEAD)
        for t in range(3):
            writer.add_frame(**good_frame(t))
        with pytest.raises(OSError, match="No space left"):
            writer.add_frame(**good_frame(3))
        # Going on would leave numbers and pictures one frame apart.
        with pytest.raises(WriterError, match="no frame can be added: an earlier frame could not"):
            writer.add_frame(**good_frame(4))
        with pytest.raises(WriterError, match=r"was not written: an earlier frame could not"):
            writer.close()
        assert list(tmp_path.iterdir()) == []

    def test_a_disk_that_takes_no_more(self, tmp_path: Path) -> None:
        # What is still buffered can't be written when the file is closed, either.
        report = run_child(
            tmp_path,
            """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
            writer = EpisodeWriter("ep.zarr", fps=30, embodiment="robot", chunk_rows=2)
            try:
                for t in range(100):
                    writer.add_frame(numeric={"a": np.random.default_rng(t).random(300)})
            except OSError as error:
                print("refused", error.errno, os.listdir("."))
            """,
        )
        assert report == "refused 27 []\n"


class TestPublishing:
    def test_nothing_opens_before_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        with EpisodeWriter(path, **HEAD) as writer:
            for t in range(8):
                writer.add_frame(**good_frame(t))
                assert_no_episode(path)
        assert find_episodes(tmp_path) == ["ep.zarr"]
        assert [entry.name for entry in tmp_path.iterdir()] == ["ep.zarr"]

    @pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
    @pytest.mark.parametrize("frames", [0, 5])
    def test_an_exception_discards_everything(
        self, tmp_path: Path, kind: type[BaseException], frames: int
    ) -> None:
        def record() -> None:
            with EpisodeWriter(tmp_path / "ep.zarr", **HEAD) as writer:
                for t in range(frames):
                    writer.add_frame(**good_frame(t))
                raise kind("stop")

        with pytest.raises(kind, match="stop"):
            record()
        assert list(tmp_path.iterdir()) == []

    def test_zero_frames(self, tmp_path: Path) -> None:
        with (
            pytest.raises(WriterError, match=r"ep\.zarr': it needs at least one frame"),
            EpisodeWriter(tmp_path / "ep.zarr", **HEAD),
        ):
            pass
        assert list(tmp_path.iterdir()) == []

    def test_parents_are_made_and_relative_paths_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path)
        with EpisodeWriter("a/b/ep.zarr", **HEAD) as writer:
            monkeypatch.chdir(tmp_path / "elsewhere")
            writer.add_frame(**good_frame(0))
        assert find_episodes(tmp_path) == ["a/b/ep.zarr"]

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_files_have_the_modes_of_the_umask(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
    ) -> None:
        before = os.umask(0o027)
        with monkeypatch.context() as patch:
            # It belongs to the whole process: a file made by another thread would get it, too.
            patch.setattr(os, "umask", lambda mask: pytest.fail("the umask was touched"))
            for _ in range(1 + overwrite):
                EpisodeWriter.write(
                    tmp_path / "ep.zarr",
                    numeric={"a/b": ramp(3, 1)},
                    images={"cam": pictures(3)},
                    annotations=[("a", 0, 1)],
                    overwrite=overwrite,
                    **HEAD,
                )
        os.umask(before)
        for path in ((tmp_path / "ep.zarr"), *(tmp_path / "ep.zarr").rglob("*")):
            wanted = 0o750 if path.is_dir() else 0o640
            assert stat.S_IMODE(path.stat().st_mode) == wanted, path

    def test_same_input_same_bytes(self, tmp_path: Path) -> None:
        values = {"b": ramp(120, 3), "a/c": ramp(120, 2, "int16")}
        frames = pictures(120)
        options: dict[str, Any] = {
            "annotations": [("pick", 0, 80)],
            "attrs": {"z": 1, "a": {"y": 2, "b": 3}},
            **HEAD,
        }
        for name in ("one", "two"):
            EpisodeWriter.write(tmp_path / name, numeric=values, images={"cam": frames}, **options)
        with EpisodeWriter(tmp_path / "three", **options) as writer:
            for t in range(120):
                row = {key: value[t] for key, value in values.items()}
                writer.add_frame(numeric=row, images={"cam": frames[t]})
        assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "three")
        assert "a/zarr.json" in files(tmp_path / "one")


def write_number(path: Path, number: int, **options: Any) -> None:
    EpisodeWriter.write(path, numeric={"x": np.full((150, 2), number)}, **options, **HEAD)


def assert_number(path: Path, number: int) -> None:
    assert same_bytes(stored(path, "x"), np.full((150, 2), number))
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def assert_no_episode(path: Path) -> None:
    with pytest.raises(EpisodeNotFoundError):
        ZarrEpisode(path)
    with pytest.raises(EpisodeNotFoundError):
        find_episodes(path.parent)


class TestExistingPaths:
    @pytest.mark.parametrize("kind", ["episode", "folder", "file", "dangling link"])
    def test_are_refused(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "ep.zarr"
        make: dict[str, Callable[[], object]] = {
            "episode": lambda: write_number(path, 1),
            "folder": path.mkdir,
            "file": path.touch,
            "dangling link": lambda: path.symlink_to(tmp_path / "nowhere"),
        }
        make[kind]()
        before = list(tmp_path.rglob("*"))
        with pytest.raises(EpisodeExistsError, match="pass overwrite=True"):
            EpisodeWriter(path, **HEAD)
        assert list(tmp_path.rglob("*")) == before

    @pytest.mark.parametrize("kind", ["folder", "file", "link"])
    def test_that_appear_meanwhile_are_refused(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "ep.zarr"
        writer = EpisodeWriter(path, **HEAD)
        writer.add_frame(numeric={"x": 1})
        if kind == "link":
            path.symlink_to(tmp_path)
        else:
            (path.mkdir if kind == "folder" else path.touch)()
        with pytest.raises(EpisodeExistsError, match="pass overwrite=True"):
            writer.close()
        assert [entry.name for entry in tmp_path.iterdir()] == ["ep.zarr"]

    def test_overwrite_replaces_an_episode_whole(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        EpisodeWriter.write(path, numeric={"old": ramp(3, 1)}, images={"c": pictures(3)}, **HEAD)
        write_number(path, 2, overwrite=True)
        assert_number(path, 2)
        assert set(ZarrEpisode(path).keys) == {"x", "annotations"}
        assert not (path / "old").exists()

    def test_an_exception_keeps_the_old_episode(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        write_number(path, 1)

        def record() -> None:
            with EpisodeWriter(path, overwrite=True, **HEAD) as writer:
                writer.add_frame(numeric={"x": 2})
                assert same_bytes(stored(path, "x"), np.full((150, 2), 1))
                raise RuntimeError("stop")

        with pytest.raises(RuntimeError, match="stop"):
            record()
        assert_number(path, 1)

    def test_a_failing_rename_brings_the_old_episode_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "ep.zarr"
        write_number(path, 1)
        rename = Path.rename

        def refuse(self: Path, target: Path) -> Path:
            if self.name.endswith(".partial") and not path.exists():
                raise PermissionError(13, "Permission denied")
            return rename(self, target)

        monkeypatch.setattr(Path, "rename", refuse)
        with pytest.raises(PermissionError):
            write_number(path, 2, overwrite=True)
        assert_number(path, 1)

    def test_a_link_is_replaced_and_its_target_kept(self, tmp_path: Path) -> None:
        write_number(tmp_path / "kept" / "ep.zarr", 1)
        path = tmp_path / "new" / "ep.zarr"
        path.parent.mkdir()
        path.symlink_to(tmp_path / "kept" / "ep.zarr")
        write_number(path, 2, overwrite=True)
        assert not path.is_symlink()
        assert_number(path, 2)
        assert_number(tmp_path / "kept" / "ep.zarr", 1)

    @pytest.mark.parametrize("kind", ["file", "empty folder", "broken episode"])
    def test_leftovers_are_replaced(self, tmp_path: Path, kind: str) -> None:
        path = tmp_path / ("ep" if kind == "empty folder" else "ep.zarr")
        if kind == "file":
            path.touch()
        else:
            path.mkdir()
        if kind == "broken episode":
            (path / "x" / "c").mkdir(parents=True)
            (path / "x" / "c" / "0").touch()
        write_number(path, 2, overwrite=True)
        assert_number(path, 2)

    def test_overwrite_spares_folders_of_other_things(self, tmp_path: Path) -> None:
        write_number(tmp_path / "many.zarr" / "ep.zarr", 1)
        (tmp_path / "more.zarr" / "cut.zarr" / "x").mkdir(parents=True)
        (tmp_path / "home").mkdir()
        (tmp_path / "home" / "thesis.tex").touch()
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(EpisodeExistsError, match=r"holds episodes, such as 'ep\.zarr'"):
            EpisodeWriter(tmp_path / "many.zarr", overwrite=True, **HEAD)
        with pytest.raises(EpisodeExistsError, match=r"holds episodes, such as 'cut\.zarr'"):
            EpisodeWriter(tmp_path / "more.zarr", overwrite=True, **HEAD)
        with pytest.raises(EpisodeExistsError, match="not that of an episode"):
            EpisodeWriter(tmp_path / "home", overwrite=True, **HEAD)
        writer = EpisodeWriter(tmp_path / "later", overwrite=True, **HEAD)
        writer.add_frame(numeric={"x": 1})
        (tmp_path / "home").rename(tmp_path / "later")
        with pytest.raises(EpisodeExistsError, match="not that of an episode"):
            writer.close()
        (tmp_path / "later").rename(tmp_path / "home")
        assert sorted(tmp_path.rglob("*")) == before


class TestTwoWriters:
    def test_the_first_to_close_wins(self, tmp_path: Path) -> None:
        path = tmp_path / "ep.zarr"
        first, second = EpisodeWriter(path, **HEAD), EpisodeWriter(path, **HEAD)
        for _ in range(150):
            first.add_frame(numeric={"x": np.full(2, 1)})
            second.add_frame(numeric={"x": np.full(2, 2)})
        second.close()
        with pytest.raises(EpisodeExistsError):
            first.close()
        assert_number(path, 2)

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_closing_at_once(self, tmp_path: Path, overwrite: bool) -> None:
        path, count = tmp_path / "ep.zarr", 8
        barrier = threading.Barrier(count)
        won: list[int] = []
        lost: list[int] = []

        def work(number: int) -> None:
            writer = EpisodeWriter(path, overwrite=overwrite, **HEAD)
            for _ in range(150):
                writer.add_frame(numeric={"x": np.full(2, number)})
            barrier.wait()
            try:
                writer.close()
                won.append(number)
            except EpisodeExistsError:
                lost.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == (count if overwrite else 1)
        assert len(won) + len(lost) == count
        assert_number(path, int(stored(path, "x")[0, 0]))
        assert int(stored(path, "x")[0, 0]) in won

    def test_the_check_and_the_rename_are_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "ep.zarr"
        rename = Path.rename

        def late(self: Path, target: Path) -> Path:
            # The other writer publishes at the last moment: after the path was found free.
            monkeypatch.setattr(Path, "rename", rename)
            write_number(path, 1)
            return rename(self, target)

        writer = EpisodeWriter(path, **HEAD)
        writer.add_frame(numeric={"x": np.full(2, 2)})
        monkeypatch.setattr(Path, "rename", late)
        with pytest.raises(EpisodeExistsError):
            writer.close()
        assert_number(path, 1)

    @pytest.mark.parametrize("at", ["check", "rename"])
    def test_the_old_episode_may_go_at_any_moment(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
    ) -> None:
        path = tmp_path / "ep.zarr"
        writer = EpisodeWriter(path, overwrite=True, **HEAD)
        for _ in range(150):
            writer.add_frame(numeric={"x": np.full(2, 2)})
        write_number(path, 1)
        name = {"check": "iterdir", "rename": "rename"}[at]
        original = getattr(Path, name)

        def late(self: Path, *arguments: Any) -> Any:
            # The other writer, replacing it as well, has just moved it aside.
            if self == path:
                monkeypatch.setattr(Path, name, original)
                shutil.rmtree(path)
            return original(self, *arguments)

        monkeypatch.setattr(Path, name, late)
        writer.close()
        assert getattr(Path, name) is original, "the moment came"
        assert_number(path, 2)


CHILD = """
import os, sys
import numpy as np
from pathlib import Path
from egoloader import EpisodeWriter
from egoloader.scratch import ScratchFolder

def pause():
    print("ready", flush=True)
    sys.stdin.readline()

def write(stop_at, **options):
    with EpisodeWriter("ep.zarr", fps=30, embodiment="robot", **options) as writer:
        for t in range(250):
            if t == stop_at:
                pause()
            writer.add_frame(numeric={"x": np.full(2, t)})
"""


def child_command(code: str) -> list[str]:
    return [sys.executable, "-c", CHILD + textwrap.dedent(code)]


def child_environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def run_child(folder: Path, code: str) -> str:
    done = subprocess.run(
        child_command(code),
        cwd=folder,
        env=child_environment(),
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout


def kill_child(folder: Path, code: str) -> None:
    """Run code in another process until it says that it is ready, then kill it."""
    with subprocess.Popen(
        child_command(code),
        cwd=folder,
        env=child_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


class TestKilledWriters:
    @pytest.mark.parametrize(
        "code",
        [
            pytest.param("write(stop_at=0)", id="no frame"),
            pytest.param("write(stop_at=249)", id="many frames"),
            pytest.param(
                "ScratchFolder.publish = lambda self: pause()\nwrite(stop_at=None)", id="finished"
            ),
        ],
    )
    def test_nothing_opens_and_a_second_run_succeeds(self, tmp_path: Path, code: str) -> None:
        kill_child(tmp_path, code)
        (leftover,) = tmp_path.iterdir()
        assert leftover.name.startswith(".ep.zarr.")
        assert_no_episode(tmp_path / "ep.zarr")
        rows = np.repeat(np.arange(250)[:, None], 2, axis=1)
        EpisodeWriter.write(tmp_path / "ep.zarr", numeric={"x": rows}, **HEAD)
        assert same_bytes(stored(tmp_path / "ep.zarr", "x"), rows)
        assert find_episodes(tmp_path) == ["ep.zarr"]

    def test_an_episode_to_be_overwritten_stays(self, tmp_path: Path) -> None:
        write_number(tmp_path / "ep.zarr", 1)
        kill_child(tmp_path, "write(stop_at=249, overwrite=True)")
        assert same_bytes(stored(tmp_path / "ep.zarr", "x"), np.full((150, 2), 1))
        assert find_episodes(tmp_path) == ["ep.zarr"]


class TestMemory:
    def test_the_peak_does_not_grow_with_the_episode(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(0)
        picture = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        jpeg = simplejpeg.encode_jpeg(picture, quality=95)
        assert len(jpeg) > 5000
        short, long = (self.peak(tmp_path / f"{n}", n, picture, jpeg) for n in (400, 4000))
        # 3,600 more frames are over 35 MB; what stays is some tens of bytes of index a chunk.
        assert long - short < 600_000

    def peak(self, path: Path, total: int, picture: npt.NDArray[np.uint8], jpeg: bytes) -> int:
        tracemalloc.start()
        with EpisodeWriter(path, **HEAD) as writer:
            for t in range(total):
                writer.add_frame(
                    numeric={"x": np.full(63, t, np.float64)},
                    images={"pixels": picture, "jpeg": jpeg},
                )
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak
