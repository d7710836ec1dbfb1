"""The layers of the 3D U-Net. Attribute names are those of the released checkpoints.

Shapes: B batch, C channels, D H W depth, height and width in voxels, E size of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

GROUPS = 32
"""Groups of every GroupNorm of the network."""

LayerT = TypeVar("LayerT", bound=nn.Module)


def zeroed(layer: LayerT) -> LayerT:
    """`layer` with all parameters zero: the residual branch it ends starts as nothing."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    return layer


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """What sums over values of `dtype` are computed in: float32, or what is wider."""
    return torch.promote_types(dtype, torch.float32)


class GroupNorm32(nn.GroupNorm):
    """GroupNorm with 32 groups that computes in float32 or wider and returns the input's dtype."""

    def __init__(self, channels: int) -> None:
        super().__init__(GROUPS, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Normalises `x` [B, C, ...] per group of channels."""
        wide = at_least_float32(x.dtype)
        weight, bias = self.weight.to(wide), self.bias.to(wide)
        return functional.group_norm(x.to(wide), GROUPS, weight, bias, self.eps).to(x.dtype)


class ResidualBlock(nn.Module):
    """Two convolutions with the time embedding added between them, around a skip connection."""

    def __init__(
        self, channels: int, out_channels: int, embedding_size: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.in_layers = nn.Sequential(
            GroupNorm32(channels),
            nn.SiLU(),
            nn.Conv3d(channels, out_channels, 3, padding=1),
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(embedding_size, out_channels))
        self.out_layers = nn.Sequential(
            GroupNorm32(out_channels),
            nn.SiLU(),
            nn.Dropout(dropout),
            zeroed(nn.Conv3d(out_channels, out_channels, 3, padding=1)),
        )
        self.skip_connection: nn.Module = (
            nn.Identity() if channels == out_channels else nn.Conv3d(channels, out_channels, 1)
        )

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] and `embedding` [B, E] to [B, C_out, D, H, W]."""
        hidden = self.in_layers(x)
        hidden = hidden + self.emb_layers(embedding).to(hidden.dtype)[..., None, None, None]
        result: Tensor = self.skip_connection(x) + self.out_layers(hidden)
        return result


class SelfAttention(nn.Module):
    """Every voxel attends to every other, with one head. Always recomputed in backward.

    The weights are N x N for N voxels (64 MiB in float32 at 16^3), hence the recomputation.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = GroupNorm32(channels)
        self.qkv = nn.Conv1d(channels, 3 * channels, 1)
        self.proj_out = zeroed(nn.Conv1d(channels, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] to the same shape."""
        # Nothing random happens inside; saving the generator's state would keep a CUDA graph
        # from being captured.
        result: Tensor = checkpoint(self._attend, x, use_reentrant=False, preserve_rng_state=False)
        return result

    def _attend(self, x: Tensor) -> Tensor:
        voxels = x.reshape(*x.shape[:2], -1)
        query, key, value = self.qkv(self.norm(voxels)).chunk(3, dim=1)
        # The scale is split between query and key, so that half precision does not overflow.
        scale = query.shape[1] ** -0.25
        scores = torch.bmm((query * scale).transpose(1, 2), key * scale)
        wide = at_least_float32(scores.dtype)
        weights = functional.softmax(scores, dim=-1, dtype=wide).to(value.dtype)
        attended = torch.bmm(value, weights.transpose(1, 2))
        result: Tensor = voxels + self.proj_out(attended)
        return result.reshape(x.shape)


class Downsample(nn.Module):
    """Halves depth, height and width with a convolution of stride 2."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.op = nn.Conv3d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] to [B, C, D/2, H/2, W/2]."""
        result: Tensor = self.op(x)
        return result


class Upsample(nn.Module):
    """Doubles depth, height and width: trilinear interpolation, then a convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] to [B, C, 2D, 2H, 2W]."""
        doubled = functional.interpolate(x, scale_factor=2.0, mode="trilinear", align_corners=False)
        result: Tensor = self.conv(doubled)
        return result


class Block(nn.ModuleList):
    """Layers in sequence, of which the residual blocks are given the time embedding."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        super().__init__(layers)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] and `embedding` [B, E] through all layers."""
        for layer in self:
            x = layer(x, embedding) if isinstance(layer, ResidualBlock) else layer(x)
        return x
