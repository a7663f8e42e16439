"""Threads that work ahead, and their results in order; no thread is left when they are let go."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader.errors import EgoloaderError, LoaderError, SettingsError
from egoloader.threads import Ordered, Threads
from tests.children import in_a_fork
from tests.threads import LIMIT, left_behind, running


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    assert left_behind() == []
    yield
    assert left_behind() == []


def double(item: int) -> int:
    return 2 * item


class Gates:
    """Work that begins, and then waits until it is let through."""

    def __init__(self, number: int) -> None:
        self.begun = [threading.Event() for _ in range(number)]
        self.gates = [threading.Event() for _ in range(number)]

    def __call__(self, item: int) -> int:
        self.begun[item].set()
        assert self.gates[item].wait(LIMIT)
        return 2 * item

    def open(self, *items: int) -> None:
        for item in items:
            self.gates[item].set()

    def have_begun(self) -> list[bool]:
        return [event.is_set() for event in self.begun]


# Order.


def test_results_come_in_order_though_the_last_is_done_first() -> None:
    done = [threading.Event() for _ in range(5)]
    finished: list[int] = []

    def after_the_next(item: int) -> int:
        if item % 4 != 3:  # of four that run at once, each waits for the one behind it
            assert done[item % 4 + 1].wait(LIMIT)
        finished.append(item)
        done[item % 4].set()
        return 2 * item

    with Threads(4) as threads:
        assert list(Ordered(threads, after_the_next, range(4), 4)) == [0, 2, 4, 6]
    assert finished == [3, 2, 1, 0]


@settings(deadline=None, max_examples=40)
@given(
    num_items=st.integers(0, 20),
    num_threads=st.integers(1, 4),
    look_ahead=st.integers(1, 6),
    failing=st.sets(st.integers(0, 19)),
)
def test_results_and_errors_come_in_their_items_places(
    num_items: int, num_threads: int, look_ahead: int, failing: set[int]
) -> None:
    def work(item: int) -> int:
        if item in failing:
            raise KeyError(item) from ZeroDivisionError(f"cause {item}")
        return 2 * item

    found: list[Any] = []
    with Threads(num_threads) as threads:
        results = Ordered(threads, work, range(num_items), look_ahead)
        for _ in range(num_items):
            try:
                found.append(next(results))
            except KeyError as error:
                found.append((error.args[0], str(error.__cause__)))
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(results)
    assert found == [(i, f"cause {i}") if i in failing else 2 * i for i in range(num_items)]


def test_an_error_of_the_items_comes_behind_the_results_before_it() -> None:
    def items() -> Iterator[int]:
        yield from (1, 2, 3)
        raise ZeroDivisionError("of the sampler")

    with Threads(2) as threads:
        results = Ordered(threads, double, items(), 8)
        assert [next(results) for _ in range(3)] == [2, 4, 6]
        with pytest.raises(ZeroDivisionError, match="of the sampler"):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


def test_items_are_drawn_in_the_callers_thread() -> None:
    drawn_in: list[int] = []
    made_in: list[int] = []

    def items() -> Iterator[int]:
        for item in range(9):
            drawn_in.append(threading.get_ident())
            yield item

    with Threads(3) as threads:
        list(Ordered(threads, lambda _: made_in.append(threading.get_ident()), items(), 4))
    assert set(drawn_in) == {threading.get_ident()}
    assert threading.get_ident() not in made_in
    assert len(drawn_in) == len(made_in) == 9


# Looking ahead.


@pytest.mark.parametrize("num_threads", [1, 2, 5])
@pytest.mark.parametrize("look_ahead", [1, 2, 5])
def test_no_more_is_begun_than_the_look_ahead(num_threads: int, look_ahead: int) -> None:
    gates = Gates(20)
    drawn: list[int] = []

    def items() -> Iterator[int]:
        for item in range(20):
            drawn.append(item)
            yield item

    with Threads(num_threads) as threads:
        results = Ordered(threads, gates, items(), look_ahead)
        assert drawn == []  # before the first is asked for
        for taken in range(15):
            gates.open(taken)
            assert next(results) == 2 * taken
            assert sum(gates.have_begun()) <= len(drawn) <= taken + look_ahead
        gates.open(*range(20))


def test_work_goes_on_while_nobody_takes_the_results() -> None:
    gates = Gates(8)
    gates.open(*range(8))
    with Threads(2) as threads:
        results = Ordered(threads, gates, range(8), 4)
        assert next(results) == 0
        assert all(gates.begun[item].wait(LIMIT) for item in (1, 2, 3))
        assert gates.have_begun()[4:] == [False] * 4


# The end.


def test_closing_waits_for_what_was_begun_and_drops_the_rest() -> None:
    gates = Gates(6)
    threads = Threads(2)
    pending = [threads.submit(gates, item) for item in range(6)]
    assert all(gates.begun[item].wait(LIMIT) for item in (0, 1))
    opener = threading.Timer(0.05, gates.open, args=(0, 1))
    opener.start()
    threads.close()
    assert running() == []
    assert gates.have_begun() == [True] * 2 + [False] * 4
    assert [future.cancelled() for future in pending] == [False] * 2 + [True] * 4
    assert [future.result() for future in pending[:2]] == [0, 2]
    threads.close()  # again, which changes nothing
    opener.join()


@pytest.mark.parametrize("num_taken", [0, 1, 3, 6])
def test_dropping_results_ends_their_threads(num_taken: int) -> None:
    results = Ordered(Threads(3), double, range(6), 4)
    assert [next(results) for _ in range(num_taken)] == [2 * item for item in range(num_taken)]
    assert running() or num_taken in (0, 6)
    del results
    assert left_behind() == []


def test_an_error_does_not_keep_the_threads_once_it_is_gone() -> None:
    def fail(item: int) -> int:
        raise ZeroDivisionError(item)

    def take() -> None:
        for _ in Ordered(Threads(2), fail, range(9), 3):
            pass

    gc.disable()
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            take()
        del caught
        assert left_behind() == []
    finally:
        gc.enable()


class Result:
    """Something that a weak reference can be made to."""


def test_what_was_taken_is_not_kept() -> None:
    gc.disable()
    try:
        with Threads(2) as threads:
            results = Ordered(threads, lambda _: Result(), range(6), 3)
            taken = [weakref.ref(next(results)) for _ in range(6)]
            end = time.monotonic() + LIMIT  # of a thread that is just letting one go
            while any(ref() for ref in taken) and time.monotonic() < end:
                time.sleep(0.001)
            assert [ref() for ref in taken] == [None] * 6
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_reaches_the_caller_and_ends_the_threads(kind: Any) -> None:
    def interrupt(item: int) -> int:
        if item == 2:
            raise kind
        return item

    results = Ordered(Threads(2), interrupt, range(9), 3)
    assert [next(results), next(results)] == [0, 1]
    with pytest.raises(kind):
        next(results)
    assert left_behind() == []


def test_results_that_were_interrupted_are_over_in_words_of_this_package() -> None:
    def interrupt(item: int) -> int:
        raise KeyboardInterrupt

    results = Ordered(Threads(1), interrupt, range(9), 3)
    with pytest.raises(KeyboardInterrupt):
        next(results)
    for _ in range(4):
        with pytest.raises((EgoloaderError, StopIteration)):
            next(results)


@pytest.mark.parametrize("number", [0, -1, 1.0, "2", True, None])
def test_wrong_numbers_of_threads_are_refused(number: Any) -> None:
    with pytest.raises(SettingsError, match="num_threads must be a whole number above 0"):
        Threads(number)


# The garbage collector, and other processes.


class Cycle:
    """Holds something that only the garbage collector can free."""

    def __init__(self, held: Any) -> None:
        self.held, self.itself = held, self


def test_a_thread_may_collect_the_results_that_it_works_for() -> None:
    begun, is_garbage, collected = (threading.Event() for _ in range(3))

    def collect(item: int) -> int:
        if item == 1:
            begun.set()
            assert is_garbage.wait(LIMIT)
            gc.collect()
            collected.set()
        return item

    gc.collect()
    gc.disable()
    try:
        cycle = Cycle(Ordered(Threads(1), collect, range(9), 3))
        assert next(cycle.held) == 0
        assert begun.wait(LIMIT)
        gone = weakref.ref(cycle.held)
        del cycle
        is_garbage.set()
        assert collected.wait(LIMIT)
        assert gone() is None
    finally:
        gc.enable()


def test_collecting_results_does_not_wait_for_a_lock_that_the_collecting_thread_holds() -> None:
    # The collector comes at any time: while a dataset opens an episode under its lock, too.
    lock, begun, collected = threading.Lock(), threading.Event(), threading.Event()

    def work(item: int) -> int:
        if item > 0:
            begun.set()
            with lock:
                pass
        return item

    def collect() -> None:
        gc.collect()
        collected.set()

    gc.collect()
    gc.disable()
    try:
        cycle = Cycle(Ordered(Threads(1), work, range(9), 3))
        with lock:
            assert next(cycle.held) == 0
            assert begun.wait(LIMIT)
            del cycle
            # In a thread that stands for this one, so that this one can give up.
            collector = threading.Thread(target=collect)
            collector.start()
            is_collected = collected.wait(3)
        collector.join()
        assert is_collected
    finally:
        gc.enable()


def test_a_forked_child_can_not_use_its_parents_threads() -> None:
    threads = Threads(2)
    results = Ordered(threads, double, range(9), 3)
    assert next(results) == 0

    def child() -> None:
        for use in (lambda: next(results), lambda: threads.submit(double, 1)):
            with pytest.raises(LoaderError, match=r"process.*iterate over the loader anew"):
                use()
        threads.close()  # harmless: they are the parent's
        with Threads(2) as mine:
            assert list(Ordered(mine, double, range(3), 2)) == [0, 2, 4]

    in_a_fork(child, limit_s=LIMIT)
    assert list(results) == [2 * item for item in range(1, 9)]
    threads.close()
