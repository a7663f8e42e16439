"""What is found to be wrong, and where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from egoloader.quarantine import BadSpan, merge_spans

__all__ = ["Finding", "Harm", "join_runs", "quarantine_spans"]

#: `frames`: those can't or should not be served. `content`: they can, and what they hold is
#: suspicious as a whole. `note`: nothing is wrong with what is served.
Harm = Literal["frames", "content", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with an episode.

    Attributes:
        episode: its path below the folder that was looked at.
        check: what was looked for.
        message: what was met.
        key: the array, where one is to blame.
        start: the first frame of which it is said; None where it is the whole array or episode.
        end: one past the last.
        harm: what it does.
    """

    episode: str
    check: str
    message: str
    key: str | None = None
    start: int | None = None
    end: int | None = None
    harm: Harm = "frames"

    @property
    def is_bad(self) -> bool:
        """Whether it is more than a note."""
        return self.harm != "note"


def quarantine_spans(findings: Iterable[Finding]) -> list[BadSpan]:
    """Return what a quarantine file is to hold: all that can't or should not be served."""
    spans = [
        BadSpan(one.episode, one.start or 0, one.end, one.key, f"{one.check}: {one.message}")
        for one in findings
        if one.harm == "frames"
    ]
    return merge_spans(spans)


def join_runs(findings: Iterable[Finding], total: int) -> list[Finding]:
    """Return findings with those made one that say the same of rows one behind the other.

    What is said of all rows is said of the array.

    Args:
        findings: of one episode.
        total: its frames.
    """
    joined: list[Finding] = []
    for one in findings:
        last = joined[-1] if joined else None
        if last is not None and last.end is not None and last.end == one.start:
            whole = replace(last, end=one.end)
            if whole == replace(one, start=last.start):
                joined[-1] = whole
                continue
        joined.append(one)
    is_whole = [(one.start, one.end) == (0, total) for one in joined]
    return [
        replace(one, start=None, end=None) if whole else one
        for one, whole in zip(joined, is_whole, strict=True)
    ]
