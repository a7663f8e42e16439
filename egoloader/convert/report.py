"""What a conversion did: told as it goes, and in sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["ConversionEvent", "ConversionReport", "Progress", "Status"]

Status = Literal["planned", "written", "skipped", "missing", "failed"]


@dataclass(frozen=True)
class ConversionEvent:
    """One step of a conversion, for a progress bar.

    Attributes:
        status: "planned" comes once and first; each episode then has one of the other four, those
            that need no work before those that do.
        episode: the LeRobot episode index; None for "planned".
        frames: frames of that episode, as `meta/episodes.jsonl` lists them; 0 for "planned".
        done_episodes: episodes worked on so far, this one included: "written" and "failed".
        total_episodes: episodes to be worked on: neither skipped nor missing.
        done_frames: frames of the episodes worked on so far.
        total_frames: frames of all episodes to be worked on.
        text: the error's text where the episode failed, the absent files where they are missing.
    """

    status: Status
    episode: int | None
    frames: int
    done_episodes: int
    total_episodes: int
    done_frames: int
    total_frames: int
    text: str = ""


@dataclass(frozen=True)
class ConversionReport:
    """What came of each episode asked for; every one is in exactly one of the first four.

    Attributes:
        written: LeRobot episode indices converted now, sorted.
        skipped: indices that were already there, complete and with the same settings, sorted.
        missing: index -> its files that the source folder lacks, relative to that folder.
        failed: index -> the error's text.
        left_out: feature -> why it was not converted; features that are bookkeeping (`index`,
            regular `timestamp`, …) are not listed.
        warnings: index -> what the writer warned of, such as NaN.
    """

    written: tuple[int, ...]
    skipped: tuple[int, ...]
    missing: Mapping[int, tuple[str, ...]]
    failed: Mapping[int, str]
    left_out: Mapping[str, str]
    warnings: Mapping[int, tuple[str, ...]]


class Progress:
    """Tells a callback of each step, and counts the work done and still to do."""

    def __init__(
        self,
        lengths: Mapping[int, int],
        todo: Sequence[int],
        callback: Callable[[ConversionEvent], None] | None,
    ) -> None:
        """Tell what is planned.

        Args:
            lengths: index -> frames, of all episodes asked for.
            todo: the indices of those to be worked on.
            callback: told of every step; may be None.
        """
        self._lengths = lengths
        self._callback = callback
        self._todo = frozenset(todo)
        self._total_frames = sum(lengths[index] for index in todo)
        self._done_episodes = 0
        self._done_frames = 0
        self._tell("planned", None, "")

    def step(self, status: Status, episode: int, text: str = "") -> None:
        """Tell what came of an episode; count it if it was to be worked on."""
        if episode in self._todo:
            self._done_episodes += 1
            self._done_frames += self._lengths[episode]
        self._tell(status, episode, text)

    def _tell(self, status: Status, episode: int | None, text: str) -> None:
        if self._callback is None:
            return
        self._callback(
            ConversionEvent(
                status=status,
                episode=episode,
                frames=0 if episode is None else self._lengths[episode],
                done_episodes=self._done_episodes,
                total_episodes=len(self._todo),
                done_frames=self._done_frames,
                total_frames=self._total_frames,
                text=text,
            )
        )
