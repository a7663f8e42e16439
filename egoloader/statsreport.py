"""Statistics, and the outliers found with them, as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from rich.table import Table

from egoloader.stats import KeyStats, NormStats, OutlierFilter
from egoloader.terminal import shown

__all__ = ["stats_report"]

#: Lines of a key at most, and episodes that are named.
_MOST_LINES, _MOST_EPISODES = 200, 10


def stats_report(stats: NormStats) -> Iterator[Table | str]:
    """Yield a table of each embodiment's keys, and what was found of outliers."""
    for embodiment, keys in stats.items():
        if keys:
            yield _table(embodiment, keys)
        else:
            yield f"{shown(embodiment)}: no numbers"
        for key, one in keys.items():
            if not one.is_exact:
                errors = ", ".join(f"{name} {share:.1g}" for name, share in one.rank_errors.items())
                yield f"{shown(key)}: quantiles by a sketch, ranks off by at most: {errors}"
    if stats.outliers is not None:
        yield from _outlier_lines(stats.outliers)


def _table(embodiment: str, keys: Mapping[str, KeyStats]) -> Table:
    table = Table(title=shown(embodiment))
    table.add_column("key", overflow="fold")
    names = ("dim", "count", "mean", "std", "min", *next(iter(keys.values())).quantiles, "max")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("")
    for key, one in keys.items():
        for place in list(np.ndindex(one.shape))[:_MOST_LINES]:
            table.add_row(*_line(key, one, place))
        if one.mean.size > _MOST_LINES:
            hidden = one.mean.size - _MOST_LINES
            table.add_row(shown(key), f"{hidden} more, see --output")
    return table


def _line(key: str, stats: KeyStats, place: tuple[int, ...]) -> list[str]:
    numbers = (stats.mean, stats.std, stats.min, *stats.quantiles.values(), stats.max)
    note = "constant" if stats.is_constant[place] else ""
    return [
        shown(key),
        ", ".join(map(str, place)),
        str(stats.counts[place]),
        *(f"{one[place]:.5g}" for one in numbers),
        note if stats.counts[place] else "nothing counted",
    ]


def _outlier_lines(found: OutlierFilter) -> Iterator[str]:
    low, high = found.quantiles
    for name, (outliers, counted) in found.by_embodiment.items():
        yield f"{shown(name)}: {outliers} of {counted} frames hold numbers outside {low} to {high}"
    for key, count in found.by_key.items():
        yield f"  {shown(key)}: {count} frames"
    by_episode = list(found.by_episode.items())
    for name, count in by_episode[:_MOST_EPISODES]:
        yield f"  episode {shown(name)}: {count} of {found.episodes[name].counted}"
    if len(by_episode) > _MOST_EPISODES:
        yield f"  and {len(by_episode) - _MOST_EPISODES} more episodes"
