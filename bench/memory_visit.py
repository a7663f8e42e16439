"""Visits a folder's episodes and says what memory that took: `python -m bench.memory_visit JSON`.

It prints a JSON line after the first few episodes, and one after all of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from bench.pairing import WrongAnswerError
from egoloader import EpisodeLoader, MultiDataset, human_keymap

__all__ = ["main"]


def main(
    folder: str, few: int, batch_size: int, cache_bytes: int, num_threads: int, seed: int
) -> None:
    """Serve one batch of every episode, one episode after the other."""
    keymap = human_keymap("keypoints", horizon=30, proprio_history=4)
    dataset = MultiDataset.from_folder(folder, keymap, cache_bytes=cache_bytes)
    rng = np.random.default_rng(seed)
    batches, begin = [], 0
    for episode in dataset.episodes:
        frames = rng.choice(episode.total_frames, batch_size, replace=False)
        batches.append((begin + frames).tolist())
        begin += episode.total_frames
    loader = EpisodeLoader(dataset, batch_sampler=batches, num_threads=num_threads)
    for number, batch in enumerate(loader, start=1):
        if set(batch["episode"]) != {dataset.episodes[number - 1].name}:
            raise WrongAnswerError(f"batch {number} is of {set(batch['episode'])}")
        if number in (few, len(batches)):
            print(json.dumps({"episodes": number, **_footprint()}), flush=True)


def _footprint() -> dict[str, int]:
    """Return this process's memory in KiB, open files and threads.

    The peak is the address space's own: `ru_maxrss` begins with that of the process that forked.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return {
        "peak_kib": int(status["VmHWM"][0]),
        "resident_kib": int(status["VmRSS"][0]),
        "open_files": len(list(Path("/proc/self/fd").iterdir())) - 1,  # one of them lists them
        "threads": int(status["Threads"][0]),
    }


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
