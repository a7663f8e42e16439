"""A Lightning run that is killed at random moments, and goes on from its checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.soak.kills import kill_and_resume


def test_a_killed_run_that_goes_on_serves_every_frame_once_in_the_same_order(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    report = kill_and_resume(tmp_path, 3, seed=7)
    assert len(report.kills) == 3
    assert report.batches == 10 * 12
    assert report.not_once == 0
    assert report.wrong == 0
    assert all(kill.lost >= 0 for kill in report.kills)
    record_property("kills inside an epoch", sum(kill.is_inside for kill in report.kills))
