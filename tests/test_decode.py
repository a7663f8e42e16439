"""From JPEG bytes to pixels: strict, in the right colours, at the right size."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.decode import MAX_PIXELS, decode_jpeg, jpeg_head, jpeg_size
from egoloader.errors import FrameError
from egoloader.frames import Camera
from tests.jpegs import CMYK, PROGRESSIVE, RGB_STORED, gradient

Pixels = npt.NDArray[np.uint8]


def encode(pixels: Pixels, *, quality: int = 95, subsampling: str = "444") -> bytes:
    return bytes(
        simplejpeg.encode_jpeg(
            np.ascontiguousarray(pixels), quality=quality, colorsubsampling=subsampling
        )
    )


def encode_gray(pixels: Pixels) -> bytes:
    return bytes(simplejpeg.encode_jpeg(np.ascontiguousarray(pixels), colorspace="GRAY"))


def decode(
    data: bytes, size: tuple[int, int] = (16, 24), stored_size: tuple[int, int] | None = None
) -> Pixels:
    out = np.full((*size, 3), 77, dtype=np.uint8)
    decode_jpeg(
        data, out, stored_size=stored_size or size, episode="ep.zarr", key="images.front_1", frame=7
    )
    return out


def size_of(data: bytes) -> tuple[int, int]:
    return jpeg_size(data, episode="ep.zarr", key="images.front_1", frame=7)


def assert_blames_the_frame(error: FrameError) -> None:
    assert (error.episode, error.key, error.frame) == ("ep.zarr", "images.front_1", 7)
    for word in ("ep.zarr", "images.front_1", "frame 7"):
        assert word in str(error)


def with_declared_size(data: bytes, height: int, width: int) -> bytes:
    """Write another size into a baseline JPEG's frame header."""
    place = data.index(b"\xff\xc0") + 5
    return data[:place] + height.to_bytes(2, "big") + width.to_bytes(2, "big") + data[place + 4 :]


# What decodes.


def test_pixels_are_rgb_rows_by_columns() -> None:
    pixels = decode(encode(gradient()))
    assert pixels.shape == (16, 24, 3)
    assert np.abs(pixels.astype(int) - gradient()).max() <= 6


def test_a_decode_equals_the_decoders_own() -> None:
    data = encode(gradient(33, 47), quality=85, subsampling="420")
    assert (decode(data, (33, 47)) == simplejpeg.decode_jpeg(data)).all()


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
@pytest.mark.parametrize("size", [(16, 24), (17, 25), (1, 1), (8, 6)])
def test_every_subsampling_and_odd_sizes_decode(subsampling: str, size: tuple[int, int]) -> None:
    flat = np.broadcast_to(np.array([200, 100, 50], dtype=np.uint8), (*size, 3))
    pixels = decode(encode(flat, subsampling=subsampling), size)
    assert np.abs(pixels.astype(int) - [200, 100, 50]).max() <= 4


def test_a_progressive_jpeg_decodes() -> None:
    assert np.abs(decode(PROGRESSIVE).astype(int) - gradient()).mean() < 4


def test_an_adobe_rgb_jpeg_keeps_its_colours() -> None:
    assert np.abs(decode(RGB_STORED).astype(int) - gradient()).max() <= 6


def test_case_12_a_gray_jpeg_has_three_equal_channels() -> None:
    gray = (np.arange(48, dtype=np.uint8) * 5).reshape(8, 6, 1)
    pixels = decode(encode_gray(gray), (8, 6))
    assert pixels.shape == (8, 6, 3)
    assert (pixels[..., :1] == pixels).all()
    assert np.abs(pixels.astype(int) - gray).max() <= 12


def test_a_header_gives_height_and_width() -> None:
    assert size_of(encode(gradient(16, 24))) == (16, 24)
    assert size_of(PROGRESSIVE) == (16, 24)
    assert size_of(encode_gray(np.zeros((8, 6, 1), dtype=np.uint8))) == (8, 6)


# What is refused.

BASELINE = encode(np.random.default_rng(0).integers(0, 255, (64, 96, 3), dtype=np.uint8))


