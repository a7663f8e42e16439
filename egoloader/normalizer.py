"""Numbers in units of their own spread, and back: the one place where this is done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, get_args

import numpy as np
import torch

from egoloader.errors import (
    MissingStatisticsError,
    SettingsError,
    StatisticsWarning,
    TransformError,
    near_miss,
)
from egoloader.keymap import RESERVED_NAMES
from egoloader.scale import Mode, Scale, scale_of
from egoloader.stats import (
    KeyOptions,
    NormStats,
    Skip,
    check_skip,
    key_options,
    plain_places,
    skipped,
)
from egoloader.transforms.transform import companions, dim_mask_key, mask_key

__all__ = [
    "Mode",
    "NormalizedBatch",
    "Normalizer",
    "NormalizerSettings",
    "UnnormalizedBatch",
]

Made = TypeVar("Made", bound=dict[str, Any])

_FORMAT, _VERSION = "egoloader.Normalizer", 1


class NormalizedBatch(dict[str, Any]):
    """A batch that `Normalizer.normalize` made, and refuses.

    It is known by its class: a copy in a plain dict, as `{**batch}`, `batch | more` and
    `batch.copy()` are, would be normalised again.
    """


class UnnormalizedBatch(dict[str, Any]):
    """What `Normalizer.unnormalize` made, and refuses, by its class: see `NormalizedBatch`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizerSettings:
    """How numbers are normalised.

    Args:
        mode: `zscore`: mean 0, spread 1; `minmax`: the range becomes -1…1; `quantile`: the 1st to
            the 99th percentile does, and what lies beyond goes beyond. Dimensions that are nearly
            always the same number, such as rare flags, have no such percentiles apart: their range
            becomes -1…1, and a `StatisticsWarning` names them. One also names those whose range is
            1,000 times as wide as the percentiles are apart: rare moves, or broken numbers.
        modes: of single keys, where another is wanted: {key: mode}. What is mapped to a name is
            for the keys of an embodiment, {embodiment: {key: mode}}, and goes ahead of the rest.
        skip: numbers that stay as they are, such as rotations and flags: {key: [3, 4, 5, 6]}, or
            "all" of a key; or a list of keys. Of embodiments: {embodiment: {key: …}}, as above.

    Raises:
        SettingsError: an option that can't be meant.
    """

    mode: Mode = "zscore"
    modes: Mapping[str, Mode | Mapping[str, Mode]] = field(default_factory=dict)
    skip: Skip = ()

    def __post_init__(self) -> None:
        if not isinstance(self.modes, Mapping):
            raise SettingsError(f"modes map keys to modes, got {self.modes!r}")
        _check_mode("mode", "", self.mode)
        _ = self.key_modes
        check_skip(self.skip)

    @property
    def key_modes(self) -> KeyOptions[Mode]:
        """The modes of single keys."""
        return key_options("modes", self.modes, _check_mode)

    def to_plain(self) -> dict[str, Any]:
        """Return them as plain Python values."""
        return {
            "mode": self.mode,
            "modes": self.key_modes.to_plain(str),
            "skip": check_skip(self.skip).to_plain(plain_places),
        }


def _check_mode(option: str, key: str, mode: Any) -> Mode:
    if mode not in get_args(Mode):
        where = f"{option}: that of {key!r}" if key else option
        raise SettingsError(f"{where} is {mode!r}; {near_miss(str(mode), get_args(Mode))}")
    chosen: Mode = mode
    return chosen


