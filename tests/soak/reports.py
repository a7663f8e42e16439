"""Long tests that write a result of their own, each by its name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.result import Result
from tests.fuzz.report import fuzz_report
from tests.soak.endurance import endurance_report
from tests.soak.interruptions import interruptions_report

__all__ = ["REPORTS", "run_report"]

#: Name, also that of the JSON file, to what runs it in an empty folder.
REPORTS: Mapping[str, Callable[[Path], Result]] = {
    "fuzz": fuzz_report,
    "endurance": endurance_report,
    "interruptions": interruptions_report,
}


def run_report(name: str) -> Result:
    """Run one in this process."""
    with tempfile.TemporaryDirectory() as root:
        return REPORTS[name](Path(root))
