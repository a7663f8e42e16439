"""The network of the shipped policy: prepared batches in, action chunks out.

Every input becomes a token: each camera frame through one convolutional encoder, each proprio
history, each text, and the frame rate. A transformer encoder mixes them; one learned query per
future step reads from it and becomes that step's action, as in action chunking (Zhao et al.,
"Learning Fine-Grained Bimanual Manipulation with Low-Cost Hardware", RSS 2023), without its latent
variable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from egoloader.errors import SettingsError
from egoloader.tokens import tokens_key
from egoloader.train.spec import SampleSpec
from egoloader.transforms.transform import mask_key

__all__ = ["ActionNetwork", "EmbodimentPorts", "ImageEncoder", "TextEncoder"]

Batch = Mapping[str, Any]


class ImageEncoder(nn.Module):
    """Images (N, 3, H, W) of floats to one token each, (N, width)."""

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
        tokens: torch.Tensor = self.layers(images.to(_dtype(self)))
        return tokens


class TextEncoder(nn.Module):
    """Tokens (B, L) to one token each, (B, width): the mean of what is embedded, padding left out.

    Args:
        vocabulary: tokens are below it.
        width: of what comes out.
    """

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mixer = nn.Conv1d(width, width, kernel_size=5, padding=2)

    def forward(self, tokens: torch.Tensor, is_pad: torch.Tensor) -> torch.Tensor:
        """Encode B texts; one without tokens is zero.

        Args:
            tokens: (B, L) int64.
            is_pad: (B, L) bool, true where a token is padding.
        """
        # Zero before the mixing, so that the padding's length doesn't show.
        embedded = self.embedding(tokens).masked_fill(is_pad[..., None], 0.0)
        mixed = nn.functional.gelu(self.mixer(embedded.mT)).mT.masked_fill(is_pad[..., None], 0.0)
        mean: torch.Tensor = mixed.sum(dim=1) / (~is_pad).sum(dim=1, keepdim=True).clamp(min=1)
        return mean


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
        self.texts = nn.ModuleList(TextEncoder(size, width) for size in spec.texts.values())
        self.queries = nn.ParameterList(
            torch.randn(horizon, width) * 0.02 for horizon, *_ in spec.actions.values()
        )
        self.heads = nn.ModuleList(
            nn.Linear(width, math.prod(row)) for _, *row in spec.actions.values()
        )

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
            layer(batch[key].reshape(len(batch[key]), -1).to(_dtype(layer)))
            for key, layer in zip(self.spec.states, self.states, strict=True)
        ]

    def text_tokens(self, batch: Batch) -> list[torch.Tensor]:
        """Return one token (B, width) per text."""
        return [
            encoder(batch[tokens_key(key)], batch[mask_key(tokens_key(key))])
            for key, encoder in zip(self.spec.texts, self.texts, strict=True)
        ]


class ActionNetwork(nn.Module):
    """Predicts each embodiment's action chunks from images, states, texts and the frame rate.

    Args:
        specs: per embodiment, what its samples are.
        width: of a token.
        heads: of the attention; divides `width`.
        layers: of encoder and of decoder, each.
        dropout: in the attention layers.
    """

    def __init__(
        self,
        specs: Mapping[str, SampleSpec],
        *,
        width: int,
        heads: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self._places = {name: place for place, name in enumerate(specs)}
        self.ports = nn.ModuleList(EmbodimentPorts(spec, width) for spec in specs.values())
        self.images = ImageEncoder(width)
        self.rate = nn.Sequential(nn.Linear(1, width), nn.GELU(), nn.Linear(width, width))
        options: dict[str, Any] = {
            "d_model": width,
            "nhead": heads,
            "dim_feedforward": 4 * width,
            "dropout": dropout,
            "activation": "gelu",
            "batch_first": True,
            "norm_first": True,
        }
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**options), layers, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**options), layers)

    def forward(self, embodiment: str, batch: Batch) -> dict[str, torch.Tensor]:
        """Predict action chunks: per action key, (B, H, D), of the scale that inputs have.

        Args:
            embodiment: whose batch it is.
            batch: with images of floats, and numbers of a scale that weights can be learned for.

        Raises:
            SettingsError: an embodiment that the network was not built for.
        """
        ports = self._ports(embodiment)
        memory = self.encoder(self._tokens(ports, batch))
        queries = torch.cat(list(ports.queries)).expand(len(memory), -1, -1)
        steps = self.decoder(queries, memory)
        chunks = steps.split([horizon for horizon, *_ in ports.spec.actions.values()], dim=1)
        return {
            key: head(chunk)
            for key, head, chunk in zip(ports.spec.actions, ports.heads, chunks, strict=True)
        }

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
        tokens = [self.rate(batch["fps"].log()[:, None].to(_dtype(self.rate)))]
        tokens += ports.state_tokens(batch)
        tokens += ports.text_tokens(batch)
        mixed = torch.stack(tokens, dim=1)
        if not ports.spec.cameras:
            return mixed
        return torch.cat([mixed, ports.image_tokens(batch, self.images)], dim=1)


def _dtype(layers: nn.Module) -> torch.dtype:
    """Return what the weights are of, which need not be float32."""
    return next(layers.parameters()).dtype
