"""Means over an epoch that nothing waits for: numbers stay on the device until it ends."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torchmetrics import Metric

__all__ = ["Meters"]


class Mean(Metric):
    """A mean by counts, of all processes; NaN is to be seen in it, and 0 counts of nothing.

    torchmetrics' own waits for the device to look for NaN; told not to, it takes no counts.
    """

    total: torch.Tensor
    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("total", "count"):
            self.add_state(name, torch.tensor(0.0), dist_reduce_fx="sum")

    def update(self, value: torch.Tensor, count: torch.Tensor) -> None:
        """Take in a mean, (), over that many, ()."""
        self.total = self.total + value * count
        self.count = self.count + count

    def compute(self) -> torch.Tensor:
        """Return the mean, (); 0 of nothing."""
        return self.total / self.count.clamp(min=1)


class Meters(nn.Module):
    """One mean a name, over what is counted in all steps and processes.

    Names of metrics hold dots and slashes, which names of modules may not; a list stands in.

    Args:
        names: of the means.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._places = {name: place for place, name in enumerate(names)}
        self._means = nn.ModuleList(Mean() for _ in self._places)

    def add(self, name: str, value: torch.Tensor, count: torch.Tensor) -> Mean:
        """Take in a value that is the mean over some; return the metric, to be logged.

        Args:
            name: of the mean.
            value: (); of none, it has no part.
            count: (), over how many frames or numbers, on the value's device.
        """
        metric = self._means[self._places[name]]
        assert isinstance(metric, Mean)
        metric.update(value.detach(), count)
        return metric
