"""Which episodes of a folder a dataset takes, with which keymaps, and which of their frames."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.catalog import Split, find_episodes, keep_share, matches, split_episodes
from egoloader.episode import ANNOTATIONS, TIMESTAMP, ZarrEpisode
from egoloader.errors import AssumedFpsWarning, QuarantineWarning, SettingsError, near_miss
from egoloader.guard import MissingChunks
from egoloader.keymap import KeyMap
from egoloader.quarantine import BadSpan, check_names, load_quarantine, spans_by_episode
from egoloader.sample import SampleMaker, SampleSettings, reads_spans
from egoloader.transformation import ShapeCheck

__all__ = [
    "Choice",
    "EpisodeRecord",
    "Gathered",
    "check_keymap",
    "gather",
    "spared_of_one",
    "warn_of_assumed_fps",
]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """What a dataset of many episodes keeps of each.

    Attributes:
        name: the episode's path below the dataset's folder.
        total_frames: its real frames.
        embodiment: the body that was recorded.
    """

    name: str
    total_frames: int
    embodiment: str


@dataclass(frozen=True, slots=True)
class Choice:
    """How episodes of a folder are chosen; see `MultiDataset.from_folder`."""

    filters: Mapping[str, Any] | None
    split: Split
    valid_ratio: float
    percent: float
    seed: int
    quarantine: str | os.PathLike[str] | None

    def __post_init__(self) -> None:
        if not isinstance(self.filters, Mapping | None):
            raise SettingsError(f"filters must map attributes to values, got {self.filters!r}")


class Gathered(NamedTuple):
    """What a dataset is made of.

    Attributes:
        folder: where the episodes are.
        episodes: the records of those taken.
        keymaps: per embodiment.
        spared: per episode of which not all frames are served, those that are, ascending.
    """

    folder: Path
    episodes: list[EpisodeRecord]
    keymaps: dict[str, KeyMap]
    spared: dict[str, IntArray]


def gather(
    folder: str | os.PathLike[str],
    keymap: KeyMap | Mapping[str, KeyMap],
    choice: Choice,
    settings: SampleSettings,
    missing_chunks: MissingChunks,
) -> Gathered:
    """Find the episodes below a folder, choose among them, and check each against its keymap.

    Raises:
        EpisodeNotFoundError: no folder, or no episodes in it.
        EpisodeFormatError, MissingKeyError, KeyMapError: an episode is broken, or does not fit its
            keymap.
        SettingsError: an option that can't be meant, or nothing is left after filtering.
    """
    _check_keymaps(keymap)
    root = _check_folder(folder)
    found = find_episodes(root)
    names = split_episodes(
        found, split=choice.split, valid_ratio=choice.valid_ratio, seed=choice.seed
    )
    bad = _quarantined(choice.quarantine, found)
    gone = {name for name, spans in bad.items() if _has_whole(spans, {None})}
    names = [name for name in names if name not in gone]
    matching = _open_matching(root, names, choice.filters or {}, missing_chunks)
    if not matching:
        _check_filters(choice.filters or {}, root, [name for name in found if name not in gone])
        raise SettingsError(_nothing_left(root, len(found), choice))
    matching = {
        name: episode
        for name, episode in matching.items()
        if not _is_lost(bad.get(name, ()), keymap, episode, settings)
    }
    kept = keep_share(list(matching), percent=choice.percent, seed=choice.seed)
    episodes = [matching[name] for name in kept]
    if not episodes:
        raise SettingsError(_nothing_left(root, len(found), choice))
    keymaps = _keymaps_by_embodiment(keymap, [episode.embodiment for episode in episodes])
    _check_transforms(settings, {*keymaps, *_embodiments(keymap)}, root, found)
    shapes, spared = ShapeCheck(), dict[str, IntArray]()
    for episode in episodes:
        maker = SampleMaker(episode, keymaps[episode.embodiment], settings)
        frames = _left(maker, choice.quarantine, bad.get(episode.name, ()))
        if frames is not None:
            spared[episode.name] = frames
        shapes.check(maker)
    if spared and not any(len(spared.get(one.name, range(one.total_frames))) for one in episodes):
        raise SettingsError(_nothing_left(root, len(found), choice))
    warn_of_assumed_fps([episode.name for episode in episodes if episode.fps_assumed])
    records = [EpisodeRecord(e.name, e.total_frames, e.embodiment) for e in episodes]
    return Gathered(root, records, keymaps, spared)


def _left(
    maker: SampleMaker, quarantine: str | os.PathLike[str] | None, spans: Sequence[BadSpan]
) -> IntArray | None:
    """Return the frames that a quarantine leaves of an episode, None for all."""
    if not spans:
        return None
    _warn_of_nothing(quarantine, maker.episode, spans)
    frames = _spared_frames(maker, spans)
    return frames if len(frames) < maker.total_frames else None


def _spared_frames(maker: SampleMaker, spans: Sequence[BadSpan]) -> IntArray:
    """Return the frames of an episode whose samples meet nothing bad, ascending."""
    total = maker.total_frames
    is_bad = np.zeros(total, dtype=np.bool_)
    for key in {span.key for span in spans}:
        is_row = np.zeros(total, dtype=np.bool_)
        for span in spans:
            if span.key == key:
                is_row[span.start : span.end] = True
        is_bad |= is_row if key is None else maker.reads(key, is_row)
    return np.flatnonzero(~is_bad)


def spared_of_one(maker: SampleMaker, quarantine: str | os.PathLike[str]) -> dict[str, IntArray]:
    """Return the frames that a quarantine leaves of an episode, whatever folder its names are of.

    By the episode's name; empty where it leaves all.

    Raises:
        SettingsError: it leaves none.
    """
    path = f"/{maker.episode.path.absolute().as_posix()}"
    spans = [one for one in load_quarantine(quarantine) if path.endswith(f"/{one.episode}")]
    _warn_of_nothing(quarantine, maker.episode, spans)
    frames = _spared_frames(maker, spans)
    if maker.total_frames and not len(frames):
        raise SettingsError(
            f"all frames of episode {maker.name!r} are in quarantine: {spans[0].reason}"
        )
    return {maker.name: frames} if len(frames) < maker.total_frames else {}


def _has_whole(spans: Sequence[BadSpan], keys: Set[str | None]) -> bool:
    """Return whether one of the spans is all of one of the arrays; None is the episode itself."""
    return any(span.is_whole and span.key in keys for span in spans)


def _is_lost(
    spans: Sequence[BadSpan],
    keymap: KeyMap | Mapping[str, KeyMap],
    episode: ZarrEpisode,
    settings: SampleSettings,
) -> bool:
    """Return whether an array is bad without which the episode can't be opened, or nothing planned.

    No sample maker might take such an array. Where entries are read by time, every plan goes by all
    times, so that one that is bad is enough.
    """
    its = keymap if isinstance(keymap, KeyMap) else keymap.get(episode.embodiment)
    if its is None:
        return False  # no keymap for it, which is refused where the episode is kept
    if its.is_timed and any(span.key == TIMESTAMP for span in spans):
        return True
    read = {TIMESTAMP, *its.zarr_keys}
    return _has_whole(spans, read | ({ANNOTATIONS} if reads_spans(its, settings) else set()))


def _warn_of_nothing(
    path: str | os.PathLike[str] | None, episode: ZarrEpisode, spans: Sequence[BadSpan]
) -> None:
    """Warn of a quarantine's entries that leave out nothing of an episode."""
    for span in spans:
        problem = ""
        if span.start >= episode.total_frames:
            problem = f"starts at frame {span.start} of {episode.total_frames}"
        elif span.key is not None and span.key not in episode.keys:
            problem = f"is of key {span.key!r}, which is not there; "
            problem += near_miss(span.key, episode.keys)
        if problem:
            warnings.warn(
                f"the quarantine file {path}: an entry of episode {episode.name!r} {problem}",
                QuarantineWarning,
                stacklevel=4,
            )
            return


