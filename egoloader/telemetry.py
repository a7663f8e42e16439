"""What a training run is told about its data: how fast, how mixed, and what it waited for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import lightning

from egoloader.datamodule import DataLoad, EpisodeDataModule

__all__ = ["LoaderTelemetry"]

_NO_LOAD = DataLoad(0.0, 0, 0.0)


class LoaderTelemetry(lightning.Callback):
    """Logs what the data cost, to the logger and, the first two figures, to the progress bar.

    - `samples/s`: frames trained on a second, by all processes together;
    - `data/wait`: share of the time that this process waited for its batches, 0 to 1;
    - `data/episodes`: distinct episodes of a batch;
    - `data/pool`: resident episodes, as a share of the pools' sizes, 0 to 1;
    - `data/bytes`: bytes that this process read a sample, metadata left out;
    - `data/replaced`: share of the samples that are there in the place of bad frames, 0 to 1, where
      `on_bad_frame: skip` asks for them.

    All are means over the running epoch, but for the pool's, which is of the moment. The first step
    is left out, in which threads start, and the clock stands still during validation. Pool, bytes
    and wait need an `EpisodeDataModule` as the trainer's. Batches that are not egoloader's are
    passed over.
    """

    def __init__(self) -> None:
        self._frames = self._episodes = self._batches = 0
        self._replaced: Any = None  # on the batches' device, which is not waited for
        self._since: float | None = None
        self._stopped: float | None = None
        self._load = _NO_LOAD

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Start counting anew, in the middle of an epoch, too."""
        self.on_train_epoch_start(trainer, pl_module)

    def on_train_epoch_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Start counting anew."""
        self._frames = self._episodes = self._batches = 0
        self._replaced = self._since = self._stopped = None

    def on_validation_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Stop the clock."""
        self._stopped = time.perf_counter()

    def on_validation_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Let the clock go on from where it stopped."""
        if self._since is not None and self._stopped is not None:
            self._since += time.perf_counter() - self._stopped
        self._stopped = None

    def on_train_batch_end(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        outputs: Any,
        batch: Mapping[str, Any],
        batch_idx: int,
    ) -> None:
        """Count a step; the clock starts behind the first one.

        Args:
            trainer: see Lightning, like all that follow.
            pl_module: logs.
            outputs: of the step.
            batch: `{embodiment: batch}`, or one batch as `EpisodeLoader` makes it.
            batch_idx: of the step.
        """
        now, load = time.perf_counter(), _load(trainer)
        if self._since is None:
            self._since, self._load = now, load
            return
        for frames in _batches_in(batch):
            self._frames += len(frames["frame_index"])
            self._episodes += len(set(frames["episode"]))
            self._batches += 1
            if "is_replaced" in frames:
                self._replaced = frames["is_replaced"].sum() + (
                    0 if self._replaced is None else self._replaced
                )
        if not self._frames:
            return
        seconds = max(now - self._since, 1e-9)
        rates = {"samples/s": self._frames * trainer.world_size / seconds}
        if load is not _NO_LOAD:
            rates["data/wait"] = (load.waited - self._load.waited) / seconds
        pl_module.log_dict(rates, prog_bar=True, on_step=True, batch_size=1)
        details: dict[str, Any] = {"data/episodes": self._episodes / self._batches}
        if self._replaced is not None:
            details["data/replaced"] = self._replaced / self._frames
        if load is not _NO_LOAD:
            details["data/pool"] = load.pool_occupancy
            details["data/bytes"] = (load.bytes_read - self._load.bytes_read) / self._frames
        pl_module.log_dict(details, on_step=True, batch_size=1)


def _batches_in(step: Any) -> list[Mapping[str, Any]]:
    """Return the batches of a step that are egoloader's; none of another's."""
    if not isinstance(step, Mapping):
        return []
    found = [step] if "frame_index" in step else list(step.values())
    return [one for one in found if isinstance(one, Mapping) and "frame_index" in one]


def _load(trainer: lightning.Trainer) -> DataLoad:
    data = getattr(trainer, "datamodule", None)
    return data.load() if isinstance(data, EpisodeDataModule) else _NO_LOAD
