"""Every error and warning of the project, in one tree.

    EgoloaderError
    ├── SettingsError (ValueError)            a wrong option of a dataset, loader or module
    │   ├── ConfigError                       a wrong recipe or command line
    │   ├── ResumeError                       a position of other data or settings, or a broken one
    │   └── MissingStatisticsError (KeyError) an embodiment or key that there are none of
    ├── KeyMapError (ValueError)              a keymap that can't be right, whatever the episode
    ├── EpisodeError                          something about one episode; carries .episode
    │   ├── EpisodeNotFoundError (FileNotFoundError)
    │   │   └── FolderNotFoundError           no folder of episodes, or none in it
    │   ├── EpisodeFormatError (ValueError)   metadata that is missing, wrong or contradictory
    │   ├── MissingKeyError (KeyError)        the keymap names an array that the episode lacks
    │   ├── RowRangeError (ValueError)        rows outside the episode were asked for
    │   ├── ReadError (ValueError)            stored bytes that can't be turned into rows
    │   │   ├── LostEpisodeError              it was moved, replaced or edited while it was open
    │   │   └── MissingChunkError             a chunk that should be stored is not
    │   ├── ValueRangeError (ValueError)      numbers that can't be cast, or interpolated
    │   ├── FrameError (ValueError)           a camera frame that can't be decoded
    │   ├── TooManyBadFramesError (RuntimeError)  more frames were skipped than may be
    │   └── SampleError (RuntimeError)        a transform, or the loader itself, failed on a frame
    ├── PlanError (ValueError)                windows of rows that can't be planned
    ├── FrameIndexError (IndexError)          a frame index outside the dataset or the episode
    ├── IndexKindError (TypeError)            an index that is no whole number
    ├── TransformError (ValueError)           numbers that a transform can't change
    ├── TrainingError (RuntimeError)          a run that learns nothing, or from NaN
    ├── LoaderError (RuntimeError)            an iterator that was used in another process
    ├── WorkerLostError (RuntimeError)        a worker process has ended before its work
    ├── WriterError (ValueError)              input that the writer refuses
    │   └── EpisodeExistsError (FileExistsError)
    ├── ConversionError (ValueError)          a source folder that can't be converted
    └── MissingExtraError (ImportError)       an optional library is not installed

    EgoloaderWarning (UserWarning)
    ├── AssumedFpsWarning                     an episode without `fps`
    ├── BadFrameWarning                       other frames are served in the place of bad ones
    ├── QuarantineWarning                     a quarantine's entries name what is not there
    ├── SharedMemoryWarning                   too little of it for the batches of workers
    ├── MissingChunkWarning                   missing chunks served as fill values, as asked
    ├── StatisticsWarning                     numbers that hardly change, or many outliers
    └── NonFiniteWarning                      NaN or inf handed to the writer

Messages say what happened, where (episode, key, frame), what was met, and what to do about it.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

__all__ = [
    "AssumedFpsWarning",
    "BadFrameWarning",
    "ConfigError",
    "ConversionError",
    "EgoloaderError",
    "EgoloaderWarning",
    "EpisodeError",
    "EpisodeExistsError",
    "EpisodeFormatError",
    "EpisodeNotFoundError",
    "FolderNotFoundError",
    "FrameError",
    "FrameIndexError",
    "IndexKindError",
    "KeyMapError",
    "LoaderError",
    "LostEpisodeError",
    "MissingChunkError",
    "MissingChunkWarning",
    "MissingExtraError",
    "MissingKeyError",
    "MissingStatisticsError",
    "NonFiniteWarning",
    "PlanError",
    "QuarantineWarning",
    "ReadError",
    "ResumeError",
    "RowRangeError",
    "SampleError",
    "SettingsError",
    "SharedMemoryWarning",
    "StatisticsWarning",
    "TooManyBadFramesError",
    "TrainingError",
    "TransformError",
    "ValueRangeError",
    "WorkerLostError",
    "WriterError",
    "check_whole",
    "near_miss",
    "require_extra",
]


class EgoloaderError(Exception):
    """Base of every error that the project raises on purpose."""

    def __str__(self) -> str:
        # KeyError would print the message's repr.
        return str(self.args[0]) if self.args else ""


class SettingsError(EgoloaderError, ValueError):
    """An option has a value that it can't have."""


class ConfigError(SettingsError):
    """A recipe or a command line names something that is not there, or contradicts itself."""


class ResumeError(SettingsError):
    """A saved position can't be gone on from: it is of other data or settings, or broken."""


class MissingStatisticsError(SettingsError, KeyError):
    """There are no statistics of an embodiment, or of a key."""


class KeyMapError(EgoloaderError, ValueError):
    """A keymap is wrong, whatever the episode."""


#: Names that are looked through for what was meant, and how long they may be.
_MOST_NAMES, _LONGEST_NAME = 5000, 500
#: Characters of a message at most: what it quotes may be metadata of many megabytes.
_LONGEST_MESSAGE = 2000


class EpisodeError(EgoloaderError):
    """Something is wrong with one episode.

    Of one that comes out of a `DataLoader`'s worker, the text alone is known: the attributes are
    empty then, as PyTorch makes the error anew from its text.

    Attributes:
        episode: the episode's path, or its path below the dataset's folder.
        key: the array's name, where one is to blame.
        frame: the frame index, where one is to blame.
    """

    _noun = "episode"

    def __init__(
        self, message: str, *, episode: str = "", key: str | None = None, frame: int | None = None
    ) -> None:
        # Only of our own: what PyTorch sends home holds the whole way to it, and ends with it.
        if episode and len(message) > _LONGEST_MESSAGE:
            message = f"{message[:_LONGEST_MESSAGE]}…"
        # PyTorch remakes a worker's error from its text alone, which says where it was already.
        where = [f"{self._noun} {episode!r}"] if episode else []
        if key is not None:
            where.append(f"key {key!r}")
        if frame is not None:
            where.append(f"frame {frame}")
        super().__init__(f"{', '.join(where)}: {message}" if where else message)
        self.message, self.episode, self.key, self.frame = message, episode, key, frame

    def __reduce__(self) -> tuple[object, ...]:
        # Worker processes send errors home by pickle, which would call __init__ without keywords.
        return _revive, (type(self), self.message, self.episode, self.key, self.frame)


