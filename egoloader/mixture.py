"""Several sources, one per embodiment, handed out together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from egoloader.dataset import MultiDataset
from egoloader.errors import LoaderError, SettingsError
from egoloader.loader import make_buffers, stream_batches
from egoloader.sampler import InOrder, ShuffledBatches
from egoloader.threads import Threads

__all__ = ["MixtureLoader", "Position", "ValidationLoader"]

Batch = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """How far an order has been handed out.

    Attributes:
        step: batches handed out since the run began.
        epoch: complete epochs among them.
        done: batches of the running epoch.
    """

    step: int = 0
    epoch: int = 0
    done: int = 0


class MixtureLoader:
    """Training batches `{embodiment: batch}`: one batch of every source a step.

    An epoch is a pass over the longest source; the others go on where they were and start over
    when they end, so that each source's frames come once per pass of that source. The position
    moves on as a batch is handed out; `iter` goes on from there, however often it is called, and
    ends the iterators before it. Where a batch can't be made the position stays before it.

    Where fewer batches make an epoch (`epoch_limit`), the next epoch goes on in the same pass, so
    that all frames still come once before any comes again.

    Args:
        sources: per embodiment, its frames.
        batch_size: frames of each source's batch.
        seed: of the order.
        num_threads: threads that make the batches of all sources.
        epoch_limit: asked at the start of an epoch for the batches that it may have at most.
        running_epoch: asked at the start of an epoch for its number, as the trainer counts; it
            counts an epoch that it broke off as one, so that the next is a whole one.

    Raises:
        SettingsError: a source without frames, by name; or a wrong batch size.
    """

    def __init__(
        self,
        sources: Mapping[str, MultiDataset],
        *,
        batch_size: int,
        seed: int,
        num_threads: int,
        epoch_limit: Callable[[], float],
        running_epoch: Callable[[], int],
    ) -> None:
        if not sources:
            raise SettingsError("there must be at least one embodiment to train on")
        self._sources, self._num_threads = dict(sources), num_threads
        self._memory = {name: make_buffers(num_threads + 1) for name in self._sources}
        self._epoch_limit, self._running_epoch = epoch_limit, running_epoch
        self._order = {
            name: ShuffledBatches(name, len(source), batch_size, seed)
            for name, source in self._sources.items()
        }
        self.fingerprint = _fingerprint(self._sources, batch_size, seed)
        self.position = Position()
        self._newest = 0  # of the iterators

    def __len__(self) -> int:
        """Return the batches of an epoch without a limit: those done and those left."""
        return max(len(order) for order in self._order.values())

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        self._newest += 1
        return self._batches(self._newest)

    def _batches(self, number: int) -> Iterator[dict[str, Batch]]:
        size = int(min(len(self), self._epoch_limit()))
        # An epoch is over, too, where the trainer broke it off or a resumed run has a lower limit.
        is_over = self.position.done >= size
        epoch = max(self.position.epoch + is_over, self._running_epoch())
        if epoch > self.position.epoch:
            self.position = Position(self.position.step, epoch, 0)
        left = size - self.position.done
        # Dropped in the middle, the threads end by themselves: to wait for them here could be to
        # wait in the garbage collector, for a lock that this thread holds.
        threads = Threads(self._num_threads)
        streams = {
            name: stream_batches(
                self._sources[name],
                order.run(self.position.step, left),
                threads,
                self._memory[name],
                self._num_threads + 1,
            )
            for name, order in self._order.items()
        }
        for _ in range(left):
            if number != self._newest:
                raise LoaderError(
                    "a newer iterator of these batches goes on in this one's place; a position "
                    "that two move on would show frames twice"
                )
            batch = {name: next(stream) for name, stream in streams.items()}
            self.position = _advanced(self.position, size)
            yield batch
        threads.close()


class ValidationLoader:
    """Validation batches `{embodiment: batch}`: every frame once, in order, a source at a time.

    Args:
        sources: per embodiment, its frames.
        batch_size: frames of a batch; the last of a source may hold fewer.
        num_threads: threads that make the batches.

    Raises:
        SettingsError: a wrong batch size.
    """

    def __init__(
        self, sources: Mapping[str, MultiDataset], *, batch_size: int, num_threads: int
    ) -> None:
        self._sources, self._num_threads = dict(sources), num_threads
        self._memory = make_buffers(num_threads + 1)
        self._batches = {
            name: InOrder(len(source), batch_size) for name, source in self._sources.items()
        }

    def __len__(self) -> int:
        return sum(len(batches) for batches in self._batches.values())

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        threads = Threads(self._num_threads)
        for name, batches in self._batches.items():
            for batch in stream_batches(
                self._sources[name], batches, threads, self._memory, self._num_threads + 1
            ):
                yield {name: batch}
        threads.close()


def _advanced(position: Position, size: int) -> Position:
    step, done = position.step + 1, position.done + 1
    if done == size:
        return Position(step, position.epoch + 1, 0)
    return Position(step, position.epoch, done)


def _fingerprint(sources: Mapping[str, MultiDataset], batch_size: int, seed: int) -> dict[str, Any]:
    """Return what the order depends on, small enough for a checkpoint."""
    listed = [
        (name, episode.name, episode.total_frames)
        for name, source in sorted(sources.items())
        for episode in source.episodes
    ]
    digest = hashlib.blake2b(json.dumps(listed).encode(), digest_size=16).hexdigest()
    return {
        "batch_size": batch_size,
        "seed": seed,
        "number of episodes": len(listed),
        "number of frames": sum(frames for _, _, frames in listed),
        "set of episodes": digest,
    }