def _quarantined(
    path: str | os.PathLike[str] | None, names: Sequence[str]
) -> dict[str, list[BadSpan]]:
    if path is None:
        return {}
    spans = load_quarantine(path)
    check_names(path, spans, names)
    return spans_by_episode(spans)


def check_keymap(keymap: object, embodiment: str | None = None) -> None:
    """Refuse what is no keymap.

    Args:
        keymap: what should be one.
        embodiment: whose it should be; None where it is for all.

    Raises:
        SettingsError: it is none.
    """
    if not isinstance(keymap, KeyMap):
        name = "keymap" if embodiment is None else f"keymap[{embodiment!r}]"
        raise SettingsError(
            f"{name} must be a KeyMap, got {type(keymap).__name__}; KeyMap.from_config makes one"
        )


def _check_keymaps(keymap: KeyMap | Mapping[str, KeyMap]) -> None:
    if isinstance(keymap, Mapping) and not isinstance(keymap, KeyMap):
        if not keymap:
            raise SettingsError("a mapping of keymaps needs at least one embodiment")
        for name, one in keymap.items():
            if not isinstance(name, str):
                raise SettingsError(f"keymaps are by embodiment, a text, got {name!r}")
            check_keymap(one, name)
    else:
        check_keymap(keymap)


def _keymaps_by_embodiment(
    keymap: KeyMap | Mapping[str, KeyMap], embodiments: Sequence[str]
) -> dict[str, KeyMap]:
    wanted = sorted(set(embodiments))
    if isinstance(keymap, KeyMap):
        return dict.fromkeys(wanted, keymap)
    for embodiment in wanted:
        if embodiment not in keymap:
            raise SettingsError(
                f"there are episodes of embodiment {embodiment!r} and no keymap for it; "
                f"{near_miss(embodiment, keymap)} (or filter the episodes)"
            )
    return {embodiment: keymap[embodiment] for embodiment in wanted}


