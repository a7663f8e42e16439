"""Everything that hands out batches and can be gone on from, in one form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from egoloader import (
    EpisodeDataModule,
    EpisodeLoader,
    EpisodePool,
    EpisodePoolSampler,
    MultiDataset,
    collate,
)
from tests.soak.recordings import Shown, show, show_all

__all__ = ["DataLoaderRun", "LoaderRun", "MixtureRun", "PoolRun", "SamplerRun"]


class PoolRun:
    """The planner: one epoch, draw by draw."""

    def __init__(self, pool: EpisodePool) -> None:
        self._pool = pool

    def batches(self) -> Iterator[Any]:
        """See `Run`."""
        for pair in self._pool:
            yield pair, self._pool.remaining, self._pool.resident, self._pool.resident_bytes

    def save(self) -> dict[str, Any]:
        """See `Run`."""
        return self._pool.state_dict()

    def go_on(self, state: dict[str, Any]) -> None:
        """See `Run`."""
        self._pool.load_state_dict(state)


class SamplerRun:
    """A sampler's indices, with what they carry."""

    def __init__(self, sampler: EpisodePoolSampler) -> None:
        self._sampler = sampler

    def batches(self) -> Iterator[Any]:
        """See `Run`."""
        while True:
            for batch in self._sampler:
                yield [(int(index), index.epoch, index.is_repeat) for index in batch]

    def save(self) -> dict[str, Any]:
        """See `Run`."""
        return self._sampler.state_dict()

    def go_on(self, state: dict[str, Any]) -> None:
        """See `Run`."""
        self._sampler.load_state_dict(state)


class LoaderRun:
    """An `EpisodeLoader`."""

    def __init__(self, loader: EpisodeLoader) -> None:
        self._loader = loader

    def batches(self) -> Iterator[Shown]:
        """See `Run`."""
        while True:
            yield from map(show, self._loader)

    def save(self) -> dict[str, Any]:
        """See `Run`."""
        return self._loader.state_dict()

    def go_on(self, state: dict[str, Any]) -> None:
        """See `Run`."""
        self._loader.load_state_dict(state)


class DataLoaderRun:
    """A plain `DataLoader` over a sampler; its workers draw ahead of what comes out.

    Args:
        data: the episodes.
        sampler: of their frames.
        num_workers: worker processes; 0 for none.
    """

    def __init__(self, data: MultiDataset, sampler: EpisodePoolSampler, num_workers: int) -> None:
        self._sampler, self._handed_out = sampler, 0
        options: dict[str, Any] = {"num_workers": num_workers, "collate_fn": collate}
        if num_workers:
            options |= {"multiprocessing_context": "fork", "timeout": 60}
        self._loader: Any = DataLoader(data, batch_sampler=sampler, **options)

    def batches(self) -> Iterator[Shown]:
        """See `Run`."""
        while True:
            self._handed_out = 0
            for batch in self._loader:
                self._handed_out += 1
                yield show(batch)

    def save(self) -> dict[str, Any]:
        """See `Run`."""
        return self._sampler.state_dict(handed_out=self._handed_out)

    def go_on(self, state: dict[str, Any]) -> None:
        """See `Run`."""
        self._sampler.load_state_dict(state)


class MixtureRun:
    """A data module's training batches, without a trainer."""

    def __init__(self, data: EpisodeDataModule) -> None:
        self._data = data
        data.setup("fit")

    def batches(self) -> Iterator[Shown]:
        """See `Run`."""
        while True:
            yield from map(show_all, self._data.train_dataloader())

    def save(self) -> dict[str, Any]:
        """See `Run`."""
        return self._data.state_dict()

    def go_on(self, state: dict[str, Any]) -> None:
        """See `Run`."""
        self._data.load_state_dict(state)
