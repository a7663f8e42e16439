"""Plans, reads and serves Zarr robot and head-camera episodes to PyTorch."""

from egoloader.builders import eva_keymap, human_keymap, state_action_keymap
from egoloader.collate import collate
from egoloader.dataset import MultiDataset, ZarrDataset
from egoloader.episode import ZarrEpisode
from egoloader.keymap import KeyMap, KeySpec
from egoloader.writer import EpisodeWriter

__all__ = [
    "EpisodeWriter",
    "KeyMap",
    "KeySpec",
    "MultiDataset",
    "ZarrDataset",
    "ZarrEpisode",
    "collate",
    "eva_keymap",
    "human_keymap",
    "state_action_keymap",
]
