"""Mutated episodes, some of each class; and the judge, on readers that are wrong on purpose."""

from __future__ import annotations

import collections
import dataclasses
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from bench.result import load, save
from egoloader.chunkcodec import ChunkCodec, ChunkRows
from egoloader.chunktable import ChunkTable
from egoloader.decompression import DECOMPRESSORS, Stored
from egoloader.errors import EpisodeFormatError, FrameError, ReadError, SampleError
from tests.fuzz import memory, worker
from tests.fuzz.__main__ import main
from tests.fuzz.bases import BASES, CAMERA, COUNT, POSE, TOTAL, Base
from tests.fuzz.case import Case, Outcome, Workshop, cases
from tests.fuzz.mutations import CLASSES
from tests.fuzz.oracle import StoreRows, differences, slow_sample
from tests.fuzz.outcomes import REACHED, Judgement, Verdict
from tests.fuzz.probe import Probe, Reading, probe
from tests.fuzz.report import summarise_fuzz
from tests.fuzz.worker import Lane

#: Episodes of each class.
PER_CLASS = 18


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("fuzz"), probe)


@pytest.mark.parametrize("kind", CLASSES)
def test_no_mutated_episode_is_wrong(workshop: Workshop, kind: str) -> None:
    found = [workshop.run(case) for case in cases(PER_CLASS) if case.kind == kind]
    wrong = [f"{o.case}: {o.what}: {o.judgement.why}" for o in found if _is_wrong(o)]
    assert not wrong
    assert sum(one.judgement.verdict in REACHED for one in found) > 2


def _is_wrong(outcome: Outcome) -> bool:
    return outcome.judgement.verdict is Verdict.WRONG


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_good_episodes_are_right_in_every_way(base: Base, tmp_path: Path) -> None:
    recording = base.recording()
    base.write(tmp_path / "ep.zarr", recording)
    stored = StoreRows(tmp_path / "ep.zarr")
    assert (stored.total, stored.fps, stored.embodiment) == (TOTAL, 10.0, "arm")
    ramp = 1000 * np.arange(TOTAL)[:, None] + np.arange(3)
    assert (recording.rows[POSE] == ramp).all()
    for seed in range(9):  # every way to read
        reading = probe(base, tmp_path / "ep.zarr", random.Random(seed))
        assert reading.refusal is None
        assert not [one for one in reading.findings or () if one.harm == "frames"]
        assert list(reading.frames) == list(range(TOTAL))
        for frame, sample in reading.frames.items():
            for rows in (recording, stored):
                assert not differences(sample, slow_sample(rows, base, frame))


def test_no_two_recordings_have_a_row_of_numbers_or_a_frame_in_common() -> None:
    base = BASES["writer"]
    one, other = base.recording(0).rows, base.recording(1).rows
    assert not set(one[CAMERA]) & set(other[CAMERA])
    for key in (POSE, COUNT):
        assert not (one[key] == other[key]).any()


def test_a_case_is_the_same_every_time(workshop: Workshop, tmp_path: Path) -> None:
    other = Workshop(tmp_path, probe)
    for case in cases(4):
        one = workshop.mutation(case)
        assert one == workshop.mutation(case)
        assert one.what == other.mutation(case).what
        assert one.paths


# The package, broken on purpose.


def _without_checksums(data: Stored, _limit: int) -> Stored:
    return memoryview(data)[:-4]


def _zeros_for_bad_chunks(codec: ChunkCodec, data: Stored) -> ChunkRows:
    try:
        return _decode(codec, data)
    except Exception:  # as loaders do that would rather go on
        return codec.filled()


def _out_of_range(_codec: ChunkCodec, _data: Stored) -> ChunkRows:
    raise IndexError("list index out of range")


def _one_row_late(codec: ChunkCodec, data: Stored) -> ChunkRows:
    rows = _decode(codec, data)
    return np.roll(rows, 1, axis=0) if isinstance(rows, np.ndarray) else rows


_decode = ChunkCodec.decode


def _find_wrong(workshop: Workshop, base: str, kind: str) -> str:
    """Return why some case is wrong."""
    found = (workshop.run(Case(base, kind, seed)) for seed in range(60))
    return next(one.judgement.why for one in found if _is_wrong(one))


def test_checksums_that_are_not_looked_at_are_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(cast(Any, DECOMPRESSORS), "crc32c", _without_checksums)
    assert "zarr-python says" in _find_wrong(workshop, "writer", "flipped-bits")


