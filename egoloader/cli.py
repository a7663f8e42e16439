"""The command line: `egoloader train | convert | inspect | plan | validate | stats`.

Whatever the project refuses ends in one sentence on stderr and exit code 1, without a traceback.
Commands import what takes long to import (torch, lightning) when they run, not before.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from egoloader.errors import ConfigError, EgoloaderError
from egoloader.overview import ArrayOverview, EpisodeOverview, overview, size_text
from egoloader.statscommand import stats
from egoloader.terminal import shown

if TYPE_CHECKING:
    from egoloader.convert import ConversionReport
    from egoloader.selection import SelectionSettings
    from egoloader.validate import Finding, Validation

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Load Zarr episodes into PyTorch: convert, look, validate, plan, measure, train.",
)
convert_app = typer.Typer(no_args_is_help=True, help="Convert recordings to episodes.")
app.add_typer(convert_app, name="convert")


def main() -> None:
    """Run the command line; what the project refuses becomes one sentence and exit code 1."""
    try:
        app()
    except (EgoloaderError, OSError) as error:
        Console(stderr=True).print(
            f"[bold red]egoloader:[/bold red] {shown(str(error))}", soft_wrap=True
        )
        sys.exit(1)


@app.command(
    context_settings={
        "allow_extra_args": True,
        "ignore_unknown_options": True,
        "help_option_names": [],
    }
)
def train(context: typer.Context) -> None:
    """Train a policy; the arguments are Hydra's: overrides, --cfg job, --multirun, --help."""
    from egoloader.train.recipe import main as run

    run(context.args)


@convert_app.command()
def lerobot(
    source: Annotated[Path, typer.Argument(help="a LeRobot v2.0 or v2.1 folder")],
    target: Annotated[Path, typer.Argument(help="folder for the episodes")],
    episodes: Annotated[str | None, typer.Option(help="which, as in 0:10,12,29; all")] = None,
    image_size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH; as recorded")] = None,
    quality: Annotated[int, typer.Option(help="JPEG quality, 1 to 100")] = 85,
    embodiment: Annotated[str | None, typer.Option(help="default: the robot_type")] = None,
    workers: Annotated[int | None, typer.Option(help="processes; one a core")] = None,
    overwrite: Annotated[bool, typer.Option(help="replace episodes that exist")] = False,
) -> None:
    """Convert a LeRobot folder; run it again to go on where it stopped."""
    from egoloader.convert import (
        ConversionEvent,
        LeRobotSettings,
        convert_lerobot,
        parse_episodes,
    )

    settings = LeRobotSettings(
        episodes=None if episodes is None else parse_episodes(episodes),
        image_size=None if image_size is None else _parse_size(image_size),
        quality=quality,
        embodiment=embodiment,
        overwrite=overwrite,
        workers=workers or os.cpu_count() or 1,
    )
    console = Console()
    columns = (
        TextColumn("converting"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("frames"),
        TimeRemainingColumn(),
    )
    progress = Progress(*columns, console=console)
    bar = progress.add_task("convert", total=None)

    def show(event: ConversionEvent) -> None:
        if event.status == "planned":  # not before, lest a wrong path shows an empty bar
            progress.start()
        progress.update(bar, completed=event.done_frames, total=event.total_frames)
        if event.status == "failed":
            console.print(f"failed, episode {event.episode}", soft_wrap=True)

    try:
        report = convert_lerobot(source, target, settings, on_progress=show)
    finally:
        progress.stop()
    for line in _report_lines(report):
        console.print(shown(line), soft_wrap=True)
    console.print(f"episodes are in {shown(str(target))}", soft_wrap=True)
    if report.failed:
        raise typer.Exit(1)


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="an episode, or a folder of episodes")],
) -> None:
    """Show episodes: lengths, fps, arrays, shapes, chunks, shards, codecs, sizes."""
    episodes, broken = overview(path)
    console = _console()
    console.print(_episode_table(episodes))
    for arrays, names in _by_layout(episodes):
        console.print(_array_table(arrays, names))
    for problem in [*broken, *(text for one in episodes for text in one.problems)]:
        console.print(f"[red]problem:[/red] {shown(problem)}", soft_wrap=True)
    if broken or any(one.problems for one in episodes):
        raise typer.Exit(1)


