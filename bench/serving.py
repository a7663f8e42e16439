"""What loaders are timed on: a folder of episodes, blocks of batches, and the loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, Dataset

from bench.blocks import Block, BlockSampler, Frames, Served, make_blocks, serve
from bench.recordings import CAMERA, Recording, make_jpegs, write_folder
from egoloader import EpisodeLoader, KeyMap, KeySpec, MultiDataset, collate, human_keymap

__all__ = [
    "CACHE",
    "CAMERAS",
    "LIBRARIES",
    "Folder",
    "FreshBatches",
    "Rounds",
    "ServingSettings",
    "StockLoader",
    "ThreadedLoader",
    "many_images",
    "one_image",
    "same_served",
    "write_episodes",
]

LIBRARIES = ("zarr", "numcodecs", "numpy", "simplejpeg", "torch")
CACHE = "page cache warm, decoded numbers kept (default budget)"
CAMERAS = (CAMERA, "images.left_wrist", "images.right_wrist")
#: Two past frames and the current one, at 30 Hz.
_MEMORY = (-30, -15, 0)


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """What loaders are timed on.

    Attributes:
        episodes: how many there are.
        total_frames: of each.
        batch_size: samples of a batch.
        size: (height, width) of the pictures in pixels.
        jpeg_bytes: smallest and largest mean size of a JPEG that is accepted, in bytes.
        horizon: steps of the action chunks.
        proprio_history: steps of the proprio history.
        seed: of the episodes and of the frames asked for.
    """

    episodes: int = 8
    total_frames: int = 600
    batch_size: int = 32
    size: tuple[int, int] = (360, 640)
    jpeg_bytes: tuple[int, int] = (90_000, 110_000)
    horizon: int = 30
    proprio_history: int = 4
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Rounds:
    """How much is timed.

    Attributes:
        blocks: timed, one a round.
        batches: of a block.
    """

    blocks: int
    batches: int


def write_episodes(
    settings: ServingSettings, folder: Path, cameras: tuple[str, ...]
) -> dict[str, Recording]:
    """Write a folder of episodes with the cameras named; return them by name."""
    jpegs = make_jpegs(settings.size, settings.jpeg_bytes, settings.seed)
    return write_folder(
        folder, settings.episodes, settings.total_frames, jpegs, settings.seed, cameras
    )


def one_image(settings: ServingSettings) -> KeyMap:
    """Return the keypoint keymap: one image a sample."""
    return human_keymap(
        "keypoints", horizon=settings.horizon, proprio_history=settings.proprio_history
    )


def many_images(settings: ServingSettings) -> KeyMap:
    """Return the keypoint keymap with three images of each of three cameras a sample."""
    numbers = human_keymap(
        "keypoints",
        horizon=settings.horizon,
        proprio_history=settings.proprio_history,
        norm_mode=True,
    )
    cameras = {
        f"observations.{camera}": KeySpec(zarr_key=camera, key_type="camera_keys", offsets=_MEMORY)
        for camera in CAMERAS
    }
    return KeyMap({**numbers, **cameras})


class Folder:
    """A folder of episodes with one keymap, opened, and blocks of its frames.

    The first block is for rehearsing.

    Attributes:
        dataset: images as uint8, the decoded cache at its default.
        frames: its frames.
        blocks: what is served, `rounds.blocks` and one.
        camera_key: the sample key of the last camera entry.
    """

    def __init__(
        self,
        path: Path,
        keymap: KeyMap,
        recordings: Mapping[str, Recording],
        settings: ServingSettings,
        rounds: Rounds,
    ) -> None:
        self.dataset = MultiDataset.from_folder(path, keymap)
        self.frames = Frames(self.dataset, keymap, recordings)
        self.blocks = make_blocks(
            self.frames,
            len(self.dataset),
            blocks=rounds.blocks + 1,
            batches=rounds.batches,
            batch_size=settings.batch_size,
            seed=settings.seed,
        )
        self.camera_key = [key for key, spec in keymap.items() if spec.is_camera][-1]


class ThreadedLoader:
    """An `EpisodeLoader` that serves block after block."""

    def __init__(self, folder: Folder, num_threads: int) -> None:
        self._sampler, self._camera_key = BlockSampler(), folder.camera_key
        self._loader = EpisodeLoader(
            folder.dataset, batch_sampler=self._sampler, num_threads=num_threads
        )

    def batches(self, block: Block) -> Iterator[dict[str, Any]]:
        """Iterate over a block's batches."""
        self._sampler.block = block
        return iter(self._loader)

    def answer(self, block: Block) -> Served:
        """Serve a block."""
        return serve(self.batches(block), self._camera_key)


class FreshBatches:
    """`__getitems__` and `collate` in this thread: every batch in tensors of its own."""

    def __init__(self, folder: Folder) -> None:
        self._dataset, self._camera_key = folder.dataset, folder.camera_key

    def answer(self, block: Block) -> Served:
        """Serve a block."""
        batches = (collate(self._dataset.__getitems__(indices)) for indices in block.batches)
        return serve(batches, self._camera_key)


class StockLoader:
    """PyTorch's `DataLoader` with two persistent workers over one sample at a time.

    Args:
        folder: what is served.
        collate_fn: makes the batch of samples.
    """

    def __init__(self, folder: Folder, collate_fn: Any) -> None:
        self._sampler, self._camera_key = BlockSampler(), folder.camera_key
        self._loader = DataLoader(
            SingleSamples(folder.dataset),
            batch_sampler=self._sampler,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=2,
            collate_fn=collate_fn,
        )
        self.answer(folder.blocks[0])  # forks the workers, while this process has few threads

    def answer(self, block: Block) -> Served:
        """Serve a block."""
        self._sampler.block = block
        return serve(self._loader, self._camera_key)

    def __enter__(self) -> StockLoader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loader._iterator = None  # ends the workers


class SingleSamples(Dataset[dict[str, Any]]):
    """A dataset that is asked for one sample at a time, whatever else it could do."""

    def __init__(self, dataset: MultiDataset) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._dataset[index]


def same_served(reference: Served, served: Served) -> str | None:
    """Return what differs between two ways to serve a block; None where nothing does."""
    if reference.frames != served.frames:
        return "other frames"
    if not np.array_equal(reference.last, served.last):
        return "the last picture is another one"
    return None
