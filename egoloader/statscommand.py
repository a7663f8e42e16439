"""The command `egoloader stats`; like the others, it imports when it runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from egoloader.errors import ConfigError
from egoloader.terminal import shown

__all__ = ["stats"]

#: What a training config says of the data that decides which numbers there are.
_DATA_OPTIONS = (
    "valid_ratio",
    "percent",
    "seed",
    "annotation_cutoff",
    "missing_chunks",
    "quarantine",
)
_WIDTH = 200


def stats(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="a folder of episodes")],
    output: Annotated[Path | None, typer.Option(help="a JSON file for the statistics")] = None,
    split: Annotated[str, typer.Option(help="train, valid or all, by the config's seed")] = "all",
    key: Annotated[list[str] | None, typer.Option(help="only this key; may be repeated")] = None,
    per_step: Annotated[
        list[str] | None, typer.Option(help="a key whose steps are each on their own")
    ] = None,
    outliers: Annotated[
        str | None, typer.Option(help="find frames outside, as in q0.01,q99.99")
    ] = None,
    skip: Annotated[
        list[str] | None, typer.Option(help="what makes no outliers: KEY, or KEY:3,4,5,6")
    ] = None,
    cache: Annotated[Path | None, typer.Option(help="a folder that keeps what is done")] = None,
    workers: Annotated[int | None, typer.Option(help="processes; one a core")] = None,
) -> None:
    """Compute what a policy's numbers are normalised by: egoloader stats FOLDER keymap=human.

    Mean, spread, range and quantiles of each key, as training sees it: keymap, transforms, filters,
    quarantine, frame filter, weights and norm.numbers (but mode) are the config's, where no option
    says otherwise. With --cache, a run that was ended goes on.
    """
    from egoloader.dataset import MultiDataset
    from egoloader.stats import NormStats
    from egoloader.statsreport import stats_report
    from egoloader.train.config import compose, make

    _check_output(output)
    config = compose(context.args)
    keymap = make(config.keymap)
    options: dict[str, Any] = {name: config.data[name] for name in _DATA_OPTIONS}
    options["filters"] = make(config.data.filters)
    options["transforms"] = make(config.data.transforms) or ()
    options["split"] = split
    wanted = _training_options(config.norm.numbers)
    given = {"per_step": per_step, "outliers": _parse_bounds(outliers), "cache": cache}
    wanted |= {name: value for name, value in given.items() if value}
    wanted["skip"] = _joined_skip(wanted["skip"], skip or (), wanted["outliers"])
    data = MultiDataset.from_folder(folder, keymap, **options)
    columns = (TextColumn("computing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Elsewhere than on a terminal a bar that goes again leaves an empty line.
    is_shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        bar = progress.add_task("stats", total=None)
        found = NormStats.compute(
            data,
            keys=key or None,
            frame_filter=config.data.frame_filter,
            frame_weights=config.data.frame_weights,
            **wanted,
            workers=min(_cores() if workers is None else workers, len(data.episodes)),
            on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    console = Console()
    console = console if console.is_terminal else Console(width=_WIDTH)
    for part in stats_report(found):
        console.print(part, soft_wrap=isinstance(part, str))
    if output is not None:
        found.save(output)
        console.print(f"written to {shown(str(output))}", soft_wrap=True)


def _cores() -> int:
    return os.cpu_count() or 1


def _check_output(output: Path | None) -> None:
    """Refuse a place where no file can be written, ahead of all that is to be written there.

    Raises:
        ConfigError: it is none.
    """
    if output is not None and output.is_dir():
        raise ConfigError(f"--output is a JSON file, and {str(output)!r} is a folder")
    if output is not None and not output.absolute().parent.is_dir():
        raise ConfigError(f"--output: there is no folder {str(output.parent)!r}; make it first")


def _training_options(numbers: Any) -> dict[str, Any]:
    """Return what a training config says of numbers that decides what is found in them."""
    from egoloader.train.config import make

    numbers = {} if numbers is None else numbers
    return {
        "per_step": make(numbers.get("per_step")) or (),
        "outliers": make(numbers.get("outliers")),
        "skip": make(numbers.get("skip")) or (),
        "cache": numbers.get("cache"),
    }


def _parse_bounds(outliers: str | None) -> list[str] | None:
    return None if outliers is None else [one.strip() for one in outliers.split(",")]


def _joined_skip(
    training: Any, texts: Sequence[str], outliers: Sequence[str] | None
) -> dict[str, Any]:
    """Return what makes no outliers: what training leaves as it is, and what options say.

    Raises:
        ConfigError: an option is neither KEY nor KEY:3,4,5,6, or there are no outliers.
        SettingsError: what training leaves can't be meant.
    """
    from egoloader.stats import check_skip, plain_places

    if texts and outliers is None:
        raise ConfigError(
            "--skip says which numbers make no frame an outlier, and none are looked for; give "
            "--outliers q0.01,q99.99 as well"
        )
    known = check_skip(training)
    found = known.to_plain(plain_places)
    for text in texts:
        key, places = _parse_skip(text)
        for its in (found, *(found[name] for name, keys in known.single.items() if key in keys)):
            old = its.get(key, [])
            is_all = isinstance(old, str) or isinstance(places, str)
            its[key] = "all" if is_all else sorted({*old, *places})
    return found


def _parse_skip(text: str) -> tuple[str, list[int] | str]:
    """Return what an option says is left out, KEY or KEY:3,4,5,6: the key, and its dimensions.

    Raises:
        ConfigError: it is neither.
    """
    key, colon, places = text.rpartition(":")
    if not colon:
        return text, "all"
    numbers = [one.strip() for one in places.split(",")]
    if not key or not all(one.isdecimal() for one in numbers):
        raise ConfigError(f"--skip is KEY, or KEY:3,4,5,6 for dimensions, got {text!r}")
    return key, [int(one) for one in numbers]
