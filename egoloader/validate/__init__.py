"""Looking for what is wrong with episodes before training meets it."""

from __future__ import annotations

from egoloader.validate.finding import Finding, quarantine_spans
from egoloader.validate.folder import Validation, validate_paths
from egoloader.validate.inspection import Depth, validate_episode

__all__ = [
    "Depth",
    "Finding",
    "Validation",
    "quarantine_spans",
    "validate_episode",
    "validate_paths",
]
