"""Folders of small episodes, and what numpy says of their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader import EpisodeWriter, KeyMap
from egoloader.stats import QUANTILES, KeyStats
from tests.episodes import ramp

STATE = {"zarr_key": "pose", "key_type": "proprio_keys", "history": 3}
ACTION = {"zarr_key": "command", "key_type": "action_keys", "horizon": 5}
KEYMAP = KeyMap.from_config({"state": STATE, "action": ACTION})


def noise(total: int, dims: int, seed: int) -> npt.NDArray[np.float32]:
    """Return normal numbers about 3, of spread 2."""
    return np.random.default_rng(seed).normal(3, 2, (total, dims)).astype(np.float32)


def write_folder(
    folder: Path, lengths: Sequence[int], embodiment: str = "sawyer", prefix: str = "ep"
) -> dict[str, dict[str, npt.NDArray[Any]]]:
    """Write episodes, a ramp and noise in each; return their arrays by episode."""
    written = {}
    for number, total in enumerate(lengths):
        arrays = {"pose": ramp(total, 4), "command": noise(total, 2, number)}
        name = f"{prefix}_{number}.zarr"
        EpisodeWriter.write(folder / name, numeric=arrays, fps=30, embodiment=embodiment)
        written[name] = arrays
    return written


def joined(
    written: Mapping[str, Mapping[str, npt.NDArray[Any]]], key: str
) -> npt.NDArray[np.float64]:
    """Return all rows of an array of all episodes."""
    return np.concatenate([arrays[key] for arrays in written.values()]).astype(np.float64)


def check_against_numpy(stats: KeyStats, rows: npt.NDArray[Any]) -> None:
    """Hold exact statistics to what numpy says of (N, D…) rows."""
    rows = rows.astype(np.float64)
    assert stats.count == len(rows)
    assert stats.shape == rows.shape[1:]
    assert (stats.counts == len(rows)).all()
    np.testing.assert_allclose(stats.mean, rows.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(stats.std, rows.std(axis=0), rtol=1e-6, atol=1e-12)
    np.testing.assert_array_equal(stats.min, rows.min(axis=0))
    np.testing.assert_array_equal(stats.max, rows.max(axis=0))
    assert stats.is_exact
    for name, share in QUANTILES.items():
        wanted = np.quantile(rows, share, axis=0)
        np.testing.assert_allclose(stats.quantile(name), wanted, rtol=1e-12)
