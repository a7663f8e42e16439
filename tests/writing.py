"""What tests of the writer share: episodes, parsers that know nothing of the reader, children."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import simplejpeg
import zarr

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
