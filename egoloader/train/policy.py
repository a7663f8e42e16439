"""A small behaviour-cloning policy that predicts action chunks: how it is trained, and used."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import lightning
import torch

from egoloader.augment import ImageAugment
from egoloader.errors import SettingsError, TrainingError, near_miss
from egoloader.imagestats import ImageStats
from egoloader.keymap import other_span_key
from egoloader.normalizer import Normalizer
from egoloader.tokens import TextCollate
from egoloader.train.deployment import predict_recorded
from egoloader.train.meters import Meters
from egoloader.train.network import ActionNetwork
from egoloader.train.preparation import Preparation
from egoloader.train.spec import SampleSpec
from egoloader.train.texts import made_collate, with_tokens
from egoloader.transforms import Transform, from_plain, to_plain
from egoloader.transforms.transform import dim_mask_key, mask_key

__all__ = ["ActionChunkPolicy", "PolicySettings", "chunk_loss", "masked_l1"]

Batch = Mapping[str, Any]
Chunks = Mapping[str, torch.Tensor]
#: Themselves, or their plain form.
Transforms = Sequence[Transform | Mapping[str, Any]]
#: Names of the means over an epoch.
_WHOLE = {"train": "train/loss_epoch", "val": "val/loss"}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PolicySettings:
    """Size and optimisation of the policy.

    Args:
        width: of a token.
        heads: of the attention; divides `width`.
        layers: of encoder and of decoder, each.
        dropout: in the attention layers, in [0, 1).
        learning_rate: at its peak, above 0.
        weight_decay: of AdamW, from 0 on.
        warmup: share of the steps in which the rate rises, in [0, 1); then it falls as a cosine.

    Raises:
        SettingsError: a value outside its range.
    """

    width: int = 96
    heads: int = 4
    layers: int = 2
    dropout: float = 0.0
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    warmup: float = 0.05

    def __post_init__(self) -> None:
        for name in ("width", "heads", "layers"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingsError(f"model.{name} must be a whole number above 0, got {value!r}")
        if self.width % self.heads:
            raise SettingsError(f"model.heads {self.heads} does not divide width {self.width}")
        for name in ("dropout", "warmup", "learning_rate", "weight_decay"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise SettingsError(f"model.{name} must be a number, got {value!r}")
        for name in ("dropout", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise SettingsError(f"model.{name} must be in [0, 1), got {getattr(self, name)!r}")
        if not self.learning_rate > 0:
            raise SettingsError(f"model.learning_rate must be above 0, got {self.learning_rate!r}")
        if not self.weight_decay >= 0:
            raise SettingsError(f"model.weight_decay must be from 0 on, got {self.weight_decay!r}")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> PolicySettings:
        """Make settings from options by name.

        Raises:
            SettingsError: an option that there is not, or a value outside its range.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in sorted(options.keys() - set(known)):
            raise SettingsError(f"model has no option {name!r}; {near_miss(name, known)}")
        return cls(**options)


def masked_l1(predicted: torch.Tensor, target: torch.Tensor, is_pad: torch.Tensor) -> torch.Tensor:
    """Return the mean absolute error over the numbers that are real.

    Args:
        predicted: (B, H, D).
        target: (B, H, D).
        is_pad: (B, H) bool, true where a step is padding and takes no part; or (B, H, D), where a
            number is.
    """
    is_pad = is_pad[..., None].expand_as(target) if is_pad.dim() < target.dim() else is_pad
    # Filled before the norm: a NaN behind the episode's end must not reach the gradient either.
    error = (predicted - target).masked_fill(is_pad, 0.0).abs()
    return error.sum() / (~is_pad).sum().clamp(min=1)


