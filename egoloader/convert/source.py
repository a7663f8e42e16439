"""A LeRobot v2.0 or v2.1 folder: what its `meta/` says, and where its files are."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from egoloader.convert.feature import Feature, parse_features
from egoloader.errors import ConversionError
from egoloader.header import MAX_FRAMES
from egoloader.store import MAX_METADATA_BYTES

__all__ = ["EpisodeEntry", "LeRobotInfo", "LeRobotSource", "absent_files", "open_source"]

_T = TypeVar("_T")

_VERSIONS = ("v2.0", "v2.1")
# A clone without its large files leaves a text stub of some 130 bytes at each of their paths.
_STUB_BYTES = 1024
#: A place in a path's template: a name, and how wide a number is written. Of Python's own templates
#: it is only this; they can also ask for attributes, and for gigabytes of blanks.
_PLACE = re.compile(r"\{(episode_chunk|episode_index|video_key)(?::0?(\d{1,2})d)?\}")
_MAX_INDEX = 10**9


@dataclass(frozen=True)
class LeRobotInfo:
    """What holds for the whole data set.

    Attributes:
        root: the folder.
        version: `codebase_version`.
        robot_type: as recorded; None where it says nothing.
        fps: frames per second.
        chunk_size: episodes in each `chunk-…` folder.
        data_path: template of the parquet files' paths below `root`.
        video_path: template of the videos' paths; None where the data set has none.
        features: all of them, in the order of `meta/info.json`.
        tasks: task index -> text.
    """

    root: Path
    version: str
    robot_type: str | None
    fps: float
    chunk_size: int
    data_path: str
    video_path: str | None
    features: tuple[Feature, ...]
    tasks: Mapping[int, str]

    def parquet(self, episode: int) -> Path:
        """Return the path of the episode's rows."""
        return self.root / self._fill(self.data_path, "data_path", episode, "")

    def video(self, episode: int, key: str) -> Path:
        """Return the path of the episode's video of one camera."""
        if self.video_path is None:
            raise ConversionError(
                f"{self.root}: meta/info.json lists the video {key!r} but no video_path"
            )
        return self.root / self._fill(self.video_path, "video_path", episode, key)

    def _fill(self, template: str, name: str, episode: int, key: str) -> str:
        values = {"episode_chunk": episode // self.chunk_size, "episode_index": episode}

        def fill(place: re.Match[str]) -> str:
            value = values.get(place[1])
            return key if value is None else str(value).zfill(int(place[2] or 1))

        where = f"{self.root}: {name} in meta/info.json, {template!r:.200},"
        left = _PLACE.sub("", template)
        if "{" in left or "}" in left:
            raise ConversionError(
                f"{where} can't be filled in; it may hold {{episode_chunk}}, {{episode_index}} and "
                "{video_key}, numbers as in {episode_index:06d}"
            )
        path = _PLACE.sub(fill, template)
        if not path or PurePosixPath(path).is_absolute() or ".." in path.split("/"):
            raise ConversionError(f"{where} leads out of the folder: to {path!r:.200}")
        if "\0" in path:
            raise ConversionError(f"{where} is no path: {path!r:.200}")
        return path


@dataclass(frozen=True)
class EpisodeEntry:
    """One line of `meta/episodes.jsonl`: the index, the number of rows, the task texts."""

    index: int
    length: int
    tasks: tuple[str, ...]


@dataclass(frozen=True)
class LeRobotSource:
    """The folder's description and its episodes, by index."""

    info: LeRobotInfo
    episodes: Mapping[int, EpisodeEntry]


def open_source(root: Path) -> LeRobotSource:
    """Read `meta/` of a LeRobot folder.

    Raises:
        ConversionError: no such folder, not a LeRobot folder, a version other than v2.0 and v2.1,
            or metadata that can't be understood.
    """
    if not root.is_dir():
        raise ConversionError(f"{root} is not a folder; give the folder that holds meta/info.json")
    path = root / "meta" / "info.json"
    if not path.is_file():
        raise ConversionError(
            f"{root} holds no meta/info.json, so it is not a LeRobot data set; "
            "give the folder that holds meta/"
        )
    with path.open("rb") as file:
        text = _bounded(file.read(MAX_METADATA_BYTES + 1), "meta/info.json", root)
    raw = _object(_parse(text, "meta/info.json", root), "meta/info.json", root)
    version = _version(raw, root)
    info = LeRobotInfo(
        root=root,
        version=version,
        robot_type=_robot_type(raw),
        fps=_fps(raw, root),
        chunk_size=_field(raw, "chunks_size", int, root),
        data_path=_field(raw, "data_path", str, root),
        video_path=None if raw.get("video_path") is None else _field(raw, "video_path", str, root),
        features=parse_features(_field(raw, "features", dict, root), root),
        tasks=_tasks(root),
    )
    if info.chunk_size < 1:
        raise ConversionError(f"{root}: chunks_size in meta/info.json is {info.chunk_size}")
    return LeRobotSource(info=info, episodes=_episodes(root))


def absent_files(info: LeRobotInfo, episode: int) -> tuple[str, ...]:
    """Return the episode's files that the folder lacks, relative to it.

    The stub that a clone leaves in place of a large file counts as absent.
    """
    wanted = [info.parquet(episode)]
    wanted += [info.video(episode, f.key) for f in info.features if f.kind == "video"]
    return tuple(p.relative_to(info.root).as_posix() for p in wanted if _is_absent(p))


def _is_absent(path: Path) -> bool:
    if not path.is_file():
        return True
    if path.stat().st_size >= _STUB_BYTES:
        return False
    start = path.read_bytes()
    return start.startswith(b"version ") and b"git-lfs" in start


def _version(raw: Mapping[str, Any], root: Path) -> str:
    version = raw.get("codebase_version")
    if version not in _VERSIONS:
        raise ConversionError(
            f"{root} is a LeRobot data set of version {version!r}; "
            f"{' and '.join(_VERSIONS)} can be converted"
        )
    return str(version)


def _robot_type(raw: Mapping[str, Any]) -> str | None:
    name = raw.get("robot_type")
    # "unknown" is what LeRobot writes where nobody said; as a name it would mix up robots.
    return name if isinstance(name, str) and name.strip() not in ("", "unknown") else None


def _fps(raw: Mapping[str, Any], root: Path) -> float:
    fps = raw.get("fps")
    if isinstance(fps, bool) or not isinstance(fps, int | float):
        raise ConversionError(f"{root}: fps in meta/info.json is {fps!r}, not a number")
    if not 0 < fps <= sys.float_info.max:
        raise ConversionError(f"{root}: fps in meta/info.json is {fps!r}, not above 0")
    return fps


def _tasks(root: Path) -> dict[int, str]:
    lines = _lines(root, "meta/tasks.jsonl")
    return {_field(row, "task_index", int, root): _field(row, "task", str, root) for row in lines}


def _episodes(root: Path) -> dict[int, EpisodeEntry]:
    episodes: dict[int, EpisodeEntry] = {}
    for row in _lines(root, "meta/episodes.jsonl"):
        index = _field(row, "episode_index", int, root)
        if index in episodes:
            raise ConversionError(f"{root}: meta/episodes.jsonl lists episode {index} twice")
        if not 0 <= index < _MAX_INDEX:
            raise ConversionError(f"{root}: meta/episodes.jsonl lists an episode {index}")
        tasks = row.get("tasks") or ()
        texts = tuple(map(str, tasks if isinstance(tasks, list) else [tasks]))
        length = _field(row, "length", int, root)
        if not 0 <= length <= MAX_FRAMES:
            raise ConversionError(f"{root}: episode {index} in meta/ is to have {length} frames")
        episodes[index] = EpisodeEntry(index, length, texts)
    if not episodes:
        raise ConversionError(f"{root}: meta/episodes.jsonl lists no episode")
    return dict(sorted(episodes.items()))


def _lines(root: Path, name: str) -> Iterator[Mapping[str, Any]]:
    path = root / name
    if not path.is_file():
        raise ConversionError(f"{root} holds no {name}; download the whole of meta/")
    with path.open("rb") as file:
        lines = iter(lambda: file.readline(MAX_METADATA_BYTES + 1), b"")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                where = f"line {number} of {name}"
                _bounded(line, where, root)
                yield _object(_parse(line, where, root), where, root)


def _bounded(text: bytes, where: str, root: Path) -> bytes:
    if len(text) > MAX_METADATA_BYTES:
        raise ConversionError(f"{root}: {where} is larger than {MAX_METADATA_BYTES} bytes")
    return text


def _parse(text: bytes, where: str, root: Path) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{root}: {where} is not JSON: {error}") from error


def _object(value: object, where: str, root: Path) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConversionError(f"{root}: {where} is not a JSON object")
    return value


def _field(raw: Mapping[str, Any], name: str, kind: type[_T], root: Path) -> _T:
    value = raw.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConversionError(
            f"{root}: {name} in meta/ is {value!r:.200}, not of type {kind.__name__}"
        )
    return value
