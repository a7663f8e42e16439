"""What a batch takes from episodes whose samples are of one kind: planned and read as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from egoloader.batchplan import BatchPlan, plan_batch
from egoloader.chunkcodec import ChunkRows
from egoloader.errors import EgoloaderError, SampleError
from egoloader.frameindex import Marks
from egoloader.kind import Kind
from egoloader.reader import join_rows
from egoloader.sample import SampleMaker

__all__ = ["Fetched", "Share", "divide"]

IntArray = npt.NDArray[np.int64]


class Share(NamedTuple):
    """B samples of one kind.

    Attributes:
        makers: of the samples, one an episode.
        numbers: (B,) int64, which of them makes each sample; each makes one at least.
        frames: (B,) int64, each in [0, total_frames) of its episode; repeats are allowed.
        places: (B,), where the samples stand in the batch.
        marks: what the sampler knows of the samples.
    """

    makers: Sequence[SampleMaker]
    numbers: IntArray
    frames: IntArray
    places: Sequence[int]
    marks: Marks

    def fetch(self) -> Fetched:
        """Plan all frames, and read each array that is no camera once an episode.

        Raises:
            EpisodeError: a read failed; names episode and key.
        """
        kind = self.makers[0].kind
        try:
            totals = np.array([maker.total_frames for maker in self.makers])
            ends = self._cut_ends()
            times = [one.timeline for one in self.makers if one.timeline is not None]
            plan = plan_batch(kind.outline, self.frames, self.numbers, totals, ends, times)
            stored = self._read(plan, kind.arrays)
            if not kind.fields:
                frames = self._read(plan, [(read, (key,)) for key, read in kind.cameras])
                stored |= frames
                kind = self.makers[0].learn(plan, frames)
        except (EgoloaderError, Warning):
            raise
        except Exception as error:
            raise self.failure(error) from error
        names = [maker.name for maker in self.makers]
        return Fetched(self, kind, plan, stored, [names[n] for n in self.numbers.tolist()])

    def _cut_ends(self) -> IntArray | None:
        """Return where annotations cut windows off: (B,) int64; None where they don't."""
        if not self.makers[0].settings.annotation_cutoff:
            return None
        ends = np.empty_like(self.frames)
        for number, maker in enumerate(self.makers):
            is_its = self.numbers == number
            ends[is_its] = maker.cut_ends(self.frames[is_its])
        return ends

    def _read(
        self, plan: BatchPlan, arrays: Sequence[tuple[int, tuple[str, ...]]]
    ) -> dict[str, ChunkRows]:
        """Read arrays whole; return what the episodes' reads returned, one behind the other."""
        stored: dict[str, ChunkRows] = {}
        for read, keys in arrays:
            found = [
                maker.episode.reader(keys)(reads[read])
                for maker, reads in zip(self.makers, plan.episodes, strict=True)
            ]
            for number, key in enumerate(keys):
                stored[key] = join_rows([part for parts in found for part in parts[number]])
        return stored

    def failure(self, error: Exception) -> SampleError:
        """Return the error for one that nothing foresees."""
        names = [maker.name for maker in self.makers]
        return SampleError(
            f"making samples of frames {self.frames.tolist()[:8]} failed: {error!r}",
            episode=", ".join(names[:8]),
        )


class Fetched(NamedTuple):
    """What was read for a share, not cut yet; frames are read when they are decoded.

    Attributes:
        share: what it is for.
        kind: of the samples.
        plan: what was read, and which frames are to be.
        stored: per array, what its reads returned, one episode's behind the other's; a camera is
            among them only where it had to be read first.
        names: (B,), the episode of each sample.
    """

    share: Share
    kind: Kind
    plan: BatchPlan
    stored: Mapping[str, ChunkRows]
    names: list[str]


def divide(
    makers: Sequence[SampleMaker], numbers: IntArray, frames: IntArray, marks: Marks
) -> list[Share]:
    """Divide the samples of a batch by their kind.

    Args:
        makers: of the samples, one an episode.
        numbers: (B,) int64, which of them makes each sample; each makes one at least.
        frames: (B,) int64.
        marks: what the sampler knows of the samples.
    """
    if len({maker.kind for maker in makers}) == 1:
        return [Share(makers, numbers, frames, range(len(frames)), marks)]
    members: dict[Kind, list[int]] = {}
    for number, maker in enumerate(makers):
        members.setdefault(maker.kind, []).append(number)
    shares = []
    for its in members.values():
        renumbered = np.full(len(makers), -1)
        renumbered[its] = np.arange(len(its))
        found = renumbered[numbers]
        (places,) = np.nonzero(found >= 0)
        alike = [makers[number] for number in its]
        its_marks = marks.at(places)
        shares.append(Share(alike, found[places], frames[places], places.tolist(), its_marks))
    return shares