class ActionChunkPolicy(lightning.LightningModule):
    """Predicts each embodiment's action chunks from images, states, texts and the frame rate.

    Batches are `{embodiment: batch}`, as `EpisodeDataModule` makes them. They are prepared on the
    device, once: images are augmented, in training, and normalised; numbers are normalised. The
    loss is the mean absolute error over real steps, of normalised actions where there is a
    normaliser, averaged over actions, then over embodiments. Validation logs errors in the actions'
    own units, too.

    All that a robot needs is in the checkpoint; `predict` gives actions in the robot's own units:

        policy = ActionChunkPolicy.load_from_checkpoint("last.ckpt").eval()
        actions = policy.predict("sawyer", {**observed, "task": ["pick the cup"]})

    Args:
        specs: per embodiment, its `SampleSpec` (or the plain form that a checkpoint keeps).
        normalizer: of numbers (or its plain form); None leaves them in their own units.
        images: what images are normalised by (or its plain form); None leaves them in 0…1.
        transforms: per embodiment, those of its samples (or their plain form); None of some that
            a checkpoint can't keep, so that `predict` is refused.
        collate_fn: the `TextCollate` of the samples (or its plain form), where they have tokens of
            texts; None of one that a checkpoint can't keep, so that `predict` takes tokens.
        augment: changes images in training, `augment(batch)`; not part of the checkpoint.
        settings: size and optimisation: the fields of `PolicySettings`.

    Raises:
        SettingsError: an option that there is not, or can't be meant.
    """

    def __init__(
        self,
        specs: Mapping[str, SampleSpec | Mapping[str, Any]],
        *,
        normalizer: Normalizer | Mapping[str, Any] | None = None,
        images: ImageStats | Mapping[str, Any] | None = None,
        transforms: Mapping[str, Transforms | None] | None = None,
        collate_fn: TextCollate | Mapping[str, Any] | None = None,
        augment: ImageAugment | None = None,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.specs = {
            name: spec if isinstance(spec, SampleSpec) else SampleSpec.from_plain(spec)
            for name, spec in specs.items()
        }
        self.settings = PolicySettings.from_options(settings)
        self.preparation = Preparation(self.specs, normalizer, images, augment)
        self.transforms = {
            name: None if steps is None else tuple(map(_transform, steps))
            for name, steps in (transforms or {}).items()
        }
        self.collate_fn = made_collate(collate_fn, self.specs)
        self.save_hyperparameters(self._plain())
        size = {name: getattr(self.settings, name) for name in ("width", "heads", "layers")}
        self.network = ActionNetwork(self.specs, dropout=self.settings.dropout, **size)
        actions = [(name, key) for name, one in self.specs.items() for key in one.actions]
        self.meters = Meters(
            [
                *_WHOLE.values(),
                *(f"{stage}/loss/{name}" for stage in _WHOLE for name in self.specs),
                *(f"val/error/{name}/{key}" for name, key in actions),
            ]
        )

    def forward(self, embodiment: str, batch: Batch) -> dict[str, torch.Tensor]:
        """Predict action chunks: per action key, (B, H, D…), in the units of the samples.

        Args:
            embodiment: whose batch it is.
            batch: of samples as a dataset hands them out, transformed and not normalised.
        """
        predicted = self.network(embodiment, self.preparation(embodiment, batch))
        return self.preparation.restore(embodiment, predicted)

    @torch.no_grad()
    def predict(self, embodiment: str, observed: Batch) -> dict[str, torch.Tensor]:
        """Predict actions from what was observed, in the units, frames and keys of the recording.

        Args:
            embodiment: whose batch it is.
            observed: a batch of what the keymap makes without transforms: (B, …) each, and lists of
                B texts; without actions, as a robot has it, or with any. Texts become tokens as
                they did in training; `<key>_tokens` (B, L) int64 and `<key>_tokens_is_pad` (B, L)
                bool may stand in for one, and have to where its tokenizer was none of egoloader's.
                States that are optional in the keymap come with `<key>_is_pad`, (B,) or (B, n)
                bool: where the robot lacks one, zeros stand in, and all of it is true.

        Returns:
            Per action entry of the keymap, (B, n, D…), of the dtype that it has in a sample. Whole
            numbers are the nearest to what is predicted, within the dtype; bools true above 0.5.
            None of optional entries that no episode of the embodiment has, in training: what is
            predicted of them, alone or joined to others, was never trained.

        Raises:
            SettingsError: something observed is missing, or the mask of an optional state; texts
                are no list of B; or a transform of actions has no inverse.
            TransformError: numbers can't be changed, or NaN is predicted for whole numbers.
        """
        if embodiment not in self.specs:
            raise SettingsError(
                f"the policy was built for {sorted(self.specs)}, not for {embodiment!r}"
            )
        transforms = self.transforms.get(embodiment, ())
        if transforms is None:
            raise SettingsError(
                f"samples of {embodiment!r} went through transforms that are none of "
                "egoloader.transforms, so that predictions can't be taken back through them; "
                "call the policy itself for actions as they are behind these"
            )
        spec = self.specs[embodiment]
        spec.check_observed(observed)
        return predict_recorded(
            observed,
            spec.recorded,
            transforms,
            lambda batch: self._predict_samples(embodiment, batch),
        )

    def training_step(self, batch: Mapping[str, Batch], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step over all embodiments."""
        prepared = self._prepared(batch)
        total = self._log_loss("train", prepared, self._predictions(prepared))
        self.log("train/loss_step", total, prog_bar=True, batch_size=1)
        return total

    def validation_step(self, batch: Mapping[str, Batch], batch_idx: int) -> torch.Tensor:
        """Return the loss of one validation batch, and log errors in units of the samples."""
        prepared = self._prepared(batch)
        predictions = self._predictions(prepared)
        self._log_errors(prepared, predictions)
        return self._log_loss("val", prepared, predictions)

    def on_train_epoch_end(self) -> None:
        """Stop a run whose loss is no number, before its weights are kept.

        Raises:
            TrainingError: the epoch's mean loss is NaN or inf. Asked once an epoch, as each time
                waits for the device.
        """
        loss = self.trainer.callback_metrics["train/loss_epoch"]
        if not torch.isfinite(loss):
            raise TrainingError(
                f"the training loss is {loss.item()} in epoch {self.current_epoch}: a state or "
                "action holds NaN or inf, or model.learning_rate is too high; egoloader's writer "
                "warns of such rows"
            )

    def configure_optimizers(self) -> Any:
        """Return AdamW with a linear warm-up and a cosine decay over the run's steps."""
        optimizer = torch.optim.AdamW(
            self.parameters(),
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
        )
        total = max(1, int(self.trainer.estimated_stepping_batches))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: self._rate(step, total)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _rate(self, step: int, total: int) -> float:
        warmup = max(1, round(self.settings.warmup * total))
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, total - warmup))))

    def _plain(self) -> dict[str, Any]:
        """Return the options in plain types, so that a checkpoint loads without executing any."""
        transforms = {
            name: None if steps is None else to_plain(steps)
            for name, steps in self.transforms.items()
        }
        return {
            "specs": {name: dataclasses.asdict(spec) for name, spec in self.specs.items()},
            "transforms": transforms,
            "collate_fn": None if self.collate_fn is None else self.collate_fn.to_plain(),
            **self.preparation.to_plain(),
            **dataclasses.asdict(self.settings),
        }

    def _predict_samples(self, embodiment: str, batch: Batch) -> Chunks:
        """Predict from a batch as it stands behind the transforms, with actions of zeros."""
        told = with_tokens(batch, self.specs[embodiment], self.collate_fn)
        chunks = self.network(embodiment, self.preparation(embodiment, told))
        # float32 tells no small differences where an action lies far from zero.
        exact = {
            key: chunk.double() if batch[key].dtype == torch.float64 else chunk
            for key, chunk in chunks.items()
        }
        return self.preparation.restore(embodiment, exact)

    def _prepared(self, batch: Mapping[str, Batch]) -> dict[str, Batch]:
        return {name: self.preparation(name, frames) for name, frames in batch.items()}

    def _predictions(self, prepared: Mapping[str, Batch]) -> dict[str, Chunks]:
        return {name: self.network(name, frames) for name, frames in prepared.items()}

    def _log_loss(
        self, stage: str, prepared: Mapping[str, Batch], predictions: Mapping[str, Chunks]
    ) -> torch.Tensor:
        losses = {name: chunk_loss(predictions[name], frames) for name, frames in prepared.items()}
        sizes = {name: (~frames["is_repeat"]).sum() for name, frames in prepared.items()}
        for name, loss in losses.items():
            self._log_mean(f"{stage}/loss/{name}", loss, sizes[name])
        total = torch.stack(list(losses.values())).mean()
        frames = torch.stack(list(sizes.values())).sum()
        self._log_mean(_WHOLE[stage], total, frames, prog_bar=True)
        return total

    def _log_errors(self, prepared: Mapping[str, Batch], predictions: Mapping[str, Chunks]) -> None:
        for name, frames in prepared.items():
            recorded = {key: frames[key] for key in predictions[name]}
            targets = self.preparation.restore(name, recorded)
            for key, chunk in self.preparation.restore(name, predictions[name]).items():
                is_pad = padding(frames, key)
                error = masked_l1(_rows(chunk), _rows(targets[key]), is_pad)
                # By what is real, so that batches with much padding don't count for more.
                self._log_mean(f"val/error/{name}/{key}", error, (~is_pad).sum())

    def _log_mean(
        self, name: str, value: torch.Tensor, count: torch.Tensor, *, prog_bar: bool = False
    ) -> None:
        metric = self.meters.add(name, value, count)
        self.log(name, metric, prog_bar=prog_bar, on_step=False, on_epoch=True)


