"""Which sources a step takes a batch of, and how long an epoch of several sources is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from egoloader.errors import SettingsError, check_whole, near_miss
from egoloader.seeding import stream_key, uniforms

__all__ = ["AtEnd", "Combine", "Schedule"]

Combine = Literal["all", "weighted"]
AtEnd = Literal["cycle", "ends"]
_BLOCK = 1024
#: Of a weight, so that sums of them are finite.
_LARGEST = 1e100


@dataclass(frozen=True, slots=True)
class Schedule:
    """How sources are mixed; a function of the step alone, so that all ranks take the same.

    Args:
        combine: `all`, one batch of each source a step; `weighted`, of one, drawn by weight.
        at_end: what becomes of a source that ends: `cycle`, it starts over; `ends`, it ends the
            epoch, and what the others have left comes in the next.
        weights: per source, how often it is drawn, relative to others; the same for all unless
            given. Only for `weighted`.
        seed: of the drawing.

    Raises:
        SettingsError: an option that can't be meant.
    """

    combine: Combine = "all"
    at_end: AtEnd = "cycle"
    weights: Mapping[str, float] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, options in (("combine", Combine), ("at_end", AtEnd)):
            value = getattr(self, name)
            if value not in get_args(options):
                raise SettingsError(
                    f"{name} is {value!r}; {near_miss(str(value), get_args(options))}"
                )
        check_whole("seed", self.seed, 0)
        if self.weights is None:
            return
        if self.combine != "weighted":
            raise SettingsError("weights are for combine: weighted; leave them out, or set it")
        if not isinstance(self.weights, Mapping):
            raise SettingsError(f"weights map embodiments to numbers, got {self.weights!r}")
        for source, weight in self.weights.items():
            if not isinstance(source, str):
                raise SettingsError(f"weights map embodiments to numbers, got {source!r} for one")
            is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
            if not is_number or not 0 < weight <= _LARGEST:
                raise SettingsError(
                    f"the weight of {source!r} must be a number above 0 and up to {_LARGEST:g}, "
                    f"got {weight!r}; to train without it, leave its keymap out"
                )

    def fingerprint(self) -> dict[str, Any]:
        """Return what the mixture depends on, small enough for a checkpoint."""
        weights = None if self.weights is None else dict(sorted(self.weights.items()))
        return {"combine": self.combine, "at_end": self.at_end, "weights": weights}

    def check_sources(self, sources: Sequence[str]) -> None:
        """Refuse weights of other sources than there are.

        Raises:
            SettingsError: a source has no weight, or a weight no source.
        """
        for name in self.weights or ():
            if name not in sources:
                raise SettingsError(f"there is a weight for {name!r}; {near_miss(name, sources)}")
        for name in sources if self.weights is not None else ():
            if name not in self.weights:  # type: ignore[operator]
                raise SettingsError(
                    f"embodiment {name!r} has no weight among {dict(self.weights or {})}"
                )

    def steps(self, sources: Sequence[str], start: int) -> Iterator[tuple[str, ...]]:
        """Yield, for one step after the other without end, the sources that it takes."""
        if self.combine == "all":
            yield from itertools.repeat(tuple(sources))
        for places in self._drawn(sources, start):
            yield from ((sources[place],) for place in places.tolist())

    def steps_left(self, left: Mapping[str, int], start: int) -> int:
        """Return how many steps it takes from a step on until a source ends.

        Args:
            left: per source, the batches that its pass has left, at least one.
            start: the step.
        """
        if self.combine == "all":
            return min(left.values())
        remaining, before = list(left.values()), 0
        for places in self._drawn(tuple(left), start):
            ends = []
            for source, count in enumerate(remaining):
                taken = np.flatnonzero(places == source)
                if len(taken) >= count:
                    ends.append(int(taken[count - 1]) + 1)
                remaining[source] = count - len(taken)
            if ends:
                return before + min(ends)
            before += len(places)
        raise AssertionError("steps never end")

    def _drawn(self, sources: Sequence[str], start: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yield, block by block without end, which source each step takes."""
        weights = [1.0 if self.weights is None else float(self.weights[name]) for name in sources]
        bounds = np.cumsum(weights)
        key = stream_key("mixture", self.seed)
        for block in itertools.count(start, _BLOCK):
            at = uniforms(key, _BLOCK, block) * bounds[-1]
            places = np.searchsorted(bounds, at, side="right")
            yield np.minimum(places, len(sources) - 1)  # where rounding met the very end
