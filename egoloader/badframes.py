"""What becomes of a batch with frames that can't be read or decoded."""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from egoloader.assembly import fresh_memory
from egoloader.batch import Allocate, Batch
from egoloader.errors import (
    BadFrameWarning,
    EpisodeError,
    FrameError,
    LostEpisodeError,
    ReadError,
    SettingsError,
    TooManyBadFramesError,
    ValueRangeError,
    near_miss,
)
from egoloader.frameindex import Marks
from egoloader.quarantine import BadSpan, add_spans
from egoloader.seeding import stream_key, uniforms

__all__ = ["BadFramePolicy", "BadFrames", "FrameServer", "OnBadFrame", "Peers"]

OnBadFrame = Literal["raise", "skip"]
IntArray = npt.NDArray[np.int64]

#: What is wrong with the data of a frame, rather than with how it was asked for.
_BAD_DATA = (FrameError, ReadError, ValueRangeError)


@dataclass(frozen=True, slots=True)
class BadFramePolicy:
    """What becomes of frames that can't be read or decoded.

    Args:
        on_bad_frame: `raise`, or `skip`, which serves another frame in the place of each.
        max_bad_fraction: share of the frames that may be met as bad; with more, skipping ends.
        bad_frames_file: a quarantine file to which those that are met are added.

    Raises:
        SettingsError: an option that can't be meant.
    """

    on_bad_frame: OnBadFrame = "raise"
    max_bad_fraction: float = 0.01
    bad_frames_file: str | os.PathLike[str] | None = None

    @property
    def skips(self) -> bool:
        """Whether other frames are served in the place of bad ones."""
        return self.on_bad_frame == "skip"

    def __post_init__(self) -> None:
        if self.on_bad_frame not in get_args(OnBadFrame):
            hint = near_miss(str(self.on_bad_frame), get_args(OnBadFrame))
            raise SettingsError(f"on_bad_frame is {self.on_bad_frame!r}; {hint}")
        share = self.max_bad_fraction
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
            raise SettingsError(f"max_bad_fraction must be in [0, 1), got {share!r}")
        if not isinstance(self.bad_frames_file, str | os.PathLike | None):
            raise SettingsError(f"bad_frames_file is a path, got {self.bad_frames_file!r}")
        if self.bad_frames_file is not None and self.on_bad_frame != "skip":
            raise SettingsError(
                "bad_frames_file is for on_bad_frame: skip; leave it out, or set it"
            )


class Peers(NamedTuple):
    """Frames of which one may be served in the place of another: those of one embodiment.

    Attributes:
        name: of the embodiment.
        starts: (n,) int64, the first index of each run of them.
        bounds: (n,) int64, how many there are up to the end of each run.
    """

    name: str
    starts: IntArray
    bounds: IntArray

    @property
    def size(self) -> int:
        """How many there are."""
        return int(self.bounds[-1])

    def at(self, place: int) -> int:
        """Return the index of the one at a place among them."""
        run = int(self.bounds.searchsorted(place, side="right"))
        before = int(self.bounds[run - 1]) if run else 0
        return int(self.starts[run]) + place - before


class FrameServer(NamedTuple):
    """What a dataset knows of its indices.

    Attributes:
        serve: makes the samples of (B,) indices, each within the dataset.
        where: returns the episode that an index lies in, and the frame index there.
        peers: returns those of which one may take the place of an index.
    """

    serve: Callable[[IntArray, Marks, Allocate], Batch]
    where: Callable[[int], tuple[str, int]]
    peers: Callable[[int], Peers]


@dataclass(slots=True)
class _Met:
    """What one process has met.

    Attributes:
        pid: the process.
        bad: indices.
        by_peers: how many of them, by the name of their peers.
        by_episode: how many of them, by episode.
        last: what is wrong with the newest.
    """

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    bad: set[int] = field(default_factory=set)
    by_peers: Counter[str] = field(default_factory=Counter)
    by_episode: Counter[str] = field(default_factory=Counter)
    last: str = ""


