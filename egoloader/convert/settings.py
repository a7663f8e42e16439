"""What a conversion can be asked for."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from egoloader.errors import SettingsError

__all__ = ["LeRobotSettings", "parse_episodes"]

_SUBSAMPLINGS = ("420", "422", "440", "411", "444")
# A range longer than any data set is a typing error, and would fill the memory with numbers.
_LONGEST_RANGE = 10_000_000


@dataclass(frozen=True)
class LeRobotSettings:
    """Options of `convert_lerobot`.

    Attributes:
        episodes: LeRobot episode indices to convert; None takes all that `meta/` lists.
        image_size: (height, width) in pixels that camera frames are scaled to; None keeps theirs.
            Frames that shrink are area-averaged, others are scaled bicubically.
        quality: JPEG quality, 1 to 100, of the frames that are encoded.
        subsampling: chroma subsampling of the frames that are encoded: "420", "422", "440", "411"
            or "444".
        workers: processes at most; never more than there are episodes to convert. With one, the
            conversion runs in the calling process.
        embodiment: the embodiment's name; None takes `robot_type` of `meta/info.json`.
        overwrite: convert again, and replace, what is already at the destination.

    Raises:
        SettingsError: a value that can't be, named.
    """

    episodes: tuple[int, ...] | None = None
    image_size: tuple[int, int] | None = None
    quality: int = 85
    subsampling: str = "420"
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    embodiment: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.episodes is not None:
            _check_episodes(self.episodes)
        if self.image_size is not None:
            _check_size(self.image_size)
        if not _is_int(self.quality) or not 1 <= self.quality <= 100:
            raise SettingsError(f"quality is {self.quality!r}; give a whole number from 1 to 100")
        if self.subsampling not in _SUBSAMPLINGS:
            raise SettingsError(
                f"subsampling is {self.subsampling!r}; give one of {', '.join(_SUBSAMPLINGS)}"
            )
        if not _is_int(self.workers) or self.workers < 1:
            raise SettingsError(f"workers is {self.workers!r}; give a whole number from 1")
        if self.embodiment is not None and not self.embodiment.strip():
            raise SettingsError("embodiment is empty; give a name, or leave it out")


def parse_episodes(text: str) -> tuple[int, ...]:
    """Return the episode indices of a list such as `"0:10,12,29"`, sorted, each once.

    A range is half-open, as LeRobot's splits are: `0:10` is episodes 0 to 9.

    Raises:
        SettingsError: an item that is neither an index nor a range, or a range that is empty.
    """
    found: set[int] = set()
    for item in text.split(","):
        found.update(_parse_item(item.strip(), text))
    return tuple(sorted(found))


def _parse_item(item: str, text: str) -> range:
    first, colon, last = item.partition(":")
    bounds = (first, last) if colon else (first,)
    if not all(bound.isascii() and bound.isdigit() for bound in bounds):
        raise SettingsError(
            f"{item!r} in the episodes {text!r} is neither an index nor a range; "
            "write them as in 0:10,12,29"
        )
    start = int(first)
    stop = int(last) if colon else start + 1
    if not start < stop <= start + _LONGEST_RANGE:
        raise SettingsError(
            f"the range {item!r} in the episodes {text!r} is empty or too long; "
            "a range is half-open: 0:10 is episodes 0 to 9"
        )
    return range(start, stop)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_episodes(episodes: tuple[int, ...]) -> None:
    if not episodes:
        raise SettingsError("episodes is empty; give indices, or None for all of them")
    for index in episodes:
        if not _is_int(index) or index < 0:
            raise SettingsError(f"episodes holds {index!r}; give whole numbers from 0")
    if len(set(episodes)) != len(episodes):
        raise SettingsError("episodes names an index twice; give each once")


def _check_size(size: tuple[int, int]) -> None:
    if len(size) != 2 or not all(_is_int(side) and side >= 1 for side in size):
        raise SettingsError(
            f"image_size is {size!r}; give (height, width) in pixels, such as (240, 320)"
        )
