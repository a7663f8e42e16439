"""Statistics of the numbers that a policy is trained on.

    stats = NormStats.compute(dataset, workers=4, cache="stats-cache")
    stats["sawyer"]["state"].mean                    # (D,) float64
    stats.save("stats.json"); NormStats.load("stats.json")

`NormStats.compute` says what is counted, `KeyStats` what is known of a key; `egoloader.Normalizer`
is made of them.
"""

from __future__ import annotations

from egoloader.stats.keyoptions import KeyOptions, key_options
from egoloader.stats.keystats import KeyStats
from egoloader.stats.normstats import NormStats
from egoloader.stats.outliers import EpisodeOutliers, OutlierFilter
from egoloader.stats.quantiles import EXACT_ROWS, QUANTILES
from egoloader.stats.skipping import (
    Skip,
    check_skip,
    check_skipped_keys,
    plain_places,
    skipped,
)

__all__ = [
    "EXACT_ROWS",
    "QUANTILES",
    "EpisodeOutliers",
    "KeyOptions",
    "KeyStats",
    "NormStats",
    "OutlierFilter",
    "Skip",
    "check_skip",
    "check_skipped_keys",
    "key_options",
    "plain_places",
    "skipped",
]