class BadFrames:
    """Serves batches of a dataset, with other frames in the place of bad ones.

    Which one comes in a frame's place is drawn from all that a dataset has of the embodiment; it is
    a function of seed, epoch, episode and frame, so that reading again gives the same. What was met
    is counted by each process on its own.

    Args:
        policy: with `on_bad_frame: skip`.
        seed: of the drawing.
    """

    def __init__(self, policy: BadFramePolicy, seed: int) -> None:
        self._policy, self._seed = policy, seed
        self._met = _Met()

    def __reduce__(self) -> tuple[object, ...]:
        return BadFrames, (self._policy, self._seed)

    @property
    def counts(self) -> Mapping[str, int]:
        """Per episode, the bad frames that this process has met."""
        met = self._here()
        with met.lock:
            return dict(sorted(met.by_episode.items()))

    def make_batch(
        self, at: IntArray, marks: Marks, allocate: Allocate, server: FrameServer
    ) -> Batch:
        """Return the batch of (B,) indices; samples in the place of others are marked.

        Raises:
            TooManyBadFramesError: more frames are bad than may be.
            EpisodeError: what no frame of its own is to blame for.
        """
        wanted, at = at, at.copy()
        is_replaced = np.zeros(len(at), dtype=np.bool_)
        marks = marks._replace(is_replaced=is_replaced)
        attempts = [0] * len(at)
        suspects = [place for place, index in enumerate(at.tolist()) if index in self._here().bad]
        good: set[int] = set()
        while True:
            for place in suspects:
                epoch = marks.epochs[place]
                while self._is_bad(int(at[place]), epoch, server):
                    at[place] = self._draw(int(wanted[place]), epoch, attempts[place], server)
                    attempts[place] += 1
                    is_replaced[place] = True
            try:
                return server.serve(at, marks, allocate)
            except _BAD_DATA as error:
                good |= {int(at[place]) for place in suspects}
                suspects = [place for place in range(len(at)) if int(at[place]) not in good]
                if not suspects or isinstance(error, LostEpisodeError):
                    raise  # each can be made on its own: no frame is to blame

    def _is_bad(self, index: int, epoch: int, server: FrameServer) -> bool:
        """Return whether a frame can't be served; the first time that it is met, note it."""
        error: EpisodeError | None = None
        if index not in self._here().bad:
            is_mark = np.zeros(1, dtype=np.bool_)
            try:
                server.serve(np.array([index]), Marks([epoch], is_mark, is_mark), fresh_memory)
            except _BAD_DATA as met:
                if isinstance(met, LostEpisodeError):
                    raise
                error = met
                self._note(index, met, server)
            else:
                return False
        self._check_limit(index, error, server)
        return True

    def _check_limit(self, index: int, error: EpisodeError | None, server: FrameServer) -> None:
        """Skip no frame any more when too many were met."""
        (episode, frame), peers, met = server.where(index), server.peers(index), self._here()
        num_bad = met.by_peers[peers.name]
        if num_bad > self._policy.max_bad_fraction * peers.size:
            raise TooManyBadFramesError(
                f"{num_bad} frames of {peers.size} were met that can't be served, more than "
                f"max_bad_fraction = {self._policy.max_bad_fraction} allows; the last: {met.last}",
                episode=episode,
                frame=frame,
            ) from error

    def _draw(self, index: int, epoch: int, attempt: int, server: FrameServer) -> int:
        """Return the index that comes in the place of another."""
        key = stream_key("replacement", self._seed, epoch, *server.where(index))
        peers = server.peers(index)
        return peers.at(int(uniforms(key, 1, attempt).item() * peers.size))

    def _note(self, index: int, error: EpisodeError, server: FrameServer) -> None:
        (episode, frame), peers, met = server.where(index), server.peers(index), self._here()
        with met.lock:
            if index in met.bad:
                return  # another thread was faster
            met.bad.add(index)
            met.by_peers[peers.name] += 1
            met.by_episode[episode] += 1
            met.last = str(error)
            is_first = met.by_episode[episode] == 1
            if self._policy.bad_frames_file is not None:
                add_spans(self._policy.bad_frames_file, [_span(episode, frame, error)])
        if is_first:
            warnings.warn(
                f"episode {episode!r}, frame {frame}: another frame is served in its place, and in "
                f"that of others of this episode that fail from now on: {error}",
                BadFrameWarning,
                stacklevel=4,
            )

    def _here(self) -> _Met:
        if self._met.pid != os.getpid():
            self._met = _Met()  # a forked child counts on its own, with a lock that nobody holds
        return self._met


def _span(episode: str, frame: int, error: EpisodeError) -> BadSpan:
    """Return the entry of a quarantine file: the bad row, or the sample where none is known."""
    if error.frame is not None and error.key is not None:
        return BadSpan(episode, error.frame, error.frame + 1, error.key, error.message)
    return BadSpan(episode, frame, frame + 1, None, str(error))
