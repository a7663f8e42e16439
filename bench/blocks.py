"""Blocks of batches: what loaders and decoders are asked for, and what they must answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg

from bench.pairing import WrongAnswerError
from bench.recordings import Recording
from egoloader import KeyMap, MultiDataset
from egoloader.windows import entry_steps

__all__ = ["Block", "BlockSampler", "Frames", "Picture", "Served", "make_blocks", "serve"]

Pixels = npt.NDArray[np.uint8]


class Picture(NamedTuple):
    """One camera's frame of one episode."""

    episode: str
    camera: str
    frame: int


@dataclass(frozen=True, slots=True)
class Block:
    """Batches that are served, and timed, in one go.

    Attributes:
        number: of the block.
        batches: indices into the dataset, a list a batch.
        pictures: what decoding must do for it: per batch, each distinct picture once, the one that
            the batch shows last at the end.
    """

    number: int
    batches: Sequence[list[int]] = field(repr=False)
    pictures: Sequence[Sequence[Picture]] = field(repr=False)


class BlockSampler:
    """Hands a loader the batches of the block that is set; each `iter` begins it anew."""

    def __init__(self) -> None:
        self.block = Block(-1, (), ())

    def __len__(self) -> int:
        return len(self.block.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.block.batches)


@dataclass(frozen=True, slots=True)
class Served:
    """What is kept of a block that was served.

    Attributes:
        frames: per batch, the frame indices.
        last: (H, W, 3) uint8, the picture that the last batch shows last.
    """

    frames: tuple[list[int], ...]
    last: Pixels


class Frames:
    """The frames of a folder of recordings, as its dataset numbers them.

    Args:
        dataset: the folder's episodes.
        keymap: what a sample holds; at least one camera.
        recordings: the episodes by name.
    """

    def __init__(
        self, dataset: MultiDataset, keymap: KeyMap, recordings: Mapping[str, Recording]
    ) -> None:
        self._dataset, self._recordings = dataset, recordings
        self._cameras = {
            key: (spec.zarr_key, entry_steps(spec, 30.0).offsets)
            for key, spec in keymap.items()
            if spec.is_camera
        }

    @property
    def images(self) -> int:
        """Pictures that a sample shows."""
        return sum(len(offsets) for _, offsets in self._cameras.values())

    def shown(self, batch: Sequence[int]) -> dict[str, list[list[Picture]]]:
        """Return what a batch shows: per camera entry and sample, a picture a step."""
        located = [self._dataset.locate(index) for index in batch]
        return {
            key: [
                [
                    Picture(record.name, camera, int(row))
                    for row in np.clip(frame + offsets, 0, record.total_frames - 1)
                ]
                for record, frame in located
            ]
            for key, (camera, offsets) in self._cameras.items()
        }

    def distinct(self, batch: Sequence[int]) -> list[Picture]:
        """Return each picture of a batch once, the one that it shows last at the end."""
        shown = [p for rows in self.shown(batch).values() for steps in rows for p in steps]
        # Kept where it comes last, not first.
        return list(dict.fromkeys(reversed(shown)))[::-1]

    def served(self, block: Block) -> Served:
        """Return what serving a block must give, decoding its last picture alone."""
        frames = tuple([self._dataset.locate(index)[1] for index in b] for b in block.batches)
        return Served(frames, simplejpeg.decode_jpeg(self.jpeg(block.pictures[-1][-1])))

    def jpeg(self, picture: Picture) -> bytes:
        """Return a picture's JPEG."""
        return self._recordings[picture.episode].jpeg(picture.camera, picture.frame)

    def check(self, batches: Iterable[Mapping[str, Any]], block: Block) -> None:
        """Check every picture of every batch of a block against simplejpeg's.

        Raises:
            WrongAnswerError: one differs.
            ValueError: there are more or fewer batches.
        """
        for indices, batch in zip(block.batches, batches, strict=True):
            for key, rows in self.shown(indices).items():
                for sample, steps in enumerate(rows):
                    images = batch[key][sample].movedim(-3, -1).numpy()
                    wanted = np.stack([simplejpeg.decode_jpeg(self.jpeg(p)) for p in steps])
                    if not np.array_equal(images.reshape(wanted.shape), wanted):
                        raise WrongAnswerError(f"{key!r} shows something else than {steps}")


def make_blocks(
    frames: Frames, num_frames: int, *, blocks: int, batches: int, batch_size: int, seed: int
) -> list[Block]:
    """Draw blocks of batches of random frames; within a block none comes twice."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(blocks):
        drawn = rng.permutation(num_frames)[: batches * batch_size].reshape(batches, batch_size)
        lists = drawn.tolist()
        made.append(Block(number, lists, [frames.distinct(batch) for batch in lists]))
    return made


def serve(batches: Iterable[Mapping[str, Any]], camera_key: str) -> Served:
    """Take every batch and let go of it; keep its frame indices, and the very last picture."""
    frames = []
    for batch in batches:
        frames.append(batch["frame_index"].tolist())
    last = batch[camera_key][-1].movedim(-3, -1).numpy()
    return Served(tuple(frames), np.array(last if last.ndim == 3 else last[-1]))
