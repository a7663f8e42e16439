"""The form that the rotations of rows are in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from egoloader.batch import Sample
from egoloader.row import POSE, QUATERNIONS, Part, Parts, check_parts, row_of
from egoloader.transforms.numbers import BoolArray, FloatArray, NumbersTransform, RowsTransform
from egoloader.transforms.rotations import encode, reordered
from egoloader.transforms.transform import Shape

__all__ = ["CanonicalQuaternion", "PoseRotation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoseRotation(NumbersTransform):
    """Writes the rotations of rows in another form: (…, D) becomes (…, D').

    The forms are those of `egoloader.transforms.rotations`; the parts of a row are listed as in
    `egoloader.row`. Between the two orders of a quaternion, only the order changes;
    else a quaternion that comes out has norm 1 and the canonical sign, w > 0, so that the inverse
    gives q for -q.

        _target_: egoloader.transforms.PoseRotation
        keys: [left.obs_ee_pose]
        source: [xyz, quaternion_wxyz]
        target: [xyz, rotation_6d]

    Args:
        keys: of the sample; rows of the size that `source` adds up to.
        source: the parts of a row, as it is.
        target: the parts of a row, as it shall be: the same, but for the forms of rotations.
    """

    source: Parts = POSE
    target: Parts

    def _check(self) -> None:
        for name in ("source", "target"):
            self._set(name, check_parts(f"{type(self).__name__}: {name}", getattr(self, name)))
        given, made = row_of(self.source), row_of(self.target)
        if [_gist(part) for part in given.parts] != [_gist(part) for part in made.parts]:
            self._refuse(f"{given} and {made} must differ in the forms of rotations alone")
        if given == made:
            self._refuse(f"{given} is the same as {made}; nothing changes")

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def inverse(self) -> PoseRotation:
        """Return the way back; a quaternion comes back with the canonical sign and norm 1."""
        return replace(self, source=self.target, target=self.source)

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        shape = self._rows_shape(given, key)
        self._check_width(key, shape, row_of(self.source))
        return (*shape[:-1], row_of(self.target).size)

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        padded = self._padded(sample, key, numbers.shape[:-1])
        given, made = row_of(self.source), row_of(self.target)
        changed = np.empty((*numbers.shape[:-1], made.size))
        for part, wanted in zip(given.parts, made.parts, strict=True):
            changed[..., wanted.place] = self._part(key, numbers, part, wanted.kind, padded)
        return changed

    def _part(
        self, key: str, numbers: FloatArray, part: Part, kind: str, padded: BoolArray
    ) -> FloatArray:
        if part.kind == kind:
            return numbers[..., part.place]
        if part.kind in QUATERNIONS and kind in QUATERNIONS:
            return reordered(numbers[..., part.place], kind)
        return encode(self._rotations(key, numbers, part, padded), kind)


def _gist(part: Part) -> tuple[str, int]:
    """Return what a part has in common with the same one in another form."""
    if part.is_rotation:
        return "rotation", 0
    return part.kind, part.place.stop - part.place.start


@dataclass(frozen=True, slots=True, kw_only=True)
class CanonicalQuaternion(RowsTransform):
    """Gives quaternions norm 1 and the canonical sign: q and -q come out the same.

    That sign has w > 0, or w = 0 and the first of x, y, z that is not 0 above 0. Statistics of
    quaternions need it: the two signs of one rotation have a mean of 0.

    Args:
        keys: of the sample; rows (…, D).
        row: the parts of a row; others than quaternions are left as they are.
    """

    _loses = "which of q and -q it was is forgotten, and both are the same rotation"

    def _check_row(self) -> None:
        if not any(part.kind in QUATERNIONS for part in self._row.parts):
            self._refuse(f"there is no quaternion in {self._row}")

    @property
    def is_per_row(self) -> bool:
        """True."""
        return True

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        padded, changed = self._padded(sample, key, numbers.shape[:-1]), numbers.copy()
        for part in self._row.parts:
            if part.kind in QUATERNIONS:
                found = self._rotations(key, numbers, part, padded)
                changed[..., part.place] = encode(found, part.kind)
        return changed
