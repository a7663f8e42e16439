"""What is in an episode, for people to look at: lengths, arrays, layouts, sizes on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egoloader.catalog import find_episodes, is_group
from egoloader.episode import ZarrEpisode
from egoloader.errors import EgoloaderError, FolderNotFoundError
from egoloader.store import size_below

__all__ = ["ArrayOverview", "EpisodeOverview", "overview", "read_path", "size_text"]


@dataclass(frozen=True, slots=True)
class ArrayOverview:
    """One array.

    Attributes:
        key: its name.
        what: `camera`, `json`, a dtype, or a data type that can't be read.
        shape: stored shape; for a camera with a declared size, that of a frame behind the rows.
        chunk: shape of one decoded chunk.
        shard: shape of one stored shard, or None.
        codecs: names of the codecs of a chunk.
        read_by: `byte ranges`, or `zarr-python` and why.
        num_bytes: size on disk, metadata included.
    """

    key: str
    what: str
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None
    codecs: tuple[str, ...]
    read_by: str
    num_bytes: int


@dataclass(frozen=True, slots=True)
class EpisodeOverview:
    """One episode.

    Attributes:
        name: its path below the folder that was looked at.
        embodiment: the body that was recorded.
        task: its name or description.
        total_frames: real frames.
        fps: Hz.
        fps_assumed: whether 30 was taken for want of an attribute.
        arrays: what it holds, in its own order.
        problems: what is seen to be wrong: arrays that can't be opened, are too short, or whose
            chunks are not all stored. No chunk is decoded.
    """

    name: str
    embodiment: str
    task: str
    total_frames: int
    fps: float
    fps_assumed: bool
    arrays: tuple[ArrayOverview, ...]
    problems: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the arrays on disk."""
        return sum(array.num_bytes for array in self.arrays)


def overview(path: Path) -> tuple[list[EpisodeOverview], list[str]]:
    """Look at one episode, or at all below a folder.

    Returns:
        The episodes that open, and one sentence for each that doesn't.

    Raises:
        EpisodeError: nothing to look at is there.
    """
    names = _names(path)
    episodes, broken = [], []
    for name in names:
        try:
            episodes.append(_episode(ZarrEpisode(path / name, name=name or None)))
        except EgoloaderError as error:
            if len(names) == 1:
                raise
            broken.append(str(error))
    return episodes, broken


def read_path(reference_reason: str) -> str:
    """Return how an array is read, as text; see `ZarrEpisode.reference_reason`."""
    return f"zarr-python: {reference_reason}" if reference_reason else "byte ranges"


def size_text(num_bytes: int) -> str:
    """Return a size with its unit."""
    for unit, scale in (("MB", 10**6), ("kB", 10**3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"


def _names(path: Path) -> list[str]:
    """Return the episodes below a path; the path itself, as "", where it is one."""
    if not path.exists():
        raise FolderNotFoundError("there is nothing at this path", episode=str(path))
    if path.is_dir() and not is_group(path):
        return find_episodes(path)
    return [""]


def _episode(episode: ZarrEpisode) -> EpisodeOverview:
    arrays, problems = [], []
    if episode.total_frames == 0:
        problems.append(f"episode {episode.name!r}: it has no frames")
    for key in episode.keys:
        try:
            arrays.append(_array(episode, key))
            episode.check_stored(key)
        except EgoloaderError as error:
            problems.append(str(error))
    attrs = episode.attrs
    return EpisodeOverview(
        name=episode.name,
        embodiment=episode.embodiment,
        task=str(attrs.get("task_description") or attrs.get("task_name") or ""),
        total_frames=episode.total_frames,
        fps=episode.fps,
        fps_assumed=episode.fps_assumed,
        arrays=tuple(arrays),
        problems=tuple(problems),
    )


def _array(episode: ZarrEpisode, key: str) -> ArrayOverview:
    layout = episode.layout(key)
    feature = (episode.header.features or {}).get(key)
    declared = feature.dtype if feature else ""
    what = {"jpeg": "camera", "json": "json"}.get(declared, layout.type_name)
    frame = feature.shape if feature and declared == "jpeg" else ()
    return ArrayOverview(
        key=key,
        what=what,
        shape=(*layout.shape, *frame),
        chunk=layout.chunk_shape,
        shard=layout.shard_shape,
        codecs=layout.codecs,
        read_by=read_path(episode.reference_reason(key)),
        num_bytes=size_below(episode.path / key),
    )