def _embodiments(keymap: KeyMap | Mapping[str, KeyMap]) -> Set[str]:
    """Return the embodiments that keymaps are given for."""
    return set() if isinstance(keymap, KeyMap) else set(keymap)


def _check_transforms(
    settings: SampleSettings, known: Set[str], root: Path, names: Sequence[str]
) -> None:
    """Refuse transforms of an embodiment that no episode is of, in whichever split."""
    if not isinstance(settings.transforms, Mapping) or set(settings.transforms) <= known:
        return
    known = known | {ZarrEpisode(root / name, name=name).embodiment for name in names}
    for name in settings.transforms:
        if name not in known:
            raise SettingsError(
                f"there are transforms for {name!r}, and no episode of that embodiment; "
                f"{near_miss(name, known)}"
            )


def _check_folder(folder: object) -> Path:
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise SettingsError(f"folder must be the path of the episodes' folder, got {folder!r}")
    return Path(folder)


def _open_matching(
    root: Path, names: Sequence[str], filters: Mapping[str, Any], missing_chunks: MissingChunks
) -> dict[str, ZarrEpisode]:
    """Open the episodes that meet the filters, by name."""
    opened = (ZarrEpisode(root / name, missing_chunks=missing_chunks, name=name) for name in names)
    return {one.name: one for one in opened if matches(one.attrs, filters)}


def _check_filters(filters: Mapping[str, Any], root: Path, names: Sequence[str]) -> None:
    """Refuse a filter on what no episode has, in whichever split."""
    known = {attr for name in names for attr in ZarrEpisode(root / name, name=name).attrs}
    for name in filters:
        if name not in known:
            raise SettingsError(f"no episode has an attribute {name!r}; {near_miss(name, known)}")


def _nothing_left(root: Path, total: int, choice: Choice) -> str:
    message = f"none of the {total} episodes of {root} is left for split={choice.split!r}"
    if choice.filters:
        message += f" and filters={dict(choice.filters)!r}"
    if choice.quarantine is not None:
        message += f" and quarantine={os.fspath(choice.quarantine)!r}"
    if choice.split == "valid" and choice.quarantine is None:
        count = round(choice.valid_ratio * total)
        message += (
            f": valid_ratio={choice.valid_ratio} keeps {count} of {total} episodes for validation; "
            "raise it, or set valid_ratio: 0 to go without"
        )
    return message


def warn_of_assumed_fps(names: Sequence[str]) -> None:
    """Warn once of the episodes, by name, for which 30 Hz was taken."""
    if names:
        warnings.warn(
            f"{len(names)} episodes have no fps, 30 Hz is taken; the first is {names[0]!r}",
            AssumedFpsWarning,
            stacklevel=4,
        )