@app.command()
def validate(
    paths: Annotated[list[Path], typer.Argument(help="episodes, or folders of episodes")],
    level: Annotated[
        str, typer.Option(help="metadata: decode nothing; sampled: some of it; full: all")
    ] = "full",
    as_json: Annotated[bool, typer.Option("--json", help="print JSON in place of a table")] = False,
    quarantine: Annotated[
        Path | None, typer.Option(help="a file for what is not to be served; training takes it")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="processes; one a core")] = None,
) -> None:
    """Look for what is wrong with episodes; exit with 1 where anything is.

    Harm: frames can't or should not be served, and --quarantine lists them; or content is
    suspicious as a whole. A note is no harm.
    """
    from egoloader.quarantine import add_spans, load_quarantine, names_of
    from egoloader.validate import quarantine_spans, validate_paths
    from egoloader.validate.stored import check_depth

    if quarantine is not None and quarantine.exists():
        load_quarantine(quarantine)  # refused now, rather than when all was looked at
    columns = (TextColumn("validating"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    # Elsewhere than on a terminal a bar that goes again leaves an empty line.
    is_shown = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as progress:
        bar = progress.add_task("validate", total=None)
        found = validate_paths(
            paths,
            depth=check_depth(level),
            workers=workers,
            on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
        )
    try:
        if quarantine is not None:
            spans = quarantine_spans(found.findings)
            add_spans(quarantine, spans)
            _tell_of_old_entries(console, quarantine, set(found.episodes) - names_of(spans))
    finally:  # what took so long to find is told in any case
        _print_findings(found, as_json)
    if not found.is_good:
        raise typer.Exit(1)


@app.command(context_settings={"allow_extra_args": True})
def plan(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="an episode, or a folder of episodes")],
    frame: Annotated[int | None, typer.Option(help="frame index; the middle one")] = None,
    batch: Annotated[
        int | None, typer.Option(help="show the first batch of training, of so many frames")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="of that batch; the config's")] = None,
    save: Annotated[Path | None, typer.Option(help="a picture: .png, .svg or .pdf")] = None,
) -> None:
    """Show what a sample or a batch reads: egoloader plan PATH keymap=human --frame 60.

    Bytes wanted: stored bytes of the chunks that hold the rows that are needed.
    Bytes read: those of the requests, gaps between such chunks among them.
    For this only shard indexes are read, annotations where they cut horizons off, and timestamps
    where windows go by them.
    """
    from egoloader.explanation import explain
    from egoloader.planreport import plan_report
    from egoloader.selection import select_batch, select_frame
    from egoloader.train.config import compose, make

    if frame is not None and batch is not None:
        raise ConfigError("--frame shows one sample, --batch many; keep one of them")
    config = compose([*context.args, *([] if seed is None else [f"seed={seed}"])])
    keymap, settings = make(config.keymap), _selection_settings(config.data)
    if isinstance(keymap, dict):
        raise ConfigError("plan takes one keymap; choose that of one embodiment")
    if batch is None:
        selected = [select_frame(path, keymap, settings, frame)]
    else:
        selected = select_batch(path, keymap, settings, batch)
    episodes = [explain(*one) for one in selected]
    console = _console()
    for part in plan_report(episodes):
        console.print(part, soft_wrap=isinstance(part, str))
    if save is not None:
        from egoloader.planpicture import draw_plan

        draw_plan(episodes, save)
        console.print(f"drawn to {shown(str(save))}", soft_wrap=True)


app.command(context_settings={"allow_extra_args": True})(stats)


def _selection_settings(data: Any) -> SelectionSettings:
    """Return what a training config says of choosing and opening episodes."""
    from egoloader.selection import SelectionSettings
    from egoloader.train.config import make

    return SelectionSettings(
        annotation_cutoff=data.annotation_cutoff,
        missing_chunks=data.missing_chunks,
        filters=make(data.filters),
        valid_ratio=data.valid_ratio,
        percent=data.percent,
        seed=data.seed,
        quarantine=data.quarantine,
        pool_size=data.pool_size,
        byte_budget=data.byte_budget,
        tail=data.tail,
        frame_filter=data.frame_filter,
        frame_weights=data.frame_weights,
    )


def _parse_size(text: str) -> tuple[int, int]:
    height, cross, width = text.lower().partition("x")
    if not (cross and height.isdigit() and width.isdigit()):
        raise ConfigError(f"--image-size is HEIGHTxWIDTH, as in 240x320, got {text!r}")
    return int(height), int(width)