@pytest.mark.parametrize("kept", [0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_case_13_a_truncated_baseline_jpeg_is_an_error(kept: float) -> None:
    with pytest.raises(FrameError) as caught:
        decode(BASELINE[: int(len(BASELINE) * kept)], (64, 96))
    assert_blames_the_frame(caught.value)


@pytest.mark.parametrize("kept", [0.05, 0.3, 0.5, 0.7, 0.9, 0.99])
def test_case_13_a_truncated_progressive_jpeg_is_an_error(kept: float) -> None:
    with pytest.raises(FrameError) as caught:
        decode(PROGRESSIVE[: int(len(PROGRESSIVE) * kept)])
    assert_blames_the_frame(caught.value)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_case_13_a_jpeg_without_its_end_marker_is_an_error(missing: int) -> None:
    with pytest.raises(FrameError):
        decode(BASELINE[:-missing], (64, 96))


def test_case_13_a_fake_end_marker_does_not_make_a_cut_jpeg_whole() -> None:
    with pytest.raises(FrameError):
        decode(BASELINE[: int(len(BASELINE) * 0.7)] + b"\xff\xd9", (64, 96))


def test_case_13_an_empty_frame_is_an_error() -> None:
    with pytest.raises(FrameError, match="empty") as caught:
        decode(b"")
    assert_blames_the_frame(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"\x89PNG\r\n\x1a\n" + bytes(64), b"not a jpeg", b"\xff\xd8", b"\xff\xd8\xff\xd9", bytes(99)],
    ids=["png", "text", "start", "start and end", "zeros"],
)
def test_what_is_no_jpeg_is_an_error(data: bytes) -> None:
    with pytest.raises(FrameError) as caught:
        decode(data)
    assert_blames_the_frame(caught.value)


@pytest.mark.parametrize("stored", ["CMYK", "YCCK"])
def test_four_colour_jpegs_are_refused_by_name(stored: str) -> None:
    data = CMYK
    if stored == "YCCK":
        inks = np.dstack([gradient(), np.zeros((16, 24), dtype=np.uint8)])
        data = simplejpeg.encode_jpeg(inks, colorspace="CMYK")
        assert simplejpeg.decode_jpeg_header(data)[2] == "YCCK"
    with pytest.raises(FrameError, match=stored) as caught:
        decode(data)
    assert_blames_the_frame(caught.value)
    with pytest.raises(FrameError, match=stored):
        size_of(data)


@pytest.mark.parametrize("out", [(16, 24), (8, 12), (32, 48)])
def test_a_jpeg_of_another_size_than_its_camera_is_refused(out: tuple[int, int]) -> None:
    with pytest.raises(FrameError, match=r"24 x 16.*16 x 24") as caught:
        decode(encode(gradient(24, 16)), out, stored_size=(16, 24))
    assert_blames_the_frame(caught.value)


def test_images_beyond_64_megapixels_are_refused_by_their_header() -> None:
    assert MAX_PIXELS == 64_000_000
    data = encode(gradient())
    assert size_of(with_declared_size(data, 8000, 8000)) == (8000, 8000)
    for height, width in [(8000, 8001), (65500, 65500)]:
        bomb = with_declared_size(data, height, width)
        with pytest.raises(FrameError, match="64000000") as caught:
            decode(bomb, (16, 24), stored_size=(height, width))
        assert_blames_the_frame(caught.value)


def test_a_picture_in_one_scan_may_hold_what_looks_like_others() -> None:
    data = encode(gradient())
    comment = b"\xff\xfe" + (1002).to_bytes(2, "big") + b"\xff\xda" * 500
    assert size_of(data[:2] + comment + data[2:]) == (16, 24)


@settings(deadline=None, max_examples=100)
@given(
    edits=st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 255)), min_size=1, max_size=8)
)
def test_corrupt_bytes_decode_or_raise_a_frame_error(edits: list[tuple[int, int]]) -> None:
    small = encode(gradient(), quality=80)
    for intact in (small, PROGRESSIVE):
        data = bytearray(intact)
        for place, value in edits:
            data[place % len(data)] = value
        try:
            assert decode(bytes(data)).shape == (16, 24, 3)
        except FrameError as error:
            assert_blames_the_frame(error)


# Resizing.


def slow_resize(pixels: Pixels, height: int, width: int) -> npt.NDArray[np.float64]:
    """Resize with a triangle filter, widened where it shrinks: one axis, one pixel at a time."""
    values = pixels.astype(np.float64)
    for axis, size in ((0, height), (1, width)):
        scale = values.shape[axis] / size
        reach = max(1.0, scale)
        lines = np.moveaxis(values, axis, 0)
        out = np.zeros((size, *lines.shape[1:]))
        for place in range(size):
            centre = (place + 0.5) * scale
            total = 0.0
            for source in range(
                max(0, math.floor(centre - reach)), min(len(lines), math.ceil(centre + reach))
            ):
                weight = max(0.0, 1 - abs((source + 0.5 - centre) / reach))
                out[place] += weight * lines[source]
                total += weight
            out[place] /= total
        values = np.moveaxis(out, 0, axis)
    return values


