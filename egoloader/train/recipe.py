"""The training run: compose, build, fit."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import hydra
import lightning
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.loggers import Logger
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from egoloader.augment import ImageAugment
from egoloader.datamodule import EpisodeDataModule, check_sampler_flag
from egoloader.dataset import MultiDataset
from egoloader.errors import ConfigError, EgoloaderError, SettingsError, TrainingError
from egoloader.imagestats import ImageStats
from egoloader.sample import Steps
from egoloader.train.callbacks import FileRecord
from egoloader.train.checkpoint import check_same_policy, find_checkpoint, load_checkpoint
from egoloader.train.config import (
    CONFIG_ERRORS,
    config_dir,
    explain,
    make_all,
    make_as,
    refuse_misfits,
    refuse_odd_choices,
    refuse_plain_groups,
    refuse_unused,
)
from egoloader.train.normalization import Normalization
from egoloader.train.policy import ActionChunkPolicy
from egoloader.train.spec import describe, vocabularies
from egoloader.train.texts import kept_collate
from egoloader.transforms import to_plain
from egoloader.workers import watch_workers

__all__ = ["RunSettings", "fit", "main"]

_T = TypeVar("_T")
_MAX_SEED = 2**32 - 1
_COUNTS = {  # options of Lightning's trainer that it takes as they are, and their least value
    "max_epochs": -1,
    "max_steps": -1,
    "accumulate_grad_batches": 1,
    "log_every_n_steps": 0,
    "num_sanity_val_steps": -1,
    "check_val_every_n_epoch": 1,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """What a run itself has to know.

    Args:
        seed: of weights, split and order; from 0 to 2**32 - 1.
        output_dir: where checkpoints, logs and the config land.
        resume: path of the checkpoint to go on from, or of a folder with a `last.ckpt`, which may
            be empty yet; None starts anew.

    Raises:
        ConfigError: a value that can't be meant.
    """

    seed: int
    output_dir: str
    resume: str | None

    def __post_init__(self) -> None:
        if type(self.seed) is not int or not 0 <= self.seed <= _MAX_SEED:
            raise ConfigError(
                f"seed must be a whole number from 0 to {_MAX_SEED}, got {self.seed!r}"
            )
        for name in ("output_dir", "resume"):
            value = getattr(self, name)
            if value is not None and type(value) is not str:
                raise ConfigError(f"{name} must be a path, got {value!r}")
        if self.resume == "":
            raise ConfigError("resume must be a path, got ''; resume=null starts anew")
        if not self.output_dir:
            raise ConfigError("output_dir is not set; give a folder, as in output_dir=outputs/one")


def main(arguments: Sequence[str]) -> None:
    """Run `egoloader train` with Hydra's command line: overrides, `--cfg job`, `--multirun`, ….

    Raises:
        EgoloaderError: the config or the data is wrong.
    """
    # Hydra then raises its errors instead of printing them and leaving; they are explained here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    refuse_odd_choices(arguments)
    # Hydra takes flags only ahead of the overrides; --multirun is one that people put behind.
    sweeps = [word for word in arguments if word in ("--multirun", "-m")]
    others = [word for word in arguments if word not in sweeps]
    sys.argv = [sys.argv[0], *sweeps, *others]
    failures: list[Exception] = []

    def task(config: DictConfig) -> None:
        # Out of Hydra's sight, as it would print a line of its own about the error.
        try:
            _give_own_folder(config)
            # What Lightning starts further processes with.
            sys.argv = [sys.argv[0], "train", *others, f"output_dir={_quoted(config.output_dir)}"]
            fit(config)
        except (EgoloaderError, OSError, *CONFIG_ERRORS) as error:
            failures.append(error)

    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(task)()
    except CONFIG_ERRORS as error:
        failures.append(error)
    if failures:
        first = failures[0]
        # Hydra's error of a missing config is an OSError, too.
        is_explained = isinstance(first, (EgoloaderError, *CONFIG_ERRORS))
        raise explain(first) if is_explained else first from first


def fit(config: DictConfig) -> None:
    """Train as a composed config says; checkpoints, logs and the config land in `output_dir`.

    Raises:
        ConfigError: the checkpoint to resume from is not there, broken, or of another policy;
            `output_dir` holds a run.
        TrainingError: no step was taken, or the loss is NaN or inf.
        WorkerLostError: a worker process of the config's data module has ended.
        EgoloaderError: the config or the data is wrong.
    """
    settings = _checked(config)
    output = Path(settings.output_dir)
    record = output / "config.yaml"
    if record.exists():
        raise ConfigError(
            f"output_dir={output} holds a run; give another output_dir. "
            "A resumed run reads its checkpoint where it is and needs a folder of its own, too"
        )
    resume = None if settings.resume is None else find_checkpoint(settings.resume)
    checkpoint = None if resume is None else load_checkpoint(resume)
    lightning.seed_everything(settings.seed, workers=True, verbose=False)
    data, policy = _build(config)
    if resume is not None and checkpoint is not None:
        check_same_policy(resume, checkpoint, policy)
    trainer = _make_trainer(config, _records(config, policy))
    try:
        with watch_workers():  # a data module of the config's may have some
            trainer.fit(policy, datamodule=data, ckpt_path=resume)
    except MisconfigurationException as error:
        raise ConfigError(f"the trainer refuses the config: {_one_line(error)}") from error
    if trainer.global_step == (checkpoint or {}).get("global_step", 0):
        raise TrainingError(
            "no step was taken; look at trainer.max_epochs, max_steps and limit_train_batches"
        )
    if trainer.is_global_zero:
        Console().print(f"checkpoints and logs are in [bold]{output}[/bold]", soft_wrap=True)


def _checked(config: DictConfig) -> RunSettings:
    """Refuse what can be seen to be wrong before anything is read or built."""
    settings = RunSettings(seed=config.seed, output_dir=config.output_dir, resume=config.resume)
    refuse_plain_groups(config)
    refuse_unused(config)
    _check_counts(config.get("trainer") or {})
    for group in ("trainer", "callbacks", "logger"):
        # Of what it is not made for, Lightning takes some, and stumbles over some.
        refuse_misfits(config.get(group), "lightning.")
    return settings


def _build(config: DictConfig) -> tuple[EpisodeDataModule, ActionChunkPolicy]:
    """Return the data, set up, and a policy for its samples."""
    data = make_as(EpisodeDataModule, config, "data")
    normalization = _optional(Normalization, config, "norm.numbers")
    normalizer = None if normalization is None else normalization.fit(data)
    data.setup("fit")
    policy = make_as(partial, config, "model")(
        describe(data.sources, vocabularies(data.collate_fn)),
        normalizer=normalizer,
        images=_optional(ImageStats, config, "norm.images"),
        transforms={name: _remade(source, name) for name, source in data.sources.items()},
        collate_fn=kept_collate(data.collate_fn),
        augment=_optional(ImageAugment, config, "augment.images"),
    )
    if not isinstance(policy, ActionChunkPolicy):
        raise ConfigError(
            f"model must make an ActionChunkPolicy, and {config.model._target_} makes "
            f"{type(policy).__name__}"
        )
    return data, policy


def _optional(kind: type[_T], config: DictConfig, name: str) -> _T | None:
    """Build what an option describes, unless it is null, or not there."""
    return None if OmegaConf.select(config, name) is None else make_as(kind, config, name)


def _remade(source: MultiDataset, name: str) -> Steps | None:
    """Return an embodiment's transforms, if a checkpoint can keep them."""
    steps = source.settings.transforms_of(name)
    try:
        to_plain(steps)
    except SettingsError:  # one of the user's own
        return None
    return steps


