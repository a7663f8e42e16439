"""Small episodes on ramped data, for tests of everything that reads.

`write_…` go through egoloader's writer; `foreign_…` through zarr-python alone, as other people's
tools leave episodes behind.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
import zarr
from zarr.core.dtype import VariableLengthBytes

from egoloader import EpisodeWriter

#: Frames of the episode that the fixture `human` writes.
HUMAN_FRAMES = 40

KEYPOINT_ARRAYS = {
    "left.obs_keypoints": 63,
    "right.obs_keypoints": 63,
    "left.obs_wrist_pose": 7,
    "right.obs_wrist_pose": 7,
    "left.obs_ee_pose": 7,
    "right.obs_ee_pose": 7,
    "obs_head_pose": 7,
}


def ramp(total: int, dims: int, dtype: str = "float32") -> npt.NDArray[Any]:
    """Return a[t, d] = 1000 * t + d: every row and dimension is its own value."""
    return (1000 * np.arange(total)[:, None] + np.arange(dims)).astype(dtype)


def shade(frame: int) -> tuple[int, int, int]:
    """Return the flat colour of a frame: distinct for 125 frames, in steps JPEG can't blur."""
    return 50 * (frame % 5), 50 * (frame // 5 % 5), 50 * (frame // 25 % 5)


def is_flat(image: torch.Tensor, colour: tuple[int, int, int]) -> bool:
    """Return whether a (3, H, W) image is all of one colour, as far as JPEG keeps it."""
    wanted = torch.tensor(colour)[:, None, None]
    return bool(((image.int() - wanted).abs() <= 6).all())


def pictures(total: int, size: tuple[int, int] = (16, 24)) -> npt.NDArray[np.uint8]:
    """Return (total, H, W, 3) flat pictures, frame t in the colour `shade(t)`."""
    colours = np.array([shade(t) for t in range(total)], dtype=np.uint8)
    return np.broadcast_to(colours[:, None, None, :], (total, *size, 3)).copy()


def write_human(path: Path, total: int, **options: Any) -> Path:
    """Write a ramped episode with every array of the human keymaps, and return its path."""
    EpisodeWriter.write(
        path,
        numeric={key: ramp(total, dims) for key, dims in KEYPOINT_ARRAYS.items()},
        images={"images.front_1": pictures(total)},
        **{"fps": 30, "embodiment": "human", **options},
    )
    return path


def jpegs(frames: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return each of (T, H, W, 3) uint8 pictures as a JPEG."""
    return [simplejpeg.encode_jpeg(frame, quality=90, colorsubsampling="444") for frame in frames]


def foreign_group(path: Path, total: int, *, zarr_format: int = 3, **attrs: Any) -> zarr.Group:
    """Make an episode's group with zarr-python: no stamp, no features unless given in `attrs`."""
    attrs = {"total_frames": total, "fps": 30, "embodiment": "human", **attrs}
    return zarr.create_group(path, zarr_format=zarr_format, attributes=attrs)


def foreign_numbers(
    group: zarr.Group, key: str, values: npt.NDArray[Any], **layout: Any
) -> npt.NDArray[Any]:
    """Store numbers with zarr-python, chunks of zeros too unless `config` says otherwise."""
    layout = {"chunks": (100, *values.shape[1:]), "config": {"write_empty_chunks": True}, **layout}
    array = group.create_array(key, shape=values.shape, dtype=values.dtype, **layout)
    array[...] = values
    return values


def foreign_bytes(group: zarr.Group, key: str, rows: Sequence[bytes], **layout: Any) -> None:
    """Store rows of bytes with zarr-python."""
    layout = {"chunks": (1,), "fill_value": b"", "config": {"write_empty_chunks": True}, **layout}
    with warnings.catch_warnings():
        # zarr-python warns that the v3 specification of this data type is not final.
        warnings.simplefilter("ignore")
        array = group.create_array(key, shape=(len(rows),), dtype=VariableLengthBytes(), **layout)
        if rows:
            array[...] = np.array(rows, dtype=object)


def foreign_annotations(group: zarr.Group, spans: Sequence[tuple[str, int, int]]) -> None:
    """Store annotation spans with zarr-python."""
    rows = [json.dumps({"text": t, "start_idx": a, "end_idx": b}).encode() for t, a, b in spans]
    foreign_bytes(group, "annotations", rows)


def edit_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a metadata file in place."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def edit_attrs(episode: Path, **attrs: Any) -> Path:
    """Set attributes of an episode's group; `...` takes one away. Returns the episode's path."""

    def change(group: dict[str, Any]) -> None:
        for name, value in attrs.items():
            if value is ...:
                del group["attributes"][name]
            else:
                group["attributes"][name] = value

    edit_json(episode / "zarr.json", change)
    return episode
