"""What a plan reads, as text: the numbers of the explanation, and what is not known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from egoloader import KeyMap, ZarrEpisode
from egoloader.explanation import ArrayReads, Cost, EntryRows, EpisodeReads, explain
from egoloader.planreport import plan_report
from egoloader.sample import SampleMaker, SampleSettings
from tests.entries import entry, keymap
from tests.episodes import foreign_group, foreign_numbers, ramp, write_human


def array_reads(zarr_key: str, reason: str, cost: Cost) -> ArrayReads:
    entries = {"state": EntryRows(((3, 5),), 2)}
    return ArrayReads(zarr_key, reason, 100, entries, ((3, 5),), (0,), (), cost)


def episode_reads(*arrays: ArrayReads, frames: tuple[int, ...] = (3, 3)) -> EpisodeReads:
    return EpisodeReads("e.zarr", 90, 30.0, 2, frames, arrays, ())


def rendered(*episodes: EpisodeReads) -> tuple[list[str], list[list[str]]]:
    """Return the lines of a report, and the rows of its last table."""
    parts = list(plan_report(episodes))
    lines = [part for part in parts if isinstance(part, str)]
    table = [part for part in parts if isinstance(part, Table)][-1]
    console = Console(width=300)
    with console.capture() as capture:
        console.print(table)
    rows = [line for line in capture.get().splitlines() if line.startswith("│")]
    return lines, [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows]


READ = Cost(1, 0, 2, 4, 3, 5, 1999, 20_000_000, 6, 7, 8, 9)
REFERENCE = Cost(1, 1, 2, 4, 3, 0, 100, 0, 6, 7, 8, 9)


def test_costs_of_an_array_add_up_over_episodes() -> None:
    lines, rows = rendered(
        episode_reads(array_reads("a", "", READ), array_reads("b", "", READ)),
        episode_reads(array_reads("a", "", READ)),
    )
    assert lines[0] == "batch of 4 frames, 2 episodes: 2 entries, 3 reads"
    twice = ["4", "8", "6", "10", "4.0 kB", "40.0 MB", "12 / 14", "16 / 18"]
    once = ["2", "4", "3", "5", "2.0 kB", "20.0 MB", "6 / 7", "8 / 9"]
    total = ["6", "12", "9", "15", "6.0 kB", "60.0 MB", "18 / 21", "24 / 27"]
    assert rows == [
        ["a", "byte ranges", *twice],
        ["b", "byte ranges", *once],
        ["all", "", *total],
    ]
    assert not any("zarr-python" in line for line in lines)


def test_requests_of_zarr_python_are_not_known() -> None:
    mixed = [
        episode_reads(array_reads("a", "", READ)),
        episode_reads(array_reads("a", "codec x", REFERENCE)),
    ]
    lines, rows = rendered(*mixed)
    unknown = ["5 + ?", "2.1 kB", "20.0 MB + ?"]
    assert rows[0] == [
        *("a", "byte ranges; zarr-python: codec x", "4", "8", "6"),
        *(*unknown, "12 / 14", "16 / 18"),
    ]
    assert rows[1][5:8] == unknown
    assert any(line.startswith("?: zarr-python") for line in lines)
    _, rows = rendered(mixed[1])
    assert rows[0][5:8] == ["?", "100 B", "?"]


def test_markup_in_names_stays_text() -> None:
    lines, rows = rendered(episode_reads(array_reads("[red]a[/red]", "", READ), frames=(3,)))
    assert rows[0][0] == "[red]a[/red]"
    assert lines[0] == "episode e.zarr, frame 3 of 90, 30 Hz: 2 entries, 1 reads"


def test_annotations_alone_read_nothing(tmp_path: Path) -> None:
    path = write_human(tmp_path / "e.zarr", 10, annotations=[("reach", 0, 5)])
    entries: KeyMap = keymap(text=entry("annotations", "annotation_keys"))
    maker = SampleMaker(ZarrEpisode(path), entries, SampleSettings())
    lines, rows = rendered(explain(maker, np.array([5])))
    assert lines[0] == "episode e.zarr, frame 5 of 10, 30 Hz: 1 entries, 0 reads"
    assert rows == [["all", "", "0", "0", "0", "0", "0 B", "0 B", "0 / 0", "0 / 0"]]
    assert lines[-1].endswith("left out here: annotations")


def test_windows_by_time_say_how_their_steps_are_found(tmp_path: Path) -> None:
    group = foreign_group(tmp_path / "e.zarr", 90)
    foreign_numbers(group, "a", ramp(90, 7))
    entries = keymap(
        action=entry("a", "action_keys", rate_hz=10, horizon_s=1.6),
        turn=entry("a", "action_keys", rate_hz=20, horizon_s=0.1, interpolation="slerp"),
        late=entry("a", latency_s=0.02),
        early=entry("a", latency_s=-0.05, history=2, interpolation="linear"),
        frames=entry("a", history=2),
    )

    def told() -> list[str]:
        maker = SampleMaker(ZarrEpisode(tmp_path / "e.zarr"), entries, SampleSettings())
        _, windows, *_ = plan_report([explain(maker, np.array([50]))])
        assert isinstance(windows, Table)
        return [str(cell) for cell in windows.columns[2].cells]

    # Steps at 0 and 50 ms are frames 50 and 51.5; 50 ms before frames 49 and 50, 47.5 and 48.5.
    assert told() == [
        ", ".join(f"{row}:{row + 1}" for row in range(50, 90, 3))
        + " + 2 padded (16 steps at 10 Hz, nearest frame)",
        "50:53 (2 steps at 20 Hz, slerp)",
        "51:52 (nearest frame, 0.02 s late)",
        "47:50 (linear, 0.05 s early)",
        "49:51",
    ]
    foreign_numbers(group, "timestamp", np.arange(90) / 20)
    assert told()[1] == "50:52 (2 steps at 20 Hz, slerp, uneven timestamps)"
