"""The frame of reference that positions and rotations are in.

T_a_b is the pose of the frame b in the frame a: it takes the coordinates of a point in b to those
in a, p_a = T_a_b p_b = R_a_b p_b + t_a_b, and T_a_c = T_a_b T_b_c. A pose in an episode is
T_world_hand, say, where "world" is whatever the recording's poses are in.

Of a row, each `xyz` is a point, each rotation an orientation; the rest is left as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from egoloader.batch import Sample
from egoloader.row import POSE, Parts, Pose, Row, check_parts, row_of
from egoloader.transforms.numbers import BoolArray, FloatArray, RowsTransform
from egoloader.transforms.reference import ReferenceTransform
from egoloader.transforms.rotations import compose, decode, encode, invert, is_none, rotate
from egoloader.transforms.transform import Shape, origin_key, put

__all__ = ["FixedFrame", "FromFirst", "IntoFrame", "OutOfFrame", "RelativeToFirst"]

Matrix = tuple[tuple[float, ...], ...]

#: How far a number of a matrix may be from the rotation that it is taken for.
_SLACK = 1e-3


class _Frame(NamedTuple):
    """T_a_b: a rotation, (…, 4), and a position, (…, 3); zeros where there is none."""

    rotation: FloatArray
    position: FloatArray

    def inverse(self) -> _Frame:
        """Return T_b_a."""
        back = invert(self.rotation)
        return _Frame(back, -rotate(back, self.position))


@dataclass(frozen=True, slots=True, kw_only=True)
class _FrameReference(ReferenceTransform):
    """Takes the frame from another key.

    Args:
        keys: see `ReferenceTransform`, like all but the last.
        row: see there.
        reference: see there.
        step: see there.
        reference_row: the parts of a row of the reference; one pose, and anything else.
    """

    reference_row: Parts = POSE

    def _check_row(self) -> None:
        ReferenceTransform._check_row(self)
        _check_poses(self)
        name = f"{type(self).__name__}: reference_row"
        self._set("reference_row", check_parts(name, self.reference_row))
        if len(self._reference_row.poses) != 1 or None in self._reference_row.poses[0]:
            self._refuse(f"reference_row must hold one pose, and is {self._reference_row}")

    @property
    def _reference_row(self) -> Row:
        return row_of(self.reference_row)

    def _frame(self, sample: Sample, axes: int) -> _Frame:
        numbers, padded = self._reference(sample, axes)
        return _frame_at(self, self.reference, numbers, self._reference_row.poses[0], padded)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntoFrame(_FrameReference):
    """Moves poses and points into the frame of a pose that the sample holds, the head's, say.

    T_frame_hand = T_world_frame⁻¹ T_world_hand, with the reference's *current* pose for all steps
    of a window. A camera's own frame is a `FixedFrame` behind it, of the extrinsic T_camera_head.

        _target_: egoloader.transforms.IntoFrame
        keys: [left.obs_ee_pose, left.action_ee_pose]
        reference: obs_head_pose

    Args:
        keys: of the sample; rows (…, D), in a window or not: T_world_hand.
        row: the parts of a row of `keys`.
        reference: the key of T_world_frame, which stays as it is: (…, D), or with steps (…, K, D).
        step: which of the reference's steps is taken, where it has them: -1 is the last, so the
            current one of a history; 0 is the first, so the current one of a horizon.
        reference_row: the parts of a row of the reference; one pose, and anything else.
    """

    def inverse(self) -> OutOfFrame:
        """Return `OutOfFrame`; the sample must still hold the reference."""
        return OutOfFrame(**self._options())

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        frame = self._frame(sample, numbers.ndim - 1).inverse()
        return _moved(self, sample, key, numbers, frame)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfFrame(_FrameReference):
    """Moves poses and points out of the frame of a pose: T_world_hand = T_world_frame T_frame_hand.

    The inverse of `IntoFrame`, with the same options.
    """

    def inverse(self) -> IntoFrame:
        """Return `IntoFrame`."""
        return IntoFrame(**self._options())

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        return _moved(self, sample, key, numbers, self._frame(sample, numbers.ndim - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedFrame(RowsTransform):
    """Moves poses and points from one frame to another that is fixed to it: T_a_x = T_a_b T_b_x.

        _target_: egoloader.transforms.FixedFrame
        keys: [left.obs_ee_pose]
        matrix: [[0, -1, 0, 0.1], [1, 0, 0, 0], [0, 0, 1, 0.05], [0, 0, 0, 1]]

    Args:
        keys: of the sample; rows (…, D), in b.
        row: the parts of a row.
        matrix: T_a_b, such as an extrinsic T_camera_head: 4 x 4, row by row, with a rotation (to
            1e-3; the nearest one is taken) and 0 0 0 1 last; positions in the unit of the rows.
    """

    matrix: Matrix

    def _check_row(self) -> None:
        _check_poses(self)
        self._set("matrix", _checked_matrix(self, self.matrix))

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def inverse(self) -> FixedFrame:
        """Return the way back, of T_b_a."""
        frame = self._frame().inverse()
        rotation = encode(frame.rotation, "matrix").reshape(3, 3)
        rows = np.concatenate([rotation, frame.position[:, None]], axis=1).tolist()
        matrix = (*(tuple(row) for row in rows), (0.0, 0.0, 0.0, 1.0))
        return FixedFrame(keys=self.keys, row=self.row, matrix=matrix)

    def _frame(self) -> _Frame:
        matrix = np.array(self.matrix)
        return _Frame(decode(matrix[:3, :3].reshape(9), "matrix"), matrix[:3, 3])

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        return _moved(self, sample, key, numbers, self._frame())


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeToFirst(RowsTransform):
    """Moves a window's poses into the frame of its own first step: T_0_j = T_world_0⁻¹ T_world_j.

    The first step becomes the identity; what it was is kept as `<key>_origin`, (…, D), right behind
    the key. Points have the first one taken off, in the axes that they are in.

    Args:
        keys: of the sample; chunks (…, n, D).
        row: the parts of a row.
    """

    def _check_row(self) -> None:
        _check_poses(self)

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def inverse(self) -> FromFirst:
        """Return `FromFirst`; the sample must still hold `<key>_origin`."""
        return FromFirst(keys=self.keys, row=self.row)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = dict(given)
        for key in self.keys:
            shape = self._shape(given, key)
            self._rows_shape(given, key, axes=2)
            if origin_key(key) in given:
                self._refuse(f"there is a key {origin_key(key)!r} already")
            shapes = put(shapes, [key], {key: shape, origin_key(key): (*shape[:-2], shape[-1])})
        return shapes

    def _apply(self, sample: Sample) -> Sample:
        for key in self.keys:
            made = self._outcome(sample, key)
            origin = sample[key][..., 0, :].clone()
            sample = put(sample, [key], {key: made, origin_key(key): origin})
        return sample

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        padded = self._padded(sample, key, numbers.shape[:-1])
        for pose in self._row.poses:
            frame = _frame_at(self, key, numbers[..., :1, :], pose, padded[..., :1])
            numbers = _moved_pose(self, key, numbers, pose, frame.inverse(), padded)
        return numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFirst(RowsTransform):
    """Moves a window's poses out of the frame of its first step: T_world_j = T_world_0 T_0_j.

    The inverse of `RelativeToFirst`; takes `<key>_origin`, T_world_0, out of the sample.

    Args:
        keys: of the sample; chunks (…, n, D).
        row: the parts of a row.
    """

    def _check_row(self) -> None:
        _check_poses(self)

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def inverse(self) -> RelativeToFirst:
        """Return `RelativeToFirst`."""
        return RelativeToFirst(keys=self.keys, row=self.row)

    def _shapes(self, given: Mapping[str, Shape]) -> dict[str, Shape]:
        shapes = dict(given)
        for key in self.keys:
            shape = self._shape(given, key)
            self._rows_shape(given, key, axes=2)
            if self._rows_shape(given, origin_key(key)) != (*shape[:-2], shape[-1]):
                self._refuse(f"key {origin_key(key)!r} is no row of key {key!r}: {list(shape)}")
            shapes.pop(origin_key(key))
        return shapes

    def _apply(self, sample: Sample) -> Sample:
        made = {**sample, **{key: self._outcome(sample, key) for key in self.keys}}
        for key in self.keys:
            made.pop(origin_key(key))
        return made

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        padded = self._padded(sample, key, numbers.shape[:-1])
        origin = self._numbers(sample, origin_key(key))[..., None, :]
        for pose in self._row.poses:
            frame = _frame_at(self, origin_key(key), origin, pose, padded[..., :1])
            numbers = _moved_pose(self, key, numbers, pose, frame, padded)
        return numbers


def _check_poses(transform: RowsTransform) -> None:
    if not transform._row.poses:
        transform._refuse(f"there is no position and no rotation in {transform._row}")


def _frame_at(
    transform: RowsTransform, key: str, numbers: FloatArray, pose: Pose, padded: BoolArray
) -> _Frame:
    """Return the frame that a pose of such rows is, (…, D); not turned without a rotation."""
    if pose.rotation is None:
        rotation = np.broadcast_to((0.0, 0.0, 0.0, 1.0), (*padded.shape, 4))
    else:
        rotation = transform._rotations(key, numbers, pose.rotation, padded)
    position = np.zeros(3) if pose.position is None else numbers[..., pose.position]
    return _Frame(rotation, np.where(is_none(rotation)[..., None], 0.0, position))


def _moved(
    transform: RowsTransform, sample: Sample, key: str, numbers: FloatArray, frame: _Frame
) -> FloatArray:
    """Return rows with all that is in b in a: T_a_x of T_b_x, with the frame T_a_b."""
    padded = transform._padded(sample, key, numbers.shape[:-1])
    for pose in transform._row.poses:
        numbers = _moved_pose(transform, key, numbers, pose, frame, padded)
    return numbers


def _moved_pose(
    transform: RowsTransform,
    key: str,
    numbers: FloatArray,
    pose: Pose,
    frame: _Frame,
    padded: BoolArray,
) -> FloatArray:
    changed = numbers.copy()
    is_absent = padded & ~_has_numbers(numbers, pose) & is_none(frame.rotation)
    if pose.rotation is not None:
        rotation = transform._rotations(key, numbers, pose.rotation, padded)
        is_absent = is_absent | is_none(rotation)
        turned = compose(frame.rotation, rotation)
        changed[..., pose.rotation.place] = encode(turned, pose.rotation.kind)
    if (is_none(frame.rotation) & ~is_absent).any():
        transform._fail(f"key {key!r} is there, and its frame of reference is not: zeros, padded")
    if pose.position is not None:
        with np.errstate(invalid="ignore"):
            moved = rotate(frame.rotation, numbers[..., pose.position]) + frame.position
        changed[..., pose.position] = np.where(is_absent[..., None], 0.0, moved)
    return changed


def _has_numbers(numbers: FloatArray, pose: Pose) -> BoolArray:
    """Return in which rows a pose is not all zero."""
    found = np.zeros(numbers.shape[:-1], dtype=np.bool_)
    for place in (pose.position, pose.rotation and pose.rotation.place):
        if place is not None:
            found |= numbers[..., place].any(axis=-1)
    return found


def _checked_matrix(transform: RowsTransform, matrix: Sequence[Sequence[float]]) -> Matrix:
    try:
        found = np.array(matrix, dtype=np.float64)
    except (TypeError, ValueError):
        found = np.empty(0)
    if found.shape != (4, 4) or not np.isfinite(found).all():
        transform._refuse(f"matrix must be 4 x 4 numbers, row by row; got {matrix!r}")
    rotation = decode(found[:3, :3].reshape(9), "matrix")
    nearest = encode(rotation, "matrix").reshape(3, 3)
    if is_none(rotation) or np.abs(nearest - found[:3, :3]).max() > _SLACK:
        transform._refuse(f"the rotation of matrix is none: {found[:3, :3].tolist()}")
    if found[3].tolist() != [0, 0, 0, 1]:
        transform._refuse(f"the last row of matrix must be [0, 0, 0, 1]: {found[3].tolist()}")
    return tuple(tuple(row) for row in found.tolist())
