"""Rotations by the book, and poses to try them on.

Shares no code with the package, and asks no library: one rotation at a time, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from hypothesis import strategies as st

Matrix = npt.NDArray[np.float64]
Numbers = npt.NDArray[Any]

HALF = math.sqrt(0.5)
#: Quaternions wxyz where rotations are easily got wrong.
TRICKY = [
    (1.0, 0.0, 0.0, 0.0),  # none at all
    (-1.0, 0.0, 0.0, 0.0),
    (0.0, 1.0, 0.0, 0.0),  # half turns
    (0.0, 0.0, -1.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
    (0.0, -HALF, 0.0, HALF),
    (HALF, 0.0, HALF, 0.0),  # pitch of 90 degrees, gimbal lock
    (HALF, 0.0, -HALF, 0.0),
    (0.5, 0.5, 0.5, -0.5),  # gimbal lock, turned
    (-0.5, 0.5, -0.5, 0.5),
    (HALF, 0.0, 0.0, HALF),
    (1.0, 1e-9, -2e-9, 5e-9),  # near none
    (1.0, 1e-5, 0.0, 0.0),
    (1e-8, 1.0, 0.0, 0.0),  # near half a turn
    (-1e-8, 0.0, 0.0, 1.0),
]


def matrix_of_quaternion(w: float, x: float, y: float, z: float) -> Matrix:
    """Return the matrix of a quaternion of any norm."""
    n = w * w + x * x + y * y + z * z
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return np.array(rows) / n


def matrix_of_angles(yaw: float, pitch: float, roll: float) -> Matrix:
    """Return Rz(yaw) Ry(pitch) Rx(roll)."""
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    cr, sr = math.cos(roll), math.sin(roll)
    about_z = np.array([[cy, -sy, 0], [sy, cy, 0], [0, 0, 1]])
    about_y = np.array([[cp, 0, sp], [0, 1, 0], [-sp, 0, cp]])
    about_x = np.array([[1, 0, 0], [0, cr, -sr], [0, sr, cr]])
    return np.asarray(about_z @ about_y @ about_x)


def matrix_of_6d(*numbers: float) -> Matrix:
    """Return the matrix whose first columns the numbers span."""
    first, second = np.array(numbers[:3]), np.array(numbers[3:])
    first = first / np.linalg.norm(first)
    second = second - (first @ second) * first
    second = second / np.linalg.norm(second)
    return np.stack([first, second, np.cross(first, second)], axis=1)


#: What each form stands for.
MATRIX_OF: dict[str, Callable[..., Matrix]] = {
    "quaternion_wxyz": matrix_of_quaternion,
    "quaternion_xyzw": lambda x, y, z, w: matrix_of_quaternion(w, x, y, z),
    "rotation_6d": matrix_of_6d,
    "yaw_pitch_roll": matrix_of_angles,
    "matrix": lambda *numbers: np.array(numbers).reshape(3, 3),
}
SIZES = {
    "quaternion_wxyz": 4,
    "quaternion_xyzw": 4,
    "rotation_6d": 6,
    "yaw_pitch_roll": 3,
    "matrix": 9,
}


def matrices(numbers: torch.Tensor, form: str) -> Matrix:
    """Return the matrices, (…, 3, 3), of rotations in a form, (…, k)."""
    rows = numbers.double().reshape(-1, numbers.shape[-1]).tolist()
    return np.array([MATRIX_OF[form](*row) for row in rows]).reshape(*numbers.shape[:-1], 3, 3)


def frame(pose: torch.Tensor) -> Matrix:
    """Return T, 4 x 4, of one pose: xyz and a quaternion wxyz."""
    x, y, z, *quaternion = pose.double().tolist()
    made = np.eye(4)
    made[:3, :3], made[:3, 3] = matrix_of_quaternion(*quaternion), (x, y, z)
    return made


def frames(poses: torch.Tensor) -> Matrix:
    """Return T, (…, 4, 4), of poses, (…, 7)."""
    rows = poses.reshape(-1, 7)
    return np.array([frame(row) for row in rows]).reshape(*poses.shape[:-1], 4, 4)


def slerped(left: Numbers, right: Numbers, share: float) -> Matrix:
    """Return the matrix of what lies between two unit quaternions wxyz, on the shorter way."""
    cosine = float(left @ right)
    if cosine < 0:
        right, cosine = -right, -cosine
    angle = math.acos(min(cosine, 1.0))
    if angle < 1e-6:
        return matrix_of_quaternion(*(left * (1 - share) + right * share).tolist())
    ways = math.sin((1 - share) * angle), math.sin(share * angle)
    return matrix_of_quaternion(*(left * ways[0] + right * ways[1]).tolist())


def _unit(numbers: tuple[float, ...]) -> tuple[float, ...]:
    norm = math.sqrt(sum(number * number for number in numbers))
    return tuple(number / norm for number in numbers)


seeds = st.integers(0, 2**32 - 1)
coordinates = st.floats(-2, 2, width=32)
quaternions = st.one_of(
    st.sampled_from(TRICKY),
    st.tuples(*[st.floats(-1, 1, width=32)] * 4)
    .filter(lambda numbers: sum(number * number for number in numbers) > 1e-2)
    .map(_unit),
)


def some_poses(
    rng: np.random.Generator, lead: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Return poses, (*lead, 7): xyz and a unit quaternion wxyz; half of them tricky ones."""
    made = rng.uniform(-1, 1, (math.prod(lead), 7))
    for row in made:
        if rng.random() < 0.5:
            row[3:] = TRICKY[rng.integers(len(TRICKY))]
            row[3:] *= rng.choice([-1, 1])
        row[3:] /= np.linalg.norm(row[3:])
    return torch.from_numpy(made).reshape(*lead, 7).to(dtype)


def poses(lead: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    """Poses, (*lead, 7), as a strategy: see `some_poses`."""
    return st.builds(lambda seed: some_poses(np.random.default_rng(seed), lead, dtype), seeds)


#: Leading axes: one sample, its steps, a batch of them.
leads = st.one_of(
    st.just(()), st.tuples(st.integers(1, 5)), st.tuples(st.integers(1, 3), st.integers(1, 4))
)
