"""Markdown tables made from the JSON results of a folder."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.result import load

__all__ = ["write_tables"]

Row = Mapping[str, Any]

_HEAD = """# Results

Made by `scripts/bench` from the JSON files beside this page; not edited by hand.

How it counts: contenders keep their handles open and take turns, in an order that rotates from
round to round. Answers are checked: one that is wrong is refused. The first contender's value has
a unit; the others' are ratios to it, taken round by round, so that above 1 is slower (or more) than
the first. Each is the median of n rounds, then the 10th to 90th percentile. Counts are exact. A
target is met where the median is.
"""


def write_tables(folder: Path) -> Path:
    """Write `README.md` from every `*.json` of a folder; return its path.

    Raises:
        FileNotFoundError: the folder holds no result.
        ValueError: a file holds something else.
    """
    paths = sorted(folder.glob("*.json"))
    if not paths:
        raise FileNotFoundError(f"there are no results (*.json) in {folder}; run scripts/bench")
    target = folder / "README.md"
    target.write_text("\n".join([_HEAD, *(_section(load(path)) for path in paths)]))
    return target


def _section(result: Mapping[str, Any]) -> str:
    parts = [f"## {result['name']}", result["question"]]
    if result["targets"]:
        parts.append(_target_table(result["targets"]))
    if result["counts"]:
        parts.append(_count_table(result["counts"]))
    parts += _figure_tables(result["figures"])
    parts.append(f"Settings: {_inline(result['settings'])}.")
    parts.append(f"Machine: {_inline(result['machine'])}.")
    return "\n\n".join(parts) + "\n"


def _count_table(rows: Sequence[Row]) -> str:
    columns = list(rows[0]["counts"])
    body = [
        [row["case"], row["contender"], *(f"{row['counts'][column]:,}" for column in columns)]
        for row in rows
    ]
    return _table(["case", "contender", *columns], body, texts=2)


def _target_table(rows: Sequence[Row]) -> str:
    body = [
        [
            row["what"],
            _spread(row["figure"], decimals=3),
            f"{row['sense']} {row['bound']:g}",
            "met" if row["is_met"] else "**not met**",
        ]
        for row in rows
    ]
    return _table(["target", "measured", "wanted", ""], body, texts=1)


def _figure_tables(rows: Iterable[Row]) -> list[str]:
    """Return one table for each run of cases that have the same contenders, a line per case."""
    cases = [list(group) for _, group in itertools.groupby(rows, key=_case)]
    tables = []
    for (unit, *contenders), group in itertools.groupby(cases, key=_columns):
        head = ["case", "n", f"{contenders[0]}, {unit}", *contenders[1:], "cache"]
        tables.append(_table(head, [_figure_line(case) for case in group], texts=1))
    return tables


def _case(row: Row) -> tuple[str, str]:
    return row["case"], row["cache"]


def _columns(case: Sequence[Row]) -> list[str]:
    return [case[0]["unit"], *(row["contender"] for row in case)]


def _figure_line(case: Sequence[Row]) -> list[str]:
    first, *others = case
    ratios = [f"{_spread(row['ratio'])}" for row in others]
    return [first["case"], str(first["n"]), _spread(first["value"]), *ratios, first["cache"]]


def _table(head: Sequence[str], body: Iterable[Sequence[str]], *, texts: int) -> str:
    """Lay out a table whose first `texts` columns are text, the others numbers."""
    rule = ["---" if place < texts else "---:" for place in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])


def _spread(spread: Mapping[str, float], *, decimals: int = 2) -> str:
    median, p10, p90 = (_digits(spread[name], decimals) for name in ("median", "p10", "p90"))
    return f"**{median}** ({p10} to {p90})"


def _digits(value: float, decimals: int) -> str:
    """Write about three significant digits, without an exponent; at most `decimals` decimals."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.{decimals}f}"


def _inline(mapping: Mapping[str, Any]) -> str:
    return "; ".join(f"{name.replace('_', ' ')}: {_plain(item)}" for name, item in mapping.items())


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
