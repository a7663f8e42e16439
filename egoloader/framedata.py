"""What datasets of frames have in common: how they are asked, and what becomes of bad frames."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from egoloader.assembly import fresh_memory
from egoloader.badframes import BadFramePolicy, BadFrames, FrameServer
from egoloader.batch import Allocate, Batch
from egoloader.errors import LostEpisodeError, ReadError
from egoloader.frameindex import Marks, check_indices, marks_of, sets_of
from egoloader.peers import Peers
from egoloader.sample import Sample
from egoloader.sharedmemory import check_worker

__all__ = ["FrameDataset"]

IntArray = npt.NDArray[np.int64]


class FrameDataset(Dataset[Sample]):
    """A dataset whose samples are frames of episodes.

    Args:
        spared: per episode of which not all frames are served, those that are, ascending.
        policy: what becomes of frames that can't be read or decoded.
        seed: of what comes in the place of such frames.
    """

    def __init__(self, spared: Mapping[str, IntArray], policy: BadFramePolicy, seed: int) -> None:
        self.spared = dict(spared)
        self._policy = policy.located()
        self._bad = BadFrames(self._policy, seed) if self._policy.skips else None

    @property
    def bad_frames(self) -> Mapping[str, int]:
        """Per episode, the bad frames that this process has skipped.

        Worker processes count their own, which are not among them; `is_replaced` tells of each.
        """
        return {} if self._bad is None else self._bad.counts

    def draw_among(self, indices: Iterable[int]) -> int:
        """Take in which indices a sampler draws; return what its `FrameIndex`es say `among`.

        Only these come in the place of bad frames then. Worker processes know those that were taken
        in before they began.
        """
        return 0 if self._bad is None else self._bad.sets.add(indices)

    def __len__(self) -> int:
        return sum(frames for _, frames in self.frames_by_episode())

    def __getitem__(self, index: int) -> Sample:
        """Return one sample; a negative index counts from the end.

        Raises:
            FrameIndexError: the index is outside the dataset.
            EpisodeError: the sample can't be made.
        """
        return self.make_batch([index], fresh_memory)[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return the samples of many indices, in their order, repeats included.

        The frames of one episode are planned together: one read per array, each JPEG decoded once.

        Raises:
            FrameIndexError: an index is outside the dataset.
            EpisodeError: a sample can't be made.
        """
        batch = self.make_batch(indices, fresh_memory)
        check_worker(batch.num_bytes)
        return batch

    def make_batch(self, indices: Sequence[int], allocate: Allocate) -> Batch:
        """Return `__getitems__` in memory from `allocate`."""
        at = check_indices(indices, len(self))
        if not len(at):
            return Batch.of_samples([])
        if self._bad is None:
            return self._serve_or_name(at, marks_of(indices), allocate)
        server = FrameServer(self._serve, self._where, self._peers)
        return self._bad.make_batch(at, sets_of(indices), marks_of(indices), allocate, server)

    def _serve_or_name(self, at: IntArray, marks: Marks, allocate: Allocate) -> Batch:
        """Make samples; where a read fails, find out for which of them."""
        try:
            return self._serve(at, marks, allocate)
        except ReadError as error:
            if error.frame is None and not isinstance(error, LostEpisodeError):
                self._name_frame(error.episode, at, marks)
            raise

    def _name_frame(self, episode: str, at: IntArray, marks: Marks) -> None:
        """Make samples of an episode one by one; raise the first one's error, with its frame."""
        for place, index in enumerate(at.tolist()):
            name, frame = self._where(index)
            if name != episode:
                continue
            its = np.array([place])
            try:
                self._serve(at[its], marks.at(its), fresh_memory)
            except ReadError as error:
                named = frame if error.frame is None else error.frame
                raise type(error)(
                    error.message, episode=error.episode, key=error.key, frame=named
                ) from error.__cause__

    @abstractmethod
    def frames_by_episode(self) -> list[tuple[str, int]]:
        """Return the episodes' names and served frames, in the order of the indices."""

    @abstractmethod
    def _serve(self, at: IntArray, marks: Marks, allocate: Allocate) -> Batch:
        """Make the samples of (B,) indices, each within the dataset."""

    @abstractmethod
    def _where(self, index: int) -> tuple[str, int]:
        """Return the episode that an index lies in, and the frame index there."""

    @abstractmethod
    def _peers(self, index: int) -> Peers:
        """Return those of which one may take the place of an index."""
