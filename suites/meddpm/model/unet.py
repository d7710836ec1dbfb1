"""The 3D U-Net of Med-DDPM, with the layout and the tensor names of the released checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from suites.meddpm.model.layers import (
    Block,
    Downsample,
    GroupNorm32,
    ResidualBlock,
    SelfAttention,
    Upsample,
    at_least_float32,
    zeroed,
)

CHANNEL_MULTIPLIERS: dict[int, tuple[float, ...]] = {
    64: (1, 2, 3, 4),
    128: (1, 1, 2, 3, 4),
    256: (1, 1, 2, 2, 4, 4),
    512: (0.5, 1, 1, 2, 2, 4, 4),
}
"""Width of each level, in units of the model's channels, by the published image size (voxels)."""

ATTENTION_RESOLUTION = 16
"""Self-attention is where an image of the published size has this many voxels along an edge."""

MAX_PERIOD = 1000.0
"""The longest period of the time embedding's sinusoids, in time steps over 2 pi."""


class UNet3D(nn.Module):
    """Predicts the noise in a volume, given the time step; conditions come as input channels.

    One residual block per level on the way down, two on the way up, as published. The network
    is convolutional: any edge that the levels can halve is accepted, not only the published one.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        model_channels: int = 64,
        channel_multipliers: Sequence[float] = CHANNEL_MULTIPLIERS[128],
        attention_factors: Sequence[int] = (8,),
        dropout: float = 0.0,
    ) -> None:
        """`attention_factors` are the downsampling factors of the levels with attention."""
        super().__init__()
        widths = [int(model_channels * multiplier) for multiplier in channel_multipliers]
        embedding_size = 4 * model_channels
        self.smallest_edge = 2 ** (len(widths) - 1)
        """Edges of the input volume must be multiples of this many voxels."""
        half = model_channels // 2
        # On the device and not in the checkpoint: a host tensor made in every forward would
        # keep a CUDA graph from being captured.
        self.frequencies: Tensor
        self.register_buffer(
            "frequencies",
            torch.exp(-math.log(MAX_PERIOD) * torch.arange(half, dtype=torch.float32) / half),
            persistent=False,
        )
        self.time_embed = nn.Sequential(
            nn.Linear(model_channels, embedding_size),
            nn.SiLU(),
            nn.Linear(embedding_size, embedding_size),
        )

        def residual(channels: int, width: int, factor: int) -> list[nn.Module]:
            block: list[nn.Module] = [ResidualBlock(channels, width, embedding_size, dropout)]
            return [*block, SelfAttention(width)] if factor in attention_factors else block

        channels = widths[0]
        self.input_blocks = nn.ModuleList([Block([nn.Conv3d(in_channels, channels, 3, padding=1)])])
        skips = [channels]
        for level, width in enumerate(widths):
            self.input_blocks.append(Block(residual(channels, width, 2**level)))
            channels = width
            skips.append(channels)
            if level < len(widths) - 1:
                self.input_blocks.append(Block([Downsample(channels)]))
                skips.append(channels)

        self.middle_block = Block(
            [
                ResidualBlock(channels, channels, embedding_size, dropout),
                SelfAttention(channels),
                ResidualBlock(channels, channels, embedding_size, dropout),
            ]
        )

        self.output_blocks = nn.ModuleList()
        for level, width in reversed(list(enumerate(widths))):
            for last in (False, True):
                layers = residual(channels + skips.pop(), width, 2**level)
                channels = width
                if last and level > 0:
                    layers.append(Upsample(channels))
                self.output_blocks.append(Block(layers))

        self.out = nn.Sequential(
            GroupNorm32(channels),
            nn.SiLU(),
            zeroed(nn.Conv3d(channels, out_channels, 3, padding=1)),
        )

    @classmethod
    def published(
        cls, image_size: int, in_channels: int, out_channels: int, *, model_channels: int = 64
    ) -> UNet3D:
        """The network that was published for volumes of `image_size` voxels along an edge."""
        if image_size not in CHANNEL_MULTIPLIERS:
            sizes = ", ".join(map(str, CHANNEL_MULTIPLIERS))
            raise ValueError(
                f"no Med-DDPM network was published for image size {image_size}; there are {sizes}"
            )
        return cls(
            in_channels,
            out_channels,
            model_channels=model_channels,
            channel_multipliers=CHANNEL_MULTIPLIERS[image_size],
            attention_factors=(image_size // ATTENTION_RESOLUTION,),
        )

    def time_embedding(self, t: Tensor) -> Tensor:
        """Sinusoids of the time steps `t` [B], cosines first: [B, model_channels]."""
        angles = t[:, None].to(at_least_float32(self.frequencies.dtype)) * self.frequencies[None]
        return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """The noise [B, C_out, D, H, W] in `x` [B, C_in, D, H, W] at the time steps `t` [B]."""
        if any(edge % self.smallest_edge for edge in x.shape[2:]):
            raise ValueError(
                f"a volume of {tuple(x.shape[2:])} voxels does not fit the network: "
                f"each edge must be a multiple of {self.smallest_edge}"
            )
        embedding = self.time_embed(self.time_embedding(t))
        skips: list[Tensor] = []
        hidden = x
        for block in self.input_blocks:
            hidden = block(hidden, embedding)
            skips.append(hidden)
        hidden = self.middle_block(hidden, embedding)
        for block in self.output_blocks:
            hidden = block(torch.cat([hidden, skips.pop()], dim=1), embedding)
        noise: Tensor = self.out(hidden)
        return noise
