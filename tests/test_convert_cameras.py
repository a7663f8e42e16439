from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import simplejpeg

from egoloader.convert import LeRobotSettings, convert_lerobot
from tests.lerobot_folders import (
    TOP,
    VIDEO,
    Folder,
    coded,
    convert,
    decoded_index,
    episode,
    pictures_of,
    png,
    rows_of,
    write_video,
)


def has_encoder(name: str) -> bool:
    try:
        av.Codec(name, "w")
    except av.codec.codec.UnknownCodecError:
        return False
    return True


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "episodes"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "set")


class TestVideo:
    @pytest.mark.parametrize(
        ("codec", "options", "first_pts"),
        [
            ("libx264", {"bf": "3", "preset": "medium", "g": "24"}, 0),
            ("libx264", {"bf": "3", "preset": "medium"}, 7),
            ("libx264", {"tune": "zerolatency"}, 0),
            ("libsvtav1", {"crf": "20"}, 0),
        ],
    )
    def test_frames_are_in_the_order_shown(
        self, folder: Folder, target: Path, codec: str, options: dict[str, str], first_pts: int
    ) -> None:
        if not has_encoder(codec):
            pytest.skip(f"this PyAV has no encoder {codec}")
        folder.lengths = {0: 40}
        root = folder.build()
        path = folder.video(0, TOP)
        write_video(path, [coded(t, 64, 64) for t in range(40)], codec, options, first_pts)
        if "bf" in options:
            with av.open(str(path)) as container:
                kinds = {int(frame.pict_type) for frame in container.decode(video=0)}
            assert int(av.video.frame.PictureType.B) in kinds
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert report.failed == {}
        shown = [decoded_index(picture) for picture in pictures_of(episode(target), TOP)]
        assert shown == list(range(40))

    def test_two_cameras_go_in_step(self, folder: Folder, target: Path) -> None:
        folder.cameras = (TOP, "observation.images.wrist")
        convert(folder, target)
        for key, blue in ((TOP, 60), ("observation.images.wrist", 150)):
            pictures = pictures_of(episode(target), key)
            assert [decoded_index(picture) for picture in pictures] == list(range(12))
            assert all(abs(picture[..., 2].mean() - blue) < 10 for picture in pictures)

    @pytest.mark.parametrize("space", ["ITU601", "ITU709"])
    @pytest.mark.parametrize("color_range", [1, 2])
    def test_red_stays_red(
        self, folder: Folder, target: Path, space: str, color_range: int
    ) -> None:
        root = folder.build()
        write_red_video(folder.video(0, TOP), space, color_range)
        convert_lerobot(root, target, LeRobotSettings(workers=1))
        for picture in pictures_of(episode(target), TOP):
            np.testing.assert_allclose(picture.mean((0, 1)), (230, 20, 20), atol=6)

    @pytest.mark.parametrize("size", [(16, 24), (64, 96), (48, 40)])
    def test_image_size(self, folder: Folder, target: Path, size: tuple[int, int]) -> None:
        convert(folder, target, image_size=size)
        ep = episode(target)
        pictures = pictures_of(ep, TOP)
        assert [decoded_index(picture) for picture in pictures] == list(range(12))
        assert {picture.shape for picture in pictures} == {(*size, 3)}
        assert ep.attrs["features"][TOP]["shape"][:2] == list(size)

    def test_quality_and_subsampling_are_used(self, folder: Folder, target: Path) -> None:
        convert(folder, target, quality=40, subsampling="444")
        data = rows_of(episode(target), TOP)[0]
        assert simplejpeg.decode_jpeg_header(data)[3] == "444"
        picture = simplejpeg.decode_jpeg(data)
        again = simplejpeg.encode_jpeg(picture, quality=40, colorsubsampling="444")
        # The first quantisation table stands right behind its marker.
        table = data.index(b"\xff\xdb")
        assert data[table : table + 69] == again[again.index(b"\xff\xdb") :][:69]

    @pytest.mark.parametrize("frames", [11, 14])
    def test_another_number_of_frames_fails_that_episode(
        self, folder: Folder, target: Path, frames: int
    ) -> None:
        folder.lengths = {0: 12, 1: 12}
        root = folder.build()
        write_video(folder.video(1, TOP), [coded(t) for t in range(frames)])
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert report.written == (0,)
        assert "episode 1" in report.failed[1]
        assert f"'{TOP}'" in report.failed[1]
        assert f"{frames} frames and the parquet file 12 rows" in report.failed[1]
        assert [path.name for path in target.iterdir()] == ["episode_000000.zarr"]

    def test_another_number_of_rows_than_listed_fails(self, folder: Folder, target: Path) -> None:
        root = folder.build()
        folder.write_rows(0, 9, {})
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert re.search("9 rows, and meta/episodes.jsonl says 12", report.failed[0])

    @pytest.mark.parametrize("length", [16, 3000])
    def test_a_damaged_frame_fails_the_episode(
        self, folder: Folder, target: Path, length: int
    ) -> None:
        root = folder.build()
        path = folder.video(0, TOP)
        # Noise fills the packets, so that the damage hits what decides the pixels.
        noise = np.random.default_rng(0).integers(0, 256, (12, 64, 96, 3), dtype=np.uint8)
        write_video(path, noise)
        with av.open(str(path)) as container:
            packets = [packet for packet in container.demux(video=0) if packet.size]
        assert packets[6].pos is not None
        data = bytearray(path.read_bytes())
        middle = packets[6].pos + packets[6].size // 2
        data[middle : middle + length] = bytes(length)
        path.write_bytes(data)
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert re.search(f"episode 0, key '{TOP}', .*frame .*can't be decoded", report.failed[0])
        assert list(target.iterdir()) == []

    @pytest.mark.parametrize("content", [b"", b"no video at all" * 200])
    def test_a_file_that_is_no_video_fails_the_episode(
        self, folder: Folder, target: Path, content: bytes
    ) -> None:
        root = folder.build()
        folder.video(0, TOP).write_bytes(content)
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert "episode_000000.mp4 can't be decoded" in report.failed[0]


