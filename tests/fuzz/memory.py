"""What a process takes of memory while something runs. Linux only."""

from __future__ import annotations

import resource
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["GROWTH", "Watch", "limit_addresses"]

#: Bytes that reading one small episode may add to a process at most.
GROWTH = 2**30
#: Bytes of addresses, of which most are never touched, beyond those at the start.
_ADDRESSES = 8 * 2**30
_STATUS, _MARKS = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Watch:
    """Measures the most that a process holds while in the block, beyond what it held before.

    Attributes:
        peak: that, in bytes.
    """

    def __init__(self) -> None:
        self.peak = 0

    @property
    def is_over(self) -> bool:
        """Whether that is more than may be."""
        return self.peak > GROWTH

    def __enter__(self) -> Watch:
        with suppress(OSError):  # where it is forbidden, only new maxima are seen
            _MARKS.write_text("5")  # the maximum starts anew
        self._before = _bytes_of("VmHWM")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.peak = max(0, _bytes_of("VmHWM") - self._before)


def _bytes_of(name: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"{_STATUS} does not say {name}")


def limit_addresses() -> None:
    """Bound what this process may still ask the system for, so that no bug takes the machine."""
    limit = _bytes_of("VmSize") + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
