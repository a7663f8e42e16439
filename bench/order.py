"""What does it cost to draw in the pool's order, and how well does it mix?"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.machine import describe_machine
from bench.order_draws import DrawSettings, Episodes, time_draws
from bench.order_mixing import WITHOUT, MixingSettings, mix
from bench.order_states import StateSettings, reach, state_sizes, time_states
from bench.pairing import Spread, Timings, WrongAnswerError
from bench.result import CountRow, FigureRow, Result, Target

__all__ = ["Settings", "add_options", "measure_order", "run"]

_QUESTION = """What does it cost to draw in the pool's order, and how well does it mix?

Nothing is read: episodes are names and lengths. Times but those of construction are CPU time:
nothing waits, and so what else runs on the machine weighs less.

- *A draw*: `EpisodePool` gives one frame after the other, `PoolOrder` a batch as arrays,
  `EpisodePoolSampler` as a list of indices. Blocks of many are timed, in which episodes come and
  go, from where none is resident any more that the epoch began with. The three must draw the same
  frames, and none twice.
- *Construction* is timed up to the first frame, in a process of its own a round, with the most
  memory that was ever resident, above what imports and the list of episodes have.
- *States* are those of an epoch of which a share is done. Going on is timed up to the first frame
  or batch behind it, which must be the right one. Saving is timed where a state of the same place
  was saved before; an order's first one of an epoch passes over all frames drawn by then.
- *Unique episodes* are those of a batch: the mean over an epoch but for its first and last tenth,
  and over its last tenth, in which the pool runs empty. Without a pool, an epoch is one shuffle of
  all frames. Every epoch must have each frame once."""
_LIBRARIES = ("numpy", "torch")
_CACHE = "none"
_BUILT = ("EpisodePool", "PoolOrder")
_RATIO_BOUND, _DRAW_US, _BUILD_S, _BUILD_MB, _STATE_KB = 1.5, 5, 5, 200, 200
_SHARE_BOUND, _MIXING_BOUND = 1.2, 0.99

_EPISODES, _DRAWS = Episodes(), DrawSettings()
_STATES, _MIXING = StateSettings(), MixingSettings()


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured.

    Attributes:
        episodes: that orders are of.
        draws: how they are timed.
        processes: that construct an order, each pool size.
        states: what is asked of them; its pool sizes are constructed, too.
        mixing: what is mixed.
    """

    episodes: Episodes = _EPISODES
    draws: DrawSettings = _DRAWS
    processes: int = 3
    states: StateSettings = _STATES
    mixing: MixingSettings = _MIXING


