"""A picture of what a policy predicts along an episode, against what was recorded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from egoloader.assembly import make_batch
from egoloader.collation import collate
from egoloader.episode import TIMESTAMP, ZarrEpisode
from egoloader.errors import SettingsError, require_extra
from egoloader.frameindex import marks_of
from egoloader.keymap import KeySpec
from egoloader.sample import SampleMaker
from egoloader.train.policy import ActionChunkPolicy
from egoloader.transforms.transform import mask_key
from egoloader.windows import entry_moments

__all__ = ["Rollout", "draw_predictions", "roll_out"]

Collate = Callable[[Sequence[dict[str, Any]]], dict[str, Any]]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
_RECORDED, _PREDICTED, _MAX_DIMS = "#222222", "#d9730d", 8


class Rollout(NamedTuple):
    """One action along an episode, as recorded and as predicted, in the recording's units.

    Attributes:
        times: (B, n), seconds, of the episode's `timestamp`; behind its last frame at its fps.
        recorded: (B, n, D), NaN where a step is padded.
        predicted: (B, n, D).
    """

    times: FloatArray
    recorded: FloatArray
    predicted: FloatArray

    @property
    def error(self) -> FloatArray:
        """The mean absolute error of each number over the real steps: (D,)."""
        is_real = ~np.isnan(self.recorded)
        off = np.where(is_real, np.abs(self.predicted - self.recorded), 0.0)
        return np.asarray(off.sum(axis=(0, 1)) / np.maximum(is_real.sum(axis=(0, 1)), 1))


def roll_out(
    policy: ActionChunkPolicy,
    maker: SampleMaker,
    frames: Sequence[int],
    collate_fn: Collate = collate,
) -> dict[str, Rollout]:
    """Predict the action chunks of some frames of an episode, from what was recorded there.

    Args:
        policy: in `eval` mode.
        maker: of the episode's samples, with the keymap of the training samples, and without
            transforms: the policy has them.
        frames: indices, B of them.
        collate_fn: that of the training samples, where the policy can't make their tokens itself.

    Returns:
        Per action entry of the keymap.

    Raises:
        SettingsError: the samples have transforms, which would be gone through twice; or see
            `ActionChunkPolicy.predict`.
        EpisodeError: a sample can't be made.
    """
    if maker.settings.transforms:
        raise SettingsError("the policy transforms samples itself; make them without transforms")
    at = np.asarray(frames, dtype=np.int64)
    batch = collate_fn(make_batch([maker], np.zeros(len(at), np.int64), at, marks_of(at.tolist())))
    moved = {
        key: value.to(policy.device) if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
    }
    recorded = _frame_times(maker.episode)
    return {
        key: _rollout(batch, key, chunk.cpu(), _times(maker.keymap[key], maker.fps, recorded, at))
        for key, chunk in policy.predict(maker.embodiment, moved).items()
    }


def draw_predictions(rollouts: Mapping[str, Rollout], title: str, path: Path) -> None:
    """Draw predicted action chunks against the recorded ones, and save the picture.

    One panel a number of an action, in the recording's own units, over the episode's seconds: what
    was recorded as dark lines, and what is predicted from each frame on.

    Args:
        rollouts: per action entry.
        title: of the picture.
        path: where it goes; the ending decides the format.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    require_extra("matplotlib", "view")
    from matplotlib.figure import Figure

    panels = [
        (key, one, dim)
        for key, one in rollouts.items()
        for dim in range(min(_MAX_DIMS, one.recorded.shape[-1]))
    ]
    figure = Figure(figsize=(10.0, 0.8 + 1.7 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for axis, (key, one, dim) in zip(axes, panels, strict=True):
        lines = axis.plot(one.times.T, one.recorded[..., dim].T, color=_RECORDED, linewidth=2.2)
        lines[0].set_label("recorded")
        lines = axis.plot(one.times.T, one.predicted[..., dim].T, color=_PREDICTED, linewidth=1.2)
        lines[0].set_label("predicted")
        axis.plot(one.times[:, 0], one.predicted[:, 0, dim], "o", color=_PREDICTED, markersize=3)
        axis.set_ylabel(f"{key} [{dim}]", fontsize=8)
        axis.set_title(f"mean absolute error {one.error[dim]:.3g}", fontsize=8, loc="right")
    axes[0].legend(loc="upper left", fontsize=8)
    axes[-1].set_xlabel("seconds; each chunk begins at a dot")
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def _frame_times(episode: ZarrEpisode) -> FloatArray:
    """Return when an episode's frames were recorded: (T,), in seconds."""
    if not episode.has(TIMESTAMP):
        return np.asarray(np.arange(episode.total_frames) / episode.fps)
    (stored,) = episode.read({TIMESTAMP: [(0, episode.total_frames)]})[TIMESTAMP]
    return np.asarray(stored).reshape(-1).astype(np.float64)


def _times(spec: KeySpec, fps: float, recorded: FloatArray, frames: IntArray) -> FloatArray:
    """Return when the steps of a window are meant to be at B frames: (B, n), in seconds."""
    moments = entry_moments(spec, fps)
    asked = frames[:, None] + moments.frames
    inside = np.clip(asked, 0, len(recorded) - 1)
    # What a latency makes to be read later is of that time.
    later = moments.seconds - (spec.latency_s or 0.0)
    return np.asarray(recorded[inside] + (asked - inside) / fps + later)


def _rollout(
    batch: Mapping[str, Any], key: str, predicted: torch.Tensor, times: FloatArray
) -> Rollout:
    shape = (*times.shape, -1)
    recorded = batch[key].numpy().astype(np.float64).reshape(shape)
    is_pad = batch[mask_key(key)].numpy()
    recorded[is_pad] = np.nan
    return Rollout(times, recorded, predicted.numpy().astype(np.float64).reshape(shape))
