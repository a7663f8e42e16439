"""One entry of a keymap: an array, the window around a frame that is cut from it, and how."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, get_args

from egoloader.entryfields import (
    MAX_REACH,
    check_above_zero,
    check_count,
    check_extent,
    check_offsets,
    check_offsets_s,
    grid_steps,
    is_array_name,
    is_number,
)
from egoloader.errors import KeyMapError, SettingsError, near_miss
from egoloader.row import Parts, check_parts, row_of

__all__ = ["DTYPES", "Interpolation", "KeySpec", "KeyType", "TextSource", "other_span_key"]

Interpolation = Literal["nearest", "linear", "slerp"]
KeyType = Literal["camera_keys", "proprio_keys", "action_keys", "annotation_keys", "metadata_keys"]

#: What an annotation entry yields: the texts of the spans that hold the frame, the episode's task,
#: or the latter where there is none of the former.
TextSource = Literal["annotation", "task", "annotation_or_task"]

_GRID_FIELDS = ("horizon_s", "history_s")
_WINDOW_FIELDS = ("horizon", "history", "lag_s", "offsets", "offsets_s", *_GRID_FIELDS)
#: What the numbers of an entry can leave as.
DTYPES = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KeySpec:
    """One entry of a keymap: an array and the rows taken from it around frame `i`.

    At most one of `horizon`, `history`, `lag_s`, `offsets`, `offsets_s`, `horizon_s`, `history_s`
    is set; none of them means the current frame, without a time axis. Seconds become frames with
    the episode's own fps and Python's `round` (ties to even).

    With `rate_hz` or `latency_s` an entry is read by time: a step is the frame that is nearest to
    its time, the earlier of two as near, or what `interpolation` makes of the two around it. Frame
    `i` is at `i / fps` seconds, or where the episode's array `timestamp` says. Steps before the
    first frame or behind the last repeat that frame, and are padded, as their time is not in the
    episode.

    Args:
        zarr_key: the array's name in the episode.
        key_type: what the array is; decides how its rows leave the loader.
        horizon: forward chunk of that many frames from `i` on; always a time axis.
        history: that many frames up to and with `i`; 1 means the current frame, no time axis.
        stride_s: with `history`, seconds between its steps; at least one frame.
        lag_s: one frame that many seconds back (at least one frame); no time axis.
        offsets: frames relative to `i`; keeps its time axis even for one.
        offsets_s: seconds relative to `i`; keeps its time axis even for one.
        rate_hz: steps a second of `horizon_s` or `history_s`, whatever the episode's fps.
        horizon_s: with `rate_hz`, `round(horizon_s * rate_hz)` steps from now on; always a time
            axis.
        history_s: with `rate_hz`, as many steps up to and with now, oldest first; one means now,
            no time axis.
        latency_s: seconds by which the array is late: it is read that much after each step of the
            window, before it where negative. 0 is none.
        interpolation: what a step between two frames is: `nearest`, `linear`, or `slerp`, which is
            linear but for rotations; of numbers that leave as floating point ones. `linear` takes
            each number on its own: between a quaternion and another, or its negative, which is the
            same rotation, it makes what is none.
        row: with `slerp`, the parts of a row, see `egoloader.row`; where it is left out, rows are
            poses (7 numbers: xyz and a wxyz quaternion) or wxyz quaternions (4).
        mask: also emit `<key>_is_pad`, bool, one a step, true where the step is clamped or padded.
        dtype: the numbers' output type; float32 unless given (metadata keep their own).
        size: cameras: decode to (height, width) pixels.
        optional: an episode may lack the array; then zeros of `shape` stand in (None for rows of
            JSON), and `<key>_is_pad` (emitted for every episode of an optional entry) is all true.
        shape: with `optional`, the shape of one row: (D…) for numbers, (H, W, 3) for cameras.
        text: annotation_keys: `annotation`, the texts of the spans that hold the frame; `task`, the
            episode's `task_description`, else its `task_name`, else "" (no array is read then); or
            `annotation_or_task`, the task where no span holds the frame.
        span_mask: with a window, also emit `<key>_is_other_span`, bool, one a step, true where the
            step's row lies outside the annotation span that holds frame `i`; of several, the one
            that ends first. Where none does, and in an absent array, none is true.

    Raises:
        KeyMapError: fields that contradict each other or can't be meant.
    """

    zarr_key: str
    key_type: KeyType
    horizon: int | None = None
    history: int | None = None
    stride_s: float | None = None
    lag_s: float | None = None
    offsets: tuple[int, ...] | None = None
    offsets_s: tuple[float, ...] | None = None
    rate_hz: float | None = None
    horizon_s: float | None = None
    history_s: float | None = None
    latency_s: float | None = None
    interpolation: Interpolation = "nearest"
    row: Parts | None = None
    mask: bool = False
    dtype: str | None = None
    size: tuple[int, int] | None = None
    optional: bool = False
    shape: tuple[int, ...] | None = None
    text: TextSource = "annotation"
    span_mask: bool = False

    def __post_init__(self) -> None:
        for name in ("offsets", "offsets_s", "row", "size", "shape"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, tuple):
                if isinstance(value, str) or not isinstance(value, Sequence):
                    raise KeyMapError(f"{name} must be a list, got {value!r}")
                object.__setattr__(self, name, tuple(value))
        self._check_array()
        self._check_window()
        self._check_times()
        self._check_interpolation()
        self._check_output()
        self._check_spans()

    @property
    def is_camera(self) -> bool:
        """Whether the rows are JPEGs."""
        return self.key_type == "camera_keys"

    @property
    def is_annotation(self) -> bool:
        """Whether the entry yields the text of the annotation spans that hold the frame."""
        return self.key_type == "annotation_keys"

    @property
    def is_timed(self) -> bool:
        """Whether rows are found by time, not by counting frames."""
        return self.rate_hz is not None or bool(self.latency_s)

    @property
    def is_interpolated(self) -> bool:
        """Whether steps between two frames are made of both."""
        return self.is_timed and self.interpolation != "nearest"

    @property
    def grid_steps(self) -> int | None:
        """How many steps a window by `rate_hz` has; None where there is no such window."""
        for name in _GRID_FIELDS:
            seconds = getattr(self, name)
            if seconds is not None and self.rate_hz is not None:
                return grid_steps(name, seconds, self.rate_hz)
        return None

    @property
    def emits_mask(self) -> bool:
        """Whether the sample gets `<key>_is_pad`."""
        return (self.mask or self.optional) and not self.is_annotation

    @property
    def is_task(self) -> bool:
        """Whether the entry yields the episode's task alone, for which no array is read."""
        return self.is_annotation and self.text == "task"

    @property
    def has_window(self) -> bool:
        """Whether the entry says which rows around frame `i` it takes."""
        return any(getattr(self, name) is not None for name in _WINDOW_FIELDS)

    def _check_array(self) -> None:
        if not isinstance(self.zarr_key, str) or not self.zarr_key:
            raise KeyMapError(f"zarr_key must be the name of an array, got {self.zarr_key!r}")
        if not is_array_name(self.zarr_key):
            raise KeyMapError(f"zarr_key {self.zarr_key!r} does not stay inside the episode")
        if self.key_type not in get_args(KeyType):
            hint = near_miss(str(self.key_type), get_args(KeyType))
            raise KeyMapError(f"unknown key_type {self.key_type!r}; {hint}")
        for name in ("mask", "optional"):
            if not isinstance(getattr(self, name), bool):
                raise KeyMapError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_window(self) -> None:
        windows = [name for name in _WINDOW_FIELDS if getattr(self, name) is not None]
        if len(windows) > 1:
            raise KeyMapError(f"{' and '.join(windows)} exclude each other; keep one")
        for name in ("horizon", "history"):
            check_count(name, getattr(self, name))
        for name in ("stride_s", "lag_s", *_GRID_FIELDS):
            check_above_zero(name, getattr(self, name), "seconds")
        if self.stride_s is not None and self.history is None:
            raise KeyMapError("stride_s needs history: it spaces the history's steps")
        check_offsets("offsets", self.offsets)
        check_offsets_s("offsets_s", self.offsets_s)
        if self.is_annotation and (windows or self.mask or self.latency_s is not None):
            raise KeyMapError(
                "annotation_keys yield the current frame's text: no window, no latency, no mask"
            )

    def _check_times(self) -> None:
        check_above_zero("rate_hz", self.rate_hz, "steps a second")
        grids = [name for name in _GRID_FIELDS if getattr(self, name) is not None]
        if self.rate_hz is not None and not grids:
            others = [name for name in _WINDOW_FIELDS if getattr(self, name) is not None]
            place = f" in the place of {others[0]}" if others else ""
            raise KeyMapError(f"rate_hz needs horizon_s or history_s, in seconds{place}")
        if grids and self.rate_hz is None:
            raise KeyMapError(
                f"{grids[0]} needs rate_hz, steps a second; {grids[0][:-2]} counts frames"
            )
        latency = self.latency_s
        if latency is not None and not (is_number(latency) and abs(latency) <= MAX_REACH):
            raise KeyMapError(
                f"latency_s must be a number of seconds up to {MAX_REACH}, got {latency!r}"
            )
        _ = self.grid_steps  # refuses too few and too many

    def _check_interpolation(self) -> None:
        options = get_args(Interpolation)
        if self.interpolation not in options:
            raise KeyMapError(
                f"unknown interpolation {self.interpolation!r}; "
                f"{near_miss(str(self.interpolation), options)}"
            )
        if self.row is not None:
            self._check_row(self.row)
        if self.interpolation == "nearest":
            return
        if self.is_camera or self.is_annotation:
            raise KeyMapError(f"{self.key_type} can't be interpolated; leave interpolation out")
        if self.rate_hz is None and self.latency_s is None:
            raise KeyMapError("interpolation needs rate_hz or latency_s; all else meets its frames")
        if self.dtype is not None and not self.dtype.startswith("float"):
            raise KeyMapError(
                f"interpolation makes floating point numbers, which dtype {self.dtype!r} "
                "can't hold; leave interpolation out, or choose another dtype"
            )

    def _check_row(self, row: Parts) -> None:
        if self.interpolation != "slerp":
            raise KeyMapError("row says which numbers are rotations: it needs interpolation: slerp")
        try:
            parts = row_of(check_parts("row", row)).parts
        except SettingsError as error:
            raise KeyMapError(str(error)) from None
        if not any(part.is_rotation for part in parts):
            raise KeyMapError(f"row {list(row)} has no rotation; take interpolation: linear")

    def _check_output(self) -> None:
        if self.dtype is not None and self.dtype not in DTYPES:
            raise KeyMapError(f"unknown dtype {self.dtype!r}; {near_miss(str(self.dtype), DTYPES)}")
        if self.dtype is not None and (self.is_camera or self.is_annotation):
            raise KeyMapError(f"dtype is for numbers; {self.key_type} have none to set")
        if self.size is not None and not self.is_camera:
            raise KeyMapError(f"size is for camera_keys, not for {self.key_type}")
        check_extent("size", self.size, length=2)
        check_extent("shape", self.shape, length=3 if self.is_camera else None)
        if self.shape is not None and not self.optional:
            raise KeyMapError("shape goes with optional: true; arrays that exist have their own")
        if self.key_type == "metadata_keys":
            if self.optional and (self.shape is None) != (self.dtype is None):
                raise KeyMapError(
                    "optional metadata_keys of numbers need shape and dtype, JSON rows neither"
                )
        elif self.optional and self.shape is None and not self.is_annotation:
            raise KeyMapError("optional needs shape, the shape of one row, to make the zeros")

    def _check_spans(self) -> None:
        if self.text not in get_args(TextSource):
            hint = near_miss(str(self.text), get_args(TextSource))
            raise KeyMapError(f"unknown text {self.text!r}; {hint}")
        if self.text != "annotation" and not self.is_annotation:
            raise KeyMapError(f"text is for annotation_keys, not for {self.key_type}")
        if not isinstance(self.span_mask, bool):
            raise KeyMapError(f"span_mask must be true or false, got {self.span_mask!r}")
        if self.span_mask and not self.has_window:
            raise KeyMapError("span_mask needs a window: the current frame is always in its span")


def other_span_key(key: str) -> str:
    """Return the key of the mask of an entry's steps that lie in another annotation span."""
    return f"{key}_is_other_span"
