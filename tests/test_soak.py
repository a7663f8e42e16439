"""The long tests themselves: they see what is wrong, and what they write is a result."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.pairing import Spread
from bench.result import Result, Target, load, save
from bench.table import write_tables
from tests.soak import __main__ as soak
from tests.soak.__main__ import main, summarise
from tests.soak.kills import Kill, KillReport
from tests.soak.parts import KILLS, PARTS, Outcome
from tests.soak.positions import Tally, resume_everywhere
from tests.soak.tails import check_shape, shapes


class Counting:
    """Hands out the numbers from 0 on, and goes on a few too early or too late."""

    def __init__(self, error: int = 0) -> None:
        self._at, self._error = 0, error

    def batches(self) -> Iterator[Any]:
        for _ in itertools.count():
            self._at += 1
            yield self._at - 1

    def save(self) -> dict[str, Any]:
        return {"at": self._at}

    def go_on(self, state: dict[str, Any]) -> None:
        self._at = max(0, state["at"] + self._error)


def test_positions_that_are_kept_are_right() -> None:
    tally = resume_everywhere(Counting, [Counting], 5, 2)
    # At 0 to 4, and from there at every second of 5, 4, 3, 2, 1.
    assert tally == Tally(5 + 9, tally.batches, 0)
    assert tally.batches == 5 + 15 + sum((5 + 3 + 1, 4 + 2, 3 + 1, 2, 1))


@pytest.mark.parametrize("error", [-1, 1])
def test_positions_that_are_lost_are_wrong(error: int) -> None:
    assert resume_everywhere(Counting, [lambda: Counting(error)], 5, 2).wrong > 20


def test_what_is_missing_or_too_much_is_wrong() -> None:
    assert Tally.of([1, 2, 3], [1, 2, 3]) == Tally(1, 3, 0)
    assert Tally.of([1, 2], [1, 2, 3], resumes=0) == Tally(0, 3, 1)
    assert Tally.of([1, 3, 2], [1, 2]) == Tally(1, 3, 2)
    assert Tally(1, 2, 3) + Tally(10, 20, 30) == Tally(11, 22, 33)


def test_tails_of_every_length() -> None:
    tally = sum(map(check_shape, shapes(4, 1)), Tally())
    assert tally.wrong == 0
    assert tally.resumes > 300


@pytest.mark.parametrize(("wrong", "is_met"), [(0, True), (2, False)])
def test_outcomes_become_a_result(tmp_path: Path, wrong: int, is_met: bool) -> None:
    inside, between = Kill(1, 3, 12, 2, False), Kill(2, 12, 12, 0, True)
    assert (inside.is_inside, between.is_inside) == (True, False)
    report = KillReport((inside, between) * (KILLS // 2), 40, 0, 0)
    outcomes = [
        Outcome("a pool", "one", Tally(3, 4, wrong)),
        Outcome("Trainer.fit", "kills", Tally(KILLS, 40, 0), report),
    ]
    result = summarise(outcomes)
    assert [target.is_met for target in result.targets] == [is_met, True, True]
    found = load(save(result, tmp_path))
    assert found["counts"][0]["counts"] == {"resumes": 3, "batches": 4, "wrong": wrong}
    assert found["settings"]["kills"][0].startswith("in epoch 1 behind 3 of 12 batches, 2 of them")
    assert "| one | a pool | 3 | 4 |" in write_tables(tmp_path).read_text()


def _target(figure: float) -> Target:
    return Target("what is wanted", Spread(figure, figure, figure), "at most", 1)


@pytest.mark.parametrize(("figure", "code"), [(1, 0), (2, 1)])
def test_a_report_is_written_and_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: float, code: int
) -> None:
    result = Result("mine", "Is it?", {}, {}, (_target(figure),), (), ())
    monkeypatch.setattr(soak, "REPORTS", {"mine": lambda _: result})
    monkeypatch.setattr(soak, "_in_a_process", lambda run, name: soak.REPORTS[name](tmp_path))
    assert soak.main(["mine", "--results", str(tmp_path)]) == code
    assert load(tmp_path / "mine.json")["name"] == "mine"
    assert "## mine" in (tmp_path / "README.md").read_text()


def test_a_part_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["plannr"])
    assert "there is no part plannr; there are planner, samplers" in capsys.readouterr().err
    assert all(part.__doc__ for part in PARTS.values())
