"""What the bench of validation counts and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import validate
from bench.__main__ import main
from bench.pairing import WrongAnswerError
from bench.result import Result
from egoloader.validate import Finding, Validation, validate_paths

TINY = validate.Settings(
    episodes=2, total_frames=60, rounds=3, whole_rounds=2, size=(24, 40), jpeg_bytes=(500, 5000)
)


class Here:
    """Validates in this process, and keeps what it was asked for; adds or leaves out findings."""

    def __init__(self, lost: str = "", added: str = "") -> None:
        self._lost, self._added = lost, added
        self.asked: set[tuple[Any, int]] = set()

    def __call__(self, paths: Any, *, depth: Any, workers: int) -> Validation:
        self.asked.add((depth, workers))
        found = validate_paths(paths, depth=depth, workers=1)
        kept = [one for one in found.findings if one.check != self._lost]
        if self._added in str(paths[0]) and self._added:
            kept.append(Finding("episode_000.zarr", "jump", "none", harm="note"))
        return replace(found, findings=tuple(kept))


def measured(monkeypatch: pytest.MonkeyPatch, here: Here) -> Result:
    monkeypatch.setattr(validate, "validate_paths", here)
    return validate.measure_validate(TINY)


def test_validation_is_timed_beside_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here()
    result = measured(monkeypatch, here)
    assert here.asked == {
        ("full", 1),
        ("full", 2),
        ("sampled", 1),
        ("metadata", 1),
        ("metadata", 2),
    }
    assert [(row.contender, row.n) for row in result.figures] == [
        ("decoding", 3),
        ("a plain script", 3),
        ("validate, 1 process", 3),
        ("sampled, 1 process", 3),
        ("metadata, 1 process", 3),
        ("decoding", 2),
        ("validate, 2 processes", 2),
        ("metadata, 2 processes", 2),
    ]
    assert result.counts[0].counts == {"episodes": 2, "frames": 120, "JPEGs decoded": 120}
    (target,) = result.targets
    assert (target.what, target.sense) == ("validate, 1 process ÷ decoding", "at most")
    assert target.figure == result.figures[2].ratio


@pytest.mark.parametrize("lost", ["camera frame", "not finite"])
def test_a_look_that_misses_a_fault_is_refused(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    with pytest.raises(WrongAnswerError, match=f"where .*{lost}.* was seeded"):
        measured(monkeypatch, Here(lost))


@pytest.mark.parametrize(("added", "said"), [("good", "in good episodes"), ("bad", "was seeded")])
def test_a_false_alarm_is_refused(monkeypatch: pytest.MonkeyPatch, added: str, said: str) -> None:
    with pytest.raises(WrongAnswerError, match=said):
        measured(monkeypatch, Here(added=added))


def test_both_ways_to_decode_have_the_episodes_own_jpegs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recordings = validate._write(tmp_path, TINY)
    decoded: list[bytes] = []
    monkeypatch.setattr(
        "bench.validate.simplejpeg.decode_jpeg", lambda jpeg, buffer: decoded.append(bytes(jpeg))
    )
    buffer = np.empty((24, 40, 3), np.uint8)
    for recording in recordings:
        validate._read_and_decode(recording, buffer)
    by_script = decoded.copy()
    decoded.clear()
    validate._decode(recordings, buffer)
    assert decoded == by_script
    assert len(decoded) == 2 * TINY.total_frames
    assert len(set(decoded)) > 40


def test_the_command_takes_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def stop(settings: validate.Settings) -> Result:
        asked.append(settings.rounds)
        return Result("validate", "", {}, {}, (), (), ())

    monkeypatch.setattr(validate, "measure_validate", stop)
    for rounds in ([], ["--rounds", "3"]):
        main(["--results", str(tmp_path), "validate", *rounds])
    assert asked == [60, 3]
