"""What the fields of a keymap's entry may be."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

from egoloader.errors import KeyMapError

__all__ = [
    "MAX_REACH",
    "MAX_STEPS",
    "check_above_zero",
    "check_count",
    "check_extent",
    "check_offsets",
    "check_offsets_s",
    "grid_steps",
    "is_array_name",
    "is_number",
    "is_whole",
]

#: Steps of one window at most, and how far one may reach, in frames or seconds.
MAX_STEPS = 1_000_000
MAX_REACH = 1_000_000_000

#: Of a part of an array's name, which is that of a folder.
_MAX_NAME_BYTES = 255


def is_whole(value: object) -> bool:
    """Return whether a value is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Return whether a value is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def check_count(name: str, value: int | None) -> None:
    """Refuse what is no number of steps."""
    if value is not None and not (is_whole(value) and 1 <= value <= MAX_STEPS):
        raise KeyMapError(
            f"{name} must be a whole number of at least 1, got {value!r} (the limit is {MAX_STEPS})"
        )


def check_above_zero(name: str, value: float | None, unit: str) -> None:
    """Refuse what is no number above 0."""
    if value is not None and not (is_number(value) and 0 < value <= MAX_REACH):
        raise KeyMapError(
            f"{name} must be a number of {unit} above 0, got {value!r} (the limit is {MAX_REACH})"
        )


def check_offsets(name: str, steps: tuple[int, ...] | None) -> None:
    """Refuse what is no list of steps in frames."""
    _check_steps(name, steps, is_whole, "whole numbers of frames")


def check_offsets_s(name: str, steps: tuple[float, ...] | None) -> None:
    """Refuse what is no list of steps in seconds."""
    _check_steps(name, steps, is_number, "finite numbers of seconds")


def _check_steps(
    name: str, steps: tuple[float, ...] | None, is_step: Callable[[object], bool], wanted: str
) -> None:
    if steps is None:
        return
    if not steps:
        raise KeyMapError(f"{name} is empty; give at least one step, or leave it out")
    for step in steps:
        if not is_step(step) or abs(step) > MAX_REACH:
            raise KeyMapError(
                f"{name} must be {wanted} up to {MAX_REACH}, got {step!r} among {list(steps)}"
            )


def grid_steps(name: str, seconds: float, rate_hz: float) -> int:
    """Return how many steps of a rate a time has; halves go to the even number."""
    steps = round(seconds * rate_hz)
    if not 1 <= steps <= MAX_STEPS:
        raise KeyMapError(
            f"{name}: {seconds} s at rate_hz: {rate_hz} are {steps} steps; it must be 1 step at "
            f"least, and {MAX_STEPS} at most"
        )
    return steps


def check_extent(name: str, extent: tuple[int, ...] | None, length: int | None) -> None:
    """Refuse what is no size or shape; of `length` numbers, where that is given."""
    if extent is None:
        return
    if length is not None and len(extent) != length:
        what = "[height, width]" if length == 2 else "[height, width, 3]"
        raise KeyMapError(f"{name} must be {what}, got {list(extent)}")
    for side in extent:
        if not is_whole(side) or side < 1:
            raise KeyMapError(f"{name} must be whole numbers of at least 1, got {list(extent)}")
    if length == 3 and extent[2] != 3:
        raise KeyMapError(f"{name} of a camera must end with 3 channels, got {list(extent)}")


def is_array_name(name: str) -> bool:
    """Return whether a name, which may hold slashes, is a path that stays inside the episode."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        return False
    # No system takes the others in a path; nor a lone half of a surrogate pair.
    if "\\" in name or "\0" in name or re.search(r"[\ud800-\udfff]", name):
        return False
    return all(len(part.encode()) <= _MAX_NAME_BYTES for part in name.split("/"))
