"""Arenas: pieces that don't overlap, memory that is used again, and is one user's at a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import arena as arenas
from egoloader.arena import Arena, lent_arena


@settings(deadline=None, max_examples=60)
@given(rounds=st.lists(st.lists(st.integers(0, 3 * 2**20), max_size=12), min_size=1, max_size=4))
def test_pieces_hold_what_was_put_there_until_the_arena_is_cleared(rounds: list[list[int]]) -> None:
    arena = Arena()
    for sizes in rounds:
        pieces = [arena.take(size) for size in sizes]
        for number, piece in enumerate(pieces):
            piece[:] = number + 1
        for number, (size, piece) in enumerate(zip(sizes, pieces, strict=True)):
            assert (piece.shape, piece.dtype) == ((size,), np.uint8)
            assert (piece == number + 1).all()
        arena.clear()


def test_memory_is_used_again() -> None:
    arena = Arena()
    for _ in range(3):  # blocks grow until one holds it all
        for _ in range(40):
            arena.take(100_000)
        arena.clear()
    before = arena.num_bytes
    address = arena.take(100_000).ctypes.data
    for _ in range(39):
        arena.take(100_000)
    assert arena.num_bytes == before
    arena.clear()
    assert arena.take(100_000).ctypes.data == address


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "KEPT_BYTES", 2**21)
    arena = Arena()
    arena.take(3 * 2**20)
    arena.clear()
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


def test_large_batches_find_their_memory_again() -> None:
    arena = Arena()
    for _ in range(2):
        addresses = [arena.take(150_000).ctypes.data for _ in range(600)]  # 86 MiB
        arena.clear()
    assert [arena.take(150_000).ctypes.data for _ in range(600)] == addresses
