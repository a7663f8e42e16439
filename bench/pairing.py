"""Paired timing: contenders answer the same questions in turn, and their answers must agree."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["Contender", "Spread", "Timings", "WrongAnswerError", "check", "measure"]

Q = TypeVar("Q")
A = TypeVar("A")
#: What differs between two answers, in words; None where they agree.
Difference = Callable[[A, A], str | None]


class WrongAnswerError(ValueError):
    """A contender's answer is not that of the first contender; nothing is reported of it."""


@dataclass(frozen=True, slots=True)
class Contender(Generic[Q, A]):
    """One way to answer the questions.

    Attributes:
        name: unique among those it is timed with.
        answer: from question to answer; whatever it opens it keeps open from call to call.
    """

    name: str
    answer: Callable[[Q], A]


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

    def milliseconds(self, name: str) -> Spread:
        """Return what a contender took, in ms."""
        return Spread.of(self.nanoseconds[:, self.names.index(name)] / 1e6)

    def ratio(self, name: str) -> Spread:
        """Return a contender's time over the first one's: paired, so one ratio a round."""
        return Spread.of(self.nanoseconds[:, self.names.index(name)] / self.nanoseconds[:, 0])


def check(
    contenders: Sequence[Contender[Q, A]], question: Q, answers: Sequence[A], differ: Difference[A]
) -> None:
    """Check the contenders' answers to one question against the first contender's.

    Raises:
        WrongAnswerError: one differs; names the contender, the question and what differs.
    """
    for contender, answer in zip(contenders[1:], answers[1:], strict=True):
        difference = differ(answers[0], answer)
        if difference is not None:
            raise WrongAnswerError(
                f"{contender.name!r} answers question {question!r} otherwise than "
                f"{contenders[0].name!r}: {difference}"
            )


def measure(
    contenders: Sequence[Contender[Q, A]],
    questions: Sequence[Q],
    differ: Difference[A],
    *,
    rehearsal: Sequence[Q],
    clock: Callable[[], int] = time.perf_counter_ns,
) -> Timings:
    """Time contenders on the same questions, one question a round.

    The order rotates by one place from round to round, so that none always runs on what another
    has left in the caches. Before anything is timed, all answer the rehearsal's questions and are
    checked, which also opens their handles; the timed answers are checked as well, between rounds.

    Args:
        contenders: at least two; the first one's answers are what the others' must equal, and
            ratios are against its times.
        questions: one a round.
        differ: compares two answers.
        rehearsal: questions that are answered first, untimed; at least one.
        clock: the time in ns.

    Raises:
        WrongAnswerError: a contender's answer differs from the first one's.
        ValueError: too few contenders or questions, or two contenders of one name.
    """
    names = _distinct_names(contenders)
    if not questions or not rehearsal:
        raise ValueError("at least one question to rehearse and one to time")
    for question in rehearsal:
        check(contenders, question, [c.answer(question) for c in contenders], differ)
    nanoseconds = np.zeros((len(questions), len(names)), dtype=np.int64)
    for turn, question in enumerate(questions):
        answers: list[Any] = [None] * len(names)
        for place in _order(turn, len(names)):
            start = clock()
            answers[place] = contenders[place].answer(question)
            nanoseconds[turn, place] = clock() - start
        check(contenders, question, answers, differ)
    return Timings(names, nanoseconds)


def _distinct_names(contenders: Sequence[Contender[Any, Any]]) -> tuple[str, ...]:
    names = tuple(contender.name for contender in contenders)
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(f"at least two contenders, each of its own name, got {list(names)}")
    return names


def _order(turn: int, count: int) -> list[int]:
    return [(turn + place) % count for place in range(count)]
