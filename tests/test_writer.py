"""What the writer writes: numbers, cameras, checksums, attributes."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import zarr
from numcodecs.zstd import Zstd

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.catalog import find_episodes
from egoloader.errors import (
    NonFiniteWarning,
)
from tests.episodes import jpegs, pictures, ramp
from tests.writing import (
    DTYPES,
    HEAD,
    bits,
    files,
    quantisation,
    same_bytes,
    shard_chunks,
    stored,
)


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
        chunks = shard_chunks(tmp_path / "e" / "a")
        rows = [np.frombuffer(chunk, "<f4").reshape(7, 2) for chunk in chunks]
        np.testing.assert_array_equal(np.concatenate(rows)[:20], ramp(20, 2))
        np.testing.assert_array_equal(np.concatenate(rows)[20:], np.zeros((1, 2)))

    def test_large_rows_are_compressed_and_small_ones_are_not(self, tmp_path: Path) -> None:
        values = {"small": ramp(20, 255), "large": ramp(20, 256)}
        EpisodeWriter.write(tmp_path / "e", numeric=values, chunk_rows=7, **HEAD)
        sizes = {"small": 7 * 1020, "large": 7 * 1024}
        for key, size in sizes.items():
            assert same_bytes(stored(tmp_path / "e", key), values[key])
            chunks = shard_chunks(tmp_path / "e" / key)
            assert [len(chunk) == size for chunk in chunks] == [key == "small"] * 3
            packed = chunks if key == "small" else [Zstd().decode(chunk) for chunk in chunks]
            rows = np.concatenate([np.frombuffer(one, "<f4").reshape(7, -1) for one in packed])
            assert same_bytes(rows[:20], values[key])
        assert ZarrEpisode(tmp_path / "e").layout("small").codecs == ("bytes", "crc32c")
        assert ZarrEpisode(tmp_path / "e").layout("large").codecs == ("bytes", "zstd", "crc32c")

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