def chunk_loss(predicted: Chunks, batch: Batch) -> torch.Tensor:
    """Return the mean over actions of what predictions are off.

    Args:
        predicted: per action key, (B, H, D).
        batch: with those keys and their masks.
    """
    losses = [
        masked_l1(chunk, batch[key].reshape_as(chunk).float(), padding(batch, key))
        for key, chunk in predicted.items()
    ]
    return torch.stack(losses).mean()


def padding(batch: Batch, key: str) -> torch.Tensor:
    """Return which numbers of an action don't count: (B, H), or (B, H, D)."""
    # Frames that only fill a batch up count as little as steps that only pad a chunk.
    is_pad: torch.Tensor = batch[mask_key(key)] | batch["is_repeat"][:, None]
    if other_span_key(key) in batch:  # the keymap marks steps of another subtask
        is_pad = is_pad | batch[other_span_key(key)]
    dims = batch.get(dim_mask_key(key))
    return is_pad if dims is None else is_pad[..., None] | _rows(dims)


def _rows(chunks: torch.Tensor) -> torch.Tensor:
    """Return chunks (B, H, D…) as (B, H, D)."""
    return chunks.reshape(*chunks.shape[:2], -1)


def _transform(step: Transform | Mapping[str, Any]) -> Transform:
    return step if isinstance(step, Transform) else from_plain([step])[0]
