"""`EpisodeLoader`: batches made by threads of the training process, in recycled memory."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import Subset

from egoloader.batch import Allocate, Batch
from egoloader.buffers import Buffers, cuda_fence, no_fence
from egoloader.collation import collate
from egoloader.columns import ListedFrames, digest_of
from egoloader.errors import SettingsError, check_whole
from egoloader.frameindex import FrameIndex, check_indices
from egoloader.indexorder import pooled_indices
from egoloader.inorder import InOrder
from egoloader.order import OrderSettings
from egoloader.sampler import EpisodePoolSampler, PositionedSampler
from egoloader.seeding import stream_key
from egoloader.threads import Ordered, Threads, check_threads
from egoloader.tokens import Collate

__all__ = [
    "MAX_THREADS",
    "BatchMaker",
    "BatchWork",
    "EpisodeLoader",
    "check_collate",
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


class BatchMaker(ListedFrames, Protocol):
    """What a loader asks for batches: `ZarrDataset` and `MultiDataset`."""

    def draw_among(self, indices: Iterable[int]) -> int:
        """Take in which indices are drawn; see `FrameDataset`."""
        ...

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

    The loader has one position, which moves on as a batch is handed out, whatever was made ahead;
    `iter` goes on from it, and from one epoch to the next, of which each has an order of its own
    with `shuffle`. `state_dict` tells the position. A batch sampler of somebody else's is gone
    through anew by every `iter`, and has none.

    An error comes in its batch's place, and iterating may go on behind it. Transforms run in the
    threads: several at once, under Python's lock. `torch.utils.data.DataLoader` reads the same
    datasets from worker processes.

    Args:
        dataset: a `ZarrDataset`, a `MultiDataset`, or a `torch.utils.data.Subset` of one.
        batch_size: samples of a batch, the last of a pass may hold fewer; 32 unless given.
        shuffle: whether every pass has a shuffled order (an `EpisodePoolSampler`'s, with its
            defaults), or the dataset's own.
        seed: of the shuffled order.
        batch_sampler: an `EpisodePoolSampler`, or whatever yields the indices of each batch and can
            be gone through again, in place of the options before.
        num_threads: threads that make batches; one a usable core, at most 8, unless given.
        look_ahead: batches that are made or wait at once; one more than threads unless given.
        pin_memory: whether batches are made in page-locked memory; where a GPU is unless given.
        collate_fn: from samples to a dict batch, `collate` unless given; a `TextCollate`, say. The
            threads call it.

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
        collate_fn: Collate | None = None,
    ) -> None:
        self._collate = check_collate(collate_fn)
        self._maker = _batch_maker(dataset)
        self.num_threads = default_threads() if num_threads is None else num_threads
        check_threads(self.num_threads)
        self._look_ahead = _check_look_ahead(look_ahead, self.num_threads)
        self._memory = make_buffers(self._look_ahead, pin_memory)
        _check_order(batch_size, shuffle, seed, batch_sampler)
        self._sampler: Any = batch_sampler
        if isinstance(batch_sampler, EpisodePoolSampler):
            batch_sampler.check_data(self._maker)
        if batch_sampler is None:
            self._sampler = _own_order(self._maker, batch_size, shuffle, seed)

    def __len__(self) -> int:
        """Return the batches of the running epoch: those done and those left.

        Raises:
            TypeError: the batch sampler has no length.
        """
        return len(self._sampler)

    def __iter__(self) -> Iterator[DictBatch]:
        work = BatchWork(self._maker, self._memory, self._collate)
        return _Pass(work, self._sampler, Threads(self.num_threads), self._look_ahead)

    def state_dict(self) -> dict[str, Any]:
        """Return plain values that tell which batch is the next unseen one.

        Raises:
            SettingsError: a batch sampler of somebody else's has no position.
        """
        return self._positioned().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; threads and look-ahead may be others.

        Raises:
            SettingsError: the state is of other data or settings, by name; or the batch sampler
                has no position.
        """
        self._positioned().load_state_dict(state)

    def _positioned(self) -> PositionedSampler:
        if not isinstance(self._sampler, PositionedSampler):
            raise SettingsError(
                f"a {type(self._sampler).__name__} has no position to save; leave batch_sampler "
                "out, or give an EpisodePoolSampler"
            )
        return self._sampler


