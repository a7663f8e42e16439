"""Annotation spans: what was done in which frames, as rows of JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from egoloader.errors import EpisodeFormatError
from egoloader.layout import ArrayLayout
from egoloader.store import MAX_METADATA_BYTES

__all__ = ["ANNOTATIONS", "Annotation", "num_annotations", "parse_annotations"]

#: The array that holds an episode's annotation spans.
ANNOTATIONS = "annotations"
#: Spans that an episode may have; all are read before any frame is served.
MAX_ANNOTATIONS = 100_000

#: Text, first frame, and one past the last.
Annotation = tuple[str, int, int]


def num_annotations(layout: ArrayLayout, *, episode: str, key: str) -> int:
    """Return how many rows an array of annotations has.

    Raises:
        EpisodeFormatError: more than anybody makes.
    """
    if layout.rows > MAX_ANNOTATIONS:
        raise EpisodeFormatError(
            f"the array has {layout.rows} rows; annotations are at most {MAX_ANNOTATIONS}",
            episode=episode,
            key=key,
        )
    if layout.rows and (layout.kind != "bytes" or layout.row_shape):
        raise EpisodeFormatError(
            f"rows of {layout.row_shape} {layout.type_name} are no annotations",
            episode=episode,
            key=key,
        )
    return layout.rows


def parse_annotations(stored: Sequence[Any], *, episode: str, key: str) -> tuple[Annotation, ...]:
    """Parse the rows of an array of annotations.

    Raises:
        EpisodeFormatError: a row is no annotation, or they are larger than anybody makes them.
    """
    size = sum(map(len, stored))
    if size > MAX_METADATA_BYTES:
        raise EpisodeFormatError(
            f"its annotations have {size} bytes; they have at most {MAX_METADATA_BYTES}",
            episode=episode,
            key=key,
        )
    spans = []
    for place, row in enumerate(stored):
        try:
            spans.append(_parse(bytes(row)))
        except (TypeError, KeyError, ValueError, RecursionError) as error:
            raise EpisodeFormatError(
                f"row {place} is no annotation ({error!r}): {bytes(row)!r:.80}",
                episode=episode,
                key=key,
            ) from error
    return tuple(spans)


def _parse(row: bytes) -> Annotation:
    fields = json.loads(row)
    text, start, end = fields["text"], fields["start_idx"], fields["end_idx"]
    if not isinstance(text, str) or type(start) is not int or type(end) is not int:
        raise TypeError("text must be a string, start_idx and end_idx whole numbers")
    return text, start, end
