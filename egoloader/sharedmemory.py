"""Whether the batches of a `DataLoader`'s workers fit into shared memory, before one is killed.

PyTorch hands batches from worker processes through `/dev/shm`, which containers keep small; a
worker that finds it full dies of a bus error that names nothing. Linux only: elsewhere nothing is
checked.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from egoloader.errors import SharedMemoryWarning

__all__ = ["PREFETCH_FACTOR", "check_worker", "estimate_bytes", "free_bytes", "warn_if_short"]

#: Batches that each worker of a `DataLoader` has ready, where nothing else is asked for.
PREFETCH_FACTOR = 2
_FOLDER = Path("/dev/shm")
_checked: set[int] = set()


def estimate_bytes(
    batch_bytes: int, num_workers: int, prefetch_factor: int = PREFETCH_FACTOR
) -> int:
    """Return the bytes of shared memory that the batches of all workers take at once."""
    return batch_bytes * num_workers * prefetch_factor


def free_bytes() -> int | None:
    """Return the free bytes of shared memory; None where the system has no such folder."""
    if not _FOLDER.is_dir():
        return None
    status = os.statvfs(_FOLDER)
    return status.f_bavail * status.f_frsize


def warn_if_short(
    batch_bytes: int, num_workers: int, prefetch_factor: int = PREFETCH_FACTOR
) -> None:
    """Warn if the workers' batches won't fit into the shared memory that is free.

    Args:
        batch_bytes: of one batch's tensors.
        num_workers: of the `DataLoader`.
        prefetch_factor: of the `DataLoader`.
    """
    wanted, free = estimate_bytes(batch_bytes, num_workers, prefetch_factor), free_bytes()
    if free is not None and wanted > free:
        warnings.warn(
            f"{num_workers} workers with {prefetch_factor} batches of {batch_bytes} bytes take "
            f"{wanted} bytes of shared memory, and {free} are free in {_FOLDER}; a worker that "
            "finds it full is killed. Use EpisodeLoader, which needs none, fewer workers or a "
            "smaller batch, or give the container more (docker run --shm-size)",
            SharedMemoryWarning,
            stacklevel=2,
        )


def check_worker(batch_bytes: int) -> None:
    """Check the first batch that a `DataLoader`'s first worker makes; elsewhere do nothing."""
    info = torch.utils.data.get_worker_info()
    if not batch_bytes or info is None or info.id or os.getpid() in _checked:
        return
    _checked.add(os.getpid())
    warn_if_short(batch_bytes, info.num_workers)
