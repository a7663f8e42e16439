"""From what a robot records to actions as it records them: the transforms there, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from egoloader.errors import SettingsError, TransformError, near_miss
from egoloader.train.spec import RecordedAction
from egoloader.transforms import Transform
from egoloader.transforms.transform import companions, mask_key, origin_key

__all__ = ["predict_recorded"]

Batch = dict[str, Any]
Forward = Callable[[Batch], Mapping[str, torch.Tensor]]


def predict_recorded(
    observed: Mapping[str, Any],
    recorded: Mapping[str, RecordedAction],
    transforms: Sequence[Transform],
    forward: Forward,
) -> dict[str, torch.Tensor]:
    """Predict actions from what was observed, in the units, frames and keys of the recording.

    The transforms are gone through with actions of zeros, all of them padded; what is predicted
    takes their place behind the last, and goes back through the inverses of those that have changed
    it. The rest of the sample stands then as it stood there on the way: what changes observations
    alone, or leaves some out, needs no inverse.

    Actions are of the dtype that they were recorded with. Where that is one of whole numbers, or
    bool, the nearest is taken of what is predicted, and the dtype's own ends of what lies beyond:
    a bool is true above 0.5.

    Args:
        observed: a batch of what the keymap's entries make, without transforms. Actions may be
            absent; those that are there are not looked at.
        recorded: per action entry, its shape, (n, D…), and dtype.
        transforms: of the training samples, in order.
        forward: predicts from a transformed batch; per action key behind them, (B, H, D).

    Returns:
        Per action entry, (B, n, D…) of its dtype; none of those that the transforms leave out
        altogether, or that are absent from all episodes.

    Raises:
        SettingsError: something observed is missing, or a transform that changes actions has no
            inverse, or one that asks what they were; names it.
        TransformError: numbers can't be changed; or what is predicted for whole numbers is NaN.
    """
    known = [key for key, action in recorded.items() if not action.is_absent]
    stages, derived = [_with_blanks(observed, recorded)], [set(known)]
    for transform in transforms:
        stages.append(transform(stages[-1]))
        derived.append(_derived(transform, derived[-1], stages[-1]))
        _check_origins(transform, derived[-1], stages)

    def ends(key: str) -> set[str]:
        """Return what a recorded action has become behind the last transform."""
        names = {key}
        for transform, made in zip(transforms, stages[1:], strict=True):
            names = _derived(transform, names, made)
        return names

    predicted = forward(stages[-1])
    sample = dict(stages[-1])
    for key in derived[-1]:
        if key in predicted:
            sample[key] = _like(stages[-1][key], key, predicted[key])
            sample[mask_key(key)] = torch.zeros_like(sample[mask_key(key)])
    for place in reversed(range(len(transforms))):
        way = (stages[place], stages[place + 1])
        sample = _undo(transforms[place], way, derived[place], sample)
    return {key: sample[key] for key in known if not predicted.keys().isdisjoint(ends(key))}


def _with_blanks(observed: Mapping[str, Any], recorded: Mapping[str, RecordedAction]) -> Batch:
    """Return a batch with actions of zeros, all padded."""
    if "fps" not in observed:
        raise SettingsError(f"a batch has {'fps'!r}, (B,); {near_miss('fps', observed)}")
    rates = observed["fps"]
    if not isinstance(rates, torch.Tensor) or rates.dim() != 1:
        raise SettingsError(f"'fps' must be a tensor of a rate per sample, (B,), got {rates!r:.80}")
    made = dict(observed)
    for key, action in recorded.items():
        made[key] = action.blank(len(rates), rates.device)
        steps = (len(rates), *action.shape[:1])
        made[mask_key(key)] = torch.ones(steps, dtype=torch.bool, device=rates.device)
    return made


def _like(blank: torch.Tensor, key: str, predicted: torch.Tensor) -> torch.Tensor:
    """Return predicted numbers with the shape and the dtype of what they take the place of."""
    chunk, dtype = predicted.reshape_as(blank), blank.dtype
    if dtype.is_floating_point:
        return chunk.to(dtype)
    numbers = chunk.to("cpu", torch.float64)
    if numbers.isnan().any():
        raise TransformError(
            f"NaN is predicted for {key!r}, whose numbers are {dtype}, which can't be NaN; look "
            "for NaN in what was observed"
        )
    low, high = _ends(dtype)
    return numbers.round().clamp(low, high).to(dtype).to(chunk.device)


def _ends(dtype: torch.dtype) -> tuple[float, float]:
    """Return the least and the largest float64 that a dtype of whole numbers, or bool, holds."""
    if dtype == torch.bool:
        return 0.0, 1.0
    info = torch.iinfo(dtype)
    high = float(info.max)  # of 64 bits, it rounds up to what they don't hold
    return float(info.min), high if high <= info.max else math.nextafter(high, 0.0)


def _derived(transform: Transform, derived: set[str], sample: Batch) -> set[str]:
    """Return the keys behind a transform that some keys ahead of it have become."""
    origins = transform.origins
    return {key for key in sample if derived.intersection(origins.get(key, (key,)))}


def _check_origins(transform: Transform, derived: set[str], stages: Sequence[Batch]) -> None:
    """Refuse actions that are told from their own first step, which no robot knows ahead."""
    for key in sorted(derived):
        origin = origin_key(key)
        if origin in stages[-1] and origin not in stages[-2]:
            raise SettingsError(
                f"predicted actions can't be given as they are recorded: {type(transform).__name__}"
                f" tells {key!r} from its own first step, which is not observed; tell it from a "
                "state, by IntoFrame or RelativeActions"
            )


def _undo(transform: Transform, way: tuple[Batch, Batch], derived: set[str], after: Batch) -> Batch:
    """Return a batch as it was ahead of a transform, with the actions of one behind it.

    Args:
        transform: what is undone.
        way: the batch ahead of it, and what has come of that.
        derived: the actions ahead of it.
        after: the batch behind it, with actions that have been predicted.
    """
    before, made = way
    wanted = {
        name
        for key in derived
        if key in before and _derived(transform, {key}, made)  # others are left out: not predicted
        for name in (key, *companions(key))
    }
    kept = {key: value for key, value in before.items() if key not in wanted}
    if not all(key in made and made[key] is before[key] for key in wanted if key in before):
        try:
            after = transform.inverse()(after)
        except SettingsError as error:
            raise SettingsError(
                f"predicted actions can't be given as they are recorded: {error}"
            ) from None
    return kept | {key: after[key] for key in after if key in wanted}
