"""What the benches of single samples count and refuse: reads, and the lengths of episodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from bench import lengths, reads
from bench.__main__ import main
from bench.pairing import WrongAnswerError
from bench.recordings import CAMERA, Recording
from bench.result import CountRow, Result
from bench.zarr_samples import per_entry

KEY, ENTRY, SPAN = "one read per key", "one read per entry", "plain union span"
TINY: dict[str, Any] = {"size": (24, 40), "jpeg_bytes": (500, 5000)}


@pytest.fixture(scope="module")
def measured() -> Result:
    return reads.measure_reads(
        reads.Settings(
            total_frames=(40, 350),
            gaps_s=(0.1, 0.5, 2.0),
            rounds=2,
            **TINY,
        )
    )


def count(result: Result, case: str, contender: str) -> CountRow:
    (row,) = (row for row in result.counts if (row.case, row.contender) == (case, contender))
    return row


@pytest.mark.parametrize("contender", ["egoloader", KEY])
def test_one_read_per_key_reads_what_the_windows_hold(measured: Result, contender: str) -> None:
    row = count(measured, "T = 350", contender)
    # Frame 175: rows 172 to 204 of four arrays, across two chunks; one row of pose and camera.
    assert {key: cost["rows"] for key, cost in row.arrays.items()} == {
        "images.front_1": 1,
        "left.obs_keypoints": 33,
        "left.obs_wrist_pose": 33,
        "obs_head_pose": 1,
        "right.obs_keypoints": 33,
        "right.obs_wrist_pose": 33,
    }
    assert (row.counts["reads"], row.counts["rows"], row.counts["chunks"]) == (6, 134, 10)
    # Neighbouring chunks come in one request; zarr-python asks for each, and for the index again.
    assert row.counts["requests"] == {"egoloader": 6, KEY: 10 + 6}[contender]


def test_one_read_per_entry_decodes_chunks_again(measured: Result) -> None:
    row = count(measured, "T = 350", ENTRY)
    # Four histories of 4 rows in one chunk each, four horizons of 30 rows in two, pose and camera.
    assert (row.counts["reads"], row.counts["rows"], row.counts["chunks"]) == (10, 138, 14)
    assert row.counts["requests"] == 14 + 10  # every access reads the shard's index again


@pytest.mark.parametrize(("gap", "span"), [(0.1, 4), (0.5, 16), (2.0, 61)])
def test_image_history_costs_two_jpegs_at_any_gap(measured: Result, gap: float, span: int) -> None:
    case = f"T = 350, image history {gap} s"
    for contender, jpegs in {"egoloader": 2, KEY: 2, ENTRY: 2, SPAN: span}.items():
        row = count(measured, case, contender)
        assert row.counts["of them JPEGs"] == row.arrays[CAMERA]["chunks"] == jpegs
    assert count(measured, case, "egoloader").counts["reads"] == 6
    assert count(measured, case, ENTRY).counts["reads"] == 11


def test_every_case_is_timed_encoded_and_decoded(measured: Result) -> None:
    cases = list(dict.fromkeys(row.case for row in measured.figures))
    assert len(cases) == 2 * (2 + 1 + 3) + 2
    first = "T = 40, numbers and JPEG bytes"
    assert cases[:3] == [first, f"{first}, one a turn", "T = 40, decoded sample"]
    assert [row.contender for row in measured.figures[:4]] == ["egoloader", KEY, ENTRY, SPAN]
    assert {row.n for row in measured.figures} == {2, 20}
    assert 500 <= measured.settings["mean_jpeg_bytes"] <= 5000


def test_a_contender_that_reads_another_array_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def mistakes_left_for_right(entries: Any, rows: Any) -> Any:
        for read in per_entry(entries, rows):
            yield dataclasses.replace(read, zarr_key=read.zarr_key.replace("left", "right"))

    monkeypatch.setitem(reads._THEIRS, ENTRY, mistakes_left_for_right)
    settings = reads.Settings((40,), (), 1, 2, **TINY)
    with pytest.raises(WrongAnswerError, match=r"one read per entry.*'left\.\w+' holds other"):
        reads.measure_reads(settings)


def test_settings_that_measure_nothing_are_refused() -> None:
    for wrong in ({"total_frames": ()}, {"total_frames": (0,)}, {"rounds": 0}, {"in_a_row": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            reads.Settings(**wrong)


def test_a_longer_episode_is_compared_with_zarr_python() -> None:
    settings = lengths.Settings((60, 150), (0.1, 0.5), gap_frames=150, rounds=2, **TINY)
    result = lengths.measure_lengths(settings)
    assert [(row.case, row.contender) for row in result.figures] == [
        ("numbers and JPEG bytes", "T = 60"),
        ("numbers and JPEG bytes", "T = 150"),
        ("decoded sample", "T = 60"),
        ("decoded sample", "T = 150"),
        ("decoded sample with image history", "gap 0.1 s"),
        ("decoded sample with image history", "gap 0.5 s"),
    ]
    assert [(target.sense, target.bound) for target in result.targets] == [
        ("at most", 2.5),
        ("at most", 1.25),
        ("at most", 1.15),
    ]


def test_a_sample_of_another_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "_sample", lambda dataset, recording, place: dataset[1])
    settings = lengths.Settings((60, 150), (0.1, 0.5), gap_frames=150, rounds=1, **TINY)
    with pytest.raises(
        WrongAnswerError, match=r"'T = 60', one of \[Place\(share=0\.0, .*holds other"
    ):
        lengths.measure_lengths(settings)


@pytest.mark.parametrize("total", [3, 60, 200])
def test_a_place_is_a_share_and_a_picture(total: int) -> None:
    jpegs = [bytes([number]) for number in range(47)]
    recording = Recording(Path("ep.zarr"), total, {CAMERA: jpegs})
    frames = [lengths.Place(share, 2).frame(recording) for share in (0.0, 0.5, 0.999)]
    assert frames == {3: [2, 2, 2], 60: [2, 2, 2], 200: [2, 2 * 47 + 2, 3 * 47 + 2]}[total]
    assert {recording.jpeg(CAMERA, frame) for frame in frames} == {jpegs[2]}


def test_lengths_that_compare_nothing_are_refused() -> None:
    for wrong in ({"total_frames": (3000,)}, {"gaps_s": (0.1,)}, {"gap_frames": 7}):
        with pytest.raises(ValueError, match=r"are compared|one of the lengths"):
            lengths.Settings(**wrong)


@pytest.mark.parametrize("question", [reads, lengths])
def test_options_become_settings(
    question: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def measure(settings: Any) -> Result:
        asked.append(settings)
        return Result("shapes", "Which?", {}, {}, (), (), ())

    name = question.__name__.rpartition(".")[2]
    monkeypatch.setattr(question, f"measure_{name}", measure)
    main(["--results", str(tmp_path), name, "--total-frames", "60", "50", "--rounds", "4"])
    main(["--results", str(tmp_path), name])
    assert (asked[0].total_frames, asked[0].rounds) == ((60, 50), 4)
    assert asked[1] == question.Settings()
