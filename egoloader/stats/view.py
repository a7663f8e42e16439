"""How the numbers of one embodiment are looked at: as rows of arrays, or as samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from egoloader.cast import output_dtype
from egoloader.episode import ZarrEpisode
from egoloader.keymap import RESERVED_NAMES, KeyMap, KeySpec
from egoloader.sample import SampleMaker, SampleSettings
from egoloader.stats.quantiles import EXACT_ROWS
from egoloader.stats.transformed import Remainder, roots_of, row_transforms, without_keys
from egoloader.transforms import Resample
from egoloader.transforms.origins import kept_origins
from egoloader.transforms.transform import companions

__all__ = ["View", "entry_dtype", "view_of"]


@dataclass(frozen=True, slots=True)
class View:
    """What is looked at in the episodes of an embodiment.

    Attributes:
        entries: of the keymap, those of numbers, all of them with masks.
        rows: transforms of rows, and the keys that they don't make; None where none are looked at.
        settings: how samples are made.
        per_step: keys of which each step of a chunk is on its own.
        wanted: keys that are looked at; None for all that are floating point, without metadata.
        metadata: keys that are made of `metadata_keys` alone.
        actions: keys that are made of any `action_keys`.
        optional: keys that are made of anything that an episode may lack.
        is_exact: whether the numbers of keys are few enough to keep them all, (by rows or steps,
            by samples).
    """

    entries: Mapping[str, KeySpec]
    rows: Remainder | None
    settings: SampleSettings
    per_step: frozenset[str]
    wanted: frozenset[str] | None
    metadata: frozenset[str]
    actions: frozenset[str]
    optional: frozenset[str]
    is_exact: tuple[bool, bool]

    @property
    def identity(self) -> str:
        """What decides what is found in an episode, as text."""
        return repr(
            (
                list(self.entries.items()),
                self.rows and (self.rows.transforms, sorted(self.rows.gone)),
                self.settings.transforms,
                self.settings.annotation_cutoff,
                sorted(self.per_step),
                None if self.wanted is None else sorted(self.wanted),
                sorted(self.metadata),
                self.is_exact,
            )
        )

    @property
    def reads_samples(self) -> bool:
        """Whether some keys are looked at in samples."""
        return self.rows is None or bool(self.per_step | self.rows.gone)

    def takes_rows_of(self, key: str) -> bool:
        """Whether a key is looked at as rows, and not in samples."""
        return self.rows is not None and key not in self.rows.gone | self.per_step

    def taken(self, sample: Mapping[str, Any]) -> list[str]:
        """Return the keys of a sample, or of a batch, that are looked at."""
        tensors = [key for key, value in sample.items() if isinstance(value, torch.Tensor)]
        if self.wanted is not None:
            return [key for key in tensors if key in self.wanted]
        beside = {name for key in tensors for name in companions(key)} | RESERVED_NAMES
        beside |= kept_origins(self.settings.transforms) | self.metadata
        return [key for key in tensors if key not in beside and sample[key].is_floating_point()]


def view_of(
    episode: ZarrEpisode,
    keymap: KeyMap,
    settings: SampleSettings,
    frames: int,
    per_step: Collection[str] = (),
    wanted: Collection[str] | None = None,
) -> View | None:
    """Return how the numbers of an embodiment are looked at; None where the keymap has none.

    Args:
        episode: any of it; the keymap fits it.
        keymap: what a sample holds.
        settings: how samples are made.
        frames: of all episodes that are looked at.
        per_step: keys of which each step of a chunk is on its own.
        wanted: keys that are looked at; None for all that are floating point, without metadata.
    """
    entries = {
        key: dataclasses.replace(spec, mask=True)
        for key, spec in keymap.items()
        if _is_numeric(episode, spec)
    }
    if not entries:
        return None
    gone = [key for key in keymap if key not in entries]
    plain = dataclasses.replace(settings, image_dtype="uint8", mixed_sizes="error")
    left = without_keys(settings.transforms_of(episode.embodiment), gone, entries)
    samples = dataclasses.replace(plain, transforms=left.transforms)
    maker = SampleMaker(episode, KeyMap(entries), dataclasses.replace(plain, transforms=()))
    steps = max(len(maker.step_times(key)) for key in entries)
    steps = max([steps, *(one.steps for one in left.transforms if isinstance(one, Resample))])
    roots = {
        key: [entries[root] for root in its]
        for key, its in roots_of(left.transforms, entries).items()
    }
    kinds = {key: {spec.key_type for spec in its} for key, its in roots.items()}
    return View(
        entries,
        row_transforms(left.transforms, ()),
        samples,
        frozenset(per_step),
        None if wanted is None else frozenset(wanted),
        frozenset(key for key, its in kinds.items() if its == {"metadata_keys"}),
        frozenset(key for key, its in kinds.items() if "action_keys" in its),
        frozenset(key for key, its in roots.items() if any(spec.optional for spec in its)),
        (frames <= EXACT_ROWS, frames * steps <= EXACT_ROWS),
    )


def _is_numeric(episode: ZarrEpisode, spec: KeySpec) -> bool:
    """Return whether an entry yields numbers."""
    if spec.is_camera or spec.is_annotation:
        return False
    if episode.has(spec.zarr_key):
        return episode.layout(spec.zarr_key).dtype is not None
    return spec.shape is not None


def entry_dtype(episode: ZarrEpisode, spec: KeySpec) -> np.dtype[np.generic]:
    """Return the dtype in which an entry's numbers leave."""
    if not episode.has(spec.zarr_key):
        return np.dtype(spec.dtype or np.float32)
    stored = episode.layout(spec.zarr_key).dtype
    assert stored is not None
    return output_dtype(spec, stored)
