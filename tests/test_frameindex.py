"""Indices that carry their epoch, and whether they are repeats."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

from egoloader.frameindex import FrameIndex, Marks, marks_of


def carried(index: FrameIndex) -> tuple[type, int, int, bool]:
    return type(index), int(index), index.epoch, index.is_repeat


def test_it_is_a_whole_number() -> None:
    index = FrameIndex(7, epoch=3, is_repeat=True)
    assert index == 7
    assert hash(index) == hash(7)
    assert {7: "x"}[index] == "x"
    assert list(range(10))[index] == 7
    assert np.arange(10)[index] == 7
    assert torch.arange(10)[index] == 7
    assert np.asarray([index, index]).dtype == np.int64
    assert torch.tensor([index]).tolist() == [7]
    assert (index.epoch, index.is_repeat) == (3, True)


def test_unless_told_it_is_of_epoch_0_and_no_repeat() -> None:
    assert carried(FrameIndex(5)) == (FrameIndex, 5, 0, False)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_it_goes_to_other_processes_whole(protocol: int) -> None:
    index = FrameIndex(2**40, 12, True)
    for made in (pickle.loads(pickle.dumps(index, protocol)), copy.deepcopy(index)):
        assert carried(made) == (FrameIndex, 2**40, 12, True)


def test_at_another_place_it_carries_the_same() -> None:
    assert carried(FrameIndex(9, 4, True).at(2)) == (FrameIndex, 2, 4, True)
    assert carried(FrameIndex(9, 4).at(0)) == (FrameIndex, 0, 4, False)


def test_marks_of_indices() -> None:
    indices = [FrameIndex(1, 5), 2, np.int64(3), FrameIndex(4, 6, True), torch.tensor(5)]
    marks = marks_of(indices)
    assert list(marks.epochs) == [5, 0, 0, 6, 0]
    assert marks.is_repeat.dtype == np.bool_
    assert marks.is_repeat.tolist() == [False, False, False, True, False]
    for plain in (range(3), np.arange(3), torch.arange(3)):
        assert list(marks_of(plain).epochs) == [0, 0, 0]
        assert not marks_of(plain).is_repeat.any()
    assert marks_of([]).is_repeat.shape == (0,)


def test_marks_at_places() -> None:
    marks = Marks([5, 6, 7], np.array([True, False, True]), np.array([False, False, True]))
    part = marks.at(np.array([2, 0]))
    assert list(part.epochs) == [7, 5]
    assert part.is_repeat.tolist() == [True, True]
    assert part.is_replaced.tolist() == [True, False]
    assert list(marks.at(np.array([1])).epochs) == [6]
    assert not marks.at(np.array([1])).is_repeat.any()
