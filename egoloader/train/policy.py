"""A small behaviour-cloning policy that predicts action chunks.

Every input becomes a token: each camera frame through one convolutional encoder, each proprio
history, and the frame rate. A transformer encoder mixes them; one learned query per future step
reads from it and becomes that step's action, as in action chunking (Zhao et al., "Learning
Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023), without its latent variable.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import lightning
import torch
from torch import nn

from egoloader.errors import SettingsError, TrainingError, near_miss
from egoloader.train.spec import SampleSpec

__all__ = ["ActionChunkPolicy", "PolicySettings", "masked_l1"]

Batch = Mapping[str, Any]


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
    """Return the mean absolute error over the steps that are real.

    Args:
        predicted: (B, H, D).
        target: (B, H, D).
        is_pad: (B, H) bool, true where a step is padding and takes no part.
    """
    # Filled before the norm: a NaN behind the episode's end must not reach the gradient either.
    error = (predicted - target).masked_fill(is_pad[..., None], 0.0).abs().mean(dim=-1)
    return error.sum() / (~is_pad).sum().clamp(min=1)


class ImageEncoder(nn.Module):
    """Pixels (N, 3, H, W), uint8 in 0…255 or float in 0…1, to one token (N, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 24, kernel_size=8, stride=4, padding=2),
            nn.GroupNorm(4, 24),
            nn.GELU(),
            nn.Conv2d(24, 48, kernel_size=4, stride=2, padding=1),
            nn.GroupNorm(4, 48),
            nn.GELU(),
            nn.Conv2d(48, width, kernel_size=4, stride=2, padding=1),
            nn.GELU(),
            nn.AdaptiveAvgPool2d((3, 4)),
            nn.Flatten(),
            nn.Linear(12 * width, width),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Encode a batch of images."""
        if images.dtype == torch.uint8:
            images = images.float() / 255
        tokens: torch.Tensor = self.layers(images)
        return tokens


class EmbodimentPorts(nn.Module):
    """What one embodiment has of its own: a token per input, a query per step, a head per action.

    Names of keys hold dots, which names of modules may not; lists in the spec's order stand in.
    """

    def __init__(self, spec: SampleSpec, width: int) -> None:
        super().__init__()
        self.spec = spec
        num_images = sum(spec.cameras.values())
        self.image_places = nn.Parameter(torch.randn(num_images, width) * 0.02)
        self.states = nn.ModuleList(nn.Linear(size, width) for size in spec.states.values())
        self.queries = nn.ParameterList(
            torch.randn(horizon, width) * 0.02 for horizon, _ in spec.actions.values()
        )
        self.heads = nn.ModuleList(nn.Linear(width, dims) for _, dims in spec.actions.values())

    def image_tokens(self, batch: Batch, encoder: nn.Module) -> torch.Tensor:
        """Return one token per frame of every camera, (B, n, width); sizes may differ by camera."""
        tokens = []
        for key in self.spec.cameras:
            frames = batch[key] if batch[key].dim() == 5 else batch[key][:, None]
            tokens.append(encoder(frames.flatten(0, 1)).unflatten(0, frames.shape[:2]))
        return torch.cat(tokens, dim=1) + self.image_places

    def state_tokens(self, batch: Batch) -> list[torch.Tensor]:
        """Return one token (B, width) per proprio history; a (T,) array's state is one number."""
        return [
            layer(batch[key].reshape(len(batch[key]), -1).float())
            for key, layer in zip(self.spec.states, self.states, strict=True)
        ]


