"""Going on from every position of something that hands out batches."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, Protocol

__all__ = ["Run", "Tally", "resume_everywhere"]


class Run(Protocol):
    """What hands out batches, and can be saved between any two of them."""

    def batches(self) -> Iterator[Any]:
        """Hand out what is left, epoch after epoch."""
        ...

    def save(self) -> dict[str, Any]:
        """Return the position behind what was handed out, as plain values."""
        ...

    def go_on(self, state: dict[str, Any]) -> None:
        """Take a saved position over."""
        ...


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of comparing.

    Attributes:
        resumes: how often a run went on from a saved position.
        batches: how many batches were compared behind them.
        wrong: how many of them were not those of the uninterrupted run, in its order.
    """

    resumes: int = 0
    batches: int = 0
    wrong: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))

    @classmethod
    def of(cls, found: Sequence[Any], wanted: Sequence[Any], resumes: int = 1) -> Tally:
        """Compare what a run handed out with what it should have."""
        pairs = itertools.zip_longest(found, wanted)
        wrong = sum(one != other for one, other in pairs)
        return cls(resumes, max(len(found), len(wanted)), wrong)


def resume_everywhere(
    begin: Callable[[], Run], others: Sequence[Callable[[], Run]], length: int, stride: int
) -> Tally:
    """Save a run at every position, go on from there in others, and from them once more.

    Args:
        begin: starts the run that is not interrupted.
        others: start runs that go on, one position each in turn; they save, too, at every
            `stride`-th position from theirs on, and the next of them goes on from that.
        length: batches of the uninterrupted run that are looked at.
        stride: 1 for every pair of positions.
    """
    whole = list(itertools.islice(begin().batches(), length))
    turns = itertools.cycle(others)
    tally = Tally.of(*_walk(begin(), 0, length, whole), resumes=0)
    for position, state in _saved(begin(), 0, length, 1):
        for second, again in _saved(_resumed(next(turns), state), position, length, stride):
            tally += Tally.of(*_walk(_resumed(next(turns), again), second, length, whole))
        tally += Tally.of(*_walk(_resumed(next(turns), state), position, length, whole))
    return tally


def _resumed(start: Callable[[], Run], state: str) -> Run:
    run = start()
    run.go_on(json.loads(state))
    return run


def _walk(
    run: Run, position: int, length: int, whole: Sequence[Any]
) -> tuple[list[Any], Sequence[Any]]:
    """Return what a run hands out from a position on, and what it should."""
    return list(itertools.islice(run.batches(), length - position)), whole[position:]


def _saved(run: Run, position: int, length: int, stride: int) -> Iterator[tuple[int, str]]:
    """Yield every `stride`-th position from one on, and the state there as JSON."""
    batches = run.batches()
    for at in range(position, length):
        if (at - position) % stride == 0:
            yield at, json.dumps(run.save())
        next(batches)