class Normalizer(torch.nn.Module):
    """Normalises batches before a policy sees them, and brings its predictions back.

        settings = NormalizerSettings(mode="quantile", skip={"pose": [3, 4, 5, 6]})
        normalizer = Normalizer(stats, settings)
        batch = normalizer.normalize("sawyer", batch)
        actions = normalizer.unnormalize("sawyer", {"actions": policy(batch)})["actions"]

    Every key that the embodiment has statistics of is changed, and all else passed on as it is.
    Dimensions of no spread, or nearly none, are divided by 1e-6 (or by what float32 tells apart
    where they lie), with a `StatisticsWarning` that names them. Numbers that were never counted
    (padded dimensions, arrays that no episode has) stay as they are; so do those that
    `<key>_dim_is_pad` marks, and, both ways, the zeros that stand in for an optional array that an
    episode lacks: windows that are zero, and padded by `<key>_is_pad`, in every step.

    Moves with the module that it is part of, and nothing waits for a device then; where that module
    is made one of half precision, the scales stay float32. Its tensors are in no `state_dict`:
    `to_plain` goes into a checkpoint's hyper-parameters, and `from_plain` makes the same normalizer
    of it, with nothing else at hand.

    Args:
        stats: of the training data.
        settings: how numbers are normalised.

    Raises:
        SettingsError: settings name keys or dimensions that there are no statistics of.
    """

    def __init__(self, stats: NormStats, settings: NormalizerSettings | None = None) -> None:
        super().__init__()
        if not isinstance(stats, NormStats):
            raise SettingsError(
                f"a normalizer is made of NormStats, got {type(stats).__name__}; "
                "NormStats.load and Normalizer.from_plain make what was saved anew"
            )
        self.stats = stats.without_outliers()
        self.settings = NormalizerSettings() if settings is None else settings
        modes, skip = self.settings.key_modes, check_skip(self.settings.skip)
        modes.check_known("modes", stats)
        skip.check_known("skip", stats)
        self._names: dict[str, dict[str, str]] = {}
        self._scales: dict[str, torch.Tensor] = {}
        self._optional = {
            embodiment: frozenset(key for key, one in keys.items() if one.is_optional)
            for embodiment, keys in stats.items()
        }
        for embodiment, keys in stats.items():
            self._names[embodiment] = {}
            for key, one in keys.items():
                mode = modes.of(embodiment).get(key, self.settings.mode)
                is_left = skipped(skip.of(embodiment), key, one.shape) | (one.counts == 0)
                scale = scale_of(one, mode, is_left, f"{embodiment!r}, key {key!r}")
                self._register(embodiment, key, scale)

    def normalize(self, embodiment: str, batch: Mapping[str, Any]) -> NormalizedBatch:
        """Return a batch with its numbers normalised, in new tensors on the devices of the old.

        Args:
            embodiment: which the batch is of.
            batch: tensors with any leading axes, (…, D), (…, n, D), by key; and other values.

        Returns:
            float32 where a tensor was of it, or of fewer bits, or of whole numbers; float64 else.

        Raises:
            MissingStatisticsError: there are none of the embodiment.
            TransformError: the batch was normalised before, or a value that there are statistics of
                is no tensor, or doesn't fit them.
        """
        if isinstance(batch, NormalizedBatch):
            raise TransformError("the batch is normalised already; normalize it once")
        return self._changed(embodiment, batch, _normalized, NormalizedBatch())

    def unnormalize(self, embodiment: str, values: Mapping[str, Any]) -> UnnormalizedBatch:
        """Return predictions, or a normalised batch, in real units: the inverse of `normalize`.

        Args:
            embodiment: whose they are.
            values: a batch as `normalize` made it, or predictions by key. All floating point
                numbers of the latter must have statistics: others are not known to be in real
                units. What goes along with keys (masks, origins, `timestamp`) is passed on.

        Raises:
            MissingStatisticsError: there are none of the embodiment, or of predictions of a key;
                says the near miss.
            TransformError: see `normalize`.
        """
        if isinstance(values, UnnormalizedBatch):
            raise TransformError("these values are in real units already; unnormalize them once")
        if isinstance(values, Mapping) and not isinstance(values, NormalizedBatch):
            self._check_known(embodiment, values)
        return self._changed(embodiment, values, _unnormalized, UnnormalizedBatch())

    def keys_of(self, embodiment: str) -> frozenset[str]:
        """Return the keys of an embodiment that there are statistics of.

        Raises:
            MissingStatisticsError: there are none of the embodiment.
        """
        return frozenset(self._names_of(embodiment))

    def to_plain(self) -> dict[str, Any]:
        """Return it as plain Python values, which checkpoints and JSON take."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "settings": self.settings.to_plain(),
            "stats": self.stats.to_plain(),
        }

    @classmethod
    def from_plain(cls, plain: Any) -> Normalizer:
        """Return what `to_plain` made plain.

        Raises:
            SettingsError: it is no normalizer, or a broken one, or of a later version.
        """
        if not isinstance(plain, Mapping) or plain.get("format") != _FORMAT:
            raise SettingsError("this is no normalizer; Normalizer.to_plain makes it")
        if plain.get("version") != _VERSION:
            raise SettingsError(
                f"the normalizer is of version {plain.get('version')!r}, and {_VERSION} is known"
            )
        settings = plain.get("settings")
        names = {"mode", "modes", "skip"}
        if not isinstance(settings, Mapping) or set(settings) != names:
            raise SettingsError(f"the normalizer's settings are {sorted(names)}, got {settings!r}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", StatisticsWarning)  # given when it was made
            return cls(NormStats.from_plain(plain.get("stats")), NormalizerSettings(**settings))

    def _register(self, embodiment: str, key: str, scale: Scale) -> None:
        """Keep a key's scale as tensors; what float32 loses of the shift, in one of its own."""
        name = f"_scale_{sum(map(len, self._names.values()))}"
        self._names[embodiment][key] = name
        shift = scale.shift.astype(np.float32)
        rest = (scale.shift - shift).astype(np.float32)
        parts = np.stack([shift, rest, scale.spread.astype(np.float32)])
        self._scales[name] = torch.from_numpy(parts)
        self.register_buffer(name, self._scales[name], persistent=False)

    def _apply(
        self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> Normalizer:
        """Move as any module does; the scales stay float32, which no fewer bits can stand for."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, scale in self._scales.items():
            device = self.get_buffer(name).device
            if device.type != "meta":
                setattr(self, name, scale.to(device))
        return self

    def _names_of(self, embodiment: str) -> dict[str, str]:
        if embodiment not in self._names:
            hint = near_miss(str(embodiment), self._names)
            raise MissingStatisticsError(f"there are no statistics of {embodiment!r}; {hint}")
        return self._names[embodiment]

    def _check_known(self, embodiment: str, values: Mapping[str, Any]) -> None:
        """Refuse numbers that may be normalised, and can't be brought back."""
        names = self._names_of(embodiment)
        along = {one for key in [*names, *values] for one in companions(str(key))} | RESERVED_NAMES
        for key, value in values.items():
            if key not in names and key not in along and _is_floating(value):
                raise MissingStatisticsError(
                    f"there are no statistics of key {key!r} of {embodiment!r}, by which its "
                    f"numbers could be brought back to real units; {near_miss(str(key), names)} "
                    "(pass a batch as normalize made it, or predictions alone)"
                )

    def _changed(self, embodiment: str, values: Mapping[str, Any], change: Any, made: Made) -> Made:
        names = self._names_of(embodiment)
        if not isinstance(values, Mapping):
            raise TransformError(f"a batch maps keys to values, got {type(values).__name__}")
        for key, value in values.items():
            if key not in names:
                made[key] = value
                continue
            if not isinstance(value, torch.Tensor):
                raise TransformError(
                    f"key {key!r} of {embodiment!r} has statistics, and must be a tensor, not "
                    f"{type(value).__name__}; torch.as_tensor makes one"
                )
            parts = self.get_buffer(names[key])
            size = parts.ndim - 1
            if value.ndim < size or tuple(value.shape[value.ndim - size :]) != parts.shape[1:]:
                raise TransformError(
                    f"key {key!r} of {embodiment!r} has the shape {list(value.shape)}, and its "
                    f"statistics {list(parts.shape[1:])}, which must be its last axes"
                )
            number = value if value.dtype == torch.float64 else value.float()
            changed = change(number, *parts.to(value.device).unbind())
            is_pad = values.get(dim_mask_key(key))
            changed = changed if is_pad is None else torch.where(is_pad, number, changed)
            if key in self._optional[embodiment]:
                changed = _with_absent(number, changed, _all_padded(values, key, value))
            made[key] = changed
        return made


def _all_padded(values: Mapping[str, Any], key: str, value: torch.Tensor) -> torch.Tensor | None:
    """Return which samples' windows of a key are all padding: (…,); None without a mask.

    How many axes are of samples `fps` tells, which is one number a sample; without it, one is.
    """
    mask, fps = values.get(mask_key(key)), values.get("fps")
    if not isinstance(mask, torch.Tensor):
        return None
    if mask.shape != value.shape[: mask.ndim]:
        raise TransformError(
            f"key {key!r} has the shape {list(value.shape)}, and its mask {list(mask.shape)}, "
            "which must be its first axes"
        )
    lead = min(mask.ndim, fps.ndim if isinstance(fps, torch.Tensor) else 1)
    return mask.flatten(lead).all(-1) if mask.ndim > lead else mask


def _with_absent(
    number: torch.Tensor, changed: torch.Tensor, is_padded: torch.Tensor | None
) -> torch.Tensor:
    """Return changed numbers, zeros as they were where they stand in for an array that is absent.

    Those are all padded and all zero; what else is all padded must not come to be so, or it could
    not be told from them on the way back.
    """
    if is_padded is None:
        return changed
    lead = is_padded.ndim
    axes = (*is_padded.shape, *[1] * (number.ndim - lead))

    def is_blank(value: torch.Tensor) -> torch.Tensor:
        is_any = value.flatten(lead).any(-1) if value.ndim > lead else value != 0
        return (is_padded & ~is_any).reshape(axes)

    least = torch.finfo(changed.dtype).tiny
    changed = torch.where(is_blank(changed) & (number != 0), least, changed)
    return torch.where(is_blank(number), number, changed)


def _is_floating(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return value.is_floating_point()
    return isinstance(value, np.ndarray) and value.dtype.kind == "f"


def _normalized(
    value: torch.Tensor, shift: torch.Tensor, rest: torch.Tensor, spread: torch.Tensor
) -> torch.Tensor:
    return (value - shift - rest) / spread


def _unnormalized(
    value: torch.Tensor, shift: torch.Tensor, rest: torch.Tensor, spread: torch.Tensor
) -> torch.Tensor:
    return value * spread + rest + shift
