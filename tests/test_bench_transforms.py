"""What the bench of transforms times and refuses."""

from __future__ import annotations

from typing import Any

import pytest

from bench import transforms
from bench.__main__ import main
from bench.pairing import WrongAnswerError
from bench.result import Result
from egoloader.transforms import PoseRotation

TINY = transforms.Settings(episodes=2, total_frames=40, batch_size=4, rounds=2)


def test_three_ways_are_timed() -> None:
    result = transforms.measure_transforms(TINY)
    assert [(row.contender, row.n) for row in result.figures] == [
        ("once a batch", 2),
        ("once a sample", 2),
        ("none", 2),
    ]
    assert {row.case for row in result.figures} == {"a batch of 4"}


def test_a_batch_that_is_not_what_its_samples_are_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    apply = PoseRotation._apply

    def broken(self: PoseRotation, sample: dict[str, Any]) -> dict[str, Any]:
        made = apply(self, sample)
        if sample["frame_index"].dim():  # a batch
            made["left.obs_ee_pose"] += 1e-6
        return made

    monkeypatch.setattr(PoseRotation, "_apply", broken)
    with pytest.raises(WrongAnswerError, match=r"'left\.obs_ee_pose' of \[.* differs"):
        transforms.measure_transforms(TINY)


def test_transforms_that_do_nothing_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    contender = transforms._contender
    monkeypatch.setattr(transforms, "_contender", lambda name, at, _: contender(name, at, []))
    with pytest.raises(WrongAnswerError, match=r"leave .* as it is"):
        transforms.measure_transforms(TINY)


def test_the_command_takes_the_rounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    asked = []

    def stop(settings: transforms.Settings) -> Result:
        asked.append(settings.rounds)
        return Result("transforms", "", {}, {}, (), (), ())

    monkeypatch.setattr(transforms, "measure_transforms", stop)
    for rounds in ([], ["--rounds", "3"]):
        main(["--results", str(tmp_path), "transforms", *rounds])
    assert asked == [60, 3]
