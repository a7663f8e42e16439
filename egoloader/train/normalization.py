"""What a run's numbers are normalised by: statistics of the episodes that it trains on."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from egoloader.datamodule import EpisodeDataModule
from egoloader.errors import check_whole
from egoloader.normalizer import Mode, Normalizer, NormalizerSettings
from egoloader.stats import NormStats, OutlierFilter, Skip
from egoloader.terminal import shown

__all__ = ["Normalization"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """How a run normalises numbers, and which frames it takes for outliers.

    Args:
        mode: see `NormalizerSettings`, like the next two.
        modes: of single keys, of all embodiments or one; None for none.
        skip: numbers that stay as they are, and make no frame an outlier: rotations, flags.
        per_step: keys of which each step of a chunk has statistics of its own.
        outliers: names of two quantiles: frames of which a number in any window lies outside are
            not trained on; see `NormStats.compute`, like the rest.
        workers: processes that read episodes.
        cache: a folder that keeps what is computed.

    Raises:
        SettingsError: an option that can't be meant.
    """

    mode: Mode = "quantile"
    modes: Mapping[str, Mode | Mapping[str, Mode]] | None = None
    skip: Skip | None = None
    per_step: Sequence[str] = ()
    outliers: Sequence[str] | None = None
    workers: int = 1
    cache: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _ = self._settings
        check_whole("workers", self.workers, 1)

    def fit(self, data: EpisodeDataModule) -> Normalizer:
        """Compute statistics of a data module's training episodes; have it pass over outliers.

        The frames that count are those that it draws, each once, whatever its weight above 0. Call
        it ahead of the module's `setup`.

        Raises:
            SettingsError: an option that doesn't fit the episodes.
            EpisodeError: an episode can't be read, or holds NaN or inf.
        """
        columns = (TextColumn("statistics"), BarColumn(), MofNCompleteColumn())
        console = Console(stderr=True)
        with Progress(
            *columns,
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress:
            bar = progress.add_task("statistics", total=None)
            stats = NormStats.compute(
                data.training_episodes,
                per_step=self.per_step,
                frame_filter=data.frame_filter,
                frame_weights=data.frame_weights,
                outliers=self.outliers,
                skip=self._skip,
                workers=self.workers,
                cache=self.cache,
                on_progress=lambda done, total: progress.update(bar, completed=done, total=total),
            )
        if stats.outliers is not None:
            data.frame_filter = stats.outliers
            console.print(_report(stats.outliers), soft_wrap=True)
        return Normalizer(stats, self._settings)

    @property
    def _settings(self) -> NormalizerSettings:
        modes = {} if self.modes is None else self.modes
        return NormalizerSettings(mode=self.mode, modes=modes, skip=self._skip)

    @property
    def _skip(self) -> Skip:
        return () if self.skip is None else self.skip


def _report(outliers: OutlierFilter) -> str:
    """Return how many frames of each embodiment are left out, and by which keys' numbers."""
    low, high = outliers.quantiles
    shares = ", ".join(
        f"{shown(name)} {count} of {counted}"
        for name, (count, counted) in outliers.by_embodiment.items()
    )
    by_key = ", ".join(f"{shown(key)} {count}" for key, count in outliers.by_key.items())
    text = f"frames with numbers outside {low} to {high} are left out: {shares}"
    return f"{text} (by key: {by_key})" if by_key else text
