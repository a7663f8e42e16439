"""What an episode says of itself, against what is stored; nothing is decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egoloader.chunkcodec import unread_reason
from egoloader.counts import ReadCounts
from egoloader.episode import ANNOTATIONS, TIMESTAMP, ZarrEpisode
from egoloader.errors import EpisodeError
from egoloader.header import Feature
from egoloader.layout import ArrayLayout
from egoloader.store import EpisodeFolder
from egoloader.timestamps import layout_problem
from egoloader.validate.finding import Finding, Harm
from egoloader.validate.stored import MOST_UNREADABLE, blocks, given_up

__all__ = ["check_annotations", "check_metadata", "readable_keys"]

#: Chunks that are looked for at once, and one by one where one of them is not there.
_BLOCK_CHUNKS = 256


def check_metadata(episode: ZarrEpisode) -> Iterator[Finding]:
    """Yield what is wrong with metadata, lengths and stored chunks."""
    if not episode.total_frames:
        yield _finding(episode, "length", "the episode has no frames", harm="content")
    if episode.fps_assumed:
        yield _finding(episode, "fps", "there is no fps; 30 Hz is taken", harm="note")
    folder = EpisodeFolder(episode.path, episode.name, ReadCounts())
    on_disk, declared = set(_array_names(folder)), episode.header.features
    if declared is not None:
        for key in sorted(on_disk - declared.keys()):
            yield _finding(episode, "features", "the array is not declared", key, "note")
    yield from _check_consolidated(episode, folder, on_disk)
    for key in sorted(on_disk.union(declared or ())):
        try:
            yield from _check_array(episode, key)
        except EpisodeError as error:
            yield _finding(episode, "metadata", error.message, key)


def readable_keys(episode: ZarrEpisode) -> dict[str, ArrayLayout]:
    """Return the arrays of one row a frame whose metadata can be understood, declared or not."""
    folder = EpisodeFolder(episode.path, episode.name, ReadCounts())
    found = {}
    for key in sorted({*_array_names(folder), *(episode.header.features or ())}):
        try:
            layout = episode.layout(key)
        except EpisodeError:
            continue
        if key != ANNOTATIONS and layout.kind != "other" and layout.rows >= episode.total_frames:
            found[key] = layout
    return found


def _array_names(folder: EpisodeFolder) -> Iterator[str]:
    """Yield the names of all arrays below a folder, broken ones too, of which it can't be told."""
    for name, subfolders, files in folder.walk():
        if name != "." and (".zarray" in files or "zarr.json" in files):
            try:
                metadata = folder.read_json(f"{name}/zarr.json") or {}
            except EpisodeError:
                metadata = {}
            if metadata.get("node_type") != "group":
                subfolders.clear()
                yield name


def _check_array(episode: ZarrEpisode, key: str) -> Iterator[Finding]:
    layout = episode.layout(key)
    feature = (episode.header.features or {}).get(key)
    if layout.kind == "other":
        message = f"rows of data type {layout.type_name!r} can't be read"
        yield _finding(episode, "data type", message, key)
        return
    if key == TIMESTAMP and layout_problem(layout):
        yield _finding(episode, "timestamps", layout_problem(layout), key)
    problem, harm = _declared_otherwise(feature, layout)
    if problem:
        yield _finding(episode, "features", problem, key, harm)
    if layout.shard_shape is not None and 0 in layout.shard_shape:
        yield _finding(episode, "shards", "the shard's shape holds a 0", key, "note")
    reason = unread_reason(layout)
    if reason:
        yield _finding(episode, "codecs", f"zarr-python reads it: {reason}", key, "note")
    yield from _check_chunks(episode, key, layout)


def _check_chunks(episode: ZarrEpisode, key: str, layout: ArrayLayout) -> Iterator[Finding]:
    """Find the rows whose chunks are not there."""
    total, chunk_rows = episode.total_frames, max(layout.chunk_rows, 1)
    if key == ANNOTATIONS or layout.rows < total:
        episode.check_stored(key)
        return
    num_lost = 0
    for first, last in blocks(total, _BLOCK_CHUNKS * chunk_rows, "full"):
        if not _lacks(episode, key, first, last):
            continue
        for start in range(first, last, chunk_rows):
            stop = min(start + chunk_rows, last)
            message = _lacks(episode, key, start, stop)
            if message:
                num_lost += 1
                yield Finding(episode.name, "metadata", message, key, start, stop)
        if num_lost >= MOST_UNREADABLE and last < total:
            yield given_up(episode, key, last, "metadata")
            return


def _lacks(episode: ZarrEpisode, key: str, start: int, stop: int) -> str:
    """Return what is wrong with the chunks that rows lie in; nothing where they are there."""
    try:
        episode.check_stored(key, (start, stop))
    except EpisodeError as error:
        return error.message
    return ""


def _declared_otherwise(feature: Feature | None, layout: ArrayLayout) -> tuple[str, Harm]:
    """Return what is declared wrongly, nothing for no such thing, and what harm that does."""
    if feature is None:
        return "", "note"
    is_bytes, says_bytes = layout.kind == "bytes", feature.dtype in ("jpeg", "json", "bytes")
    if is_bytes != says_bytes:
        return f"features says {feature.dtype}, the array holds {layout.type_name}", "frames"
    # Numbers are served as the array holds them, whatever is declared.
    if not is_bytes and feature.dtype != str(layout.dtype):
        return f"features says {feature.dtype}, the array holds {layout.dtype}", "content"
    if not is_bytes and feature.shape and feature.shape != layout.row_shape:
        message = f"features says rows of {feature.shape}, the array has {layout.row_shape}"
        return message, "content"
    return "", "note"


def _check_consolidated(
    episode: ZarrEpisode, folder: EpisodeFolder, on_disk: set[str]
) -> Iterator[Finding]:
    """Compare the copy of all metadata that some writers keep in the group to the arrays."""
    try:
        # Zarr v3 keeps it in the group's metadata, v2 in a file beside that.
        group = folder.read_json("zarr.json") or {}
        consolidated = group.get("consolidated_metadata") or folder.read_json(".zmetadata")
    except EpisodeError as error:
        yield _finding(episode, "consolidated", error.message, harm="note")
        return
    listed = consolidated.get("metadata") if isinstance(consolidated, Mapping) else None
    if not isinstance(listed, Mapping):
        return
    arrays = {
        key.removesuffix("/.zarray")
        for key, value in listed.items()
        if key.endswith("/.zarray")
        or (isinstance(value, Mapping) and value.get("node_type") == "array")
    }
    if arrays != on_disk:
        others = ", ".join(sorted(arrays ^ on_disk)[:5])
        yield _finding(
            episode,
            "consolidated",
            f"the consolidated metadata is stale, it differs in {others}; egoloader does not use "
            "it, other readers do",
            harm="note",
        )


def check_annotations(episode: ZarrEpisode) -> Iterator[Finding]:
    """Find annotations that can't be read, or lie outside the episode."""
    try:
        spans = episode.annotations()
    except EpisodeError as error:
        yield _finding(episode, "annotations", error.message, ANNOTATIONS)
        return
    for place, (text, start, end) in enumerate(spans):
        if not 0 <= start < end <= episode.total_frames:
            yield Finding(
                episode.name,
                "annotations",
                f"row {place}, {text!r:.60}, spans {start} to {end} of {episode.total_frames} "
                "frames",
                ANNOTATIONS,
                start,
                end,
                "content",
            )


def _finding(
    episode: ZarrEpisode, check: str, message: str, key: str | None = None, harm: Harm = "frames"
) -> Finding:
    return Finding(episode.name, check, message, key, harm=harm)
