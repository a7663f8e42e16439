"""The options that every builder of keymaps takes, and what they may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import get_args

from egoloader.entryfields import check_above_zero, check_count
from egoloader.errors import KeyMapError, near_miss
from egoloader.keymap import Interpolation, TextSource

__all__ = ["BuilderOptions", "Names", "named_arrays"]

#: Arrays of a keymap: a name, a list of names, or `{sample key: name}`.
Names = str | Sequence[str] | Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class BuilderOptions:
    """The options that every builder takes; see `human_keymap`.

    Raises:
        KeyMapError: one that can't be meant, or that needs another; names it as builders do.
    """

    horizon: int
    proprio_history: int
    history_stride_s: float | None
    rate_hz: float | None
    horizon_s: float | None
    proprio_history_s: float | None
    interpolation: Interpolation
    image_history_gap_s: float | None
    image_memory: int | None
    image_memory_stride_s: float
    annotation_key: str | None
    annotation_text: TextSource
    masks: bool
    norm_mode: bool
    has_poses: bool = True  # whether only the arrays called `…_pose` have rotations

    def __post_init__(self) -> None:
        self._check_given()
        for name in ("horizon", "proprio_history", "image_memory"):
            check_count(name, getattr(self, name))
        for name in ("history_stride_s", "image_history_gap_s", "image_memory_stride_s"):
            check_above_zero(name, getattr(self, name), "seconds")
        for name in ("masks", "norm_mode"):
            if not isinstance(getattr(self, name), bool):
                raise KeyMapError(f"{name} must be true or false, got {getattr(self, name)!r}")
        self._check_grid()
        self._check_text()

    def _check_given(self) -> None:
        """Refuse null where it stands for nothing."""
        for name in ("horizon", "proprio_history"):
            if getattr(self, name) is None and getattr(self, f"{name}_s") is None:
                raise KeyMapError(
                    f"{name} must be a whole number of at least 1, got None; only with {name}_s "
                    "and rate_hz it is not needed"
                )
        if self.image_memory_stride_s is None:
            raise KeyMapError("image_memory_stride_s must be a number of seconds above 0, got None")

    def _check_grid(self) -> None:
        """Refuse options of a time grid that can't be meant, or where there is none."""
        check_above_zero("rate_hz", self.rate_hz, "steps a second")
        if self.interpolation not in get_args(Interpolation):
            hint = near_miss(str(self.interpolation), get_args(Interpolation))
            raise KeyMapError(f"unknown interpolation {self.interpolation!r}; {hint}")
        given = [n for n in ("horizon_s", "proprio_history_s") if getattr(self, n) is not None]
        for name in given:
            check_above_zero(name, getattr(self, name), "seconds")
        if given and self.rate_hz is None:
            raise KeyMapError(
                f"{given[0]} needs rate_hz, steps a second; {given[0][:-2]} counts frames"
            )
        if self.proprio_history_s is not None and self.history_stride_s is not None:
            raise KeyMapError(
                "history_stride_s needs proprio_history, in frames; rate_hz spaces the steps of "
                "proprio_history_s"
            )
        if given:
            return
        if self.rate_hz is not None:
            raise KeyMapError(
                "rate_hz needs horizon_s or proprio_history_s, in seconds, as windows"
            )
        if self.interpolation != "nearest":
            raise KeyMapError("interpolation needs rate_hz, and horizon_s or proprio_history_s")

    def _check_text(self) -> None:
        key, text = self.annotation_key, self.annotation_text
        if text not in get_args(TextSource):
            hint = near_miss(str(text), get_args(TextSource))
            raise KeyMapError(f"annotation_text: unknown text {text!r}; {hint}")
        if key is not None and (not isinstance(key, str) or not key):
            raise KeyMapError(f"annotation_key must be the sample key of the text, got {key!r}")
        if key is None and text != "annotation":
            raise KeyMapError("annotation_text needs annotation_key, the sample key of the text")


def named_arrays(option: str, names: Names) -> dict[str, str]:
    """Return the arrays that an option lists, by sample key.

    Raises:
        KeyMapError: it lists none of that form, or one twice.
    """
    pairs: list[tuple[str, str]] = []
    if isinstance(names, str):
        pairs = [(names, names)]
    elif isinstance(names, Mapping):
        pairs = list(names.items())
    elif isinstance(names, Sequence):
        pairs = [(name, name) for name in names]
    is_listed = isinstance(names, str | Mapping | Sequence)
    if not is_listed or not all(isinstance(one, str) and one for pair in pairs for one in pair):
        raise KeyMapError(
            f"{option} must be the name of an array, a list of names, or {{sample key: name}}; "
            f"[] for none, got {names!r}"
        )
    if len(dict(pairs)) < len(pairs):
        raise KeyMapError(f"{option} lists an array twice: {list(names)}")
    return dict(pairs)
