"""Several sources, one per embodiment, handed out together."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from egoloader.collation import collate
from egoloader.dataset import MultiDataset
from egoloader.errors import SettingsError
from egoloader.sampler import ShuffledBatches

__all__ = ["MixtureLoader", "ValidationLoader"]

Batch = dict[str, Any]


class MixtureLoader:
    """Training batches `{embodiment: batch}`: one batch of every source a step.

    An epoch is a pass over the longest source; the others go on where they were and start over
    when they end, so that each source's frames come once per pass of that source. Its position,
    (epoch, batches handed out), moves on as a batch is handed out; `iter` goes on from there,
    however often it is called.

    Args:
        sources: per embodiment, its frames.
        batch_size: frames of each source's batch.
        seed: of the order.
        num_workers: worker processes of each source; 0 makes batches in this process.

    Raises:
        SettingsError: a source without frames, by name; or a wrong batch size.
    """

    def __init__(
        self, sources: Mapping[str, MultiDataset], *, batch_size: int, seed: int, num_workers: int
    ) -> None:
        if not sources:
            raise SettingsError("there must be at least one embodiment to train on")
        for name, source in sources.items():
            if len(source) == 0:
                raise SettingsError(f"embodiment {name!r} has no frames to train on")
        self._sources, self._num_workers = dict(sources), num_workers
        self._order = {
            name: ShuffledBatches(len(source), batch_size, seed)
            for name, source in self._sources.items()
        }
        self._identity = _fingerprint(self._sources, batch_size, seed)
        self._epoch, self._done = 0, 0

    def __len__(self) -> int:
        """Return the batches of the running epoch: those done and those left."""
        return max(len(order) for order in self._order.values())

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        step = self._epoch * len(self) + self._done
        left = len(self) - self._done
        streams = {
            name: iter(self._stream(name, itertools.islice(order.from_batch(step), left)))
            for name, order in self._order.items()
        }
        for _ in range(left):
            batch = {name: next(stream) for name, stream in streams.items()}
            self._advance()
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what the order depends on."""
        return {"epoch": self._epoch, "done": self._done, "fingerprint": self._identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved position.

        Raises:
            SettingsError: the episodes or a setting that fixes the order are others now.
        """
        saved = dict(state["fingerprint"])
        for name, value in self._identity.items():
            if saved.get(name) != value:
                raise SettingsError(
                    f"can't resume: {name} was {saved.get(name)!r} and is {value!r} now; "
                    "the order would be another one. Restore it, or start a new run"
                )
        self._epoch, self._done = int(state["epoch"]), int(state["done"])

    def _advance(self) -> None:
        self._done += 1
        if self._done == len(self):
            self._epoch, self._done = self._epoch + 1, 0

    def _stream(self, name: str, batches: Iterable[list[int]]) -> Iterable[Batch]:
        return _loader(self._sources[name], list(batches), self._num_workers)


class ValidationLoader:
    """Validation batches `{embodiment: batch}`: every frame once, in order, a source at a time.

    Args:
        sources: per embodiment, its frames.
        batch_size: frames of a batch; the last of a source may hold fewer.
        num_workers: worker processes; 0 makes batches in this process.
    """

    def __init__(
        self, sources: Mapping[str, MultiDataset], *, batch_size: int, num_workers: int
    ) -> None:
        self._sources, self._num_workers = dict(sources), num_workers
        self._batches = {
            name: [
                list(range(start, min(start + batch_size, len(source))))
                for start in range(0, len(source), batch_size)
            ]
            for name, source in self._sources.items()
        }

    def __len__(self) -> int:
        return sum(len(batches) for batches in self._batches.values())

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        for name, batches in self._batches.items():
            for batch in _loader(self._sources[name], batches, self._num_workers):
                yield {name: batch}


def _loader(
    source: MultiDataset, batches: list[list[int]], num_workers: int
) -> DataLoader[dict[str, Any]]:
    return DataLoader(source, batch_sampler=batches, collate_fn=collate, num_workers=num_workers)


def _fingerprint(sources: Mapping[str, MultiDataset], batch_size: int, seed: int) -> dict[str, Any]:
    """Return what the order depends on, small enough for a checkpoint."""
    listed = [
        (name, episode.name, episode.total_frames)
        for name, source in sorted(sources.items())
        for episode in source.episodes
    ]
    digest = hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()
    return {"batch_size": batch_size, "seed": seed, "episodes": digest}
