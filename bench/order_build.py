"""Makes an order of many episodes and says what that took: `python -m bench.order_build JSON`.

It imports no more than that needs, and prints one JSON line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from egoloader.order import OrderSettings
from egoloader.pool import EpisodePool
from egoloader.poolorder import PoolOrder
from egoloader.roster import Roster

__all__ = ["main"]

Listed = list[tuple[str, int]]


def main(what: str, count: int, total_frames: int, pool_size: int, seed: int) -> None:
    """Make it, and draw the first frame, as it may leave work to do until then."""
    listed = [(f"episode_{number:06d}", total_frames) for number in range(count)]
    before = _memory("VmRSS")
    start = time.perf_counter()
    first = _FIRSTS[what](listed, pool_size, seed)
    seconds = time.perf_counter() - start
    taken = _memory("VmHWM") - before
    print(json.dumps({"seconds": seconds, "peak_bytes": taken, "first": first}), flush=True)


def _first_of_pool(listed: Listed, pool_size: int, seed: int) -> tuple[str, int]:
    return next(EpisodePool(listed, pool_size, seed))


def _first_of_order(listed: Listed, pool_size: int, seed: int) -> tuple[str, int]:
    roster = Roster(listed)
    order = PoolOrder(roster, OrderSettings(pool_size=pool_size, seed=seed), 0, 1)
    draws = next(order.batches(0, 0))
    return str(roster.ids[draws.numbers[0]]), int(draws.frames[0])


_FIRSTS: dict[str, Callable[[Listed, int, int], tuple[str, int]]] = {
    "EpisodePool": _first_of_pool,
    "PoolOrder": _first_of_order,
}


def _memory(name: str) -> int:
    """Return a line of this process's status in bytes: the resident memory now, or at its peak.

    A peak from before makes the difference larger, not smaller.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    return int(kib) * 1024


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
