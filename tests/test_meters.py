"""Means over an epoch: by what was counted, NaN to be seen, and nothing to save."""

from __future__ import annotations

import pytest
import torch

from egoloader.train.meters import Meters


def test_means_are_over_what_is_counted() -> None:
    meters = Meters(["val/error/arm/left.action", "val/loss"])
    for value, count in ((1.0, 6), (5.0, 2), (9.0, 0)):
        metric = meters.add("val/error/arm/left.action", torch.tensor(value), torch.tensor(count))
    assert metric.compute().item() == pytest.approx(2.0)
    loss = meters.add("val/loss", torch.tensor(7.0, requires_grad=True), torch.tensor(2)).compute()
    assert loss.item() == 7.0
    assert not loss.requires_grad


def test_nan_is_seen_in_the_mean() -> None:
    meters = Meters(["loss"])
    meters.add("loss", torch.tensor(1.0), torch.tensor(2))
    assert meters.add("loss", torch.tensor(torch.nan), torch.tensor(2)).compute().isnan()


def test_they_are_part_of_no_checkpoint() -> None:
    meters = Meters(["a.b/c"])
    meters.add("a.b/c", torch.tensor(1.0), torch.tensor(2))
    assert not meters.state_dict()


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(KeyError, match="lose"):
        Meters(["loss"]).add("lose", torch.tensor(1.0), torch.tensor(2))


def test_one_that_counted_nothing_is_zero() -> None:
    assert Meters(["loss"]).add("loss", torch.tensor(0.0), torch.tensor(0)).compute().item() == 0.0
