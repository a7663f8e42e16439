"""Plans, reads and serves Zarr robot and head-camera episodes to PyTorch.

Names are imported when they are first used: importing torch and lightning takes seconds, and
neither converting nor looking at episodes needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from egoloader.builders import eva_keymap, human_keymap, state_action_keymap
    from egoloader.bytetokens import ByteTokenizer
    from egoloader.collation import collate
    from egoloader.datamodule import EpisodeDataModule
    from egoloader.dataset import MultiDataset, ZarrDataset
    from egoloader.episode import ZarrEpisode
    from egoloader.keymap import KeyMap, KeySpec
    from egoloader.loader import EpisodeLoader
    from egoloader.normalizer import Normalizer
    from egoloader.pool import EpisodePool
    from egoloader.sampler import EpisodePoolSampler
    from egoloader.stats import NormStats
    from egoloader.tokens import TextCollate
    from egoloader.workers import watch_workers
    from egoloader.writer import EpisodeWriter

__all__ = [
    "ByteTokenizer",
    "EpisodeDataModule",
    "EpisodeLoader",
    "EpisodePool",
    "EpisodePoolSampler",
    "EpisodeWriter",
    "KeyMap",
    "KeySpec",
    "MultiDataset",
    "NormStats",
    "Normalizer",
    "TextCollate",
    "ZarrDataset",
    "ZarrEpisode",
    "collate",
    "eva_keymap",
    "human_keymap",
    "state_action_keymap",
    "watch_workers",
]

_HOMES = {
    "ByteTokenizer": "bytetokens",
    "EpisodeDataModule": "datamodule",
    "EpisodeLoader": "loader",
    "EpisodePool": "pool",
    "EpisodePoolSampler": "sampler",
    "EpisodeWriter": "writer",
    "KeyMap": "keymap",
    "KeySpec": "keymap",
    "MultiDataset": "dataset",
    "NormStats": "stats",
    "Normalizer": "normalizer",
    "TextCollate": "tokens",
    "ZarrDataset": "dataset",
    "ZarrEpisode": "episode",
    "collate": "collation",
    "eva_keymap": "builders",
    "human_keymap": "builders",
    "state_action_keymap": "builders",
    "watch_workers": "workers",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'egoloader' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"egoloader.{_HOMES[name]}"), name)
    globals()[name] = value  # so that the next use finds it right away
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
