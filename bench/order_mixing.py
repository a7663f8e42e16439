"""How many episodes a batch is of, by the size of the pool, and without one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from bench.pairing import WrongAnswerError
from egoloader.order import OrderSettings
from egoloader.poolorder import PoolOrder
from egoloader.roster import Roster

__all__ = ["WITHOUT", "Mixed", "MixingSettings", "expected_unique", "mix"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
WITHOUT = "without a pool"
#: Standard errors that a mean may be off what it is expected to be.
_STANDARD_ERRORS = 6


@dataclass(frozen=True, slots=True)
class MixingSettings:
    """What is mixed.

    Attributes:
        episodes: how many.
        frames: fewest and most of an episode, both included.
        batch_size: frames of a batch.
        pool_sizes: that are compared, beside one for all episodes.
        epochs: of each, in which one value is taken.
        seed: of the lengths and of the orders.
    """

    episodes: int = 1000
    frames: tuple[int, int] = (100, 500)
    batch_size: int = 64
    pool_sizes: tuple[int, ...] = (8, 32, 128, 512)
    epochs: int = 3
    seed: int = 0

    def __post_init__(self) -> None:
        if max(self.pool_sizes) >= self.episodes:
            raise ValueError(f"pools are to be smaller than all episodes, got {self}")

    @property
    def names(self) -> dict[str, int]:
        """The contenders and their pool sizes; 0 is none."""
        sizes = {f"pool_size={size}": size for size in self.pool_sizes}
        return {WITHOUT: 0, f"pool_size={self.episodes}, all": self.episodes, **sizes}

    @property
    def lengths(self) -> IntArray:
        """Frames of each episode: (episodes,)."""
        rng = np.random.default_rng(self.seed)
        return rng.integers(self.frames[0], self.frames[1] + 1, self.episodes)


@dataclass(frozen=True, slots=True)
class Mixed:
    """Mean numbers of episodes of a batch, a row an epoch and a column a contender.

    Attributes:
        inner: over the batches between the first and the last tenth of an epoch.
        last: over the last tenth.
    """

    inner: FloatArray
    last: FloatArray


def mix(settings: MixingSettings) -> Mixed:
    """Draw every epoch of every contender, and count the episodes of each full batch.

    Raises:
        WrongAnswerError: a frame comes twice or never; another order of listing makes another
            order; or without a pool, batches are of other numbers than chance has it.
    """
    lengths = settings.lengths
    listed = [(f"episode_{n:06d}", frames) for n, frames in enumerate(lengths.tolist())]
    rosters = Roster(listed), Roster(listed[::-1])
    inner = np.empty((settings.epochs, len(settings.names)))
    last = np.empty_like(inner)
    for column, (name, size) in enumerate(settings.names.items()):
        for epoch in range(settings.epochs):
            if size:
                numbers = _drawn(rosters[0], size, epoch, settings)
            else:
                numbers = _drawn_without(lengths, epoch, settings)
            unique = _unique(numbers, settings.batch_size)
            if not size:
                _check_mean(unique, expected_unique(lengths, settings.batch_size), epoch)
            tenth = max(len(unique) // 10, 1)
            inner[epoch, column] = unique[tenth:-tenth].mean()
            last[epoch, column] = unique[-tenth:].mean()
        if size:
            _check_listing(rosters, name, size, settings)
    return Mixed(inner, last)


def expected_unique(lengths: IntArray, batch_size: int) -> float:
    """Return the mean number of episodes of a batch that is drawn from all frames at once."""
    left = np.arange(batch_size)
    absent = np.maximum(lengths.sum() - lengths[:, None] - left, 0) / (lengths.sum() - left)
    return float((1 - absent.prod(axis=1)).sum())


def _drawn(roster: Roster, pool_size: int, epoch: int, settings: MixingSettings) -> IntArray:
    """Return the episode numbers of an epoch, having checked that every frame comes once."""
    chosen = OrderSettings(settings.batch_size, pool_size, settings.seed)
    drawn = list(PoolOrder(roster, chosen, 0, 1).batches(epoch, 0))
    numbers = np.concatenate([draws.numbers for draws in drawn])
    frames = np.concatenate([draws.frames for draws in drawn])
    starts = np.cumsum(roster.lengths) - roster.lengths
    times = np.bincount(starts[numbers] + frames, minlength=roster.num_frames)
    if len(times) != roster.num_frames or (times != 1).any() or (frames < 0).any():
        raise WrongAnswerError(f"pool_size={pool_size}, epoch {epoch}: not every frame comes once")
    return numbers


def _drawn_without(lengths: IntArray, epoch: int, settings: MixingSettings) -> IntArray:
    rng = np.random.default_rng((settings.seed, epoch))
    return rng.permutation(np.repeat(np.arange(len(lengths)), lengths))


def _unique(numbers: IntArray, batch_size: int) -> IntArray:
    """Return how many episodes each full batch is of."""
    full = numbers[: len(numbers) // batch_size * batch_size].reshape(-1, batch_size)
    ordered = np.sort(full, axis=1)
    return 1 + (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)


def _check_mean(unique: IntArray, wanted: float, epoch: int) -> None:
    error = unique.std() / np.sqrt(len(unique))
    if abs(unique.mean() - wanted) > _STANDARD_ERRORS * error:
        raise WrongAnswerError(
            f"{WITHOUT}, epoch {epoch}: {unique.mean():.3f} episodes a batch, not {wanted:.3f}"
        )


def _check_listing(
    rosters: tuple[Roster, Roster], name: str, size: int, settings: MixingSettings
) -> None:
    one, other = (_drawn(roster, size, 0, settings) for roster in rosters)
    if not np.array_equal(one, other):
        raise WrongAnswerError(f"{name}: another order of listing makes another order")
