"""Which episodes an order is over: their names, frames and bytes, whatever the order of listing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
import numpy.typing as npt

from egoloader.errors import ResumeError, SettingsError, check_whole

__all__ = ["Ident", "Roster", "check_fingerprint"]

IntArray = npt.NDArray[np.int64]
Ident = str | int
#: A sum of frames or bytes that int64 does not hold.
_TOO_MANY = 2**63


class Roster:
    """Episodes with frames, sorted by id, so that the order of listing makes no difference.

    Args:
        episodes: (id, frames) pairs, or a mapping of them; ids are texts or whole numbers, each
            once. Those without frames are left out.
        byte_sizes: bytes of each id, or of each pair in its order; None where nobody asks.

    Attributes:
        ids: the ids of those with frames, sorted.
        lengths: (n,) int64, their frames.
        sizes: (n,) int64, their bytes; zeros where none are given.

    Raises:
        SettingsError: an id that is none or comes twice; frames or bytes that are missing or no
            whole number from 0 on.
    """

    def __init__(
        self,
        episodes: Mapping[Any, int] | Iterable[tuple[Any, int]],
        byte_sizes: Mapping[Any, int] | Sequence[int] | None = None,
    ) -> None:
        if not isinstance(episodes, Iterable):
            raise SettingsError(f"episodes are (id, frames) pairs or a mapping, got {episodes!r}")
        listed = list(episodes.items() if isinstance(episodes, Mapping) else episodes)
        by_id = _by_id(listed)
        size_of = _sizes([_plain(ident) for ident, _ in listed], byte_sizes)
        kept = sorted((i for i, n in by_id.items() if n), key=lambda i: (type(i).__name__, i))
        self.ids: tuple[Ident, ...] = tuple(kept)
        if sum(by_id.values()) >= _TOO_MANY:
            raise SettingsError(
                f"episodes have {sum(by_id.values())} frames, more than can be drawn"
            )
        self.lengths = np.array([by_id[ident] for ident in kept], dtype=np.int64)
        self.sizes = np.array([size_of.get(ident, 0) for ident in kept], dtype=np.int64)

    @property
    def num_frames(self) -> int:
        """Frames of all episodes."""
        return int(self.lengths.sum())

    def check_budget(self, byte_budget: object) -> None:
        """Refuse a budget that can't be met; None is no budget.

        Raises:
            SettingsError: the budget is no whole number above 0, or an episode is above it.
        """
        if byte_budget is None:
            return
        check_whole("byte_budget", byte_budget, 1)
        assert isinstance(byte_budget, int)
        for ident, size in zip(self.ids, self.sizes.tolist(), strict=True):
            if size > byte_budget:
                raise SettingsError(
                    f"episode {ident!r} has {size} bytes, more than byte_budget = {byte_budget}; "
                    "raise the budget, or leave the episode out"
                )

    def digest(self) -> str:
        """Return what tells this set of episodes from others: a short text."""
        listed = ascii((self.ids, self.lengths.tolist(), self.sizes.tolist()))
        return hashlib.blake2b(listed.encode(), digest_size=16).hexdigest()


def check_fingerprint(saved: object, now: Mapping[str, Any]) -> None:
    """Refuse to go on from a state of other data or settings.

    Args:
        saved: the state's fingerprint.
        now: this one's, by what a person would call it.

    Raises:
        ResumeError: they differ; names the first that does.
    """
    if not isinstance(saved, Mapping):
        raise ResumeError("can't resume: the state holds no fingerprint; was it saved by this?")
    for name in {**now, **saved}:
        was, is_now = saved.get(name), now.get(name)
        if was != is_now:
            raise ResumeError(
                f"can't resume: {name} was {was!r} and is {is_now!r} now, so that the order would "
                "be another one. Restore it, or start a new run"
            )


def _by_id(listed: Sequence[Any]) -> dict[Ident, int]:
    by_id: dict[Ident, int] = {}
    for pair in listed:
        if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
            raise SettingsError(f"episodes are (id, frames) pairs or a mapping, got {pair!r}")
        ident, frames = pair
        if isinstance(ident, bool) or not isinstance(ident, str | int | np.integer):
            raise SettingsError(f"an episode's id is a text or a whole number, got {ident!r}")
        if not _is_count(frames):
            raise SettingsError(
                f"episode {ident!r}: frames must be a whole number from 0 on, got {frames!r}"
            )
        plain = _plain(ident)
        if plain in by_id:
            raise SettingsError(f"episode {plain!r} is listed twice")
        by_id[plain] = int(frames)
    return by_id


def _sizes(
    ids: Sequence[Ident], byte_sizes: Mapping[Any, int] | Sequence[int] | None
) -> dict[Ident, int]:
    if byte_sizes is None:
        return {}
    if not isinstance(byte_sizes, Sized):
        raise SettingsError(f"byte_sizes is a mapping or a list of sizes, got {byte_sizes!r}")
    if not isinstance(byte_sizes, Mapping):
        if len(byte_sizes) != len(ids):
            raise SettingsError(
                f"byte_sizes lists {len(byte_sizes)} sizes for {len(ids)} episodes; give one each, "
                "or a mapping from id to size"
            )
        byte_sizes = dict(zip(ids, byte_sizes, strict=True))
    for ident in ids:
        size = byte_sizes.get(ident)
        if size is None:
            raise SettingsError(f"episode {ident!r} is missing from byte_sizes")
        if not _is_count(size) or size >= _TOO_MANY // max(len(ids), 1):
            raise SettingsError(
                f"episode {ident!r}: byte_sizes must be whole numbers from 0 on, of which int64 "
                f"holds the sum, got {size!r}"
            )
    return {ident: int(byte_sizes[ident]) for ident in ids}


def _plain(ident: Any) -> Ident:
    """Return an id without NumPy's type, which would be told from it."""
    return str(ident) if isinstance(ident, str) else int(ident)


def _is_count(number: object) -> bool:
    is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    return is_whole and number >= 0  # type: ignore[operator]
