"""`EpisodeLoader`: batches made by threads of the training process, in recycled memory."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch
from torch.utils.data import Subset

from egoloader.batch import Allocate, Batch
from egoloader.buffers import Buffers, cuda_fence, no_fence
from egoloader.collation import collate
from egoloader.errors import SettingsError
from egoloader.sampler import InOrder, ShuffledBatches
from egoloader.threads import Ordered, Threads, check_threads

__all__ = [
    "MAX_THREADS",
    "BatchMaker",
    "EpisodeLoader",
    "default_threads",
    "make_buffers",
    "stream_batches",
]

#: Threads at most where none are asked for: Python's own share of a batch is one thread's work.
MAX_THREADS = 8

DictBatch = dict[str, Any]


def default_threads() -> int:
    """Return the number of threads where none is asked for: one a usable core, at most 8."""
    has_affinity = hasattr(os, "sched_getaffinity")  # Linux only
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return min(cores, MAX_THREADS)


class BatchMaker(Protocol):
    """What a loader asks for batches: `ZarrDataset` and `MultiDataset`."""

    def __len__(self) -> int: ...

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        """Return the samples of many indices, in memory from `allocate`."""
        ...


class EpisodeLoader:
    """Dict batches of a dataset, made by threads ahead of their use.

    Batches come in the sampler's order, whichever thread is done first. Images (and other large
    values) are made in memory that is used again when nothing refers to a batch any more: a batch
    that is kept, or a slice or view of one, stays as it is. Where a GPU is, that memory is pinned,
    and used again when the copies are over that the current stream was asked for until the batch
    was let go; let go of a batch that another stream copies only when that is done.

    Every `iter` begins a new pass; with `shuffle`, each pass has an order of its own, which the
    seed and the pass's number alone decide. An error comes in its batch's place, and iterating
    may go on behind it. Transforms run in the threads: several at once, under Python's lock.
    `torch.utils.data.DataLoader` reads the same datasets from worker processes.

    Args:
        dataset: a `ZarrDataset`, a `MultiDataset`, or a `torch.utils.data.Subset` of one.
        batch_size: samples of a batch, the last of a pass may hold fewer; 32 unless given.
        shuffle: whether every pass has a shuffled order, or the dataset's own.
        seed: of the shuffled order.
        batch_sampler: yields the indices of each batch, in place of the options before; gone
            through anew in every pass.
        num_threads: threads that make batches; one a usable core, at most 8, unless given.
        look_ahead: batches that are made or wait at once; one more than threads unless given.
        pin_memory: whether batches are made in page-locked memory; where a GPU is unless given.

    Raises:
        SettingsError: an option that can't be meant, or options that exclude each other.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        batch_sampler: Iterable[Sequence[int]] | None = None,
        num_threads: int | None = None,
        look_ahead: int | None = None,
        pin_memory: bool | None = None,
    ) -> None:
        self._maker = _batch_maker(dataset)
        self.num_threads = default_threads() if num_threads is None else num_threads
        check_threads(self.num_threads)
        self._look_ahead = _check_look_ahead(look_ahead, self.num_threads)
        self._memory = make_buffers(self._look_ahead, pin_memory)
        self._sampler = _check_order(batch_size, shuffle, seed, batch_sampler)
        self._order: ShuffledBatches | InOrder | None = None
        self._passes = 0
        if batch_sampler is None:
            size = 32 if batch_size is None else batch_size
            self._order = (
                ShuffledBatches("", len(self._maker), size, seed)
                if shuffle
                else InOrder(len(self._maker), size)
            )

    def __len__(self) -> int:
        """Return the batches of one pass.

        Raises:
            TypeError: the batch sampler has no length.
        """
        return len(self._sampler if self._order is None else self._order)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[DictBatch]:
        return _Pass(
            self._maker, self._next_pass(), self._memory, self.num_threads, self._look_ahead
        )

    def _next_pass(self) -> Iterable[Sequence[int]]:
        number, self._passes = self._passes, self._passes + 1
        if isinstance(self._order, ShuffledBatches):
            return self._order.run(number * len(self._order), len(self._order))
        return self._sampler if self._order is None else self._order  # type: ignore[return-value]


