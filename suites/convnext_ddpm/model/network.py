"""The 2D U-Net of ConvNeXt blocks that predicts the noise in an image."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.model.blocks import AttentionGate, ConvNeXtBlock, Downsample, Upsample
from suites.convnext_ddpm.model.modules import Convolution, LayerNorm, Linear
from suites.convnext_ddpm.shape import Shape

Joining = Literal["concatenate", "preallocated"]
"""How a skip and the map from below come together: copied into one, or written there at once."""

MAX_PERIOD = 10_000.0
"""The longest period of the time embedding's sinusoids, in time steps over 2 pi."""


class Network(nn.Module):
    """Predicts the noise [N, C, H, W] in images, given their time steps [N].

    Two blocks per level on the way down, two at the bottom level, two per level on the way up,
    where the skip is gated and joined, and one before the end. Without parameters drawn they are
    uninitialised: use `seeded_network`.
    """

    def __init__(
        self, shape: Shape, how: Execution | None = None, joining: Joining = "concatenate"
    ) -> None:
        super().__init__()
        widths = shape.widths
        self.shape = shape
        self.how = how or Execution()
        """May be exchanged at any time: the parameters are the same under all of them."""
        self.joining = joining
        features = 4 * widths[0]
        half = widths[0] // 2
        self.frequencies: Tensor
        self.register_buffer(
            "frequencies",
            torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32) / (half - 1)),
            persistent=False,
        )
        self.time1 = Linear(widths[0], features)
        self.time2 = Linear(features, features, gelu_first=True)
        self.first = Convolution(shape.channels, widths[0], 7)
        self.down = nn.ModuleList(_pair(width, width, features) for width in widths)
        self.downsamples = nn.ModuleList(map(Downsample, widths[:-1], widths[1:]))
        self.upsamples = nn.ModuleList(map(Upsample, widths[1:], widths[:-1]))
        self.gates = nn.ModuleList(map(AttentionGate, widths[:-1]))
        self.up = nn.ModuleList(_pair(2 * width, width, features) for width in widths[:-1])
        self.last = ConvNeXtBlock(widths[0], widths[0], features)
        self.out = Convolution(widths[0], shape.channels, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The noise in `x` [N, C, H, W] at the time steps `t` [N]."""
        return self.noise(x, self.time(t))

    def time(self, t: Tensor) -> Tensor:
        """The embedding [N, E] of the time steps `t` [N]: sinusoids, sines first, and an MLP."""
        with self.how.mark("time_embedding"):
            angles = t[:, None].to(self.frequencies.dtype) * self.frequencies[None]
            sinusoids = torch.cat([torch.sin(angles), torch.cos(angles)], dim=-1)
        embedding: Tensor = self.time2(self.time1(sinusoids, self.how), self.how)
        return embedding

    def noise(self, x: Tensor, time: Tensor) -> Tensor:
        """The noise in `x` [N, C, H, W], given the embedding [N, E] of its time step."""
        how = self.how
        hidden = self.first(x, how)
        skips: list[Tensor] = []
        for level, blocks in enumerate(self.down):
            hidden = _through(blocks, hidden, time, how)
            if level < len(self.downsamples):
                skips.append(hidden)
                hidden = self.downsamples[level](hidden, how)
        for level in reversed(range(len(self.up))):
            hidden = self._joined(level, skips.pop(), hidden)
            hidden = _through(self.up[level], hidden, time, how)
        hidden = self.last(hidden, time, how)
        noise: Tensor = self.out(hidden, how)
        return noise

    def _joined(self, level: int, skip: Tensor, below: Tensor) -> Tensor:
        """The gated `skip` [N, C, H, W], and after it the doubled map from below: [N, 2C, H, W]."""
        double, gate, how = self.upsamples[level], self.gates[level], self.how
        if self.joining == "concatenate":
            raised = double(below, how)
            gated = gate(skip, raised, how)
            with how.mark("concatenate"):
                return how.concatenate([gated, raised])
        if torch.is_grad_enabled():
            raise ValueError(
                "preallocated joining writes in place, which autograd cannot follow back: "
                'use it under torch.no_grad(), or train with joining="concatenate"'
            )
        count, channels, rows, columns = skip.shape
        joined = skip.new_empty(count, 2 * channels, rows, columns)
        raised = double(below, how, out=joined[:, channels:])
        # Of one image a slice is contiguous already, as operators want it; of more, it is copied.
        gate(skip, raised.contiguous(), how, out=joined[:, :channels])
        return joined


def seeded_network(
    shape: Shape,
    seed: int = 0,
    *,
    how: Execution | None = None,
    joining: Joining = "concatenate",
) -> Network:
    """A network on the CPU whose parameters are drawn from `seed`, the same on every machine.

    Weights and biases are uniform within 1 / sqrt(inputs of an output), norms' weights within 0.1
    of 1. Uniform numbers are whole ones, scaled, on every CPU; normal ones are rounded as its
    vector unit rounds.
    """
    network = Network(shape, how, joining)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, LayerNorm):
                module.weight.uniform_(0.9, 1.1, generator=generator)
                module.bias.uniform_(-0.1, 0.1, generator=generator)
            elif isinstance(module, (Convolution, Linear)):
                bound = module.weight[0].numel() ** -0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                module.bias.uniform_(-bound, bound, generator=generator)
    return network


def _pair(channels: int, out_channels: int, features: int) -> nn.ModuleList:
    return nn.ModuleList(
        [
            ConvNeXtBlock(channels, out_channels, features),
            ConvNeXtBlock(out_channels, out_channels, features),
        ]
    )


def _through(blocks: nn.Module, x: Tensor, time: Tensor, how: Execution) -> Tensor:
    for block in blocks.children():
        x = block(x, time, how)
    return x