def _revive(
    kind: type[EpisodeError], message: str, episode: str, key: str | None, frame: int | None
) -> EpisodeError:
    return kind(message, episode=episode, key=key, frame=frame)


class EpisodeNotFoundError(EpisodeError, FileNotFoundError):
    """No episode is at the path."""


class FolderNotFoundError(EpisodeNotFoundError):
    """No folder of episodes is at the path, or there are none in it; `.episode` is the path."""

    _noun = "folder"


class EpisodeFormatError(EpisodeError, ValueError):
    """The episode's metadata is missing, wrong, or disagrees with its arrays."""


class MissingKeyError(EpisodeError, KeyError):
    """The episode has no array of that name."""


class RowRangeError(EpisodeError, ValueError):
    """Rows were asked for that the episode does not have."""


class ReadError(EpisodeError, ValueError):
    """Stored bytes could not be read or decoded into rows."""


class LostEpisodeError(ReadError):
    """The episode is not what was opened any more: it was moved, replaced or edited."""


class MissingChunkError(ReadError):
    """A chunk that should be stored is not there."""


class ValueRangeError(EpisodeError, ValueError):
    """The output dtype can't hold the stored numbers exactly, or nothing lies between them."""


class FrameError(EpisodeError, ValueError):
    """A camera frame is truncated, corrupt, of the wrong size, or of a refused colour space."""


class TooManyBadFramesError(EpisodeError, RuntimeError):
    """More frames than may be skipped can't be read or decoded; `.frame` is the last of them."""


class SampleError(EpisodeError, RuntimeError):
    """A transform, or the loader itself, failed while a sample was made."""


class PlanError(EgoloaderError, ValueError):
    """A window of rows is empty, reversed or negative, or a chunk holds no row."""


class FrameIndexError(EgoloaderError, IndexError):
    """A dataset or an episode was indexed out of its range."""


class IndexKindError(EgoloaderError, TypeError):
    """An index of a dataset is no whole number."""


class TransformError(EgoloaderError, ValueError):
    """A transform was handed numbers that it can't change, such as a quaternion of norm 0."""


class TrainingError(EgoloaderError, RuntimeError):
    """A training run took no step, or its loss is NaN or inf."""


class LoaderError(EgoloaderError, RuntimeError):
    """A loader's iterator was used in a process that it does not belong to."""


class WorkerLostError(EgoloaderError, RuntimeError):
    """A worker process has ended before its work: killed by the system, or by a crash in it."""


class WriterError(EgoloaderError, ValueError):
    """The writer was handed something that can't become an episode."""


class EpisodeExistsError(WriterError, FileExistsError):
    """Something is already at the path that the writer was to publish to."""


class ConversionError(EgoloaderError, ValueError):
    """A source folder can't be converted."""


class MissingExtraError(EgoloaderError, ImportError):
    """An optional library is needed and not installed."""


class EgoloaderWarning(UserWarning):
    """Base of every warning that the project gives."""


class AssumedFpsWarning(EgoloaderWarning):
    """An episode has no `fps`; 30 was taken."""


class BadFrameWarning(EgoloaderWarning):
    """Frames of an episode can't be read or decoded, and others are served in their place."""


class QuarantineWarning(EgoloaderWarning):
    """A quarantine file has entries that leave out nothing, as what they name is not there."""


class MissingChunkWarning(EgoloaderWarning):
    """Missing chunks were served as fill values, because `missing_chunks: fill` asks for it."""


class SharedMemoryWarning(EgoloaderWarning):
    """The batches of a `DataLoader`'s workers need more shared memory than is free."""


class StatisticsWarning(EgoloaderWarning):
    """Numbers hardly change, frames are left out in plenty, or statistics are not cached."""


class NonFiniteWarning(EgoloaderWarning):
    """NaN or inf was written."""


def check_whole(name: str, value: object, least: int) -> None:
    """Refuse an option that is no whole number from `least` on.

    Raises:
        SettingsError: it is none.
    """
    if type(value) is not int or value < least:
        raise SettingsError(f"{name} must be a whole number from {least} on, got {value!r}")


def near_miss(name: str, known: Iterable[str]) -> str:
    """Return a hint to end a message with: the close match among `known`, or all of them."""
    names = sorted(known)
    # Each is compared letter by letter; nobody means one of so many, or so long a one.
    short = [n for n in names if len(n) <= _LONGEST_NAME] if len(names) <= _MOST_NAMES else []
    close = difflib.get_close_matches(name[:_LONGEST_NAME], short, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    if not names:
        return "there are none."
    shown = ", ".join(f"{n!r:.200}" for n in names[:12])
    return f"there are: {shown}{', …' if len(names) > 12 else ''}."


def require_extra(module: str, extra: str) -> ModuleType:
    """Import an optional library, or say which extra installs it.

    Raises:
        MissingExtraError: `module` can't be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"{module.partition('.')[0]!r} can't be imported ({error}); "
            f"install it with: pip install 'egoloader[{extra}]'"
        ) from error
