"""What the writer refuses, and that nothing of it stays behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

from egoloader import EpisodeWriter, ZarrEpisode
from egoloader.camerafile import CameraFile
from egoloader.errors import (
    WriterError,
)
from egoloader.store import MAX_METADATA_BYTES
from tests.episodes import jpegs, pictures, ramp
from tests.writing import (
    CMYK,
    CUT,
    GOOD_JPEGS,
    HEAD,
    good_frame,
    run_child,
    same_bytes,
    stored,
)

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
