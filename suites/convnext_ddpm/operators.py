"""What the network computes with: one interface, implemented by torch and by our own kernels.

Tensors are float32, NCHW and contiguous, but for `out`, where a result is to be written: its
channels, rows and columns are contiguous, and its images may lie further apart, as in a slice of a
larger buffer. Every method returns its result, `out` where that was given.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional


class Epilogue(Enum):
    """What is applied to a convolution's sum, bias and addend."""

    NONE = "none"
    GELU = "gelu"
    """x times the normal distribution's cumulative function, exactly (erf), as torch's default."""
    RELU = "relu"


class Operators(Protocol):
    """The computations of the network, each a choice of how it is done."""

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        padding: int = 0,
        groups: int = 1,
        addend: Tensor | None = None,
        epilogue: Epilogue = Epilogue.NONE,
        out: Tensor | None = None,
    ) -> Tensor:
        """epilogue(convolution of stride 1 + bias + addend).

        x [N, C, H, W], weight [O, C / groups, K, K], bias [O], addend of the result's shape
        [N, O, H', W'], or [N, O, 1, 1].
        """
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """GroupNorm of one group: over the channels, rows and columns of each image of x."""
        ...

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor, *, gelu_first: bool = False
    ) -> Tensor:
        """The product of x [N, I] (after GELU, if gelu_first) and weight [O, I], plus bias."""
        ...

    def gate(self, x: Tensor, attention: Tensor, *, out: Tensor | None = None) -> Tensor:
        """The product of x [N, C, H, W] with the sigmoid of attention [N, 1, H, W]."""
        ...

    def upsample(self, x: Tensor) -> Tensor:
        """Nearest neighbour, twice the rows and columns."""
        ...

    def space_to_depth(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, 4C, H / 2, W / 2]; channel 4c + 2p + q has rows p and columns q."""
        ...


@dataclass(frozen=True)
class BlockParameters:
    """The parameters of a ConvNeXt block of C channels in, M in its middle and O out."""

    depthwise_weight: Tensor
    """[C, 1, 7, 7]"""
    depthwise_bias: Tensor
    norm1_weight: Tensor
    """[C]"""
    norm1_bias: Tensor
    conv1_weight: Tensor
    """[M, C, 3, 3]"""
    conv1_bias: Tensor
    norm2_weight: Tensor
    """[M]"""
    norm2_bias: Tensor
    conv2_weight: Tensor
    """[O, M, 3, 3]"""
    conv2_bias: Tensor
    residual_weight: Tensor | None
    """[O, C, 1, 1]; None where C = O and the block's input is added as it is."""
    residual_bias: Tensor | None
    epsilon: float
    """Of both norms."""


@runtime_checkable
class FusedBlocks(Protocol):
    """Operators that can also do a whole ConvNeXt block at once."""

    def block(self, x: Tensor, shift: Tensor | None, parameters: BlockParameters) -> Tensor:
        """From x [N, C, H, W] to [N, O, H, W]; shift [N, C] is added to the depthwise convolution.

        conv2(norm2(gelu(conv1(norm1(depthwise(x) + shift))))) + residual(x), where each convolution
        keeps the map's size.
        """
        ...


class TorchOperators:
    """torch's own (cuDNN's, on a GPU): what everything else is compared with. Differentiable."""

    def convolution(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        *,
        padding: int = 0,
        groups: int = 1,
        addend: Tensor | None = None,
        epilogue: Epilogue = Epilogue.NONE,
        out: Tensor | None = None,
    ) -> Tensor:
        """See Operators."""
        result = functional.conv2d(x, weight, bias, padding=padding, groups=groups)
        if addend is not None:
            result = result + addend
        if epilogue is Epilogue.GELU:
            result = functional.gelu(result)
        elif epilogue is Epilogue.RELU:
            result = torch.relu(result)
        return _written(result, out)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """See Operators."""
        return functional.group_norm(x, 1, weight, bias, epsilon)

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor, *, gelu_first: bool = False
    ) -> Tensor:
        """See Operators."""
        return functional.linear(functional.gelu(x) if gelu_first else x, weight, bias)

    def gate(self, x: Tensor, attention: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See Operators."""
        return _written(x * torch.sigmoid(attention), out)

    def upsample(self, x: Tensor) -> Tensor:
        """See Operators."""
        return functional.interpolate(x, scale_factor=2, mode="nearest")

    def space_to_depth(self, x: Tensor) -> Tensor:
        """See Operators."""
        return functional.pixel_unshuffle(x, 2)


def _written(result: Tensor, out: Tensor | None) -> Tensor:
    return result if out is None else out.copy_(result)