@pytest.mark.parametrize(
    ("sabotage", "kind", "why"),
    [
        (_zeros_for_bad_chunks, "truncated", "zarr-python says"),
        (_zeros_for_bad_chunks, "flipped-bits", "zarr-python says"),
        (_one_row_late, "bad-jpeg", "frame 0, {"),
        (_one_row_late, "edited-json", "frame 0, {"),
    ],
)
def test_values_that_are_silently_wrong_are_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, sabotage: Any, kind: str, why: str
) -> None:
    monkeypatch.setattr(ChunkCodec, "decode", sabotage)
    assert why in _find_wrong(workshop, "blosc", kind)


def test_an_index_error_from_within_is_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChunkTable, "find", _out_of_range)
    why = _find_wrong(workshop, "writer", "swapped")
    assert "IndexError('list index out of range')" in why


# Readers that are wrong on purpose.


def _of_a_good_episode(base: Base, path: Path) -> Reading:
    """Read the good episode beside a mutated one, which is of another recording."""
    reading = probe(base, path.parent / "neighbour", random.Random(0))
    frames = {n: {**sample, "episode": path.name} for n, sample in reading.frames.items()}
    return dataclasses.replace(reading, frames=frames, batches=())


def serve_others(base: Base, path: Path, _: random.Random) -> Reading:
    return _of_a_good_episode(base, path)


def serve_zeros(base: Base, path: Path, _: random.Random) -> Reading:
    reading = _of_a_good_episode(base, path)
    for sample in reading.frames.values():
        sample["now"] = sample["now"] * 0
    return reading


def stop_early(_base: Base, _path: Path, _: random.Random) -> Reading:
    return Reading(TOTAL, None, {0: IndexError("list index out of range")})


def end_with_an_index_error(_base: Base, _path: Path, _: random.Random) -> Reading:
    raise IndexError("list index out of range")


def wrap_what_nothing_foresaw(_base: Base, path: Path, _: random.Random) -> Reading:
    return Reading(TOTAL, None, {0: SampleError(f"{CAMERA} failed", episode=path.name)})


def name_nothing(_base: Base, _path: Path, _: random.Random) -> Reading:
    return Reading(None, EpisodeFormatError("it is broken"), {})


def name_the_episode_only(_base: Base, path: Path, _: random.Random) -> Reading:
    return Reading(None, EpisodeFormatError("it is broken", episode=path.name), {})


def name_no_bytes(_base: Base, path: Path, _: random.Random) -> Reading:
    error = ReadError("c/0 can't be decoded: no JPEG", episode=path.name, key=CAMERA)
    return Reading(TOTAL, None, {0: error})


def name_another_frame(_base: Base, path: Path, _: random.Random) -> Reading:
    error = FrameError("the JPEG is truncated", episode=path.name, key=CAMERA, frame=TOTAL)
    return Reading(TOTAL, None, {0: error})


def claim_more_frames(base: Base, path: Path, drawer: random.Random) -> Reading:
    return dataclasses.replace(probe(base, path, drawer), total=TOTAL + 1)


def differ_in_batches(base: Base, path: Path, _: random.Random) -> Reading:
    reading = _of_a_good_episode(base, path)
    frames = {n: slow_sample(base.recording(), base, n) for n in reading.frames}
    frames = {n: {**sample, "episode": path.name} for n, sample in frames.items()}
    return dataclasses.replace(reading, frames=frames, batches=[([0], [reading.frames[0]])])


def refuse_batches(base: Base, path: Path, drawer: random.Random) -> Reading:
    reading = differ_in_batches(base, path, drawer)
    error = FrameError("no JPEG", episode=path.name, key=CAMERA, frame=7)
    return dataclasses.replace(reading, batches=[([7], error)])


def take_memory(_base: Base, path: Path, _: random.Random) -> Reading:
    np.ones(2**27, np.uint8)
    return Reading(None, EpisodeFormatError("it is broken", episode=path.name, key=CAMERA), {})


