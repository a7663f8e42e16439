"""What is left of an epoch, to and from the plain values of a checkpoint, which are not trusted."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.errors import ResumeError, SettingsError
from egoloader.shuffles import Items

__all__ = ["broken", "check_clocks", "check_parts", "left_of", "pack", "reading_state", "unpack"]

IntArray = npt.NDArray[np.int64]
State = Mapping[str, Any]


@contextmanager
def reading_state() -> Iterator[None]:
    """Turn what a state of another form makes a reader stumble over into a refusal.

    Raises:
        ResumeError: what was read was broken.
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, ResumeError):
            raise
        if isinstance(error, SettingsError):
            raise ResumeError(f"can't resume: {error}") from error
        raise broken(repr(error)) from error


def broken(what: str) -> ResumeError:
    """Return the error for a state in which something is not as it can be."""
    return ResumeError(
        f"can't resume: the state is broken: {what}; take another checkpoint, or start a new run"
    )


def pack(items: Items, lengths: IntArray) -> dict[str, Any]:
    """Return parts of episodes, in no order, as plain values.

    Whole episodes take a bit each. Of the others most miss their beginning only: a gap between
    episode numbers and a first place are two small numbers.

    Args:
        items: the parts, of which none overlap.
        lengths: (episodes,) their frames.
    """
    ends = items.stops == lengths[items.numbers]
    is_whole, is_begun = ends & (items.starts == 0), ends & (items.starts > 0)
    bits = np.zeros(len(lengths), dtype=bool)
    bits[items.numbers[is_whole]] = True
    begun, starts = items.numbers[is_begun], items.starts[is_begun]
    order = np.argsort(begun)
    return {
        "whole": base64.b64encode(np.packbits(bits).tobytes()).decode(),
        "gaps": np.diff(begun[order], prepend=0).tolist(),
        "starts": starts[order].tolist(),
        "pieces": np.stack(items, axis=1)[~ends].tolist(),
    }


def unpack(state: State, lengths: IntArray) -> Items:
    """Return the parts of which `pack` made a state, in no order.

    Raises:
        ResumeError: it is broken.
    """
    bits = np.frombuffer(base64.b64decode(state["whole"], validate=True), dtype=np.uint8)
    whole = np.flatnonzero(np.unpackbits(bits, count=len(lengths)))
    begun = np.cumsum(np.array(state["gaps"], dtype=np.int64))
    pieces = np.array(state["pieces"], dtype=np.int64).reshape(-1, 3)
    numbers = np.concatenate([whole, begun, pieces[:, 0]])
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < len(lengths):
        raise broken("what is left has episodes that there are not")
    starts = [np.zeros_like(whole), np.array(state["starts"], dtype=np.int64), pieces[:, 1]]
    stops = [lengths[whole], lengths[begun], pieces[:, 2]]
    items = Items(numbers, np.concatenate(starts), np.concatenate(stops))
    check_parts(items, lengths)
    return items


def check_parts(items: Items, lengths: IntArray) -> None:
    """Refuse parts that are empty, overlap or end behind their episode.

    Raises:
        ResumeError: some are.
    """
    numbers, starts, stops = items
    is_wrong = (starts < 0) | (starts >= stops) | (stops > lengths[numbers])
    order = np.lexsort((starts, numbers))
    is_same = numbers[order][1:] == numbers[order][:-1]
    overlaps = is_same & (starts[order][1:] < stops[order][:-1])
    if is_wrong.any() or overlaps.any():
        raise broken("what is left has frames that there are not, or the same twice")


def check_clocks(state: State, items: Items) -> int:
    """Check a state of `Clocks`; return the frames that it leaves of its parts.

    Raises:
        ResumeError: it is broken: it can't be one of these parts.
    """
    count, upcoming = len(items.numbers), state["upcoming"]
    begun, passed = state["residents"], state["passed"]
    lengths = items.stops - items.starts
    places = [*(place for place, _, _ in begun), *passed]
    if not begun and (passed or upcoming < count):
        raise broken("nothing is resident, and something waits")
    is_plain = all(type(n) is int for n in (upcoming, *places, *(n for _, _, n in begun)))
    if not is_plain or not 0 <= upcoming <= count or len(set(places)) < len(places):
        raise broken("what is resident or passed over is not what it can be")
    if places and not 0 <= min(places) <= max(places) < upcoming:
        raise broken("what is resident or passed over was not admitted yet")
    left = int(lengths[places].sum()) + int(lengths[upcoming:].sum())
    for place, admitted, drawn in begun:
        left -= drawn
        if not 0 <= drawn < lengths[place] or not 0 <= admitted < math.inf:
            raise broken("an episode is resident that is used up, or was never admitted")
    return left


def left_of(parts: Sequence[Items], ranks: Sequence[State]) -> Items:
    """Return what ranks have left of their parts, given the states of their clocks."""
    left = []
    for items, state in zip(parts, ranks, strict=True):
        waiting = [*state["passed"], *range(state["upcoming"], len(items.numbers))]
        begun = np.array(state["residents"], dtype=np.float64).reshape(-1, 3)
        places = np.array([*begun[:, 0], *waiting], dtype=np.int64)
        starts = items.starts[places]
        starts[: len(begun)] += begun[:, 2].astype(np.int64)
        left.append(np.stack([items.numbers[places], starts, items.stops[places]]))
    return Items(*np.concatenate(left, axis=1))