def _records(config: DictConfig, policy: ActionChunkPolicy) -> FileRecord:
    """Return what writes down what was trained, and what its numbers were normalised by."""
    files = {"config.yaml": OmegaConf.to_yaml(config)}
    normalizer = policy.preparation.normalizer
    if normalizer is not None:
        files["stats.json"] = json.dumps(normalizer.stats.to_plain(), indent=1) + "\n"
    return FileRecord(Path(config.output_dir), files)


def _give_own_folder(config: DictConfig) -> None:
    """Give each job of a `--multirun` the folder that Hydra made for it."""
    run = HydraConfig.get()
    if run.mode == RunMode.MULTIRUN:
        config.output_dir = run.runtime.output_dir


def _make_trainer(config: DictConfig, record: FileRecord) -> lightning.Trainer:
    trainer = make_as(
        lightning.Trainer,
        config,
        "trainer",
        # Last, behind those that may refuse the config when training starts.
        callbacks=[*make_all(lightning.Callback, config, "callbacks"), record],
        logger=make_all(Logger, config, "logger"),
    )
    check_sampler_flag(trainer)
    return trainer


def _check_counts(options: Mapping[str, Any]) -> None:
    """Check numbers that Lightning would stumble over in the middle of a run."""
    for name, least in _COUNTS.items():
        value = options.get(name)
        if value is not None and (type(value) is not int or value < least):
            raise ConfigError(
                f"trainer.{name} must be a whole number from {least} on, got {value!r}"
            )
    clip = options.get("gradient_clip_val")
    if isinstance(clip, int | float) and not clip >= 0:
        raise ConfigError(f"trainer.gradient_clip_val must be a number from 0 on, got {clip!r}")
    _check_interval(options)


def _check_interval(options: Mapping[str, Any]) -> None:
    every, limit = options.get("val_check_interval"), options.get("limit_train_batches")
    if every is None or isinstance(every, str):
        return  # a string is a time
    is_share = type(every) is float and 0 < every <= 1
    if not is_share and (type(every) is not int or every < 1):
        raise ConfigError(
            "trainer.val_check_interval must be a share of an epoch in (0, 1], a number of "
            f"batches from 1 on, or a time, got {every!r}"
        )
    is_by_epoch = options.get("check_val_every_n_epoch", 1) is not None
    if is_by_epoch and type(every) is int and type(limit) is int and every > limit:
        raise ConfigError(
            f"trainer.val_check_interval = {every} batches are more than an epoch has, which "
            f"trainer.limit_train_batches = {limit} sets"
        )


def _quoted(text: str) -> str:
    """Return a text as a value of Hydra's command line."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