def waves(height: int, width: int) -> Pixels:
    """Return a smooth picture that no flip, shift or swap of channels leaves as it is."""
    y, x = np.mgrid[:height, :width]
    red = 128 + 100 * np.sin(2 * np.pi * x / width)
    green = 128 + 100 * np.cos(3 * np.pi * y / height)
    blue = 40 + 150 * (x * y) / (height * width)
    return np.stack([red, green, blue], axis=-1).round().astype(np.uint8)


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ((96, 128), (48, 64)),
        ((96, 128), (24, 32)),
        ((96, 128), (37, 61)),
        ((96, 128), (40, 128)),
        ((96, 128), (96, 50)),
        ((96, 128), (10, 100)),
        ((96, 128), (100, 140)),
        ((96, 128), (192, 256)),
        ((96, 128), (120, 50)),
        ((97, 129), (48, 48)),
    ],
)
def test_other_sizes_come_close_to_resizing_the_whole_picture(
    stored: tuple[int, int], wanted: tuple[int, int]
) -> None:
    data = encode(waves(*stored))
    found = decode(data, wanted, stored_size=stored)
    assert found.shape == (*wanted, 3)
    error = np.abs(found - slow_resize(simplejpeg.decode_jpeg(data), *wanted))
    # A scaled decode rounds odd sizes up, which moves pixels by a fraction of one.
    assert error.mean() < 2.5
    assert error.max() < 12


def test_shrinking_averages_instead_of_picking_pixels() -> None:
    stripes = np.zeros((96, 96, 3), dtype=np.uint8)
    stripes[::2] = 255
    # The width stays, so that no scaled decode can do the averaging.
    found = decode(encode(stripes, quality=100), (36, 96), stored_size=(96, 96))
    assert np.abs(found.astype(int) - 127)[2:-2].max() < 40


def test_a_gray_jpeg_resizes_to_three_equal_channels() -> None:
    data = encode_gray(waves(32, 48)[:, :, :1])
    pixels = decode(data, (12, 20), stored_size=(32, 48))
    assert pixels.shape == (12, 20, 3)
    assert (pixels[..., :1] == pixels).all()


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.9])
def test_case_13_a_truncated_jpeg_is_an_error_when_resized_too(kept: float) -> None:
    with pytest.raises(FrameError):
        decode(BASELINE[: int(len(BASELINE) * kept)], (30, 40), stored_size=(64, 96))


# What a camera remembers of its frames.


def outcome(camera: Camera, data: bytes) -> str:
    try:
        camera.check(data, 7)
    except FrameError as error:
        return str(error)
    return ""


def varied(data: bytes, edits: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, value in edits:
        changed[place % len(data)] = value
    return bytes(changed)


@settings(deadline=None, max_examples=200)
@given(
    edits=st.lists(
        st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=3), max_size=6
    ),
    kept=st.integers(0, 800),
)
def test_a_camera_that_remembers_a_head_finds_what_a_new_one_does(
    edits: list[list[tuple[int, int]]], kept: int
) -> None:
    whole = encode(gradient())
    seen = Camera("ep.zarr", "images.front_1", (16, 24))
    assert outcome(seen, whole) == ""
    others = [
        whole[:kept],
        encode_gray(gradient()[..., :1]),
        CMYK,
        PROGRESSIVE,
        with_declared_size(whole, 24, 16),
    ]
    for data in [*(varied(whole, some) for some in edits), *others, whole]:
        new = Camera("ep.zarr", "images.front_1", (16, 24))
        assert outcome(seen, data) == outcome(new, data)


def test_a_head_ends_where_the_pixels_begin() -> None:
    whole = encode(gradient())
    head = jpeg_head(whole)
    assert head
    assert whole.startswith(head)
    assert size_of(head) == (16, 24)  # all that it takes is in it
    with pytest.raises(FrameError):
        size_of(head[:-1])
    for odd in (b"", b"\xff", whole[:30], head[:-1], b"no JPEG at all", CMYK[:1]):
        assert jpeg_head(odd) == b""
    comment = b"\xff\xfe" + (60_000).to_bytes(2, "big") + bytes(59_998)
    assert jpeg_head(whole[:2] + comment + whole[2:]) == b""  # too long to be worth it
