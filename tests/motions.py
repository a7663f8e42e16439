"""A smooth motion of a pose, at any times, and episodes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.episodes import foreign_annotations, foreign_group, foreign_numbers

__all__ = ["SPEED", "TURN", "motion", "write_motion"]

#: Radians a second that the angles of the motion's sines change by, and its quaternion turns by.
SPEED, TURN = 1.3, 2.1


def motion(times: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the pose at times in seconds, (n, 7): xyz on sines, and a wxyz quaternion that turns.

    The axis is fixed, and every other quaternion is stored with the other sign.
    """
    phases = np.array([0.0, 0.7, 2.0])
    xyz = np.sin(SPEED * times[:, None] + phases)
    axis = np.array([1.0, 2.0, 2.0]) / 3.0
    half = TURN * times[:, None] / 2
    quaternions = np.concatenate([np.cos(half), np.sin(half) * axis], axis=1)
    quaternions[1::2] *= -1
    return np.concatenate([xyz, quaternions], axis=1)


def write_motion(
    path: Path,
    total: int,
    *,
    fps: float,
    times: npt.NDArray[Any] | None = None,
    spare: int = 0,
    chunk_rows: int = 100,
    spans: Sequence[tuple[str, int, int]] = (),
) -> npt.NDArray[np.float64]:
    """Write an episode of the motion, with `spare` rows of zeros behind its end; return its rows.

    `times` becomes the array `timestamp`; without them frames are `1 / fps` apart.
    """
    group = foreign_group(path, total, fps=fps)
    seconds = np.arange(total) / fps if times is None else times.reshape(-1).astype(np.float64)
    rows = motion(seconds)
    foreign_numbers(group, "a", np.pad(rows, ((0, spare), (0, 0))), chunks=(chunk_rows, 7))
    if times is not None:
        padded = np.pad(times, ((0, spare), *((0, 0),) * (times.ndim - 1)))
        foreign_numbers(group, "timestamp", padded, chunks=(chunk_rows, *times.shape[1:]))
    foreign_annotations(group, spans)
    return rows
