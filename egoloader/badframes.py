"""What becomes of a batch with frames that can't be read or decoded."""

from __future__ import annotations

import os
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from egoloader.peers import FrameSets, Peers
from egoloader.quarantine import BadSpan, add_spans, check_file
from egoloader.seeding import stream_key, uniforms

__all__ = ["BadFramePolicy", "BadFrames", "FrameServer", "OnBadFrame"]

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

    def located(self) -> BadFramePolicy:
        """Return the policy with the place of the file fixed, whatever folder is entered later.

        Raises:
            SettingsError: the file can't be written to.
        """
        if self.bad_frames_file is None:
            return self
        return replace(self, bad_frames_file=check_file(self.bad_frames_file))

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
        by_peers: those of them that were asked for, by the name of their peers.
        by_episode: how many of them, by episode.
        last: what is wrong with the newest.
    """

    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    bad: set[int] = field(default_factory=set)
    by_peers: dict[str, set[int]] = field(default_factory=dict)
    by_episode: Counter[str] = field(default_factory=Counter)
    last: str = ""


class BadFrames:
    """Serves batches of a dataset, with other frames in the place of bad ones.

    Which one comes in a frame's place is drawn from all that a dataset has of the embodiment, or
    from those of them that a sampler draws; it is a function of seed, epoch, episode and frame, so
    that reading again gives the same. What was met is counted by each process on its own.

    Args:
        policy: with `on_bad_frame: skip`.
        seed: of the drawing.

    Attributes:
        sets: the indices that samplers draw.
    """

    def __init__(self, policy: BadFramePolicy, seed: int) -> None:
        self._policy, self._seed = policy, seed
        self.sets = FrameSets()
        self._within: dict[tuple[str, int], Peers] = {}
        self._met = _Met()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_met": None, "_within": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _met=_Met())

    @property
    def counts(self) -> Mapping[str, int]:
        """Per episode, the bad frames that this process has met."""
        met = self._here()
        with met.lock:
            return dict(sorted(met.by_episode.items()))

    def make_batch(
        self,
        at: IntArray,
        sets: Sequence[int],
        marks: Marks,
        allocate: Allocate,
        server: FrameServer,
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
                while self._is_bad(int(at[place]), sets[place], epoch, server):
                    peers = self._peers(int(wanted[place]), sets[place], server)
                    key = stream_key(
                        "replacement", self._seed, epoch, *server.where(int(wanted[place]))
                    )
                    drawn = uniforms(key, 1, attempts[place]).item()
                    at[place] = peers.at(int(drawn * peers.size))
                    attempts[place] += 1
                    is_replaced[place] = True
            try:
                return server.serve(at, marks, allocate)
            except _BAD_DATA as error:
                good |= {int(at[place]) for place in suspects}
                suspects = [place for place in range(len(at)) if int(at[place]) not in good]
                if not suspects or isinstance(error, LostEpisodeError):
                    raise  # each can be made on its own: no frame is to blame

    def _is_bad(self, index: int, number: int, epoch: int, server: FrameServer) -> bool:
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
        self._check_limit(index, self._peers(index, number, server), error, server)
        return True

    def _peers(self, index: int, number: int, server: FrameServer) -> Peers:
        """Return those of which one may take the place of an index, drawn among a set."""
        peers = server.peers(index)
        known = (peers.name, number)
        if known not in self._within:
            self._within[known] = self.sets.within(peers, number)
        return self._within[known]

    def _check_limit(
        self, index: int, peers: Peers, error: EpisodeError | None, server: FrameServer
    ) -> None:
        """Skip no frame any more when too many were met."""
        met = self._here()
        with met.lock:
            bad = met.by_peers.setdefault(peers.name, set())
            bad.add(index)
            num_bad = len(bad)
        # Not num_bad > share * size, which is rounded: 0.29 * 100 is less than 29.
        if num_bad / peers.size > self._policy.max_bad_fraction:
            episode, frame = server.where(index)
            raise TooManyBadFramesError(
                f"{num_bad} frames of {peers.size} were met that can't be served, more than "
                f"max_bad_fraction = {self._policy.max_bad_fraction} allows; the last: {met.last}",
                episode=episode,
                frame=frame,
            ) from error

    def _note(self, index: int, error: EpisodeError, server: FrameServer) -> None:
        (episode, frame), met = server.where(index), self._here()
        with met.lock:
            if index in met.bad:
                return  # another thread was faster
            if self._policy.bad_frames_file is not None:
                add_spans(self._policy.bad_frames_file, [_span(episode, frame, error)])
            met.bad.add(index)
            met.by_episode[episode] += 1
            met.last = str(error)
            is_first = met.by_episode[episode] == 1
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
