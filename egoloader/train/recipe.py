"""The training run: compose, build, fit."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
import lightning
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from egoloader.datamodule import refuse_ranks
from egoloader.errors import ConfigError, EgoloaderError
from egoloader.train.config import CONFIG_ERRORS, config_dir, explain, make
from egoloader.train.spec import describe

__all__ = ["fit", "main"]


def main(arguments: Sequence[str]) -> None:
    """Run `egoloader train` with Hydra's command line: overrides, `--cfg job`, `--multirun`, ….

    Raises:
        EgoloaderError: the config or the data is wrong.
    """
    # Hydra then raises its errors instead of printing them and leaving; they are explained here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv = [sys.argv[0], *arguments]
    failures: list[Exception] = []

    def task(config: DictConfig) -> None:
        # Out of Hydra's sight, as it would print a line of its own about the error.
        try:
            fit(config)
        except (EgoloaderError, *CONFIG_ERRORS) as error:
            failures.append(error)

    try:
        hydra.main(version_base="1.3", config_path=str(config_dir()), config_name="train")(task)()
    except CONFIG_ERRORS as error:
        failures.append(error)
    if failures:
        raise explain(failures[0]) from failures[0]


def fit(config: DictConfig) -> None:
    """Train as a composed config says; checkpoints, logs and the config land in `output_dir`.

    Raises:
        ConfigError: the checkpoint to resume from is not there.
        EgoloaderError: the config or the data is wrong.
    """
    resume = _checkpoint(config.resume)
    output = Path(config.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, output / "config.yaml")
    lightning.seed_everything(config.seed, workers=True, verbose=False)
    trainer = make(config.trainer, callbacks=_list(config.callbacks), logger=_list(config.logger))
    refuse_ranks(trainer.world_size)
    data = make(config.data)
    data.setup("fit")
    policy = make(config.model)(describe(data.sources))
    trainer.fit(policy, datamodule=data, ckpt_path=resume)
    Console().print(f"checkpoints and logs are in [bold]{output}[/bold]", soft_wrap=True)


def _list(nodes: DictConfig | None) -> list[Any]:
    """Build the named choices of a group; one that is set to null is left out."""
    return [make(node) for node in (nodes or {}).values() if node is not None]


def _checkpoint(resume: str | None) -> str | None:
    if resume is None:
        return None
    try:
        path = Path(resume).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            f"resume={resume}: there is no such checkpoint ({error}); "
            "give the path of a .ckpt file, or leave resume out to start anew"
        ) from error
    if not path.is_file():
        raise ConfigError(f"resume={resume} is a folder; give the path of a .ckpt file in it")
    return str(path)
