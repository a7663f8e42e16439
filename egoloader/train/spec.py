"""What a policy has to know of the samples it gets: keys, shapes, embodiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch

from egoloader.dataset import MultiDataset
from egoloader.errors import SettingsError

__all__ = ["SampleSpec", "describe"]


@dataclasses.dataclass(frozen=True, slots=True)
class SampleSpec:
    """Shapes of one embodiment's samples, in the keymap's order.

    Attributes:
        cameras: per camera entry, its number of frames.
        states: per proprio entry, its size with all steps: n * D.
        actions: per action chunk, (H, D) with D = all numbers of a step.
    """

    cameras: dict[str, int]
    states: dict[str, int]
    actions: dict[str, tuple[int, int]]

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> SampleSpec:
        """Make a spec from what `dataclasses.asdict` gave, as a checkpoint keeps it."""
        actions = {key: (int(h), int(d)) for key, (h, d) in plain["actions"].items()}
        return cls(dict(plain["cameras"]), dict(plain["states"]), actions)


def describe(sources: Mapping[str, MultiDataset]) -> dict[str, SampleSpec]:
    """Describe each source's samples, from its first one.

    Raises:
        SettingsError: no action chunk, or one whose padding the keymap doesn't mask; images that
            are not pixels.
    """
    return {name: _describe(name, source) for name, source in sources.items()}


def _describe(name: str, source: MultiDataset) -> SampleSpec:
    sample, keymap = source[0], source.keymaps[name]
    spec = SampleSpec({}, {}, {})
    for key, entry in keymap.items():
        value = sample[key]
        if entry.is_camera:
            _check_camera(name, key, value)
            spec.cameras[key] = 1 if value.dim() == 3 else len(value)
        elif entry.key_type == "proprio_keys":
            spec.states[key] = value.numel()
        elif entry.key_type == "action_keys":
            _check_action(name, key, value, sample)
            spec.actions[key] = (len(value), value[0].numel())
    if not spec.actions:
        raise SettingsError(f"the keymap of {name!r} has no action_keys entry to predict")
    return spec


def _check_camera(name: str, key: str, value: Any) -> None:
    if not torch.is_tensor(value):
        raise SettingsError(
            f"camera entry {key!r} of {name!r} comes as encoded bytes, and the policy needs "
            "pixels; set data.image_dtype=uint8 or data.image_dtype=float32"
        )


def _check_action(name: str, key: str, value: torch.Tensor, sample: Mapping[str, Any]) -> None:
    mask = sample.get(f"{key}_is_pad")
    if mask is None or mask.dim() == 0 or value.dim() == 0:
        raise SettingsError(
            f"action entry {key!r} of {name!r} needs a horizon and a mask, or padded steps would "
            "be learned as actions; set keymap.masks=true, or mask: true on the entry"
        )
