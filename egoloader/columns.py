"""What is known of every frame of every episode before any is drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from egoloader.episode import ZarrEpisode
from egoloader.errors import EpisodeError, EpisodeFormatError, SampleError, SettingsError
from egoloader.store import size_below

__all__ = [
    "Column",
    "FrameSource",
    "ListedFrames",
    "check_column",
    "digest_of",
    "drawable_frames",
    "frame_weights",
    "kept_frames",
    "stored_bytes",
]

IntArray = npt.NDArray[np.int64]
#: The name of an array with one number a frame, or what gives one for an episode: (total_frames,).
Column = str | Callable[[ZarrEpisode], Any]


class ListedFrames(Protocol):
    """What a dataset says of its frames."""

    @property
    def seed(self) -> int:
        """What the samples' randomness goes by."""
        ...

    @property
    def spared(self) -> Mapping[str, IntArray]:
        """Per episode of which not all frames are served, those that are, ascending."""
        ...

    def __len__(self) -> int: ...

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episodes' names and served frames, in the order of the indices."""
        ...


class FrameSource(ListedFrames, Protocol):
    """A dataset over whole episodes."""

    def draw_among(self, indices: Iterable[int]) -> int:
        """Take in which indices are drawn; see `FrameDataset`."""
        ...

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Open one episode after the other, in the same order."""
        ...


def check_column(option: str, column: object) -> None:
    """Refuse what gives no number a frame; None stands for no column.

    Raises:
        SettingsError: it is no name of an array, and can't be called.
    """
    is_name = isinstance(column, str) and bool(column)
    if column is not None and not is_name and not callable(column):
        raise SettingsError(f"{option} is the name of an array or a callable, got {column!r}")


def kept_frames(data: FrameSource, column: Column) -> dict[str, IntArray]:
    """Return, per episode of which not all served frames are kept, those that are, ascending.

    They are counted among the served frames.

    Raises:
        SettingsError: no frame of any episode is kept, or the column can't be meant.
        EpisodeError: an episode lacks the column, or it is not one number a frame.
    """
    kept, is_any = {}, False
    for episode in data.open_each():
        values = _values(episode, column, "frame_filter")
        spared = data.spared.get(episode.name, np.arange(len(values)))
        rule = f"frame_filter {_called(column)} must be finite"
        _refuse(values, ~np.isfinite(values), spared, episode, rule)
        is_kept = values[spared] != 0
        is_any = is_any or bool(is_kept.any())
        if not is_kept.all():
            kept[episode.name] = np.flatnonzero(is_kept)
    if not is_any:
        raise SettingsError(f"frame_filter {_called(column)} keeps no frame of any episode")
    return kept


def frame_weights(
    data: FrameSource, column: Column, kept: Mapping[str, IntArray], ids: Sequence[Any]
) -> npt.NDArray[np.float64]:
    """Return the weights of all kept frames, the episodes in the order of `ids`.

    Raises:
        SettingsError: all weights are 0, their sum is infinite, or the column can't be meant.
        EpisodeError: an episode lacks the column, it is not one number a frame, or one is negative,
            NaN or inf; names the frame.
    """
    found = {}
    for episode in data.open_each():
        weights = _values(episode, column, "weights").astype(np.float64)
        spared = data.spared.get(episode.name, np.arange(len(weights)))
        rule = f"weights {_called(column)} must be finite and from 0 on"
        _refuse(weights, ~np.isfinite(weights) | (weights < 0), spared, episode, rule)
        weights = weights[spared]
        found[episode.name] = weights[kept[episode.name]] if episode.name in kept else weights
    weights = np.concatenate([found[name] for name in ids])
    with np.errstate(over="ignore"):
        total = weights.sum()
    if not 0 < total < np.inf:
        raise SettingsError(
            f"weights {_called(column)} must be above 0 for some frame, and their sum a number "
            f"that float64 holds, got {total} over all {len(weights)} frames"
        )
    return weights


def drawable_frames(
    data: FrameSource, column: Column, kept: Mapping[str, IntArray]
) -> dict[str, IntArray]:
    """Return, like `kept_frames`, those of the kept frames whose weights are above 0.

    Raises:
        SettingsError, EpisodeError: see `frame_weights`.
    """
    sizes = {name: len(kept.get(name, range(total))) for name, total in data.frames_by_episode()}
    weights = frame_weights(data, column, kept, list(sizes))
    ends = np.cumsum(list(sizes.values()))
    drawable = dict(kept)
    for (name, size), its in zip(sizes.items(), np.split(weights, ends[:-1]), strict=True):
        if not its.all():
            drawable[name] = kept.get(name, np.arange(size))[its > 0]
    return drawable


def stored_bytes(data: FrameSource) -> dict[str, int]:
    """Return the bytes that each episode's files have."""
    return {episode.name: size_below(episode.path) for episode in data.open_each()}


def digest_of(kept: Mapping[str, IntArray]) -> str | None:
    """Return what tells which frames are kept; None where all are."""
    if not kept:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(kept):
        digest.update(repr(name).encode())
        digest.update(kept[name].astype("<i8").tobytes())
    return digest.hexdigest()


def _refuse(
    values: npt.NDArray[Any],
    is_wrong: npt.NDArray[np.bool_],
    spared: IntArray,
    episode: ZarrEpisode,
    rule: str,
) -> None:
    """Refuse a column where it is wrong at a frame that is served."""
    wrong = spared[is_wrong[spared]]
    if len(wrong):
        frame = int(wrong[0])
        raise EpisodeFormatError(f"{rule}, got {values[frame]}", episode=episode.name, frame=frame)


def _values(episode: ZarrEpisode, column: Column, option: str) -> npt.NDArray[Any]:
    """Return one number a frame: (total_frames,)."""
    check_column(option, column)
    total = episode.total_frames
    if isinstance(column, str):
        values: Any = episode.read({column: [(0, total)]})[column][0] if total else np.zeros(0)
    else:
        values = _called_on(episode, column, option)
    try:
        numbers = np.asarray(values)
    except ValueError:
        numbers = np.empty(0, dtype=object)
    if numbers.dtype.kind not in "buif" or numbers.shape[:1] != (total,) or numbers.size != total:
        raise EpisodeFormatError(
            f"{option} {_called(column)} must be one number for each of {total} frames, got "
            f"{numbers.dtype} of shape {numbers.shape}",
            episode=episode.name,
            key=column if isinstance(column, str) else None,
        )
    return numbers.reshape(total)


def _called_on(episode: ZarrEpisode, column: Callable[[ZarrEpisode], Any], option: str) -> Any:
    try:
        return column(episode)
    except EpisodeError:
        raise
    except Exception as error:
        raise SampleError(
            f"{option} {_called(column)} failed: {error!r}", episode=episode.name
        ) from error


def _called(column: Column) -> str:
    return repr(column if isinstance(column, str) else getattr(column, "__name__", column))
