"""Means over an epoch that nothing waits for: numbers stay on the device until it ends."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torchmetrics import MeanMetric

__all__ = ["Meters"]


class Meters(nn.Module):
    """One mean a name, over what is counted in all steps and processes.

    Names of metrics hold dots and slashes, which names of modules may not; a list stands in.

    Args:
        names: of the means.
    """

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__()
        self._places = {name: place for place, name in enumerate(names)}
        # Looking for NaN would wait for the device; NaN is to be seen in the mean.
        self._means = nn.ModuleList(MeanMetric(nan_strategy="disable") for _ in self._places)

    def add(self, name: str, value: torch.Tensor, count: torch.Tensor) -> MeanMetric:
        """Take in a value that is the mean over some; return the metric, to be logged.

        Args:
            name: of the mean.
            value: (); of none, it has no part.
            count: (), over how many frames or numbers, on the value's device.
        """
        metric = self._means[self._places[name]]
        assert isinstance(metric, MeanMetric)
        metric.update(value.detach(), count)
        return metric