def write_red_video(path: Path, space: str, color_range: int) -> None:
    red = np.full((32, 48, 3), (230, 20, 20), np.uint8)
    tag = {"ITU601": 6, "ITU709": 1}[space]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"crf": "8"})
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        stream.codec_context.colorspace = tag
        stream.codec_context.color_range = color_range
        for pts in range(12):
            frame = av.VideoFrame.from_ndarray(red, format="rgb24").reformat(
                format="yuv420p", dst_colorspace=space, dst_color_range=color_range
            )
            frame.pts = pts
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


class TestPictures:
    KEY = "observation.image"

    def build(self, folder: Folder, encoded: list[Any]) -> Path:
        folder.cameras = ()
        folder.info = {"video_path": None}
        folder.features = {self.KEY: {**VIDEO, "dtype": "image"}}
        cells = [{"bytes": data, "path": f"frame_{t}"} for t, data in enumerate(encoded)]
        return folder.build({self.KEY: cells})

    def test_jpegs_are_taken_as_they_are(self, folder: Folder, target: Path) -> None:
        jpegs = [simplejpeg.encode_jpeg(coded(t), quality=70) for t in range(12)]
        convert_lerobot(self.build(folder, jpegs), target, LeRobotSettings(workers=1))
        assert list(rows_of(episode(target), self.KEY)) == jpegs

    @pytest.mark.parametrize("encode", [png, simplejpeg.encode_jpeg])
    @pytest.mark.parametrize("size", [None, (16, 24)])
    def test_pictures_are_decoded_and_scaled(
        self, folder: Folder, target: Path, encode: Any, size: tuple[int, int] | None
    ) -> None:
        root = self.build(folder, [encode(coded(t)) for t in range(12)])
        convert_lerobot(root, target, LeRobotSettings(workers=1, image_size=size))
        pictures = pictures_of(episode(target), self.KEY)
        assert [decoded_index(picture) for picture in pictures] == list(range(12))
        assert {picture.shape[:2] for picture in pictures} == {size or (32, 48)}

    @pytest.mark.parametrize(
        ("data", "text"),
        [
            (b"GIF89a and so on", "start of neither a PNG nor a JPEG"),
            (png(coded(7))[:-30], "the PNG is truncated or corrupt"),
            (None, "holds no picture but the path 'frame_7'"),
        ],
    )
    def test_a_bad_picture_fails_the_episode(
        self, folder: Folder, target: Path, data: bytes | None, text: str
    ) -> None:
        encoded: list[Any] = [png(coded(t)) for t in range(12)]
        encoded[7] = data
        root = self.build(folder, encoded)
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert re.search(f"'episode_000000', key '{self.KEY}', frame 7: .*{text}", report.failed[0])

    def test_16_bit_pictures_are_left_out(self, folder: Folder, target: Path) -> None:
        depth = np.full((32, 48), 1500, np.uint16)
        root = self.build(folder, [png(depth, "gray16be")] * 12)
        report = convert_lerobot(root, target, LeRobotSettings(workers=1))
        assert report.written == (0,)
        assert report.left_out == {self.KEY: "16-bit pictures, not colours"}
        assert self.KEY not in episode(target).keys