def _report_lines(report: ConversionReport) -> Iterator[str]:
    yield (
        f"{len(report.written)} written, {len(report.skipped)} there already, "
        f"{len(report.missing)} missing, {len(report.failed)} failed"
    )
    if report.missing:
        shown = ", ".join(str(episode) for episode in sorted(report.missing))
        first = min(report.missing)
        files = ", ".join(report.missing[first])
        yield f"missing in the source: episodes {shown}; of episode {first}: {files}"
    for feature, why in report.left_out.items():
        yield f"left out: {feature}: {why}"
    for episode, texts in report.warnings.items():
        yield from (f"warning, episode {episode}: {text}" for text in texts)
    for episode, text in report.failed.items():
        yield f"failed, episode {episode}: {text}"


def _console() -> Console:
    """Return a console as wide as the terminal; wide enough for the tables where there is none."""
    console = Console()
    return console if console.is_terminal else Console(width=160)


def _tell_of_old_entries(console: Console, path: Path, good: set[str]) -> None:
    """Tell of episodes that a quarantine still lists, and in which nothing was found now."""
    from egoloader.quarantine import load_quarantine, names_of

    old = sorted(names_of(load_quarantine(path)) & good)
    if old:
        more = f" and {len(old) - 1} others" if len(old) > 1 else ""
        console.print(
            f"{shown(str(path))} still lists {shown(old[0])}{more}, in which nothing was found "
            "that is not to be served; take out what was repaired",
            soft_wrap=True,
        )


def _print_findings(found: Validation, as_json: bool) -> None:
    if as_json:
        findings = [asdict(one) for one in found.findings]
        print(json.dumps({"episodes": found.episodes, "findings": findings}, indent=1))
        return
    console = _console()
    if found.findings:
        console.print(_finding_table(found.findings))
    num_bad = len({one.episode for one in found.findings if one.is_bad})
    count = len(found.episodes)
    console.print(f"{count} episode{'' if count == 1 else 's'}, {num_bad} of them bad")


def _finding_table(findings: Sequence[Finding]) -> Table:
    table = Table(title=f"{len(findings)} findings")
    for name in ("episode", "key", "frames", "check", "harm", "what"):
        table.add_column(name, overflow="fold")
    for one in findings:
        frames = "" if one.start is None else f"{one.start} to {one.end}"
        cells = (one.episode, one.key or "", frames, one.check, one.harm, one.message)
        table.add_row(*map(shown, cells))
    return table


def _episode_table(episodes: Sequence[EpisodeOverview]) -> Table:
    table = Table(title=f"{len(episodes)} episodes")
    for name in ("episode", "embodiment", "task"):
        table.add_column(name, overflow="fold")
    for name in ("frames", "fps", "seconds", "size"):
        table.add_column(name, justify="right")
    for one in episodes:
        table.add_row(
            shown(one.name),
            shown(one.embodiment),
            shown(one.task),
            str(one.total_frames),
            f"{one.fps:g}{' (assumed)' if one.fps_assumed else ''}",
            f"{one.total_frames / one.fps:.1f}",
            size_text(one.num_bytes),
        )
    return table


def _by_layout(
    episodes: Sequence[EpisodeOverview],
) -> list[tuple[tuple[ArrayOverview, ...], list[str]]]:
    """Group episodes whose arrays differ in length and size only; the first stands for all."""
    groups: dict[object, tuple[tuple[ArrayOverview, ...], list[str]]] = {}
    for one in episodes:
        form = tuple(
            (a.key, a.what, a.shape[1:], a.chunk[1:], a.codecs, a.read_by) for a in one.arrays
        )
        groups.setdefault(form, (one.arrays, []))[1].append(one.name)
    return list(groups.values())


def _array_table(arrays: Sequence[ArrayOverview], names: Sequence[str]) -> Table:
    others = f" (and {len(names) - 1} others alike)" if len(names) > 1 else ""
    table = Table(title=f"arrays of {shown(names[0])}{others}")
    for name in ("key", "rows of", "shape", "chunk", "shard", "codecs", "read by"):
        table.add_column(name, overflow="fold")
    table.add_column("size", justify="right")
    for array in arrays:
        table.add_row(
            shown(array.key),
            shown(array.what),
            _shape(array.shape),
            _shape(array.chunk),
            _shape(array.shard) if array.shard else "-",
            shown(", ".join(array.codecs)),
            shown(array.read_by),
            size_text(array.num_bytes),
        )
    return table


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(str(side) for side in shape)
