"""A Lightning run that is killed at random moments, and goes on from its checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.kills import kill_and_resume


def test_a_killed_run_that_goes_on_serves_every_frame_once_in_the_same_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = kill_and_resume(tmp_path, 3, seed=7)
    assert len(report.kills) == 3
    assert report.batches == 10 * 12
    assert report.not_once == 0
    assert report.wrong == 0
    assert all(0 <= kill.lost for kill in report.kills)
    inside = sum(kill.is_inside for kill in report.kills)
    with capsys.disabled():
        print(f" {inside} of 3 kills landed inside an epoch ", end="")
