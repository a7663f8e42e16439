"""`EpisodePoolSampler`: the batches of a rank, and the one position in them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from egoloader.columns import (
    Column,
    FrameSource,
    ListedFrames,
    digest_of,
    frame_weights,
    kept_frames,
    stored_bytes,
)
from egoloader.deal import Tail
from egoloader.errors import LoaderError, ResumeError, SettingsError, check_whole
from egoloader.frameindex import FrameIndex
from egoloader.indexorder import IndexedOrder, IndexOrder
from egoloader.order import Order, OrderSettings
from egoloader.poolorder import PoolOrder
from egoloader.remainder import reading_state
from egoloader.roster import Roster, check_fingerprint
from egoloader.weighted import WeightedOrder

__all__ = ["EpisodePoolSampler", "PositionedSampler"]

IntArray = npt.NDArray[np.int64]
Indices = list[FrameIndex]


class PositionedSampler(Sampler[Indices]):
    """Batches of indices, and the position in them: an epoch, and how many of it are done.

    The position moves on as a batch is handed out, to the next epoch with the last one. `iter`
    goes on from it, however often it is called, and ends the iterators before it.

    Args:
        order: what the batches are.
        among: the set of indices that they are, as the dataset numbers it; 0 for all.

    Attributes:
        epoch: the running epoch.
        done: its batches that were handed out.
    """

    def __init__(self, order: IndexOrder, among: int = 0) -> None:
        self._order, self._among = order, among
        self.epoch, self.done = 0, 0
        self._begun, self._drawn = (0, 0), 0  # where the newest iterator began; its batches since
        self._newest = 0

    @property
    def covers(self) -> bool:
        """Whether an epoch has each frame exactly once over all ranks, but for `left_out`."""
        return self._order.covers

    @property
    def left_out(self) -> int:
        """Frames that the running epoch leaves out: those of no full batch, for `tail: drop`."""
        return self._order.left_out(self.epoch)

    def __len__(self) -> int:
        """Return the batches of the running epoch: those done and those left."""
        return self._order.num_batches(self.epoch)

    @property
    def pass_length(self) -> int:
        """Batches of a whole epoch of as many ranks as there are now."""
        return self._order.num_batches(self.epoch + 1)

    def __iter__(self) -> Iterator[Indices]:
        """Yield the batches that the running epoch has left."""
        return self._handed_out(self.begin())

    def begin(self) -> int:
        """Begin an iterator, in place of those before it; return its number."""
        self._newest += 1
        self._begun, self._drawn = (self.epoch, self.done), 0
        return self._newest

    def check_newest(self, number: int) -> None:
        """Refuse an iterator that another has taken the place of.

        Raises:
            LoaderError: its number is not the newest one's.
        """
        if number != self._newest:
            raise LoaderError(
                "a newer iterator of these batches goes on in this one's place; a position that "
                "two move on would show frames twice"
            )

    def upcoming(self) -> Iterator[Indices]:
        """Yield the batches that the running epoch has left, without moving the position.

        For loaders that draw ahead; they call `advance` as each is handed out.
        """
        return self._batches_of(self.epoch, self.done)

    def upcoming_passes(self) -> Iterator[Indices]:
        """Yield what the running epoch has left, and then epoch after epoch, like `upcoming`."""
        epoch, done = self.epoch, self.done
        while True:
            yield from self._batches_of(epoch, done)
            epoch, done = epoch + 1, 0

    def advance(self) -> None:
        """Count one more batch as handed out."""
        self._drawn += 1
        self.epoch, self.done = self._behind(self.epoch, self.done, 1)

    def state_dict(self, handed_out: int | None = None) -> dict[str, Any]:
        """Return plain values that tell what every rank has left: O(ranks x pool).

        The first one of an epoch passes over the draws of all ranks so far (a few tenths of a
        second a million frames), those that follow over what was drawn in between.

        Args:
            handed_out: batches that came out of a `torch.utils.data.DataLoader` since its iterator
                was made, as its workers draw ahead; without one, all that were drawn.

        Raises:
            SettingsError: more batches than were drawn.
        """
        position = (self.epoch, self.done)
        if handed_out is not None:
            check_whole("handed_out", handed_out, 0)
            if handed_out > self._drawn:
                raise SettingsError(
                    f"handed_out is {handed_out}, more batches than the {self._drawn} that this "
                    "sampler's newest iterator was asked for"
                )
            position = self._behind(*self._begun, handed_out)
        state = self._order.state(*position)
        epoch, done = position
        return {
            "epoch": epoch,
            "done": done,
            "fingerprint": dict(self._order.fingerprint()),
            **state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whichever rank's; replays nothing.

        With another number of ranks, what is left is dealt to them anew.

        Raises:
            ResumeError: it is of other data or settings, by name; or it is broken.
        """
        if not isinstance(state, Mapping):
            raise ResumeError(f"can't resume: a state is a mapping, got {type(state).__name__}")
        check_fingerprint(state.get("fingerprint"), self._order.fingerprint())
        with reading_state():
            for name, least in (("epoch", 0), ("done", 0), ("world_size", 1)):
                check_whole(f"the state's {name}", state[name], least)
            self.epoch, self.done = self._order.restore(dict(state))
        self.begin()

    def reset(self) -> None:
        """Go back to the first batch of the first epoch."""
        self._order.forget()
        self.epoch, self.done = 0, 0
        self.begin()

    def _batches_of(self, epoch: int, done: int) -> Iterator[Indices]:
        for indices, repeats in self._order.batches(epoch, done):
            real = len(indices) - repeats
            yield [
                FrameIndex(i, epoch, n >= real, self._among) for n, i in enumerate(indices.tolist())
            ]

    def _handed_out(self, number: int) -> Iterator[Indices]:
        for batch in self.upcoming():
            self.check_newest(number)
            self.advance()
            yield batch

    def _behind(self, epoch: int, done: int, batches: int) -> tuple[int, int]:
        """Return the position so many batches of one epoch further."""
        done += batches
        return (epoch, done) if done < self._order.num_batches(epoch) else (epoch + 1, 0)


