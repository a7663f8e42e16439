"""Byte ranges of one stored object, merged into requests. Pure: integers in, integers out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from egoloader.errors import PlanError

__all__ = ["MergeLimits", "Request", "merge_ranges"]

ByteRange = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MergeLimits:
    """When neighbouring byte ranges become one request.

    Args:
        gap_bytes: unwanted bytes between two ranges that are read through at most. A page is what
            the system fetches anyway.
        request_bytes: size of a merged request at most; a single range may be larger.

    Raises:
        PlanError: a negative gap, or requests below one byte.
    """

    gap_bytes: int = 4096
    request_bytes: int = 16 * 2**20

    def __post_init__(self) -> None:
        if self.gap_bytes < 0 or self.request_bytes < 1:
            raise PlanError(f"limits are a gap from 0 and requests from 1 byte on, got {self}")


class Request(NamedTuple):
    """One request: bytes [start, stop), and the numbers of the ranges that lie in it."""

    start: int
    stop: int
    members: tuple[int, ...]


def merge_ranges(ranges: Sequence[ByteRange], limits: MergeLimits) -> list[Request]:
    """Merge half-open byte ranges of one object into requests, sorted by where they start.

    Args:
        ranges: (start, stop), in any order; they may overlap, repeat, or be empty.
        limits: see `MergeLimits`.

    Returns:
        Requests that together hold every range once; `members` index `ranges`.
    """
    requests: list[Request] = []
    start = stop = 0
    members: list[int] = []
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        low, high = ranges[number]
        is_near = members and low - stop <= limits.gap_bytes
        if is_near and (high <= stop or high - start <= limits.request_bytes):
            stop = max(stop, high)
            members.append(number)
            continue
        if members:
            requests.append(Request(start, stop, tuple(members)))
        start, stop, members = low, high, [number]
    if members:
        requests.append(Request(start, stop, tuple(members)))
    return requests
