"""Epochs of every number of frames, with every tail, on several ranks: gone on from everywhere."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egoloader import EpisodePoolSampler, ZarrEpisode
from egoloader.errors import SettingsError
from tests.soak.positions import Tally

__all__ = ["Shape", "check_shape", "shapes"]

_WORLDS = (1, 2, 3)
#: An index, its epoch, and whether it is a repeat.
Batch = list[tuple[int, int, bool]]


@dataclass(frozen=True, slots=True)
class Shape:
    """An epoch.

    Attributes:
        lengths: frames of its episodes.
        batch_size: of a full batch.
        world_size: ranks that share it.
        tail: how it ends.
    """

    lengths: tuple[int, ...]
    batch_size: int
    world_size: int
    tail: str

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return sum(self.lengths)

    @property
    def num_batches(self) -> int:
        """Batches of every rank; 0 where the tail can't be had."""
        least, most = self.num_frames // self.world_size, -(-self.num_frames // self.world_size)
        if self.tail == "drop":
            return least // self.batch_size
        batches = -(-most // self.batch_size)
        return batches if self.tail == "repeat" or least >= batches else 0

    def sampler(self, rank: int, world_size: int | None = None) -> EpisodePoolSampler:
        """Return a rank's sampler, of as many ranks as share the epoch unless given."""
        options: dict[str, Any] = {"tail": self.tail, "pool_size": 2, "seed": 1}
        world = self.world_size if world_size is None else world_size
        listed = _Listed(self.lengths)
        return EpisodePoolSampler(listed, self.batch_size, rank=rank, world_size=world, **options)


class _Listed:
    """A dataset of which nothing is read."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self._lengths = lengths

    def __len__(self) -> int:
        return sum(self._lengths)

    @property
    def seed(self) -> int:
        return 0

    @property
    def spared(self) -> Mapping[str, Any]:
        return {}

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episodes' names and frames."""
        return [(f"{number}.zarr", frames) for number, frames in enumerate(self._lengths)]

    def open_each(self) -> Iterator[ZarrEpisode]:
        """Yield nothing: there are no files."""
        return iter(())


def shapes(most_frames: int, seed: int) -> Iterator[Shape]:
    """Yield an epoch of every number of frames, by every batch size, number of ranks, and tail."""
    choice = random.Random(seed)
    for frames in range(1, most_frames + 1):
        cuts = sorted(choice.randrange(frames + 1) for _ in range(4))
        lengths = tuple(b - a for a, b in itertools.pairwise([0, *cuts, frames]))
        for batch_size, world, tail in itertools.product(
            (1, 2, 3, 4), _WORLDS, ("spread", "drop", "repeat")
        ):
            yield Shape(lengths, batch_size, world, tail)


def check_shape(shape: Shape) -> Tally:
    """Go on from every position of two epochs, on as many ranks and on others."""
    if not shape.num_batches:
        return Tally(0, 0, int(not _is_refused(shape)))
    ranks = range(shape.world_size)
    whole = [_epochs(shape.sampler(rank), 2) for rank in ranks]
    tally = sum((_check_epochs(shape, epochs) for epochs in zip(*whole, strict=True)), Tally())
    flat = [[batch for epoch in rank for batch in epoch] for rank in whole]
    lead = shape.sampler(0)
    for position in range(2 * shape.num_batches):
        state = json.loads(json.dumps(lead.state_dict()))
        for rank in ranks:
            sampler = shape.sampler(rank)
            sampler.load_state_dict(state)
            left = _epochs(sampler, 2 - sampler.epoch)
            found = [batch for epoch in left for batch in epoch]
            tally += Tally.of(found, flat[rank][position:])
        epoch, done = divmod(position, shape.num_batches)
        served = [index for rank in whole for index in _real(rank[epoch][:done])]
        tally += sum((_elastic(shape, state, served, n) for n in _WORLDS), Tally())
        lead.advance()
    return tally


def _is_refused(shape: Shape) -> bool:
    try:
        shape.sampler(0)
    except SettingsError as error:
        return f"tail: {shape.tail}" in str(error)
    return False


def _epochs(sampler: EpisodePoolSampler, count: int) -> list[list[Batch]]:
    return [
        [[(int(one), one.epoch, one.is_repeat) for one in batch] for batch in sampler]
        for _ in range(count)
    ]


def _real(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index, _, is_repeat in batch if not is_repeat]


def _check_epochs(shape: Shape, ranks: tuple[list[Batch], ...]) -> Tally:
    """Check one epoch of all ranks: as many batches each, every frame once, sizes by the tail."""
    wrong = sum(len(batches) != shape.num_batches for batches in ranks)
    frames = [index for batches in ranks for index in _real(batches)]
    wrong += len(frames) - len(set(frames))
    if shape.tail != "drop":
        wrong += shape.num_frames - len(frames)
    for batches in ranks:
        sizes = [len(batch) for batch in batches]
        full = sizes[:-2] if shape.tail == "spread" else sizes
        wrong += sum(size != shape.batch_size for size in full) + sizes.count(0)
    return Tally(0, len(ranks) * shape.num_batches, wrong)


def _elastic(shape: Shape, state: Mapping[str, Any], served: list[int], world_size: int) -> Tally:
    """Go on with other ranks: what is left of the epoch comes once, or the tail is refused."""
    whole = dataclasses.replace(shape, world_size=world_size)
    left = dataclasses.replace(whole, lengths=(shape.num_frames - len(served),))
    try:
        samplers = [shape.sampler(rank, world_size) for rank in range(world_size)]
        for sampler in samplers:
            sampler.load_state_dict(state)
    except SettingsError as error:
        is_servable = whole.num_batches and left.num_batches
        return Tally(1, 0, int(bool(is_servable) or f"tail: {shape.tail}" not in str(error)))
    if shape.tail == "drop" and not left.num_batches:
        # The epoch is over: too few are left for a batch of every rank.
        return Tally(1, 0, sum(one.epoch == state["epoch"] for one in samplers))
    batches = [_epochs(sampler, 1)[0] for sampler in samplers]
    frames = [*served, *(index for rank in batches for index in _real(rank))]
    wrong = sum(len(rank) != left.num_batches for rank in batches) + len(frames) - len(set(frames))
    if shape.tail != "drop":
        wrong += shape.num_frames - len(frames)
    return Tally(1, sum(map(len, batches)), wrong)
