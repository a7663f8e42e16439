"""The quarantine file: which episodes, or which of their frames, are bad and not to be served.

A JSON list of `{"episode", "start", "end", "key", "reason"}`. Without a key, samples at the frames
`start` to `end` are bad; with one, the rows of that array are, and every sample that reads one of
them. An `end` of null is the episode's end: an entry from 0 on without end or key is the whole
episode, which is not opened then.
"""

from __future__ import annotations

import fcntl
import json
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from egoloader.errors import QuarantineWarning, SettingsError, check_whole, near_miss

__all__ = [
    "BadSpan",
    "add_spans",
    "check_file",
    "check_names",
    "load_quarantine",
    "merge_spans",
    "names_of",
    "spans_by_episode",
]

#: Bytes that a quarantine file has at most.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class BadSpan:
    """Frames of one episode that are bad.

    Attributes:
        episode: its path below the dataset's folder.
        start: first frame.
        end: one past the last; None where they go on to the episode's end.
        key: the array whose rows they are; None where it is the samples that are bad.
        reason: what is wrong.

    Raises:
        SettingsError: one is none of these.
    """

    episode: str
    start: int = 0
    end: int | None = None
    key: str | None = None
    reason: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.episode, str) or not self.episode:
            raise SettingsError(f"episode must be a path, got {self.episode!r}")
        check_whole("start", self.start, 0)
        if self.end is not None:
            check_whole("end", self.end, self.start + 1)
        if self.key is not None and not isinstance(self.key, str):
            raise SettingsError(f"key must be the name of an array or null, got {self.key!r}")
        if not isinstance(self.reason, str):
            raise SettingsError(f"reason must be a text, got {self.reason!r}")

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the episode, or of the array, whatever its length."""
        return self.start == 0 and self.end is None


def load_quarantine(path: str | os.PathLike[str]) -> tuple[BadSpan, ...]:
    """Read a quarantine file.

    Raises:
        SettingsError: there is none, or it is broken; names the entry.
    """
    if not isinstance(path, str | os.PathLike):
        raise SettingsError(f"quarantine is the path of a file, got {path!r}")
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # a path that can be none is a ValueError
        raise SettingsError(f"the quarantine file {path} can't be read: {error}") from error
    if len(data) > MAX_BYTES:
        raise SettingsError(f"the quarantine file {path} is larger than {MAX_BYTES} bytes")
    try:
        entries = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"the quarantine file {path} is no JSON: {error}") from error
    if not isinstance(entries, list):
        raise SettingsError(f"the quarantine file {path} must hold a list of entries")
    return tuple(_span(entry, f"{path}, entry {number}") for number, entry in enumerate(entries))


def add_spans(path: str | os.PathLike[str], spans: Iterable[BadSpan]) -> None:
    """Add spans to a quarantine file, which is made if there is none.

    Safe from several processes of one machine: the folder is locked meanwhile. Readers see the file
    as it was or as it will be.

    Raises:
        SettingsError: what is there is no quarantine file, or the folder can't be written to.
    """
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _locked(target.parent):
            known = load_quarantine(target) if target.exists() else ()
            merged = merge_spans([*known, *spans])
            # Of one name, as the folder is locked: what a killed process left goes with the next.
            draft = target.with_name(f".{target.name}.partial")
            text = json.dumps([asdict(span) for span in merged], indent=1) + "\n"
            if len(text) > MAX_BYTES:
                raise SettingsError(
                    f"the quarantine file {path} would be larger than {MAX_BYTES} bytes; merge or "
                    "drop entries, or leave whole episodes out"
                )
            draft.write_text(text)
            draft.replace(target)
    except (OSError, ValueError) as error:  # a path that can be none is a ValueError
        if isinstance(error, SettingsError):
            raise
        raise SettingsError(f"the quarantine file {path} can't be written: {error}") from error


def check_file(path: str | os.PathLike[str]) -> Path:
    """Check that spans can be added to a quarantine file; return its absolute path.

    Raises:
        SettingsError: it can't be written to, or what is there is no quarantine file.
    """
    target = Path(path).absolute()
    add_spans(target, [])
    return target


def merge_spans(spans: Iterable[BadSpan]) -> list[BadSpan]:
    """Return spans sorted, those that touch and have the same key and reason made one."""
    merged: list[BadSpan] = []
    order = sorted(spans, key=lambda one: (one.episode, one.key or "", one.reason, one.start))
    for span in order:
        last = merged[-1] if merged else None
        if last is not None and _touches(last, span):
            end = None if None in (last.end, span.end) else max(last.end or 0, span.end or 0)
            merged[-1] = BadSpan(last.episode, last.start, end, last.key, last.reason)
        else:
            merged.append(span)
    return sorted(merged, key=lambda one: (one.episode, one.start, one.key or "", one.reason))


def names_of(spans: Iterable[BadSpan]) -> set[str]:
    """Return the episodes that spans are of."""
    return {span.episode for span in spans}


def spans_by_episode(spans: Iterable[BadSpan]) -> dict[str, list[BadSpan]]:
    """Return the spans of each episode."""
    found: dict[str, list[BadSpan]] = {}
    for span in spans:
        found.setdefault(span.episode, []).append(span)
    return found


def check_names(
    path: str | os.PathLike[str], spans: Sequence[BadSpan], names: Iterable[str]
) -> None:
    """Refuse a quarantine file of another folder, and warn of episodes that are not there.

    Raises:
        SettingsError: it names none of the episodes.
    """
    known = set(names)
    unknown = list(dict.fromkeys(span.episode for span in spans if span.episode not in known))
    if not unknown:
        return
    hint = f"{unknown[0]!r} is not there, {near_miss(unknown[0], known)}"
    if not any(span.episode in known for span in spans):
        raise SettingsError(
            f"the quarantine file {path} names none of the folder's episodes: {hint}"
        )
    warnings.warn(
        f"the quarantine file {path} names {len(unknown)} episodes that are not in the folder: "
        f"{hint}",
        QuarantineWarning,
        stacklevel=5,
    )


def _touches(last: BadSpan, span: BadSpan) -> bool:
    is_alike = (last.episode, last.key, last.reason) == (span.episode, span.key, span.reason)
    return is_alike and (last.end is None or span.start <= last.end)


def _span(entry: Any, where: str) -> BadSpan:
    if not isinstance(entry, Mapping) or "episode" not in entry:
        raise SettingsError(f"{where}: an entry is an object with an episode, got {entry!r:.80}")
    known = [field.name for field in fields(BadSpan)]
    for name in entry:
        if name not in known:
            raise SettingsError(f"{where}: there is no {name!r}; {near_miss(name, known)}")
    try:
        return BadSpan(**entry)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder, against other processes that add to a file in it. POSIX only."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
