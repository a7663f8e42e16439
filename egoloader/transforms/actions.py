"""Actions as differences: to the current state, or to the step before.

What is between a row a and its base b is, part by part: for `xyz`, a - b, in the axes that both are
in; for a rotation R_b⁻¹ R_a, in the axes of b (rotations are composed, not subtracted); for a
`scalar`, a - b. Numbers that a row leaves as they are stay so: an absolute gripper, say. Actions in
the *frame* of a state, with positions turned into its axes, are `IntoFrame`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from egoloader.batch import Sample
from egoloader.row import KEPT, SCALAR, XYZ, Row
from egoloader.transforms.numbers import BoolArray, FloatArray
from egoloader.transforms.reference import ReferenceTransform
from egoloader.transforms.rotations import compose, encode, invert, is_none
from egoloader.transforms.transform import Shape

__all__ = ["AbsoluteActions", "AccumulatedActions", "DeltaActions", "RelativeActions"]

Combine = Callable[[FloatArray, FloatArray], FloatArray]


class _Rows(NamedTuple):
    """Rows of a key, (…, D), and which are padded, (…)."""

    key: str
    numbers: FloatArray
    padded: BoolArray

    def step(self, step: int) -> _Rows:
        return self._replace(numbers=self.numbers[..., step, :], padded=self.padded[..., step])


class _Way(NamedTuple):
    """How numbers, and rotations, of a row are combined with those of its base."""

    numbers: Combine
    rotations: Combine


_DIFFERENCE = _Way(np.subtract, lambda rotation, base: compose(invert(base), rotation))
_SUM = _Way(np.add, lambda rotation, base: compose(base, rotation))


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateReference(ReferenceTransform):
    """Takes the current state from another key, whose rows have the same parts."""

    def _check_row(self) -> None:
        ReferenceTransform._check_row(self)
        if all(part.kind == KEPT for part in self._row.parts):
            self._refuse(f"{self._row} leaves all numbers as they are")

    @property
    def _reference_row(self) -> Row:
        return self._row

    def _rows(self, sample: Sample, key: str, numbers: FloatArray) -> _Rows:
        return _Rows(key, numbers, self._padded(sample, key, numbers.shape[:-1]))

    def _state(self, sample: Sample, axes: int) -> _Rows:
        return _Rows(self.reference, *self._reference(sample, axes))

    def _combined(self, rows: _Rows, bases: _Rows, way: _Way) -> FloatArray:
        changed = rows.numbers.copy()
        with np.errstate(invalid="ignore"):
            for part in self._row.parts:
                if part.kind in (XYZ, SCALAR):
                    at = part.place
                    changed[..., at] = way.numbers(rows.numbers[..., at], bases.numbers[..., at])
        for pose in self._row.poses:
            if pose.rotation is None:
                continue
            rotation = self._rotations(rows.key, rows.numbers, pose.rotation, rows.padded)
            base = self._rotations(bases.key, bases.numbers, pose.rotation, bases.padded)
            if (is_none(base) & ~is_none(rotation)).any():
                self._fail(f"key {rows.key!r} is there, and {bases.key!r} is not: zeros, padded")
            made = encode(way.rotations(rotation, base), pose.rotation.kind)
            changed[..., pose.rotation.place] = made
            if pose.position is not None:
                changed[..., pose.position][is_none(rotation)] = 0.0
        return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeActions(_StateReference):
    """Takes the current state off each step of an action: d_j = a_j - s.

        _target_: egoloader.transforms.RelativeActions
        keys: [left.cmd_joints]
        reference: left.obs_joints
        row: [7 x scalar]

    Args:
        keys: of the sample; rows (…, D), in a window or not.
        row: the parts of a row of `keys` and of the reference.
        reference: the key of the state, which stays as it is: (…, D), or with steps (…, K, D).
        step: which of the reference's steps is taken, where it has them: -1 is the last, so the
            current one of a history.
    """

    def inverse(self) -> AbsoluteActions:
        """Return `AbsoluteActions`; the sample must still hold the state."""
        return AbsoluteActions(**self._options())

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        rows = self._rows(sample, key, numbers)
        return self._combined(rows, self._state(sample, numbers.ndim - 1), _DIFFERENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsoluteActions(_StateReference):
    """Puts the current state back on each step of an action: a_j = s + d_j.

    The inverse of `RelativeActions`, with the same options.
    """

    def inverse(self) -> RelativeActions:
        """Return `RelativeActions`."""
        return RelativeActions(**self._options())

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        rows = self._rows(sample, key, numbers)
        return self._combined(rows, self._state(sample, numbers.ndim - 1), _SUM)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaActions(_StateReference):
    """Takes off each step of an action the step before: d_0 = a_0 - s, d_j = a_j - a_{j-1}.

    NaN in a step is NaN in the next one's difference, too.

    Args:
        keys: of the sample; chunks (…, n, D).
        row: the parts of a row of `keys` and of the reference.
        reference: the key of the current state s: (…, D), or with steps (…, K, D).
        step: which of the reference's steps is taken, where it has them.
    """

    def inverse(self) -> AccumulatedActions:
        """Return `AccumulatedActions`; the sample must still hold the state."""
        return AccumulatedActions(**self._options())

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        self._rows_shape(given, key, axes=2)
        return _StateReference._shape(self, given, key)

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        rows = self._rows(sample, key, numbers)
        state = self._state(sample, numbers.ndim - 1)
        first = np.broadcast_to(state.numbers, (*numbers.shape[:-2], 1, numbers.shape[-1]))
        is_first_padded = np.broadcast_to(state.padded, (*numbers.shape[:-2], 1))
        before = np.concatenate([first, numbers[..., :-1, :]], axis=-2)
        padded = np.concatenate([is_first_padded, rows.padded[..., :-1]], axis=-1)
        return self._combined(rows, _Rows(key, before, padded), _DIFFERENCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatedActions(_StateReference):
    """Adds up differences from step to step: a_0 = s + d_0, a_j = a_{j-1} + d_j.

    The inverse of `DeltaActions`, with the same options. Rounding adds up, too: of float32, to
    about 1e-7 of the numbers a step.
    """

    def inverse(self) -> DeltaActions:
        """Return `DeltaActions`."""
        return DeltaActions(**self._options())

    def _takes(self, _key: str, axes: int) -> bool:
        return axes == 1

    def _shape(self, given: Mapping[str, Shape], key: str) -> tuple[int, ...]:
        self._rows_shape(given, key, axes=2)
        return _StateReference._shape(self, given, key)

    def _changed(self, sample: Sample, key: str) -> FloatArray:
        numbers = self._numbers(sample, key)
        rows = self._rows(sample, key, numbers)
        base, made = self._state(sample, numbers.ndim - 2), []
        for step in range(numbers.shape[-2]):
            row = rows.step(step)
            made.append(self._combined(row, base, _SUM))
            base = row._replace(numbers=made[-1])
        return np.stack(made, axis=-2)
