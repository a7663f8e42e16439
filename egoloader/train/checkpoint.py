"""The checkpoint that a run goes on from: whether it can be read, and is of the same policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch

from egoloader.errors import ConfigError

__all__ = ["check_same_policy", "find_checkpoint", "load_checkpoint"]

_NEEDED = ("state_dict", "optimizer_states", "lr_schedulers", "loops", "epoch", "global_step")
_SHOWN, _LONGEST = 4, 80


def find_checkpoint(resume: str) -> Path | None:
    """Return the path of the checkpoint file that `resume` names.

    Args:
        resume: a file, or a folder of checkpoints, of which `last.ckpt` is taken.

    Returns:
        The file, with links resolved; None for an empty folder.

    Raises:
        ConfigError: there is no such file or folder; a link leads nowhere, or to itself; or a
            folder holds something, and no `last.ckpt`.
    """
    path = Path(resume)
    if path.is_dir():
        others = sorted(path.glob("*.ckpt"))
        path = path / "last.ckpt"
        if path not in others:
            if not any(path.parent.iterdir()):
                return None
            below = sorted(path.parent.glob("*/*.ckpt"))
            hint = f"did you mean {below[0].parent}?" if below else _choice(others)
            raise ConfigError(
                f"resume={resume}: this folder has no last.ckpt to go on from; {hint}"
            )
    try:
        found = path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # a loop is the one or the other, by Python's version
        what = "there is no such checkpoint"
        if path.is_symlink():
            target = path.readlink()
            what = f"{path.name} is a link to {str(target)!r}, which "
            is_loop = path.parent / target == path or not isinstance(error, FileNotFoundError)
            what += "leads back to itself" if is_loop else "is not there"
        others = [one for one in sorted(path.parent.glob("*.ckpt")) if one.is_file()]
        raise ConfigError(f"resume={resume}: {what}; {_choice(others)}") from error
    if not found.is_file():
        raise ConfigError(f"resume={resume}: {found} is no file; {_choice([])}")
    return found


def _choice(checkpoints: Sequence[Path]) -> str:
    """Return the way out where a checkpoint can't be taken."""
    if not checkpoints:
        return "give the path of a .ckpt file, or leave resume out to start anew"
    names = ", ".join(one.name for one in checkpoints[-_SHOWN:])
    return f"give the path of another, as there are {names}, or leave resume out to start anew"


def load_checkpoint(path: Path) -> Mapping[str, Any]:
    """Return what a checkpoint holds, without executing anything in it; tensors stay on disk.

    Raises:
        ConfigError: the file can't be read, or is no checkpoint of a training run.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what torch raises on a broken file depends on the break
        raise ConfigError(
            f"resume={path} can't be read as a checkpoint ({type(error).__name__}); "
            "it is broken, or some other file"
        ) from error
    found = set(checkpoint) if isinstance(checkpoint, Mapping) else set()
    missing = [name for name in _NEEDED if name not in found]
    if missing:
        raise ConfigError(
            f"resume={path} is no checkpoint that a run can go on from: it lacks "
            f"{', '.join(missing)}; give one that egoloader train wrote"
        )
    assert isinstance(checkpoint, Mapping)
    return checkpoint


def check_same_policy(
    path: Path, checkpoint: Mapping[str, Any], policy: lightning.LightningModule
) -> None:
    """Check that a checkpoint is of a policy with the same settings, inputs and weights.

    Other settings are refused even where the weights would fit: the optimizer's state holds the old
    ones, so they would not come to pass.

    Raises:
        ConfigError: it is not; names what differs.
    """
    then, now = checkpoint.get("hyper_parameters", {}), policy.hparams
    # What samples are comes first: normalisers differ with it.
    differing = [
        one for kind in (_specs, _settings) for one in _differences(kind(then), kind(now))
    ] or _differences(_shapes(checkpoint["state_dict"]), _shapes(policy.state_dict()))
    if differing:
        shown = "; ".join(differing[:_SHOWN]) + ("; …" if len(differing) > _SHOWN else "")
        raise ConfigError(
            f"resume={path} is of another policy than this run's: {shown}. "
            "Set data, keymap, norm and model as they were, or leave resume out to start anew"
        )


def _differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    return [
        f"{name} was {_shown(then, name)} and is {_shown(now, name)}"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    ]


def _shown(values: Mapping[str, Any], name: str) -> str:
    text = str(values.get(name, "not there"))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _specs(hyper_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what samples are by name: `sawyer states obs_gripper`."""
    return _flat(hyper_parameters.get("specs", {}), "")


def _settings(hyper_parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return all other settings by name: `model.width`, and of mappings `normalizer version`."""
    flat: dict[str, Any] = {}
    for name, value in hyper_parameters.items():
        if isinstance(value, Mapping):
            flat |= {} if name == "specs" else _flat(value, f"{name} ")
        else:
            flat[f"model.{name}"] = value
    return flat


def _flat(nested: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in nested.items():
        inner = isinstance(value, Mapping) and bool(value)
        flat |= _flat(value, f"{prefix}{name} ") if inner else {f"{prefix}{name}": value}
    return flat


def _shapes(weights: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {f"the shape of {name}": tuple(value.shape) for name, value in weights.items()}
