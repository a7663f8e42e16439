"""Small episodes on ramped data, made by the writer, for tests of everything that reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader import EpisodeWriter

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