class _Pass(Iterator[DictBatch]):
    """One pass, with threads that end with it."""

    def __init__(
        self,
        maker: BatchMaker,
        batches: Iterable[Sequence[int]],
        memory: Buffers,
        num_threads: int,
        look_ahead: int,
    ) -> None:
        self._threads = Threads(num_threads)
        self._batches = stream_batches(maker, batches, self._threads, memory, look_ahead)

    def __next__(self) -> DictBatch:
        try:
            return next(self._batches)
        except StopIteration:
            self._threads.close()
            raise


def stream_batches(
    maker: BatchMaker,
    batches: Iterable[Sequence[int]],
    threads: Threads,
    memory: Buffers,
    look_ahead: int,
) -> Iterator[DictBatch]:
    """Return the dict batches of index lists, in their order, made by threads."""
    return Ordered(threads, functools.partial(_make, maker, memory), batches, look_ahead)


def make_buffers(look_ahead: int, pin_memory: bool | None = None) -> Buffers:
    """Return memory for batches of which `look_ahead` are made at once and two are in use.

    Args:
        look_ahead: see `EpisodeLoader`.
        pin_memory: see `EpisodeLoader`.

    Raises:
        SettingsError: memory is to be pinned, and there is no GPU.
    """
    has_gpu = torch.cuda.is_available()
    if pin_memory and not has_gpu:
        raise SettingsError("pin_memory needs a GPU, and PyTorch finds none; leave it out")
    pin = has_gpu if pin_memory is None else pin_memory
    fence = cuda_fence(torch.cuda.current_device()) if pin else no_fence
    return Buffers(look_ahead + 2, pin=pin, fence=fence)


def _make(maker: BatchMaker, memory: Buffers, indices: Sequence[int]) -> DictBatch:
    return collate(maker.make_batch(indices, memory.allocate))


class _SubsetMaker:
    """A `Subset` of a dataset, or of another subset."""

    def __init__(self, subset: Subset[Any]) -> None:
        self._inner, self._indices = _batch_maker(subset.dataset), subset.indices

    def __len__(self) -> int:
        return len(self._indices)

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        return self._inner.make_batch([self._indices[index] for index in indices], allocate)


def _batch_maker(dataset: Any) -> BatchMaker:
    if isinstance(dataset, Subset):
        return _SubsetMaker(dataset)
    if not hasattr(dataset, "make_batch"):
        raise SettingsError(
            f"EpisodeLoader needs a ZarrDataset, a MultiDataset or a Subset of one, got "
            f"{type(dataset).__name__}; torch.utils.data.DataLoader takes any dataset"
        )
    maker: BatchMaker = dataset
    return maker


def _check_order(
    batch_size: object, shuffle: object, seed: object, batch_sampler: Any
) -> Iterable[Sequence[int]] | None:
    if type(shuffle) is not bool:
        raise SettingsError(f"shuffle is true or false, got {shuffle!r}")
    if type(seed) is not int or seed < 0:
        raise SettingsError(f"seed must be a whole number from 0 on, got {seed!r}")
    if batch_sampler is None:
        return None
    if batch_size is not None or shuffle:
        raise SettingsError("batch_sampler excludes batch_size and shuffle; keep one")
    if not isinstance(batch_sampler, Iterable):
        raise SettingsError(f"batch_sampler yields lists of indices, got {batch_sampler!r}")
    if isinstance(batch_sampler, Iterator):
        raise SettingsError(
            f"batch_sampler is a {type(batch_sampler).__name__}, which can be gone through only "
            "once; give a list, or a sampler that begins anew with every pass"
        )
    return batch_sampler


def _check_look_ahead(look_ahead: object, num_threads: int) -> int:
    if look_ahead is None:
        return num_threads + 1
    if type(look_ahead) is not int or look_ahead < 1:
        raise SettingsError(f"look_ahead must be a whole number above 0, got {look_ahead!r}")
    return look_ahead
