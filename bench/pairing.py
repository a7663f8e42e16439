"""Paired timing: contenders answer the same questions in turn, and their answers are checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Contender", "Spread", "Timings", "WrongAnswerError", "agreement", "measure"]

Q = TypeVar("Q")
A = TypeVar("A")
#: What differs between two answers, in words; None where they agree.
Difference = Callable[[A, A], str | None]


class WrongAnswerError(ValueError):
    """A contender's answer is not the right one; nothing is reported of it."""


@dataclass(frozen=True, slots=True)
class Contender(Generic[Q, A]):
    """One way to answer the questions.

    Attributes:
        name: unique among those it is timed with.
        answer: from question to answer; whatever it opens it keeps open from call to call.
    """

    name: str
    answer: Callable[[Q], A]


#: Raises WrongAnswerError where one of the contenders' answers to a question is wrong.
Check = Callable[[Sequence[Contender[Q, A]], Q, Sequence[A]], None]


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of many values, and the 10th and 90th percentile around it."""

    median: float
    p10: float
    p90: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Summarise (n,) values."""
        p10, median, p90 = np.percentile(np.asarray(values, dtype=np.float64), (10, 50, 90))
        return cls(float(median), float(p10), float(p90))


@dataclass(frozen=True, slots=True)
class Timings:
    """What every contender took in every round.

    Attributes:
        names: of the contenders; the first is the one that ratios are against.
        nanoseconds: (rounds, contenders) int64.
    """

    names: tuple[str, ...]
    nanoseconds: npt.NDArray[np.int64]

    @property
    def rounds(self) -> int:
        """How many questions were answered."""
        return len(self.nanoseconds)

    def shared_by(self, count: int) -> Timings:
        """Return the times of one of `count` equal parts of a question."""
        return Timings(self.names, self.nanoseconds // count)

    def milliseconds(self, name: str) -> Spread:
        """Return what a contender took, in ms."""
        return Spread.of(self.nanoseconds[:, self.names.index(name)] / 1e6)

    def ratio(self, name: str, over: str | None = None) -> Spread:
        """Return a contender's time over that of another one, the first unless named.

        Paired: one ratio a round.
        """
        base = 0 if over is None else self.names.index(over)
        return Spread.of(self.nanoseconds[:, self.names.index(name)] / self.nanoseconds[:, base])

    def slowest_over_fastest(self) -> Spread:
        """Return the time of the contender with the highest median over that of the lowest."""
        medians = np.median(self.nanoseconds, axis=0)
        return self.ratio(self.names[int(medians.argmax())], self.names[int(medians.argmin())])


def agreement(differ: Difference[A]) -> Check[Any, A]:
    """Make a check that holds every answer against the first contender's.

    It raises:
        WrongAnswerError: one differs; names the contender, the question and what differs.
    """

    def check(
        contenders: Sequence[Contender[Any, A]], question: object, answers: Sequence[A]
    ) -> None:
        for contender, answer in zip(contenders[1:], answers[1:], strict=True):
            difference = differ(answers[0], answer)
            if difference is not None:
                raise WrongAnswerError(
                    f"{contender.name!r} answers question {question!r} otherwise than "
                    f"{contenders[0].name!r}: {difference}"
                )

    return check


def measure(
    contenders: Sequence[Contender[Q, A]],
    questions: Sequence[Q],
    check: Check[Q, A],
    *,
    rehearsal: Sequence[Q],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Timings:
    """Time contenders on the same questions, one question a round.

    The order rotates by one place from round to round, so that none always runs on what another
    has left in the caches. Before anything is timed, all answer the rehearsal's questions and are
    checked, which also opens their handles; the timed answers are checked as well, between rounds.

    Args:
        contenders: at least two; ratios are against the first one's times.
        questions: one a round.
        check: checks the answers to a question.
        rehearsal: questions that are answered first, untimed; at least one.
        clock: the time in ns.

    Raises:
        WrongAnswerError: a contender's answer is wrong.
        ValueError: too few contenders or questions, or two contenders of one name.
    """
    names = _distinct_names(contenders)
    if not questions or not rehearsal:
        raise ValueError("at least one question to rehearse and one to time")
    for question in rehearsal:
        check(contenders, question, [c.answer(question) for c in contenders])
    nanoseconds = np.zeros((len(questions), len(names)), dtype=np.int64)
    for turn, question in enumerate(questions):
        answers: list[Any] = [None] * len(names)
        for place in _order(turn, len(names)):
            start = clock()
            answers[place] = contenders[place].answer(question)
            nanoseconds[turn, place] = clock() - start
        check(contenders, question, answers)
    return Timings(names, nanoseconds)


def _distinct_names(contenders: Sequence[Contender[Any, Any]]) -> tuple[str, ...]:
    names = tuple(contender.name for contender in contenders)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"at least two contenders, each of its own name, got {list(names)}")
    return names


def _order(turn: int, count: int) -> list[int]:
    return [(turn + place) % count for place in range(count)]
