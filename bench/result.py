"""A bench's result as it lies in its JSON file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.pairing import Spread, Timings

__all__ = ["CountRow", "FigureRow", "Result", "Target", "load", "save", "time_rows"]


@dataclass(frozen=True, slots=True)
class CountRow:
    """Exact counts of one contender; the same on every run.

    Attributes:
        case: what was asked for.
        contender: who answered.
        counts: column to count, over all arrays.
        arrays: per array, its own counts.
    """

    case: str
    contender: str
    counts: Mapping[str, int]
    arrays: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class FigureRow:
    """What was measured of one contender.

    Attributes:
        case: what was asked for.
        cache: state of the caches.
        contender: who answered.
        n: rounds.
        unit: of the value.
        value: what a round took.
        ratio: the contender's value over that of the case's first contender, round by round.
    """

    case: str
    cache: str
    contender: str
    n: int
    unit: str
    value: Spread
    ratio: Spread


@dataclass(frozen=True, slots=True)
class Target:
    """A figure that is to be reached, and whether it was.

    Attributes:
        what: the figure, in words.
        figure: as measured; its median decides.
        sense: on which side of the bound it is to be.
        bound: the figure wanted.
        is_met: whether the median is there.
    """

    what: str
    figure: Spread
    sense: Literal["at least", "at most"]
    bound: float
    is_met: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        above = self.figure.median - self.bound
        is_met = self.figure.median == self.bound or (above > 0) == (self.sense == "at least")
        object.__setattr__(self, "is_met", is_met)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to one question.

    Attributes:
        name: of the question, and of the file.
        question: in words, with what a reader needs to know about the contenders.
        machine: what it was measured on; see `bench.machine`.
        settings: what it was measured with.
        targets: what is to be reached, and whether it was; may be empty.
        counts: exact counts; may be empty.
        figures: times and the like; of each case, the contender that ratios are against comes
            first.
    """

    name: str
    question: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]
    targets: tuple[Target, ...]
    counts: tuple[CountRow, ...]
    figures: tuple[FigureRow, ...]


def time_rows(case: str, cache: str, timings: Timings) -> list[FigureRow]:
    """Summarise one case's timings in ms, a row per contender."""
    return [
        FigureRow(
            case,
            cache,
            name,
            timings.rounds,
            "ms",
            timings.milliseconds(name),
            timings.ratio(name),
        )
        for name in timings.names
    ]


def save(result: Result, folder: Path) -> Path:
    """Write a result to `<folder>/<name>.json`; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}.json"
    path.write_text(json.dumps(_rounded(dataclasses.asdict(result)), indent=1) + "\n")
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a result's JSON: the fields of `Result` by name, its rows as dicts.

    Raises:
        ValueError: the file holds something else.
    """
    content = json.loads(path.read_text())
    fields = {field.name for field in dataclasses.fields(Result)}
    if not isinstance(content, dict) or content.keys() != fields:
        raise ValueError(f"{path} holds no result: it needs the fields {sorted(fields)}")
    return content


def _rounded(value: Any) -> Any:
    """Round floats to four significant digits: what is beyond them is noise."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
