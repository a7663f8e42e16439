"""Small recordings to draw from, and what a batch shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from egoloader import EpisodeWriter, KeyMap, KeySpec
from tests.episodes import ramp

__all__ = ["KEYMAP", "Shown", "show", "show_all", "write_recordings"]

KEYMAP = KeyMap({"joints": KeySpec(zarr_key="joints", key_type="proprio_keys")})
#: Of each sample, in the batch's order: its episode, frame index and seed, and whether it repeats.
Shown = list[tuple[str, int, int, bool]]


def write_recordings(folder: Path, embodiment: str, lengths: Sequence[int]) -> Path:
    """Write ramped episodes of an embodiment, of so many frames each; return the folder."""
    for number, total in enumerate(lengths):
        EpisodeWriter.write(
            folder / f"{embodiment}_{number}.zarr",
            numeric={"joints": ramp(total, 2)},
            fps=20,
            embodiment=embodiment,
        )
    return folder


def show(batch: Mapping[str, Any]) -> Shown:
    """Return what a batch shows; its values must be those of its frames."""
    frames = batch["frame_index"]
    wanted = 1000.0 * frames[:, None] + torch.arange(2)
    assert torch.equal(batch["joints"], wanted), f"{batch['joints']} instead of {wanted}"
    columns = [batch[key].tolist() for key in ("frame_index", "sample_seed", "is_repeat")]
    return list(zip(batch["episode"], *columns, strict=True))


def show_all(batches: Mapping[str, Mapping[str, Any]]) -> Shown:
    """Return what the batches of all embodiments of a step show."""
    return [one for name in sorted(batches) for one in show(batches[name])]