@pytest.mark.parametrize(
    ("sabotage", "why"),
    [
        (serve_others, "frame 0, "),
        (serve_zeros, "frame 0, "),
        (stop_early, "nothing foresaw IndexError"),
        (end_with_an_index_error, "it raises IndexError"),
        (wrap_what_nothing_foresaw, "nothing foresaw SampleError"),
        (name_nothing, "the episode is not named"),
        (name_the_episode_only, f"{CAMERA} are not named"),
        (name_no_bytes, "no bytes are named"),
        (name_another_frame, "are named by FrameError"),
        (claim_more_frames, f"{TOTAL + 1} frames, {TOTAL} are stored"),
        (differ_in_batches, "frame 0 of batch"),
        (refuse_batches, "are bad together alone"),
        (take_memory, "it takes 1"),
    ],
)
def test_a_reader_that_is_wrong_is_found(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, sabotage: Probe, why: str
) -> None:
    monkeypatch.setattr(workshop, "_probe", sabotage)
    monkeypatch.setattr(memory, "GROWTH", 2**26)
    # A frame that is not the first in the place of which something else is stored.
    found = workshop.run(_a_case(workshop))
    assert found.judgement.verdict is Verdict.WRONG
    assert found.judgement.why.startswith(why) or why in found.judgement.why


def _a_case(workshop: Workshop) -> Case:
    found = (Case("writer", "bad-jpeg", seed) for seed in range(1000))
    return next(c for c in found if set(workshop.mutation(c).rows or ()) == {(CAMERA, 7)})


def test_what_can_not_be_read_and_is_not_found_by_validation_is_wrong(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(base: Base, path: Path, drawer: random.Random) -> Reading:
        return dataclasses.replace(probe(base, path, drawer), findings=[], is_full=True)

    monkeypatch.setattr(workshop, "_probe", blind)
    found = [workshop.run(Case("writer", "bad-jpeg", seed)) for seed in range(20)]
    told = collections.Counter(one.judgement.why for one in found)
    assert told[f"{Verdict.JPEG}, and validation finds nothing bad"] > 10


# Processes.


def hang(base: Base, path: Path, drawer: random.Random) -> Reading:
    if drawer.random() < 2:
        time.sleep(600)
    return probe(base, path, drawer)


def crash(_base: Base, _path: Path, _: random.Random) -> Reading:
    os._exit(11)


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[Lane]:
    found = Lane(tmp_path)
    yield found
    found.close()


def test_a_case_that_hangs_or_ends_its_process_is_wrong_and_the_next_one_runs(lane: Lane) -> None:
    case = Case("writer", "bad-jpeg", 0)
    lane._probe, lane._limit = hang, 0.5
    assert lane.run(case).judgement == Judgement(Verdict.WRONG, "it takes more than 0.5 s")
    lane._probe, lane._limit = crash, 20.0
    assert lane.run(case).judgement == Judgement(Verdict.WRONG, "its process ends with status 11")
    lane._probe = probe
    assert lane.run(case).judgement.verdict in (Verdict.JPEG, Verdict.ORIGINAL, Verdict.ZARR)


# The report.


def _outcomes(wrong: int = 0) -> list[Outcome]:
    right, bad = Judgement(Verdict.JPEG), Judgement(Verdict.WRONG, "a shift")
    found = [Outcome(one, "", right, 0.25, 2**20) for one in cases(1755)]
    return [dataclasses.replace(one, judgement=bad) for one in found[:wrong]] + found[wrong:]


@pytest.mark.parametrize(("wrong", "is_met"), [(0, True), (1, False)])
def test_outcomes_become_a_result(tmp_path: Path, wrong: int, is_met: bool) -> None:
    result = summarise_fuzz(_outcomes(wrong))
    assert [target.is_met for target in result.targets] == [True, True, is_met, True, True, True]
    found = load(save(result, tmp_path))
    assert sum(row["counts"]["episodes"] for row in found["counts"]) == 6 * 1755
    assert sum(row["counts"]["wrong"] for row in found["counts"]) == wrong
    assert found["settings"]["largest"].endswith("1 MiB")


def test_few_slow_large_or_shallow_episodes_miss_targets() -> None:
    shallow = Judgement(Verdict.OPEN)
    few = [dataclasses.replace(o, judgement=shallow, seconds=30.0, peak=2**31) for o in _outcomes()]
    result = summarise_fuzz(few[:60])
    assert [target.is_met for target in result.targets] == [False, False, True, False, False, False]


def test_a_case_runs_again_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.__main__.limit_addresses", lambda: None)
    kept = tmp_path / "kept"
    assert main(["writer", "bad-jpeg", "3", "--keep", str(kept)]) == 0
    shown = capsys.readouterr().out
    assert "writer bad-jpeg 3: row" in shown
    assert (kept / "zarr.json").is_file()
    assert worker.LIMIT == 20.0


def test_lanes_run_all_cases(tmp_path: Path) -> None:
    some = cases(1)
    found = list(worker.run_cases(tmp_path, some, 2))
    assert {one.case for one in found} == set(some)
    assert not any(map(_is_wrong, found))
