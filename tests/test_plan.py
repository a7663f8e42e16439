"""Read plans: the worked examples of DESIGN section 5, and what must hold of every plan."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egoloader import ZarrEpisode
from egoloader.batchplan import plan_batch
from egoloader.keymap import KeySpec
from egoloader.plan import EntryPlan, ReadPlan, merge_runs, outline_plan, plan_rows
from egoloader.windows import consecutive_runs, entry_pads, entry_rows, entry_steps
from tests.strategies import key_specs, row_windows

Windows = list[tuple[int, int]]
plan_reads = ZarrEpisode.plan_reads


@pytest.mark.parametrize(
    ("windows", "chunk_rows", "groups"),
    [
        ([(57, 61), (60, 160)], 100, [(57, 160)]),
        ([(0, 1), (150, 151)], 100, [(0, 151)]),
        ([(0, 1), (250, 251)], 100, [(0, 1), (250, 251)]),
        ([(99, 100), (100, 101)], 100, [(99, 101)]),
        ([(60, 61), (57, 58)], 1, [(57, 58), (60, 61)]),
        ([(59, 60), (60, 61)], 1, [(59, 61)]),
        ([], 100, []),
        ([], 1, []),
    ],
)
def test_worked_examples(windows: Windows, chunk_rows: int, groups: Windows) -> None:
    assert plan_reads(windows, chunk_rows) == groups


@pytest.mark.parametrize(
    ("windows", "chunk_rows", "groups"),
    [
        ([(0, 300), (10, 20), (120, 121)], 100, [(0, 300)]),
        ([(5, 6), (5, 6)], 100, [(5, 6)]),
        ([(0, 100), (200, 201)], 100, [(0, 100), (200, 201)]),
        ([(0, 101), (299, 300)], 100, [(0, 300)]),
        ([(0, 300), (10, 20), (450, 451)], 100, [(0, 300), (450, 451)]),
        ([(0, 1), (150, 151), (250, 251)], 100, [(0, 251)]),
        ([(0, 1), (2, 3)], 1, [(0, 1), (2, 3)]),
    ],
)
def test_further_examples(windows: Windows, chunk_rows: int, groups: Windows) -> None:
    assert plan_reads(windows, chunk_rows) == groups


@pytest.mark.parametrize(
    "windows",
    [[(3, 3)], [(4, 3)], [(-1, 2)], [(-3, -1)], [(0, 1), (5, 5)], [(0, 10), (3, 2)]],
)
def test_empty_reversed_and_negative_windows_are_refused(windows: Windows) -> None:
    with pytest.raises(ValueError, match="window"):
        plan_reads(windows, 100)


@pytest.mark.parametrize("chunk_rows", [0, -1])
@pytest.mark.parametrize("windows", [[], [(0, 1)]])
def test_chunk_rows_below_one_are_refused(windows: Windows, chunk_rows: int) -> None:
    with pytest.raises(ValueError, match="chunk_rows"):
        plan_reads(windows, chunk_rows)


def test_what_comes_in_is_left_alone() -> None:
    windows = [(60, 61), (57, 58)]
    plan_reads(windows, 1)
    assert windows == [(60, 61), (57, 58)]


def rows_of(windows: Windows) -> set[int]:
    return {row for start, stop in windows for row in range(start, stop)}


def chunks_of(windows: Windows, chunk_rows: int) -> set[int]:
    return {row // chunk_rows for row in rows_of(windows)}


@settings(deadline=None, max_examples=50)
@given(windows=row_windows(300, max_size=12), chunk_rows=st.integers(1, 120), data=st.data())
def test_plans_cover_all_are_sorted_disjoint_and_touch_no_further_chunk(
    windows: Windows, chunk_rows: int, data: st.DataObject
) -> None:
    groups = plan_reads(windows, chunk_rows)
    assert rows_of(windows) <= rows_of(groups)
    assert chunks_of(groups, chunk_rows) == chunks_of(windows, chunk_rows)
    assert all(start < stop for start, stop in groups)
    for (_, stop), (start, _) in itertools.pairwise(groups):
        # Neighbours that stay apart have a whole chunk between them that none needs.
        assert start // chunk_rows - (stop - 1) // chunk_rows > 1
    assert plan_reads(groups, chunk_rows) == groups
    shuffled = data.draw(st.permutations(windows))
    assert plan_reads(shuffled, chunk_rows) == groups


@settings(deadline=None, max_examples=50)
@given(
    rows=st.lists(st.integers(0, 200), min_size=1, max_size=30),
    chunk_rows=st.integers(1, 50),
    data=st.data(),
)
def test_locate_finds_each_row_in_what_the_read_returns(
    rows: list[int], chunk_rows: int, data: st.DataObject
) -> None:
    stored = 1000 + np.arange(201)
    plan = plan_rows([np.array(rows)], chunk_rows)
    returned = np.concatenate([stored[start:stop] for start, stop in plan.groups])
    assert plan.num_rows == len(returned)
    assert (plan.rows == returned - 1000).all()
    shape = data.draw(st.sampled_from([(len(rows),), (1, len(rows)), (len(rows), 1)]))
    asked = np.array(rows).reshape(shape)
    places = plan.locate(asked)
    assert places.shape == shape
    assert (returned[places] == stored[asked]).all()


@settings(deadline=None, max_examples=50)
@given(rows=st.lists(st.integers(0, 60), max_size=30))
def test_rows_become_the_fewest_windows(rows: list[int]) -> None:
    windows = consecutive_runs(np.array(rows, dtype=np.int64))
    assert rows_of(windows) == set(rows)
    assert sum(stop - start for start, stop in windows) == len(set(rows))
    assert all(b[0] > a[1] for a, b in itertools.pairwise(windows))


def test_a_batch_is_one_read_an_array_over_all_entries_and_frames() -> None:
    horizon = entry_steps(KeySpec(zarr_key="a", key_type="action_keys", horizon=3), 30)
    history = entry_steps(KeySpec(zarr_key="a", key_type="proprio_keys", history=4), 30)
    now = entry_steps(KeySpec(zarr_key="b", key_type="proprio_keys"), 30)
    frames = np.array([12, 2])
    outline = outline_plan(
        {
            "action": EntryPlan("a", horizon, is_cut=True),
            "state": EntryPlan("a", history, is_cut=False),
            "now": EntryPlan("b", now, is_cut=False),
        },
        {"a": 5, "b": 1},
    )
    one = np.zeros(2, dtype=np.int64)
    plan = plan_batch(outline, frames, one, np.array([20]), np.array([13, 20]))
    assert plan.rows("action").tolist() == [[12, 12, 12], [2, 3, 4]]
    assert plan.rows("state").tolist() == [[9, 10, 11, 12], [0, 0, 1, 2]]
    # [0, 5) and [9, 13) lie in neighbouring chunks of 5; row 13 and 14 are cut, and not read.
    assert plan.reads == {"a": ReadPlan(((0, 13),)), "b": ReadPlan(((2, 3), (12, 13)))}


@settings(deadline=None, max_examples=200)
@given(windows=row_windows(400, min_size=1), chunk_rows=st.integers(1, 60))
def test_runs_merge_as_windows_do(windows: Windows, chunk_rows: int) -> None:
    starts, stops = np.array(windows, dtype=np.int64).T
    found = zip(*(bound.tolist() for bound in merge_runs(starts, stops, chunk_rows)), strict=True)
    assert list(found) == plan_reads(windows, chunk_rows)


@pytest.mark.parametrize("chunk_rows", [1, 2, 3, 7])
def test_one_frame_is_planned_as_its_rows_are_wherever_it_stands(chunk_rows: int) -> None:
    total = 20 * chunk_rows
    for distance in range(1, 4 * chunk_rows):
        spec = KeySpec(zarr_key="a", key_type="proprio_keys", offsets=(0, distance, 2 * distance))
        steps = entry_steps(spec, 30)
        outline = outline_plan({"key": EntryPlan("a", steps, is_cut=False)}, {"a": chunk_rows})
        # Whether such a gap is read through depends on the place.
        assert (outline.fixed is None) == (chunk_rows < distance < 2 * chunk_rows)
        for frame in range(4 * chunk_rows):
            plan = plan_batch(outline, np.array([frame]), np.zeros(1, int), np.array([total]), None)
            rows = frame + steps.offsets
            assert plan.reads["a"] == plan_rows([rows], chunk_rows)
            assert plan.reads["a"].rows[plan.places("key")].tolist() == [rows.tolist()]


@settings(deadline=None, max_examples=200)
@given(
    specs=st.lists(key_specs(), min_size=1, max_size=5),
    chunks=st.lists(st.integers(1, 12), min_size=2, max_size=2),
    totals=st.lists(st.integers(1, 200), min_size=1, max_size=3),
    data=st.data(),
)
def test_a_batch_plan_equals_the_plan_of_all_its_rows(
    specs: list[KeySpec], chunks: list[int], totals: list[int], data: st.DataObject
) -> None:
    entries = {
        f"key {n}": EntryPlan("ab"[n % 2], entry_steps(spec, 30), is_cut=False)
        for n, spec in enumerate(specs)
    }
    chunk_rows = dict(zip("ab", chunks, strict=True))
    asked = [(n, data.draw(st.integers(0, total - 1))) for n, total in enumerate(totals)]
    more = data.draw(st.lists(st.integers(0, len(totals) - 1), max_size=4))
    asked += [(n, data.draw(st.integers(0, totals[n] - 1))) for n in more]
    numbers, frames = np.array(data.draw(st.permutations(asked)), dtype=np.int64).T
    outline = outline_plan(entries, chunk_rows)
    plan = plan_batch(outline, frames, numbers, np.array(totals), None)
    ends = np.array(totals)[numbers]
    rows = {key: entry_rows(entry.steps, frames, ends) for key, entry in entries.items()}
    # What the reads of each array return, one episode's behind the other's: number and row.
    returned: dict[str, list[tuple[int, int]]] = {}
    for array, read in outline.arrays.items():
        for n, reads in enumerate(plan.episodes):
            needed = [
                rows[key][numbers == n] for key, entry in entries.items() if entry.zarr_key == array
            ]
            assert reads[read] == plan_rows(needed, chunk_rows[array])
            returned.setdefault(array, []).extend((n, row) for row in reads[read].rows.tolist())
    assert plan.reads == {array: plan.episodes[0][read] for array, read in outline.arrays.items()}
    for key, entry in entries.items():
        assert plan.rows(key).tolist() == rows[key].tolist()
        assert plan.is_pad(key).tolist() == entry_pads(entry.steps, frames, ends).tolist()
        places, line = plan.places(key), plan.lines[outline.entries[key]]
        for n, at, found in zip(numbers, places, rows[key], strict=True):
            held = [returned[entry.zarr_key][place] for place in np.atleast_1d(at)]
            assert held == [(n, row) for row in np.atleast_1d(found)]
        if line is not None:
            assert np.arange(len(returned[entry.zarr_key]))[None, line].tolist() == places.tolist()
