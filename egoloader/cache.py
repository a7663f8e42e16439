"""What was decoded or read before, kept within a budget of bytes, for each process on its own."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

from egoloader.errors import SettingsError

__all__ = ["CACHE_BYTES", "ENTRY_BYTES", "ByteCache"]

#: Default budget of what a dataset keeps in each process.
CACHE_BYTES = 256 * 2**20
#: What an entry takes besides an array's numbers: its key, its place, Python's heads of all.
ENTRY_BYTES = 512


class _State:
    """What a cache holds in one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self.num_bytes = 0


class ByteCache:
    """Values by key, at most `budget` bytes of them; the least recently used go first.

    Safe from threads. A forked or spawned process starts with an empty one.

    Args:
        budget: in bytes; 0 keeps nothing.

    Raises:
        SettingsError: the budget is no whole number from 0 on.
    """

    def __init__(self, budget: int = CACHE_BYTES) -> None:
        if type(budget) is not int or budget < 0:
            raise SettingsError(f"cache_bytes must be a whole number from 0 on, got {budget!r}")
        self.budget = budget
        self._state = _State()

    def __reduce__(self) -> tuple[object, ...]:
        return ByteCache, (self.budget,)

    def __len__(self) -> int:
        return len(self._here().values)

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept."""
        return self._here().num_bytes

    def get(self, key: Hashable) -> Any:
        """Return the value of a key; None where there is none."""
        return self.get_all((key,))[0][0]

    def get_all(self, keys: Sequence[Hashable]) -> tuple[list[Any], bool]:
        """Return the values of keys, None for each that there is none of; and if there are all."""
        state = self._here()
        kept, use = state.values, state.values.move_to_end
        values: list[Any] = []
        has_all = True
        with state.lock:
            for key in keys:
                found = kept.get(key)
                if found is None:
                    has_all = False
                    values.append(None)
                else:
                    use(key)
                    values.append(found[0])
        return values, has_all

    def put(self, key: Hashable, value: Any, num_bytes: int) -> None:
        """Keep a value that takes `num_bytes`, unless it is larger than the whole budget."""
        state = self._here()
        with state.lock:
            replaced = state.values.pop(key, None)
            if num_bytes > self.budget or self.budget == 0:
                state.num_bytes -= replaced[1] if replaced else 0
                return
            state.values[key] = (value, num_bytes)
            state.num_bytes += num_bytes - (replaced[1] if replaced else 0)
            while state.num_bytes > self.budget:
                _, (_, freed) = state.values.popitem(last=False)
                state.num_bytes -= freed

    def _here(self) -> _State:
        state = self._state
        if state.pid != os.getpid():
            # In a forked child the lock may be held by a thread that the child does not have.
            state = self._state = _State()
        return state
