"""Pictures that take too long, or promise to be huge, and rows that are only promised."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import pytest

from egoloader import ZarrDataset
from egoloader.catalog import find_episodes
from egoloader.columns import stored_bytes
from egoloader.decode import MAX_SCANS, jpeg_head, jpeg_size
from egoloader.errors import (
    FolderNotFoundError,
    FrameError,
    near_miss,
)
from egoloader.frames import Camera
from egoloader.overview import overview
from egoloader.validate import validate_paths
from tests.entries import entry, keymap
from tests.episodes import HUMAN_FRAMES, edit_attrs, edit_json
from tests.hostile import (
    CAMERA,
    KEY,
    NEXT,
    bounded,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

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
