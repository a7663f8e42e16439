"""What an episode says of itself: the group's attributes, parsed and checked. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from egoloader.errors import EpisodeFormatError

__all__ = ["ASSUMED_FPS", "FORMAT_VERSION", "STAMP", "EpisodeHeader", "Feature", "parse_header"]

#: Frame rate in Hz taken where an episode has no `fps`.
ASSUMED_FPS = 30.0
#: The attribute that our writer leaves in every finished episode.
STAMP = "egoloader"
FORMAT_VERSION = 1
#: Frames that an episode may have: 38 days at 30 Hz. What is kept of each frame is bounded by it.
MAX_FRAMES = 100_000_000
#: Frame rates in Hz that an episode may have: a frame in eleven days, a million a second.
FPS_RANGE = (1e-6, 1e6)


@dataclass(frozen=True, slots=True)
class Feature:
    """What the episode declares of one array.

    Attributes:
        dtype: a number's dtype, `jpeg` for a camera, `json` for rows of JSON bytes.
        shape: the declared shape of one row: (H, W, 3) for a camera.
        names: names of the row's dimensions, as they were written.
    """

    dtype: str
    shape: tuple[int, ...]
    names: Any = None


@dataclass(frozen=True, slots=True)
class EpisodeHeader:
    """The attributes that egoloader uses, and all attributes as they are.

    Attributes:
        total_frames: real frames; rows at or past it are padding.
        fps: frames a second, in Hz.
        fps_assumed: whether the episode has no `fps` and 30 was taken.
        embodiment: the body that was recorded.
        features: what is declared of each array; None where nothing is declared.
        stamped: whether egoloader's writer made the episode.
        attrs: every attribute of the group, unchanged.
    """

    total_frames: int
    fps: float
    fps_assumed: bool
    embodiment: str
    features: Mapping[str, Feature] | None
    stamped: bool
    attrs: Mapping[str, Any]


def parse_header(attrs: Mapping[str, Any], *, episode: str) -> EpisodeHeader:
    """Parse and check a group's attributes.

    Raises:
        EpisodeFormatError: an attribute is missing or can't be right, or the episode was left
            half-written.
    """

    def refuse(message: str) -> EpisodeFormatError:
        return EpisodeFormatError(message, episode=episode)

    stamp = attrs.get(STAMP)
    if STAMP in attrs and not (isinstance(stamp, Mapping) and stamp.get("complete") is True):
        raise refuse(f"it was left half-written ({STAMP}: {stamp!r}); write it again")
    if "total_frames" not in attrs:
        raise refuse("it has no attribute 'total_frames'; is the path that of an episode?")
    total_frames = attrs["total_frames"]
    if type(total_frames) is not int or total_frames < 0:
        raise refuse(f"total_frames must be a whole number of at least 0, got {total_frames!r}")
    if total_frames > MAX_FRAMES:
        raise refuse(f"total_frames is {total_frames}; episodes have at most {MAX_FRAMES}")
    embodiment = attrs.get("embodiment")
    if not isinstance(embodiment, str) or not embodiment:
        raise refuse(f"embodiment must name the body that was recorded, got {embodiment!r}")
    fps = attrs.get("fps", ASSUMED_FPS)
    if isinstance(fps, bool) or not isinstance(fps, int | float):
        raise refuse(f"fps must be a number of Hz, got {fps!r}")
    if not FPS_RANGE[0] <= fps <= FPS_RANGE[1]:  # false for NaN, too
        least, most = FPS_RANGE
        raise refuse(f"fps must be above 0 Hz and finite, from {least} to {most}, got {fps!r}")
    return EpisodeHeader(
        total_frames=total_frames,
        fps=float(fps),
        fps_assumed="fps" not in attrs,
        embodiment=embodiment,
        features=_parse_features(attrs.get("features"), episode),
        stamped=STAMP in attrs,
        attrs=attrs,
    )


def _parse_features(features: Any, episode: str) -> dict[str, Feature] | None:
    if features is None:
        return None
    if not isinstance(features, Mapping):
        raise EpisodeFormatError(f"features must be a mapping, got {features!r}", episode=episode)
    return {key: _parse_feature(key, value, episode) for key, value in features.items()}


def _parse_feature(key: str, value: Any, episode: str) -> Feature:
    if not isinstance(value, Mapping) or not isinstance(value.get("dtype"), str):
        raise EpisodeFormatError(
            f"its feature must be a mapping with a dtype, got {value!r}", episode=episode, key=key
        )
    shape = value.get("shape", ())
    if not isinstance(shape, list | tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise EpisodeFormatError(
            f"its feature's shape must be whole numbers, got {shape!r}", episode=episode, key=key
        )
    return Feature(value["dtype"], tuple(shape), value.get("names"))