@dataclass(frozen=True, slots=True)
class Answer:
    """A part of the answer."""

    targets: Sequence[Target] = ()
    counts: Sequence[CountRow] = ()
    figures: Sequence[FigureRow] = ()


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the settings that are worth changing."""
    parser.add_argument("--rounds", type=int, metavar="N", help="blocks of draws timed per case")


def run(options: argparse.Namespace) -> Result:
    """Answer the question with the options given."""
    settings = Settings()
    if options.rounds is not None:
        draws = dataclasses.replace(settings.draws, rounds=options.rounds)
        settings = dataclasses.replace(settings, draws=draws)
    return measure_order(settings)


def measure_order(settings: Settings) -> Result:
    """Time draws, construction and states, and count the episodes of batches.

    Raises:
        WrongAnswerError: a frame comes twice or never, or an order goes on as another one.
    """
    machine = describe_machine(_LIBRARIES)
    answers = [_drawing(settings), _building(settings), _saving(settings), _mixing(settings)]
    return Result(
        "order",
        _QUESTION,
        machine,
        dataclasses.asdict(settings),
        tuple(target for answer in answers for target in answer.targets),
        tuple(row for answer in answers for row in answer.counts),
        tuple(row for answer in answers for row in answer.figures),
    )


def _drawing(settings: Settings) -> Answer:
    frames = settings.draws.batches * settings.episodes.batch_size
    targets: list[Target] = []
    figures: list[FigureRow] = []
    for way, timings in time_draws(settings.episodes, settings.draws).items():
        first, last = timings.names[0], timings.names[-1]
        figures += _time_rows(f"{way}, a draw", "µs", timings, 1e3 * frames)
        what = f"{way}, a draw: {last} ÷ {first}"
        targets.append(Target(what, timings.ratio(last), "at most", _RATIO_BOUND))
    return Answer([*targets, _worst(figures, _DRAW_US)], (), figures)


def _building(settings: Settings) -> Answer:
    """Construct in processes of their own, the two kinds in turn."""
    times: list[FigureRow] = []
    memories: list[FigureRow] = []
    for size in settings.states.pool_sizes:
        rounds = [
            [_build(name, size, settings) for name in _BUILT] for _ in range(settings.processes)
        ]
        firsts = {tuple(said["first"]) for saids in rounds for said in saids}
        if len(firsts) > 1:
            raise WrongAnswerError(f"pool_size={size}: orders begin with {sorted(firsts)}")
        seconds, memory = (
            np.array([[said[name] for said in saids] for saids in rounds], dtype=np.float64)
            for name in ("seconds", "peak_bytes")
        )
        times += _rows(f"construction and a draw, pool_size={size}", "s", _BUILT, seconds)
        memories += _rows(f"their peak memory, pool_size={size}", "MB", _BUILT, memory / 1e6)
    targets = [_worst(times, _BUILD_S), _worst(memories, _BUILD_MB)]
    return Answer(targets, (), [*times, *memories])


def _build(what: str, pool_size: int, settings: Settings) -> dict[str, Any]:
    """Construct in a process of its own; return what it said."""
    episodes = settings.episodes
    wanted = {
        "what": what,
        "count": episodes.count,
        "total_frames": episodes.total_frames,
        "pool_size": pool_size,
        "seed": episodes.seed,
    }
    command = [sys.executable, "-m", "bench.order_build", json.dumps(wanted)]
    root = Path(__file__).parents[1]
    said = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(said.stdout))


def _saving(settings: Settings) -> Answer:
    episodes, states = settings.episodes, settings.states
    targets: list[Target] = []
    counts: list[CountRow] = []
    figures: list[FigureRow] = []
    firsts: list[FigureRow] = []
    for size in states.pool_sizes:
        where, reached = f"pool_size={size}", reach(episodes, size, states)
        early, *_, late = reached.positions
        for case, timings in time_states(episodes, size, reached.positions, states.rounds).items():
            figures += _time_rows(f"{case}, {where}", "ms", timings, 1e6)
            if "load" in case:
                what = f"{case}, {where}: {late} ÷ {early}"
                targets.append(Target(what, timings.ratio(late), "at most", _SHARE_BOUND))
        seconds = np.array([list(reached.seconds.values())])
        names = tuple(reached.seconds)
        firsts += _rows(f"PoolOrder: first state of an epoch, {where}", "s", names, seconds)
        counts += [
            CountRow(f"{where}, {ranks}", "EpisodePoolSampler", sizes, {})
            for ranks, sizes in state_sizes(episodes, size, states).items()
        ]
    return Answer([*targets, *map(_size_target, counts)], counts, [*figures, *firsts])


def _size_target(row: CountRow) -> Target:
    size = row.counts["bytes a rank"] / 1e3
    what = f"pickled state, {row.case}: KB a rank"
    return Target(what, Spread(size, size, size), "at most", _STATE_KB)


def _mixing(settings: Settings) -> Answer:
    mixing = settings.mixing
    mixed, names = mix(mixing), tuple(mixing.names)
    case = f"unique episodes in a batch of {mixing.batch_size}"
    figures = [
        *_rows(f"{case}, inner batches", "episodes", names, mixed.inner),
        *_rows(f"{case}, last tenth", "episodes", names, mixed.last),
    ]
    ratio = Spread.of(mixed.inner[:, 1] / mixed.inner[:, 0])
    what = f"{case}, inner batches: {names[1]} ÷ {WITHOUT}"
    return Answer([Target(what, ratio, "at least", _MIXING_BOUND)], (), figures)


def _worst(rows: Sequence[FigureRow], bound: float) -> Target:
    """Return a target for the row of the highest median."""
    row = max(rows, key=lambda row: row.value.median)
    what = f"{row.case}, {row.contender}, the most of all: {row.unit}"
    return Target(what, row.value, "at most", bound)


def _time_rows(case: str, unit: str, timings: Timings, nanoseconds: float) -> list[FigureRow]:
    """Summarise timings in a unit of so many ns."""
    return _rows(case, unit, timings.names, timings.nanoseconds / nanoseconds)


def _rows(
    case: str, unit: str, names: Sequence[str], values: npt.NDArray[np.float64]
) -> list[FigureRow]:
    """Summarise (rounds, contenders) values; ratios are to the first contender's."""
    return [
        FigureRow(
            case, _CACHE, name, len(values), unit, Spread.of(value), Spread.of(value / values[:, 0])
        )
        for name, value in zip(names, values.T, strict=True)
    ]
