"""Several sources, one per embodiment, handed out together."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, NamedTuple

from egoloader.collation import collate
from egoloader.dataset import MultiDataset
from egoloader.errors import LoaderError, ResumeError, SettingsError, check_whole
from egoloader.frameindex import FrameIndex
from egoloader.inorder import InOrder, fitting_tail
from egoloader.loader import BatchWork, make_buffers, stream_batches
from egoloader.remainder import broken, reading_state
from egoloader.roster import check_fingerprint
from egoloader.sampler import EpisodePoolSampler, PositionedSampler
from egoloader.schedule import Schedule
from egoloader.threads import Ordered, Threads
from egoloader.tokens import Collate

__all__ = ["DataLoad", "MixtureLoader", "Position", "Source", "ValidationLoader"]

Batch = dict[str, Any]


class DataLoad(NamedTuple):
    """What training batches have cost this process so far.

    Attributes:
        waited: seconds that the trainer waited for them.
        bytes_read: bytes read of the training episodes, metadata left out.
        pool_occupancy: resident episodes, as a share of the pools' sizes.
    """

    waited: float
    bytes_read: int
    pool_occupancy: float


class Source(NamedTuple):
    """The frames of one embodiment.

    Attributes:
        data: the episodes.
        sampler: the order, and the position in it.
    """

    data: MultiDataset
    sampler: EpisodePoolSampler


@dataclass(frozen=True, slots=True)
class Position:
    """How far batches have been handed out.

    Attributes:
        step: since the run began.
        epoch: complete epochs among them.
        done: of the running epoch.
        size: batches of the running epoch where nothing limits it; None where it hasn't begun.
        whole: batches of an epoch that begins with the passes, of which limits take their share.
        pacer: the source whose pass ends with the running epoch, if there is one.
    """

    step: int = 0
    epoch: int = 0
    done: int = 0
    size: int | None = None
    whole: int = 0
    pacer: str | None = None


class MixtureLoader:
    """Training batches `{embodiment: batch}`, by a schedule of sources.

    Each source has an epoch and a pool of its own, and each frame comes once per pass of a source.
    With `all`, an epoch is a pass over the longest source (`cycle`), or ends with the first that
    ends (`ends`). With `weighted` it has as many batches as a pass over each has together, or ends
    with the first that ends.

    The position moves on as a batch is handed out; `iter` goes on from there, however often it is
    called, and ends the iterators before it. Where a batch can't be made the position stays.

    Where fewer batches make an epoch (`epoch_limit`), the next epoch goes on in the same passes, so
    that all frames still come once before any comes again.

    Args:
        sources: per embodiment, its frames and their order.
        schedule: how they are mixed.
        world_size: processes that share the frames.
        num_threads: threads that make the batches of all sources.
        epoch_limit: asked how many batches an epoch may have, given those it has without a limit,
            and those of a whole one.
        running_epoch: asked at the start of an epoch for its number, as the trainer counts; it
            counts an epoch that it broke off as one, so that the next is a whole one.
        on_epoch: told at the start of an epoch, or of what is left of one, its number of batches.
        on_batches: told when the first of these is asked for.
        collate_fn: makes dict batches of samples.

    Attributes:
        position: of the batches handed out.
        waited: seconds that were spent waiting for batches, since the loader was made.

    Raises:
        SettingsError: no source, or weights that don't fit them.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        schedule: Schedule,
        *,
        world_size: int,
        num_threads: int,
        epoch_limit: Callable[[int, int], int],
        running_epoch: Callable[[], int],
        on_epoch: Callable[[int], None],
        on_batches: Callable[[], None],
        collate_fn: Collate = collate,
    ) -> None:
        if not sources:
            raise SettingsError("there must be at least one embodiment to train on")
        self.sources, self._schedule = dict(sorted(sources.items())), schedule
        schedule.check_sources(tuple(self.sources))
        self._num_threads, self._world_size = num_threads, world_size
        self._work = {
            name: BatchWork(one.data, make_buffers(num_threads + 1), collate_fn)
            for name, one in self.sources.items()
        }
        self._epoch_limit, self._running_epoch = epoch_limit, running_epoch
        self._on_epoch, self._on_batches = on_epoch, on_batches
        self.position, self.waited = Position(), 0.0
        self._newest = 0  # of the iterators

    def __len__(self) -> int:
        """Return the batches of the running epoch without a limit: those done and those left."""
        return self._begun().size or 0

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        self._newest += 1
        self._on_epoch(self.running_size)
        return self._batches(self._newest)

    @property
    def running_size(self) -> int:
        """The batches of the running epoch, within its limit."""
        return self._limited(self._begun())

    def state(self) -> dict[str, Any]:
        """Return plain values that tell what every rank has left of every source."""
        return {
            **asdict(self.position),
            "world_size": self._world_size,
            "fingerprint": self._fingerprint(),
            "sources": {name: one.sampler.state_dict() for name, one in self.sources.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whichever rank's; see `PositionedSampler.load_state_dict`.

        Raises:
            ResumeError: the sources, their data or a setting that fixes the order are others now,
                or the state is broken. Batches then begin anew.
        """
        self.reset()
        try:
            with reading_state():
                check_fingerprint(state.get("fingerprint"), self._fingerprint())
                self.position = self._restored(state)
        except ResumeError:
            self.reset()
            raise

    def _restored(self, state: Mapping[str, Any]) -> Position:
        """Restore the samplers; return the position."""
        check_whole("the state's world_size", state["world_size"], 1)
        for name, one in self.sources.items():
            try:
                one.sampler.load_state_dict(state["sources"][name])
            except SettingsError as error:
                raise ResumeError(f"embodiment {name!r}: {error}") from error
        at = Position(*(state[field.name] for field in fields(Position)))
        _check_position(at, tuple(self.sources))
        pacer = None if at.pacer is None else self.sources[at.pacer].sampler
        is_same = state["world_size"] == self._world_size
        if is_same and pacer is not None and at.size is not None:
            left = len(pacer) - pacer.done
            if at.size - at.done != left:
                raise broken(f"{at.size - at.done} batches are left of a pass that has {left}")
        if state["world_size"] != self._world_size and at.size is not None:
            at = self._dealt_anew(at, state["world_size"])
        return at

    def reset(self) -> None:
        """Go back to the first batch of the first epoch."""
        for one in self.sources.values():
            one.sampler.reset()
        self.position = Position()
        self._newest += 1

    def _fingerprint(self) -> dict[str, Any]:
        return {"embodiments": list(self.sources), **self._schedule.fingerprint()}

    def _begun(self) -> Position:
        """Return the position in an epoch that has begun, as the next batch will find it."""
        at = self.position if self.position.size is not None else self._begin(self.position)
        # An epoch is over, too, where the trainer broke it off or a resumed run has a lower limit.
        epoch = max(at.epoch + (at.done >= self._limited(at)), self._running_epoch())
        return at if epoch == at.epoch else self._begin(Position(at.step, epoch))

    def _begin(self, at: Position) -> Position:
        """Return a position at the start of an epoch, with what the epoch will have."""
        samplers = {name: source.sampler for name, source in self.sources.items()}
        lengths = {name: one.pass_length for name, one in samplers.items()}
        if self._schedule.at_end == "ends":
            whole = self._schedule.steps_left(lengths, at.step)
            return replace(at, size=self._steps_left(at.step), whole=whole)
        if self._schedule.combine == "weighted" and len(samplers) > 1:
            whole = sum(lengths.values())
            return replace(at, size=whole, whole=whole)
        pacer = max(lengths, key=lambda name: lengths[name])
        one, whole = samplers[pacer], lengths[pacer]
        if one.done and self._epoch_limit(whole, whole) < whole:
            return replace(at, size=whole, whole=whole)  # the passes go on through limited epochs
        # Behind an epoch that was broken off, this is the rest of it.
        return replace(at, size=len(one) - one.done, whole=whole, pacer=pacer)

    def _dealt_anew(self, at: Position, world_size: int) -> Position:
        """Return a position in a running epoch, now that other ranks share what is left of it."""
        assert at.size is not None
        if self._schedule.at_end == "ends":
            return replace(at, size=at.done + self._steps_left(at.step))
        if at.pacer is None:
            left = -(-(at.size - at.done) * world_size // self._world_size)
            return replace(at, size=at.done + left)
        one = self.sources[at.pacer].sampler
        if not one.done:
            return Position(at.step, at.epoch + 1)  # what was left made no full batch
        return replace(at, size=at.done + len(one) - one.done)

    def _limited(self, at: Position) -> int:
        """Return the batches of the running epoch."""
        assert at.size is not None
        return self._epoch_limit(at.size, at.whole)

    def _steps_left(self, step: int) -> int:
        samplers = {name: one.sampler for name, one in self.sources.items()}
        left = {name: len(one) - one.done for name, one in samplers.items()}
        return self._schedule.steps_left(left, step)

    def _batches(self, number: int) -> Iterator[dict[str, Batch]]:
        self.position = self._begun()
        self._on_batches()
        size = self._limited(self.position)
        # Dropped in the middle, the threads end by themselves: to wait for them here could be to
        # wait in the garbage collector, for a lock that this thread holds.
        threads = Threads(self._num_threads)
        steps = self._schedule.steps(tuple(self.sources), self.position.step)
        left = size - self.position.done
        made = self._stream(threads, left)
        for _ in range(left):
            if number != self._newest:
                raise LoaderError(
                    "a newer iterator of these batches goes on in this one's place; a position "
                    "that two move on would show frames twice"
                )
            names, since = next(steps), time.perf_counter()
            batch = {name: next(made) for name in names}
            self.waited += time.perf_counter() - since
            for name in names:
                self.sources[name].sampler.advance()
            self.position = self._behind(size)
            yield batch
        threads.close()

    def _stream(self, threads: Threads, steps: int) -> Iterator[Batch]:
        """Return the batches of all sources for so many steps, in their order."""
        look_ahead = self._num_threads + 1
        return Ordered(threads, self._make, self._indices(steps), look_ahead)

    def _indices(self, count: int) -> Iterator[tuple[str, list[FrameIndex]]]:
        upcoming = {name: one.sampler.upcoming_passes() for name, one in self.sources.items()}
        steps = self._schedule.steps(tuple(self.sources), self.position.step)
        for names in itertools.islice(steps, count):
            for name in names:
                yield name, next(upcoming[name])

    def _make(self, item: tuple[str, list[FrameIndex]]) -> Batch:
        name, indices = item
        return self._work[name].make(indices)

    def _behind(self, size: int) -> Position:
        at = self.position
        if at.done + 1 == size:
            return Position(at.step + 1, at.epoch + 1)
        return replace(at, step=at.step + 1, done=at.done + 1)


def _check_position(at: Position, sources: Sequence[str]) -> None:
    for name in ("step", "epoch", "done", "whole"):
        check_whole(f"the state's {name}", getattr(at, name), 0)
    if at.size is not None:
        check_whole("the state's size", at.size, 1)
        if at.done >= at.size:
            raise broken(f"{at.done} batches are done of an epoch of {at.size}")
    if at.pacer is not None and at.pacer not in sources:
        raise broken(f"the epoch is a pass of {at.pacer!r}, which is not there")


class ValidationLoader:
    """Validation batches `{embodiment: batch}`: every frame once, in order, a source at a time.

    Every rank has as many batches; where frames are too few for that, a rank's last batch holds
    some again, whose samples have `is_repeat`.

    Args:
        sources: per embodiment, its frames.
        batch_size: frames of a full batch.
        num_threads: threads that make the batches.
        rank: whose batches these are.
        world_size: processes that share the frames.
        collate_fn: makes dict batches of samples.

    Raises:
        SettingsError: a wrong batch size.
    """

    def __init__(
        self,
        sources: Mapping[str, MultiDataset],
        *,
        batch_size: int,
        num_threads: int,
        rank: int = 0,
        world_size: int = 1,
        collate_fn: Collate = collate,
    ) -> None:
        self._sources, self._num_threads = dict(sources), num_threads
        self._memory, self._collate = make_buffers(num_threads + 1), collate_fn
        self._orders = {}
        for name, source in self._sources.items():
            tail = fitting_tail(len(source), batch_size, world_size)
            self._orders[name] = InOrder(len(source), batch_size, rank, world_size, tail)

    def __len__(self) -> int:
        return sum(order.num_batches(0) for order in self._orders.values())

    def __iter__(self) -> Iterator[dict[str, Batch]]:
        threads = Threads(self._num_threads)
        for name, order in self._orders.items():
            batches = PositionedSampler(order).upcoming()
            work = BatchWork(self._sources[name], self._memory, self._collate)
            for batch in stream_batches(work, batches, threads, self._num_threads + 1):
                yield {name: batch}
        threads.close()
