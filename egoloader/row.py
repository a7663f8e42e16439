"""What the numbers of a row are: positions, rotations, numbers of their own.

A row is listed part by part, in the order of its numbers, as in `[xyz, quaternion_wxyz, 1]`:

    xyz                 a point, or with a rotation right behind it a pose; in metres, usually
    a form of rotation  quaternion_wxyz, quaternion_xyzw, rotation_6d, yaw_pitch_roll or matrix
    scalar              a number of its own, such as a joint
    a whole number n    n numbers that are left as they are
    n x part            n parts of a kind, as in `21 x xyz` or `7 x scalar`
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egoloader.errors import SettingsError, near_miss

__all__ = [
    "FORMS",
    "KEPT",
    "POSE",
    "QUATERNIONS",
    "SCALAR",
    "XYZ",
    "Part",
    "Parts",
    "Pose",
    "Row",
    "check_parts",
    "rotating_row",
    "row_of",
]

#: The forms of a rotation, and how many numbers each is; see `egoloader.transforms.rotations`.
FORMS = {
    "quaternion_wxyz": 4,
    "quaternion_xyzw": 4,
    "rotation_6d": 6,
    "yaw_pitch_roll": 3,
    "matrix": 9,
}
QUATERNIONS = ("quaternion_wxyz", "quaternion_xyzw")
XYZ, SCALAR, KEPT = "xyz", "scalar", "kept"
#: A row as it is listed.
Parts = tuple[str | int, ...]
#: The row of an episode's pose.
POSE: Parts = (XYZ, "quaternion_wxyz")

_SIZES = {XYZ: 3, SCALAR: 1, **FORMS}
_MANY = re.compile(r"([1-9]\d{0,5}) x (\S+)")


class Part(NamedTuple):
    """One part of a row.

    Attributes:
        kind: `xyz`, a form of rotation, `scalar`, or `kept`.
        place: its numbers.
    """

    kind: str
    place: slice

    @property
    def is_rotation(self) -> bool:
        """Whether it is a rotation."""
        return self.kind in FORMS


class Pose(NamedTuple):
    """A position, a rotation, or a pose: both."""

    position: slice | None
    rotation: Part | None


@dataclass(frozen=True, slots=True)
class Row:
    """The parts of a row.

    Attributes:
        parts: in order.
        poses: what is a position, a rotation, or both, in order.
        size: D, how many numbers there are.
    """

    parts: tuple[Part, ...]
    poses: tuple[Pose, ...]
    size: int

    def __str__(self) -> str:
        kinds = [
            str(part.place.stop - part.place.start) if part.kind == KEPT else part.kind
            for part in self.parts
        ]
        return f"[{', '.join(kinds)}]"


def check_parts(name: str, parts: Sequence[str | int]) -> Parts:
    """Return the parts that an option lists, as a tuple.

    Raises:
        SettingsError: no list, an empty one, or a part that there is none of.
    """
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise SettingsError(
            f"{name} lists the parts of a row, as in [xyz, quaternion_wxyz, 1]; got {parts!r}"
        )
    for part in parts:
        _expanded(name, part)
    return tuple(parts)


@functools.lru_cache(maxsize=256)
def row_of(parts: Parts) -> Row:
    """Return the row that parts, which were checked, make up."""
    made: list[Part] = []
    start = 0
    for kind, size in (one for part in parts for one in _expanded("row", part)):
        made.append(Part(kind, slice(start, start + size)))
        start += size
    return Row(tuple(made), tuple(_poses(made)), start)


def rotating_row(parts: Parts | None, size: int) -> Row | None:
    """Return the row of so many numbers that parts, which were checked, make up.

    Without parts, 7 numbers are a pose and 4 a wxyz quaternion, as episodes have them. None where
    the numbers are not that many.
    """
    if parts is None:
        parts = {7: POSE, 4: ("quaternion_wxyz",)}.get(size)
    row = None if parts is None else row_of(parts)
    return row if row is not None and row.size == size else None


def _poses(parts: Sequence[Part]) -> list[Pose]:
    poses: list[Pose] = []
    previous: Part | None = None
    for part in parts:
        if part.kind == XYZ:
            poses.append(Pose(part.place, None))
        elif part.is_rotation and previous is not None and previous.kind == XYZ:
            poses[-1] = Pose(previous.place, part)
        elif part.is_rotation:
            poses.append(Pose(None, part))
        previous = part
    return poses


def _expanded(name: str, part: object) -> list[tuple[str, int]]:
    """Return the kinds and sizes that one listed part stands for."""
    if type(part) is int and part > 0:
        return [(KEPT, part)]
    if isinstance(part, str):
        many = _MANY.fullmatch(part)
        count, kind = (int(many[1]), many[2]) if many else (1, part)
        if kind in _SIZES:
            return [(kind, _SIZES[kind])] * count
    raise SettingsError(
        f"{name} has a part {part!r}; {near_miss(str(part), _SIZES)} "
        "A whole number above 0 is that many numbers which are left as they are"
    )