class EpisodePoolSampler(PositionedSampler):
    """Batches of a rank in which every frame comes once an epoch, from few episodes at a time.

    A batch sampler for `EpisodeLoader`, which counts what it hands out, and for
    `torch.utils.data.DataLoader`, which draws ahead (see `state_dict`). Epochs differ, and advance
    by themselves. See `EpisodePool` for the order of a rank; episodes are dealt to ranks whole, but
    for at most `world_size` - 1, so that their frames differ by at most one, and all ranks have as
    many batches.

    Args:
        data: a `MultiDataset` or a `ZarrDataset`.
        batch_size: frames of a full batch.
        pool_size: episodes that each rank has resident at most.
        seed: of the order.
        rank: this process, from 0 on.
        world_size: processes that share the frames.
        tail: how an epoch ends. `spread`: every frame once, all batches full but the last of each
            rank (its last but one has a frame less where there would be none for the last);
            `drop`: full batches only, `left_out` says how many frames are not drawn; `repeat`: the
            last batch is filled up with frames whose sample has `is_repeat`.
        byte_budget: bytes on disk that each rank's resident episodes have at most.
        byte_sizes: bytes of each episode by its name, to weigh against the budget; what its files
            have unless given.
        frame_filter: which frames there are at all: the name of an array with one number a frame,
            not 0 to keep it, or a callable from `ZarrEpisode` to (total_frames,) bool.
        weights: how often each frame is drawn, relative to others: the name of an array, or a
            callable, of numbers from 0 on. Frames are then drawn with replacement from all
            episodes: the pool is not used, and `covers` is false.

    Raises:
        SettingsError: an option that can't be meant; too few frames for the tail asked for; an
            episode above the budget.
        EpisodeError: a column that an episode lacks, or that is not one number a frame.
    """

    def __init__(
        self,
        data: FrameSource,
        batch_size: int = 32,
        pool_size: int = 32,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        tail: Tail = "spread",
        byte_budget: int | None = None,
        *,
        byte_sizes: Mapping[str, int] | None = None,
        frame_filter: Column | None = None,
        weights: Column | None = None,
    ) -> None:
        settings = OrderSettings(batch_size, pool_size, seed, tail, byte_budget)
        if not hasattr(data, "frames_by_episode"):
            raise SettingsError(
                f"EpisodePoolSampler needs a MultiDataset or a ZarrDataset, got "
                f"{type(data).__name__}"
            )
        kept = {} if frame_filter is None else kept_frames(data, frame_filter)
        listed = data.frames_by_episode()
        frames = [(name, len(kept[name]) if name in kept else n) for name, n in listed]
        if byte_sizes is None and byte_budget is not None:
            byte_sizes = stored_bytes(data)
        roster = Roster(frames, byte_sizes)
        order: Order
        column = None
        if weights is None:
            order = PoolOrder(roster, settings, rank, world_size)
        else:
            column = frame_weights(data, weights, kept, roster.ids)
            order = WeightedOrder(roster, column, settings, rank, world_size)
        self._indexed = IndexedOrder(order, data, roster.ids, kept)
        self._pool_size, self._data = pool_size, _described(data)
        among = 0
        if frame_filter is not None or weights is not None:
            among = data.draw_among(self._indexed.drawn(roster.lengths, column))
        super().__init__(self._indexed, among)

    def check_data(self, data: ListedFrames) -> None:
        """Refuse to be asked for indices of other data than the sampler was made of.

        Raises:
            SettingsError: its episodes, or which of their frames are served, are others.
        """
        if _described(data) != self._data:
            raise SettingsError(
                "the EpisodePoolSampler was made of other data than the loader is given: its "
                "indices would mean other frames. Make both of the same dataset"
            )

    def __repr__(self) -> str:
        coverage = "every frame once" if self.covers else "drawn with replacement, no coverage"
        left_out = f", {self.left_out} frames left out" if self.left_out else ""
        return (
            f"EpisodePoolSampler(epoch {self.epoch}, {self.done} of {len(self)} batches done; "
            f"{coverage}{left_out})"
        )

    @property
    def pool_occupancy(self) -> float:
        """Resident episodes behind the batch that was drawn last, as a share of `pool_size`."""
        return self._indexed.num_resident / self._pool_size


def _described(data: ListedFrames) -> tuple[list[tuple[str, int]], str | None]:
    """Return what indices of a dataset mean."""
    return data.frames_by_episode(), digest_of(data.spared)
