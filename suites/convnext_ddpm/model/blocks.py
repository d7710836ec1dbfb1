"""The blocks of the U-Net, built of operators.

Shapes: N images, C channels, H W rows and columns, E features of the time embedding.
"""

from __future__ import annotations

from torch import Tensor, nn

from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.model.modules import Convolution, LayerNorm, Linear
from suites.convnext_ddpm.operators import BlockParameters, Epilogue

MULTIPLIER = 2
"""A block's middle has so many times its output's channels."""


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, shifted by the time, and two convolutions, around a residual."""

    def __init__(self, channels: int, out_channels: int, time_features: int) -> None:
        super().__init__()
        middle = MULTIPLIER * out_channels
        self.time = Linear(time_features, channels, gelu_first=True)
        self.depthwise = Convolution(channels, channels, 7, groups=channels)
        self.norm1 = LayerNorm(channels)
        self.conv1 = Convolution(channels, middle, 3)
        self.norm2 = LayerNorm(middle)
        self.conv2 = Convolution(middle, out_channels, 3)
        self.residual = None if channels == out_channels else Convolution(channels, out_channels, 1)

    def forward(self, x: Tensor, time: Tensor, how: Execution) -> Tensor:
        """`x` [N, C, H, W] and the embedding `time` [N, E] to [N, C_out, H, W]."""
        shift = self.time(time, how)
        if how.blocks is not None:
            with how.mark("block"):
                return how.blocks.block(x, shift, self.block_parameters())
        hidden = self.depthwise(x, how, addend=shift[:, :, None, None])
        hidden = self.norm1(hidden, how)
        hidden = self.conv1(hidden, how, epilogue=Epilogue.GELU)
        hidden = self.norm2(hidden, how)
        residual = x if self.residual is None else self.residual(x, how)
        result: Tensor = self.conv2(hidden, how, addend=residual)
        return result

    def block_parameters(self) -> BlockParameters:
        """The parameters of everything but the time's linear layer."""
        return BlockParameters(
            depthwise_weight=self.depthwise.weight,
            depthwise_bias=self.depthwise.bias,
            norm1_weight=self.norm1.weight,
            norm1_bias=self.norm1.bias,
            conv1_weight=self.conv1.weight,
            conv1_bias=self.conv1.bias,
            norm2_weight=self.norm2.weight,
            norm2_bias=self.norm2.bias,
            conv2_weight=self.conv2.weight,
            conv2_bias=self.conv2.bias,
            residual_weight=None if self.residual is None else self.residual.weight,
            residual_bias=None if self.residual is None else self.residual.bias,
            epsilon=LayerNorm.epsilon,
        )


class Downsample(nn.Module):
    """Halves rows and columns: every 2 x 2 pixels become channels, which a convolution mixes."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.mix = Convolution(4 * channels, out_channels, 1)

    def forward(self, x: Tensor, how: Execution) -> Tensor:
        """`x` [N, C, H, W] to [N, C_out, H/2, W/2]."""
        with how.mark("downsample"):
            pixels = how.operators.space_to_depth(x)
        result: Tensor = self.mix(pixels, how)
        return result


class Upsample(nn.Module):
    """Doubles rows and columns by the nearest neighbour, and smooths that by a convolution."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.smooth = Convolution(channels, out_channels, 3)

    def forward(self, x: Tensor, how: Execution, out: Tensor | None = None) -> Tensor:
        """`x` [N, C, H, W] to [N, C_out, 2H, 2W], into `out` where that is given."""
        with how.mark("upsample"):
            doubled = how.operators.upsample(x)
        result: Tensor = self.smooth(doubled, how, out=out)
        return result


class AttentionGate(nn.Module):
    """Weighs the pixels of a skip by what the map from below says of them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.of_gate = Convolution(channels, channels, 1)
        self.of_skip = Convolution(channels, channels, 1)
        self.attention = Convolution(channels, 1, 1)

    def forward(
        self, skip: Tensor, gate: Tensor, how: Execution, out: Tensor | None = None
    ) -> Tensor:
        """`skip` and `gate` [N, C, H, W] to the gated skip, in `out` where that is given."""
        both = self.of_skip(skip, how, addend=self.of_gate(gate, how), epilogue=Epilogue.RELU)
        attention = self.attention(both, how)
        with how.mark("attention"):
            return how.operators.gate(skip, attention, out=out)
