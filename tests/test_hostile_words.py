"""Annotations, frame rates and messages without bounds, and text that would steer a terminal."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from egoloader import ZarrDataset, ZarrEpisode
from egoloader.arrayfile import BYTES_CODECS, encode_vlen_bytes, write_metadata
from egoloader.cli import app, main
from egoloader.episode import ANNOTATIONS
from egoloader.errors import (
    EpisodeFormatError,
)
from egoloader.shards import crc32c
from egoloader.validate import validate_paths
from tests.entries import entry, keymap
from tests.episodes import HUMAN_FRAMES, edit_attrs, edit_json
from tests.hostile import (
    CAMERA,
    KEY,
    NEXT,
    refused,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")

# Annotations, and what else is said in words and numbers.


def annotated(path: Path, *rows: bytes) -> Path:
    """Put rows into the annotations of an episode, whatever they are."""
    shutil.rmtree(path / ANNOTATIONS)
    write_metadata(
        path / ANNOTATIONS,
        shape=(len(rows),),
        chunk=(len(rows),),
        data_type="variable_length_bytes",
        fill_value="",
        codecs=BYTES_CODECS,
    )
    chunk = encode_vlen_bytes(rows)
    (path / ANNOTATIONS / "c").mkdir()
    (path / ANNOTATIONS / "c/0").write_bytes(chunk + crc32c(chunk))
    return path


def span(text: str, start: int = 0, end: int = 20) -> bytes:
    return json.dumps({"text": text, "start_idx": start, "end_idx": end}).encode()


HOSTILE_ROWS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "deep": (lambda: [b"[" * 10**6], "row 0 is no annotation"),
    "a number of many digits": (lambda: [b"9" * 10**4], "row 0 is no annotation"),
    "many": (lambda: [b"{}"] * (2**17 + 1), "131073 rows; annotations are at most"),
    "long": (lambda: [span("x" * 2**23), span("y" * 2**23)], "they have at most 16777216"),
}


@pytest.mark.parametrize(("make", "message"), HOSTILE_ROWS.values(), ids=HOSTILE_ROWS)
def test_annotations_are_bounded(
    copied: Path, make: Callable[[], list[bytes]], message: str
) -> None:
    refused(ZarrEpisode(annotated(copied, *make())).annotations, "annotations", message)


def test_many_annotations_that_are_promised_are_not_looked_for(copied: Path) -> None:
    def promise(array: dict[str, Any]) -> None:
        array["shape"] = [10**14]
        array["chunk_grid"]["configuration"]["chunk_shape"] = [1]

    edit_json(copied / ANNOTATIONS / "zarr.json", promise)
    refused(ZarrEpisode(copied).annotations, "rows, the limit is")


def test_numbers_are_no_annotations(copied: Path) -> None:
    shutil.rmtree(copied / ANNOTATIONS)
    shutil.copytree(copied / KEY, copied / ANNOTATIONS)
    refused(ZarrEpisode(copied).annotations, "are no annotations")
    assert not validate_paths([copied], workers=1).is_good


TEXT = keymap(text=entry(ANNOTATIONS, "annotation_keys"))


def test_spans_that_overlap_make_no_text_without_end(copied: Path) -> None:
    path = annotated(copied, *[span("x" * 2**14)] * 100)
    refused(lambda: ZarrDataset(path, TEXT)[5], "frame 5", "1638598 characters")


@pytest.mark.parametrize("far", [10**30, -(10**30)])
def test_spans_may_lie_as_far_away_as_numbers_go(copied: Path, far: int) -> None:
    path = annotated(copied, span("a", min(far, 0), max(far, 20)), span("b", far, far + 1))
    dataset = ZarrDataset(path, NEXT, annotation_cutoff=True)
    assert dataset[5]["next"].shape == (4, 7)
    assert ZarrDataset(path, TEXT)[5]["text"] == "a"


@pytest.mark.parametrize("fps", [1e-300, 1e-7, 1e7, 1e300, 5e-324, 1.7e308, 10**300])
def test_frame_rates_that_nothing_records_at_are_refused(copied: Path, fps: float) -> None:
    with pytest.raises(EpisodeFormatError, match="fps must be above 0 Hz"):
        ZarrEpisode(edit_attrs(copied, fps=fps))


@pytest.mark.parametrize("fps", [1e-6, 1e6])
def test_windows_reach_as_far_as_keymaps_and_rates_let_them(copied: Path, fps: float) -> None:
    far: dict[str, Any] = {
        "past": {"lag_s": 1e9},
        "steps": {"history": 1000, "stride_s": 1e9},
        "both": {"offsets_s": (-1e9, 0, 1e9)},
    }
    entries = keymap(**{key: entry(KEY, mask=True, **fields) for key, fields in far.items()})
    sample = ZarrDataset(edit_attrs(copied, fps=fps), entries)[7]
    rows = {"past": 0, "steps": [7] * 1000, "both": [0, 7, HUMAN_FRAMES - 1]}
    for key, wanted in rows.items():
        assert sample[key][..., 0].tolist() == (1000 * np.array(wanted)).tolist()
    assert sample["both_is_pad"].tolist() == [True, False, True]


def test_messages_do_not_quote_megabytes(copied: Path) -> None:
    for attrs in ({"embodiment": ["x" * 10**6]}, {"features": ["x" * 10**6]}):
        with pytest.raises(EpisodeFormatError) as caught:
            ZarrEpisode(edit_attrs(copied, **attrs))
        assert len(str(caught.value)) < 5000


# What people see of it.

ANSI, BELL = "\x1b[31m\x1b]0;title\x07", "\x07"
NAUGHTY = f"[red]{ANSI}[/nothing]\ud800\r\u202e"


def test_what_episodes_say_does_not_steer_the_terminal(copied: Path) -> None:
    edit_attrs(copied, embodiment=f"arm{NAUGHTY}", task_description=NAUGHTY * 10**5)
    edit_json(copied / KEY / "zarr.json", lambda a: a.update(data_type={"name": NAUGHTY}))
    edit_json(copied / CAMERA / "zarr.json", lambda a: a["codecs"].append({"name": NAUGHTY}))
    copied.rename(copied.parent / f"-\n[bold]{ANSI}.zarr")
    for command in (["inspect"], ["validate", "--workers", "1"], ["validate", "--json"]):
        found = CliRunner().invoke(app, [*command, str(copied.parent)])
        assert isinstance(found.exception, SystemExit | None), found.exception
        assert not {"\x1b", BELL, "\r", "\ud800", "\u202e"} & set(found.output)
        assert "[red]" in found.output or command != ["inspect"]
        assert len(found.output) < 10**5


def test_errors_do_not_steer_the_terminal(
    copied: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied / "zarr.json" / ANSI
    arguments = ["validate", str(copied), "--workers", "1", "--quarantine", str(file)]
    monkeypatch.setattr(sys, "argv", ["egoloader", *arguments])
    with pytest.raises(SystemExit):
        main()
    assert not {"\x1b", BELL} & set(capsys.readouterr().err)
