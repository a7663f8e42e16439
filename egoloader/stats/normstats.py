"""Statistics of the numbers that a policy is trained on, per embodiment and key."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from egoloader.columns import Column
from egoloader.dataset import MultiDataset, ZarrDataset
from egoloader.errors import MissingStatisticsError, SettingsError, near_miss
from egoloader.stats.computation import Computation, ComputationSettings
from egoloader.stats.keystats import KeyStats
from egoloader.stats.outliers import OutlierFilter
from egoloader.stats.processes import EpisodeWorkers
from egoloader.stats.skipping import Skip

__all__ = ["NormStats"]

_FORMAT, _VERSION = "egoloader.NormStats", 1


class _Keys(dict[str, KeyStats]):
    """Those of one embodiment."""

    def __missing__(self, key: str) -> KeyStats:
        raise MissingStatisticsError(
            f"there are no statistics of key {key!r}; {near_miss(str(key), self)}"
        )


class NormStats(Mapping[str, Mapping[str, KeyStats]]):
    """Statistics by embodiment, then by key: `stats["sawyer"]["state"].mean`.

    Attributes:
        outliers: the filter that was made with them, where one was asked for.

    Args:
        stats: by embodiment, then by key.
        outliers: a filter of their outliers.
    """

    def __init__(
        self, stats: Mapping[str, Mapping[str, KeyStats]], outliers: OutlierFilter | None = None
    ) -> None:
        self._stats = {name: _Keys(keys) for name, keys in stats.items()}
        self.outliers = outliers

    @classmethod
    def compute(
        cls,
        data: MultiDataset | ZarrDataset,
        *,
        keys: Sequence[str] | None = None,
        per_step: Sequence[str] = (),
        frame_filter: Column | None = None,
        frame_weights: Column | None = None,
        outliers: Sequence[str] | None = None,
        skip: Skip = (),
        workers: int = 1,
        cache: str | os.PathLike[str] | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> NormStats:
        """Compute the statistics of a dataset: of what its samples hold behind its transforms.

        A key whose rows are made row by row (all its transforms are `is_per_row`) is read as rows:
        the row of every served frame counts once, as it is stored, whatever the key's window;
        padding never does, nor do rows at or past `total_frames`. A key that is made of several
        rows, or by a callable that is no `Transform`, is looked at in the samples of all served
        frames; each step of a window counts there, padded ones (`<key>_is_pad`) do not. Padded
        dimensions (`<key>_dim_is_pad`) and arrays that are absent never count. Cameras are not
        read: transforms of cameras alone are left out.

        An action of which nothing counts is refused, and of another key there is a
        `StatisticsWarning`.

        Frames that are not drawn (in quarantine, not kept by `frame_filter`, or of weight 0) don't
        count: a row
        that is met in other frames' windows only is not among the rows.

        Moments are summed in float64, and are the same, bit for bit, for any number of workers and
        any order of episodes. Quantiles are exact, interpolated linearly, up to 100,000 rows of an
        embodiment (of rows and steps, where a key is looked at in samples), then by t-digests,
        whose error `KeyStats.rank_errors` states.

        Args:
            data: the frames; the statistics are of its keymaps and transforms.
            keys: those to look at, of whole numbers, flags or metadata, too; for None all floating
                point ones but those that are made of `metadata_keys` alone.
            per_step: keys with steps of which each step has statistics of its own: (n, D…).
            frame_filter: as samplers take it.
            frame_weights: as samplers take them: frames of weight 0, which are never drawn, don't
                count; all others count once.
            outliers: names of two quantiles, as in ("q0.01", "q99.99"). Frames are left out by the
                filter `outliers`, which a second pass over the data makes, of which a real number
                of the sample, in any step of its windows, lies outside; padding never does. The
                statistics themselves are of all frames. Where an embodiment loses more than 5 % of
                them, a `StatisticsWarning` says so: the quantiles are literal, so that of few rows
                they leave out the extremes of every dimension.
            skip: numbers that make no frame an outlier, rotations say: {key: [3, 4, 5, 6]}, or
                "all" of a key; or of embodiments, see `NormalizerSettings`.
            workers: processes. Several are started anew, so that a script needs the usual
                `if __name__ == "__main__":`.
            cache: a folder that keeps what was found in each episode: what was computed once, or
                before a run was ended, is not computed again. See `SummaryCache`.
            on_progress: told how many episodes are done, and how many there are; those that are
                looked at again for outliers count twice.

        Raises:
            SettingsError: an option that can't be meant, a key that is not there, no frames, no
                numbers, an embodiment's action of which none counts, or an embodiment whose frames
                all are outliers.
            EpisodeError: an episode can't be read or transformed, or holds NaN or inf; names the
                key and the frame.
            WorkerLostError: a process has ended before its work.
        """
        settings = ComputationSettings(
            keys=keys,
            per_step=per_step,
            frame_filter=frame_filter,
            frame_weights=frame_weights,
            outliers=outliers,
            skip=skip,
            workers=workers,
            cache=cache,
        )
        with EpisodeWorkers(workers) as team:
            found = Computation(data, settings, team, on_progress)
            stats = found.stats()
            return cls(stats, found.outliers(stats))

    def __getitem__(self, embodiment: str) -> Mapping[str, KeyStats]:
        if embodiment not in self._stats:
            hint = near_miss(str(embodiment), self._stats)
            raise MissingStatisticsError(f"there are no statistics of {embodiment!r}; {hint}")
        return self._stats[embodiment]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stats)

    def __len__(self) -> int:
        return len(self._stats)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NormStats):
            return NotImplemented
        return self.to_plain() == other.to_plain()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        keys = {name: list(its) for name, its in self._stats.items()}
        return f"NormStats({keys!r})"

    def without_outliers(self) -> NormStats:
        """Return the statistics without the filter."""
        return NormStats(self._stats)

    def to_plain(self) -> dict[str, Any]:
        """Return them as plain Python values, which JSON and checkpoints take; nothing is lost."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "embodiments": {
                name: {key: one.to_plain() for key, one in keys.items()}
                for name, keys in self._stats.items()
            },
            "outliers": None if self.outliers is None else self.outliers.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Any, where: str = "statistics") -> NormStats:
        """Return what `to_plain` made plain.

        Args:
            plain: its values.
            where: how errors call them.

        Raises:
            SettingsError: they are no statistics, or broken ones, or of a later version.
        """
        if not isinstance(plain, Mapping) or plain.get("format") != _FORMAT:
            raise SettingsError(f"{where}: these are no statistics; NormStats.save makes a file")
        if plain.get("version") != _VERSION:
            raise SettingsError(
                f"{where}: they are of version {plain.get('version')!r}, and {_VERSION} is known"
            )
        embodiments = plain.get("embodiments")
        if not isinstance(embodiments, Mapping) or not all(
            isinstance(keys, Mapping) for keys in embodiments.values()
        ):
            raise SettingsError(f"{where}: embodiments must map names to keys")
        stats = {
            str(name): {
                str(key): KeyStats.from_plain(one, f"{where}, {name!r}, key {key!r}")
                for key, one in keys.items()
            }
            for name, keys in embodiments.items()
        }
        outliers = plain.get("outliers")
        return cls(stats, None if outliers is None else OutlierFilter.from_plain(outliers, where))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a JSON file, which appears whole.

        Raises:
            SettingsError: there is no folder for it, or it is one itself.
            OSError: it can't be written.
        """
        target = Path(path)
        if target.is_dir() or not target.absolute().parent.is_dir():
            raise SettingsError(f"{os.fspath(path)!r} is no file in a folder that is there")
        half = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            half.write_text(json.dumps(self.to_plain(), allow_nan=False, indent=1) + "\n")
            half.replace(target)
        finally:
            half.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> NormStats:
        """Read them from a file that `save` wrote.

        Raises:
            OSError: the file can't be read.
            SettingsError: it holds no statistics, or broken ones.
        """
        try:
            plain = json.loads(Path(path).read_text())
        except (ValueError, RecursionError) as error:
            raise SettingsError(f"{os.fspath(path)!r}: it is no JSON file: {error}") from error
        return cls.from_plain(plain, repr(os.fspath(path)))
