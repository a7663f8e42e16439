"""Jobs of several processes of this machine, which talk over gloo."""

from __future__ import annotations

import logging
import multiprocessing
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch.distributed

__all__ = ["JobError", "run_job"]

#: Seconds after which a job that is not done never will be.
_LIMIT = 120


class JobError(RuntimeError):
    """A rank failed; the message holds its traceback."""


def run_job(world_size: int, task: Callable[[int], Any]) -> list[Any]:
    """Run a task in every rank of a job; return what each rank's returned.

    Ranks are forked from this process, which must have no threads, and not have trained.

    Raises:
        JobError: a rank raised, died, or was not done in time.
    """
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(world_size):
            receiver, sender = context.Pipe(duplex=False)
            arguments = (rank, world_size, Path(folder) / "store", task, sender)
            process = context.Process(target=_run_rank, args=arguments)
            process.start()
            sender.close()
            ranks.append((process, receiver))
        try:
            return _results([receiver for _, receiver in ranks])
        finally:
            for process, _ in ranks:
                process.join(5)
                process.kill()  # no harm where it is over
                process.join()


def _run_rank(
    rank: int, world_size: int, store: Path, task: Callable[[int], Any], sender: Connection
) -> None:
    # Where a launcher has set this, Lightning launches no processes of its own.
    os.environ |= {"LOCAL_RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    try:
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}", rank=rank, world_size=world_size
        )
        sender.send((True, task(rank)))
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    except BaseException:
        sender.send((False, traceback.format_exc()))


def _results(receivers: list[Connection]) -> list[Any]:
    """Return what each rank sends; whichever is first to fail is told."""
    results: dict[int, Any] = {}
    while len(results) < len(receivers):
        waiting = [one for rank, one in enumerate(receivers) if rank not in results]
        ready = wait(waiting, _LIMIT)
        if not ready:
            raise JobError(f"of {len(receivers)} ranks, {len(waiting)} aren't done in {_LIMIT} s")
        for receiver in ready:
            rank = receivers.index(receiver)  # type: ignore[arg-type]
            try:
                is_done, results[rank] = receivers[rank].recv()
            except EOFError as error:
                raise JobError(f"rank {rank} died") from error
            if not is_done:
                raise JobError(f"rank {rank} failed: {results[rank]}")
    return [results[rank] for rank in range(len(receivers))]