class ActionChunkPolicy(lightning.LightningModule):
    """Predicts each embodiment's action chunks from images, proprio histories and frame rate.

    Batches are `{embodiment: batch}`, as `EpisodeDataModule` makes them. The loss is the mean
    absolute error over real steps, in the actions' own units, averaged over actions, then over
    embodiments.

    Args:
        specs: per embodiment, its `SampleSpec` (or the plain form that a checkpoint keeps).
        settings: size and optimisation: the fields of `PolicySettings`.
    """

    def __init__(
        self, specs: Mapping[str, SampleSpec | Mapping[str, Any]], **settings: Any
    ) -> None:
        super().__init__()
        parsed = {
            name: spec if isinstance(spec, SampleSpec) else SampleSpec.from_plain(spec)
            for name, spec in specs.items()
        }
        # Plain types only, so that the checkpoint loads without executing anything.
        plain = {name: dataclasses.asdict(spec) for name, spec in parsed.items()}
        self.settings = PolicySettings.from_options(settings)
        self.save_hyperparameters({"specs": plain, **dataclasses.asdict(self.settings)})
        width, layers = self.settings.width, self.settings.layers
        self._places = {name: place for place, name in enumerate(parsed)}
        self.ports = nn.ModuleList(EmbodimentPorts(spec, width) for spec in parsed.values())
        self.images = ImageEncoder(width)
        self.rate = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, width))
        options: dict[str, Any] = {
            "d_model": width,
            "nhead": self.settings.heads,
            "dim_feedforward": 4 * width,
            "dropout": self.settings.dropout,
            "activation": "gelu",
            "batch_first": True,
            "norm_first": True,
        }
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**options), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), layers)

    def forward(self, embodiment: str, batch: Batch) -> dict[str, torch.Tensor]:
        """Predict action chunks: per action key, (B, H, D) in the units of the recording."""
        ports = self._ports(embodiment)
        memory = self.encoder(self._tokens(ports, batch))
        queries = torch.cat(list(ports.queries)).expand(len(memory), -1, -1)
        steps = self.decoder(queries, memory)
        chunks = steps.split([horizon for horizon, _ in ports.spec.actions.values()], dim=1)
        return {
            key: head(chunk)
            for key, head, chunk in zip(ports.spec.actions, ports.heads, chunks, strict=True)
        }

    def training_step(self, batch: Mapping[str, Batch], batch_idx: int) -> torch.Tensor:
        """Return the loss of one step over all embodiments."""
        return self._log_loss("train", batch)

    def validation_step(self, batch: Mapping[str, Batch], batch_idx: int) -> torch.Tensor:
        """Return the loss of one validation batch."""
        return self._log_loss("val", batch)

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

    def _ports(self, embodiment: str) -> EmbodimentPorts:
        if embodiment not in self._places:
            raise SettingsError(
                f"the policy was built for {sorted(self._places)}, not for {embodiment!r}"
            )
        ports = self.ports[self._places[embodiment]]
        assert isinstance(ports, EmbodimentPorts)
        return ports

    def _tokens(self, ports: EmbodimentPorts, batch: Batch) -> torch.Tensor:
        # Rates are compared by ratio: 10 to 30 Hz is as far as 30 to 90 Hz.
        tokens = [self.rate(batch["fps"].log()[:, None])]
        tokens += ports.state_tokens(batch)
        mixed = torch.stack(tokens, dim=1)
        if not ports.spec.cameras:
            return mixed
        return torch.cat([mixed, ports.image_tokens(batch, self.images)], dim=1)

    def _log_loss(self, stage: str, batch: Mapping[str, Batch]) -> torch.Tensor:
        losses = {name: self._loss(name, frames) for name, frames in batch.items()}
        sizes = {name: int((~frames["is_repeat"]).sum()) for name, frames in batch.items()}
        # Means over an epoch are over the frames of all processes.
        whole: dict[str, Any] = {"on_step": False, "on_epoch": True, "sync_dist": True}
        for name, loss in losses.items():
            self.log(f"{stage}/loss/{name}", loss, batch_size=sizes[name], **whole)
        total, frames = torch.stack(list(losses.values())).mean(), sum(sizes.values())
        if stage == "val":
            self.log("val/loss", total, prog_bar=True, batch_size=frames, **whole)
        else:
            self.log("train/loss_step", total, prog_bar=True, batch_size=frames)
            self.log("train/loss_epoch", total, prog_bar=True, batch_size=frames, **whole)
        return total

    def _loss(self, embodiment: str, batch: Batch) -> torch.Tensor:
        losses = [
            # Frames that only fill a batch up count as little as steps that only pad a chunk.
            masked_l1(
                chunk,
                batch[key].reshape_as(chunk).float(),
                batch[f"{key}_is_pad"] | batch["is_repeat"][:, None],
            )
            for key, chunk in self(embodiment, batch).items()
        ]
        return torch.stack(losses).mean()
