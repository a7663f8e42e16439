"""The benches' own honesty: turns, ratios, answers checked, tables made from the JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import configs
from bench.__main__ import main
from bench.answers import difference
from bench.configs import measure_configs
from bench.machine import describe_machine
from bench.pairing import Contender, Spread, Timings, WrongAnswerError, agreement, measure
from bench.questions import QUESTIONS
from bench.recordings import JpegSizeError, make_jpegs
from bench.result import CountRow, Result, Target, load, save, time_rows
from bench.table import write_tables

RESULTS = Path(__file__).parents[1] / "bench" / "results"


class Clock:
    """Stands still until a contender moves it on; keeps who was asked what."""

    def __init__(self) -> None:
        self.now, self.asked = 1_000_000, []

    def __call__(self) -> int:
        return self.now

    def contender(
        self, name: str, cost: Callable[[int], int], answer: Callable[[int], int] = abs
    ) -> Contender[int, int]:
        def reply(question: int) -> int:
            self.asked.append((name, question))
            self.now += cost(question)
            return answer(question)

        return Contender(name, reply)


@agreement
def differ(reference: int, answer: int) -> str | None:
    return None if reference == answer else f"{answer}, not {reference}"


def test_order_rotates_and_the_rehearsal_comes_first() -> None:
    clock = Clock()
    contenders = [clock.contender(name, lambda _: 1) for name in "abc"]
    measure(contenders, [1, 2, 3, 4], differ, rehearsal=[9], clock=clock)
    turns = ["".join(name for name, _ in clock.asked[at : at + 3]) for at in range(0, 15, 3)]
    assert turns == ["abc", "abc", "bca", "cab", "abc"]
    assert [question for _, question in clock.asked[::3]] == [9, 1, 2, 3, 4]


def test_times_are_each_contenders_own_and_ratios_are_paired() -> None:
    clock = Clock()
    contenders = [
        clock.contender("first", lambda q: q * 1_000_000),
        clock.contender("thrice", lambda q: 3 * q * 1_000_000),
    ]
    timings = measure(contenders, [1, 2, 10], differ, rehearsal=[100], clock=clock)
    assert timings.nanoseconds.tolist() == [
        [1_000_000, 3_000_000],
        [2_000_000, 6_000_000],
        [10_000_000, 30_000_000],
    ]
    assert timings.milliseconds("first").median == 2
    assert timings.milliseconds("first").p90 == pytest.approx(8.4)
    assert timings.ratio("thrice") == Spread(3, 3, 3)  # the rounds differ tenfold, no ratio does
    assert timings.ratio("first") == Spread(1, 1, 1)


def test_the_median_of_ratios_is_not_the_ratio_of_medians() -> None:
    timings = Timings(("a", "b"), np.array([[1, 4], [2, 2], [4, 4]]))
    assert timings.ratio("b").median == 1
    assert timings.milliseconds("b").median / timings.milliseconds("a").median == 2


def test_ratios_can_be_against_another_contender() -> None:
    timings = Timings(("a", "b", "c"), np.array([[10, 4, 2], [30, 9, 3], [50, 5, 5]]))
    assert timings.ratio("b", over="c") == Spread.of([2, 3, 1])
    assert timings.slowest_over_fastest() == Spread.of([5, 10, 10])


def test_a_questions_time_is_shared_by_its_parts() -> None:
    timings = Timings(("a", "b"), np.array([[10, 4], [30, 8]])).shared_by(2)
    assert timings.nanoseconds.tolist() == [[5, 2], [15, 4]]


@pytest.mark.parametrize(
    ("sense", "bound", "is_met"),
    [
        ("at least", 1.5, True),
        ("at least", 2, True),
        ("at least", 2.1, False),
        ("at most", 2.1, True),
        ("at most", 2, True),
        ("at most", 1.5, False),
    ],
)
def test_the_median_decides_on_a_target(sense: Any, bound: float, is_met: bool) -> None:
    assert Target("speed", Spread(2, 1, 3), sense, bound).is_met == is_met


def test_spread_interpolates() -> None:
    assert Spread.of(range(11)) == Spread(5, 1, 9)


@pytest.mark.parametrize("wrong_at", [0, 5], ids=["rehearsed", "timed"])
def test_a_wrong_answer_is_refused(wrong_at: int) -> None:
    clock = Clock()
    contenders = [
        clock.contender("right", lambda _: 1),
        clock.contender("swift", lambda _: 0, lambda q: -1 if q == wrong_at else q),
    ]
    with pytest.raises(WrongAnswerError, match=rf"'swift' .* {wrong_at} .*'right': -1, not"):
        measure(contenders, [4, 5], differ, rehearsal=[0], clock=clock)
    assert ("right", 4) not in clock.asked or wrong_at == 5


def test_too_few_or_ambiguous_contenders_are_refused() -> None:
    clock = Clock()
    a, b = (clock.contender(name, lambda _: 1) for name in "ab")
    for contenders in ([a], [a, b, a]):
        with pytest.raises(ValueError, match="at least two contenders, each of its own name"):
            measure(contenders, [1], differ, rehearsal=[1], clock=clock)
    for questions, rehearsal in (([], [1]), ([1], [])):
        with pytest.raises(ValueError, match="at least one question"):
            measure([a, b], questions, differ, rehearsal=rehearsal, clock=clock)


SAMPLE = {"state": torch.tensor([1.0, 2.0]), "image": b"jpeg"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, None),
        ({"extra": 1}, None),
        ({"state": torch.tensor([1.0, 2.5])}, "'state' holds other numbers"),
        ({"state": torch.tensor([1.0, 2.0], dtype=torch.float64)}, "'state' is torch.float64"),
        ({"state": torch.tensor([[1.0, 2.0]])}, r"'state' is torch.float32 (1, 2)"),
        ({"image": b"gepj"}, "'image' holds other bytes"),
        ({"image": torch.zeros(1)}, "'image' is a Tensor, not a bytes"),
    ],
)
def test_samples_differ_where_they_do(change: dict[str, Any], said: str | None) -> None:
    said_now = difference(("state", "image"), SAMPLE, SAMPLE | change)
    assert (said_now or "").startswith(said or "")
    assert (said_now is None) == (said is None)
    assert difference(("state", "image"), SAMPLE, {"image": b"jpeg"}) == "no 'state'"


def a_result(name: str = "shapes") -> Result:
    timings = Timings(("ours", "theirs"), np.array([[1, 2], [1, 3], [1, 4]]) * 1_234_567)
    counts = [
        CountRow("T = 5", who, {"rows": rows, "bytes": 98_765}, {"state": {"rows": rows}})
        for who, rows in (("ours", 3), ("theirs", 4321))
    ]
    figures = time_rows("T = 5", "warm", timings)
    targets = [
        Target("theirs ÷ ours", timings.ratio("theirs"), "at least", bound) for bound in (2.5, 40)
    ]
    return Result(
        name,
        "Which?",
        {"cpu": "abacus"},
        {"size": (4, 6)},
        tuple(targets),
        tuple(counts),
        tuple(figures),
    )


def test_a_result_survives_its_json(tmp_path: Path) -> None:
    path = save(a_result(), tmp_path / "results")
    assert path == tmp_path / "results" / "shapes.json"
    content = load(path)
    assert content["machine"] == {"cpu": "abacus"}
    assert content["settings"] == {"size": [4, 6]}
    assert content["counts"][1]["arrays"] == {"state": {"rows": 4321}}
    assert content["figures"][1] == {
        "case": "T = 5",
        "cache": "warm",
        "contender": "theirs",
        "n": 3,
        "unit": "ms",
        "value": {"median": 3.704, "p10": 2.716, "p90": 4.691},
        "ratio": {"median": 3.0, "p10": 2.2, "p90": 3.8},
    }
    assert content["targets"][1] == {
        "what": "theirs ÷ ours",
        "figure": {"median": 3.0, "p10": 2.2, "p90": 3.8},
        "sense": "at least",
        "bound": 40,
        "is_met": False,
    }


def test_the_tables_are_made_from_the_json(tmp_path: Path) -> None:
    save(a_result("b"), tmp_path)
    path = save(a_result("a"), tmp_path)
    path.write_text(path.read_text().replace("4321", "1234567"))
    text = write_tables(tmp_path).read_text()
    assert text.index("## a") < text.index("## b")
    assert "| case | contender | rows | bytes |" in text
    assert "| T = 5 | theirs | 1,234,567 | 98,765 |" in text
    assert "| T = 5 | theirs | 4,321 | 98,765 |" in text
    assert "| case | n | ours, ms | theirs | cache |" in text
    line = "| T = 5 | 3 | **1.24** (1.24 to 1.24) | **3.00** (2.20 to 3.80) | warm |"
    assert text.count(line) == 2
    assert "| theirs ÷ ours | **3.000** (2.200 to 3.800) | at least 2.5 | met |" in text
    assert "| theirs ÷ ours | **3.000** (2.200 to 3.800) | at least 40 | **not met** |" in text
    assert "Settings: size: 4, 6." in text
    assert "Machine: cpu: abacus." in text


def test_cases_of_other_contenders_get_a_table_of_their_own(tmp_path: Path) -> None:
    path = save(a_result(), tmp_path)
    content = json.loads(path.read_text())
    rows = content["figures"]
    content["figures"] = [
        *rows,
        *(row | {"case": "T = 6"} for row in rows),
        *(row | {"cache": "cold"} for row in rows),
        *(row | {"case": "T = 7", "unit": "MiB"} for row in rows),
        *(row | {"case": "T = 8", "contender": row["contender"].upper()} for row in rows),
    ]
    path.write_text(json.dumps(content))
    lines = write_tables(tmp_path).read_text().splitlines()
    heads = [
        "| case | n | ours, ms | theirs | cache |",
        "| case | n | ours, MiB | theirs | cache |",
        "| case | n | OURS, ms | THEIRS | cache |",
    ]
    assert [line for line in lines if line.startswith("| case | n |")] == heads
    at = lines.index(heads[0])
    caches = [line.split("|")[-2].strip() for line in lines[at + 2 : at + 5]]
    assert caches == ["warm", "warm", "cold"]


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run scripts/bench"):
        write_tables(tmp_path)
    (tmp_path / "odd.json").write_text('{"name": "odd"}')
    with pytest.raises(ValueError, match=r"odd\.json holds no result"):
        write_tables(tmp_path)


def test_the_machine_is_described() -> None:
    machine = describe_machine(["numpy"])
    assert machine["versions"] == {"numpy": np.__version__}
    assert {"cpu", "cores", "memory_gib", "kernel", "python", "date"} < machine.keys()


def test_the_committed_tables_are_those_of_the_committed_json(tmp_path: Path) -> None:
    for path in RESULTS.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    assert write_tables(tmp_path).read_text() == (RESULTS / "README.md").read_text()


def test_pictures_of_another_size_than_asked_for_are_refused() -> None:
    with pytest.raises(JpegSizeError, match=r"JPEGs of 24 x 40 pixels have .* outside 1 to 2"):
        make_jpegs((24, 40), (1, 2), seed=0)


def test_configs_hand_over_the_same_paths() -> None:
    result = measure_configs(20, rounds=2)
    assert [row.contender for row in result.figures] == [
        "egoloader, plain containers",
        "Hydra's default, config objects",
    ]


def test_the_command_writes_json_and_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--results", str(tmp_path), "configs", "--paths", "20", "--rounds", "2"])
    content = load(tmp_path / "configs.json")
    assert content["figures"][0]["case"] == "20 paths"
    assert (tmp_path / "README.md").read_text() in capsys.readouterr().out


def test_without_a_question_all_are_answered_in_processes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.set_defaults(paths=20, rounds=2)

    monkeypatch.setattr(configs, "add_options", add_options)
    for name in QUESTIONS.keys() - {"configs"}:
        monkeypatch.delitem(QUESTIONS, name)
    main(["--results", str(tmp_path)])
    assert load(tmp_path / "configs.json")["settings"] == {"paths": 20, "rounds": 2}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_lists_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([name, "-h"])
    assert (QUESTIONS[name].__doc__ or "").split()[0] in capsys.readouterr().out
