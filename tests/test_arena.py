"""Arenas: one piece of memory, used again and again, by one user at a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import arena as arenas
from egoloader.arena import Arena, lent_arena


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(0, 3 * 2**20), min_size=1, max_size=12))
def test_a_piece_is_as_large_as_asked_for_and_can_be_written_to(sizes: list[int]) -> None:
    arena = Arena()
    for number, size in enumerate(sizes):
        piece = arena.take(size)
        piece[:] = number + 1
        assert (piece.shape, piece.dtype) == ((size,), np.uint8)
        assert (piece == number + 1).all()
        assert max(sizes[: number + 1]) <= arena.num_bytes <= max(2 * max(sizes), 2**18)


def test_memory_is_used_again() -> None:
    arena = Arena()
    address = arena.take(400_000).ctypes.data
    assert [arena.take(size).ctypes.data for size in (0, 100_000, 500_000)] == [address] * 3
    arena.trim()
    assert arena.take(100_000).ctypes.data == address


def test_sizes_that_grow_slowly_rarely_make_new_memory() -> None:
    arena, made = Arena(), set()
    for size in range(300_000, 600_000, 1000):
        arena.take(size)
        made.add(arena.num_bytes)
    assert len(made) == 2


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 2**21)
    with lent_arena() as arena:
        arena.take(3 * 2**20)
    assert arena.num_bytes == 0


def test_nobody_shares_an_arena() -> None:
    with lent_arena() as one, lent_arena() as other:
        assert one is not other
    with lent_arena() as again:
        assert again is one or again is other


def test_an_arena_comes_back_after_an_error() -> None:
    with pytest.raises(ValueError, match="broken"), lent_arena() as one:
        raise ValueError("broken")
    with lent_arena() as again:
        assert again is one


def test_threads_get_arenas_of_their_own() -> None:
    barrier, seen = threading.Barrier(4), []

    def work() -> None:
        with lent_arena() as arena:
            seen.append(id(arena))
            barrier.wait(20)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(set(seen)) == 4
