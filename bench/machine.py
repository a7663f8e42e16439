"""The machine that a result was measured on."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
from collections.abc import Sequence
from pathlib import Path

__all__ = ["describe_machine"]

Machine = dict[str, str | int | float | dict[str, str]]


def describe_machine(libraries: Sequence[str]) -> Machine:
    """Describe this machine now: processor, memory, system, load, versions, date in UTC.

    Args:
        libraries: names of installed distributions whose versions matter to the result.
    """
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()  # not every architecture has the line