class _Pass(Iterator[DictBatch]):
    """What an epoch has left, with threads that end with it."""

    def __init__(self, work: BatchWork, sampler: Any, threads: Threads, look_ahead: int) -> None:
        self._sampler, self._number, batches = None, 0, sampler
        if isinstance(sampler, PositionedSampler):
            self._sampler, self._number = sampler, sampler.begin()
            batches = sampler.upcoming()
        self._failed = 0  # batches that could not be made, since one that could
        self._threads = threads
        self._batches = stream_batches(work, batches, threads, look_ahead)

    def __next__(self) -> DictBatch:
        if self._sampler is not None:
            self._sampler.check_newest(self._number)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._threads.close()
            self._advance(self._failed)
            raise
        except Exception:
            self._failed += 1
            raise
        self._advance(self._failed + 1)
        return batch

    def _advance(self, batches: int) -> None:
        self._failed = 0
        if self._sampler is not None:
            for _ in range(batches):
                self._sampler.advance()


class BatchWork(NamedTuple):
    """What a thread does for a batch.

    Attributes:
        maker: makes the samples.
        memory: that they are made in.
        collate_fn: makes a dict batch of them.
    """

    maker: BatchMaker
    memory: Buffers
    collate_fn: Collate

    def make(self, indices: Sequence[int]) -> DictBatch:
        """Return the dict batch of some indices."""
        return self.collate_fn(self.maker.make_batch(indices, self.memory.allocate))


def stream_batches(
    work: BatchWork, batches: Iterable[Sequence[int]], threads: Threads, look_ahead: int
) -> Iterator[DictBatch]:
    """Return the dict batches of index lists, in their order, made by threads."""
    return Ordered(threads, work.make, batches, look_ahead)


def check_collate(collate_fn: object) -> Collate:
    """Return what makes a dict batch of samples: `collate` in the place of None.

    Raises:
        SettingsError: it can't be called.
    """
    if collate_fn is not None and not callable(collate_fn):
        raise SettingsError(f"collate_fn must take a list of samples, got {collate_fn!r}")
    return collate if collate_fn is None else collate_fn


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


class _SubsetMaker:
    """A `Subset` of a dataset, or of another subset."""

    def __init__(self, subset: Subset[Any]) -> None:
        self._inner, self._indices = _batch_maker(subset.dataset), subset.indices
        self._among = self.draw_among(range(len(self)))

    def __len__(self) -> int:
        return len(self._indices)

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        wanted: list[int] = []
        for index, inner in zip(indices, self._at(indices).tolist(), strict=True):
            given = index if isinstance(index, FrameIndex) else FrameIndex(index)
            wanted.append(given.at(inner, self._among))
        return self._inner.make_batch(wanted, allocate)

    def draw_among(self, indices: Iterable[int]) -> int:
        """See `FrameDataset`."""
        return self._inner.draw_among(self._at(list(indices)).tolist())

    @property
    def seed(self) -> int:
        return self._inner.seed

    @property
    def spared(self) -> Mapping[str, npt.NDArray[np.int64]]:
        return {}  # as far as its one episode goes

    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return all its frames as those of one episode, as it may take any of any."""
        served = [self._inner.frames_by_episode(), digest_of(self._inner.spared)]
        inner = [served, list(map(int, self._indices))]
        return [(f"subset {stream_key(ascii(inner)):x}", len(self))]

    def _at(self, indices: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return where indices stand in the dataset within."""
        return check_indices([self._indices[index] for index in indices], len(self._inner))


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


def _own_order(
    maker: BatchMaker, batch_size: int | None, shuffle: bool, seed: int
) -> PositionedSampler:
    size = 32 if batch_size is None else batch_size
    if shuffle:
        settings = OrderSettings(batch_size=size, seed=seed)
        return PositionedSampler(pooled_indices(maker, settings))
    frames = ascii((maker.frames_by_episode(), digest_of(maker.spared)))
    listed = f"{stream_key(frames, maker.seed):x}"
    return PositionedSampler(InOrder(len(maker), size, data=listed))


def _check_order(batch_size: object, shuffle: object, seed: object, batch_sampler: object) -> None:
    if type(shuffle) is not bool:
        raise SettingsError(f"shuffle is true or false, got {shuffle!r}")
    check_whole("seed", seed, 0)
    if batch_sampler is None:
        return
    if batch_size is not None or shuffle:
        raise SettingsError("batch_sampler excludes batch_size and shuffle; keep one")
    if not isinstance(batch_sampler, Iterable):
        raise SettingsError(f"batch_sampler yields lists of indices, got {batch_sampler!r}")
    if isinstance(batch_sampler, Iterator):
        raise SettingsError(
            f"batch_sampler is a {type(batch_sampler).__name__}, which can be gone through only "
            "once; give a list, or a sampler that begins anew with every pass"
        )


def _check_look_ahead(look_ahead: object, num_threads: int) -> int:
    if look_ahead is None:
        return num_threads + 1
    if type(look_ahead) is not int or look_ahead < 1:
        raise SettingsError(f"look_ahead must be a whole number above 0, got {look_ahead!r}")
    return look_ahead
