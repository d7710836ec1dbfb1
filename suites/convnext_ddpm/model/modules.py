"""The modules that hold parameters: each is one operator, kernel-sized."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from suites.convnext_ddpm.execution import Execution
from suites.convnext_ddpm.operators import Epilogue


class Convolution(nn.Module):
    """A convolution of stride 1 that keeps the map's size; kernels have an odd edge."""

    def __init__(self, channels: int, out_channels: int, kernel: int, *, groups: int = 1) -> None:
        super().__init__()
        self.padding = kernel // 2
        self.groups = groups
        self.weight = nn.Parameter(torch.empty(out_channels, channels // groups, kernel, kernel))
        self.bias = nn.Parameter(torch.empty(out_channels))
        self.component = "conv2d" if groups == 1 else "depthwise_conv2d"

    def forward(
        self,
        x: Tensor,
        how: Execution,
        *,
        addend: Tensor | None = None,
        epilogue: Epilogue = Epilogue.NONE,
        out: Tensor | None = None,
    ) -> Tensor:
        """See `Operators.convolution`."""
        with how.mark(self.component):
            return how.operators.convolution(
                x,
                self.weight,
                self.bias,
                padding=self.padding,
                groups=self.groups,
                addend=addend,
                epilogue=epilogue,
                out=out,
            )


class LayerNorm(nn.Module):
    """GroupNorm of one group: over all of an image's map."""

    epsilon = 1e-5

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels))
        self.bias = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor, how: Execution) -> Tensor:
        """See `Operators.layer_norm`."""
        with how.mark("layer_norm"):
            return how.operators.layer_norm(x, self.weight, self.bias, self.epsilon)


class Linear(nn.Module):
    """A linear layer, of its input or of the input's GELU."""

    def __init__(self, features: int, out_features: int, *, gelu_first: bool = False) -> None:
        super().__init__()
        self.gelu_first = gelu_first
        self.weight = nn.Parameter(torch.empty(out_features, features))
        self.bias = nn.Parameter(torch.empty(out_features))

    def forward(self, x: Tensor, how: Execution) -> Tensor:
        """See `Operators.linear`."""
        with how.mark("linear"):
            return how.operators.linear(x, self.weight, self.bias, gelu_first=self.gelu_first)
