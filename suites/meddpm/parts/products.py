"""Parts that write an operation so that the GPU has fast kernels for it and for its gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from suites.meddpm.model.layers import Upsample, at_least_float32
from suites.meddpm.parts.base import Part, classes_changed

ALIGNMENT = 8
"""Channels of bfloat16 in the 16 bytes that tensor cores take operands in; twice those of TF32."""


class PaddedChannels(Part):
    """The first and the last convolution, of 3 and of 1 channels, on the tensor cores.

    Of so few channels, and of any number that is padded to 8, cuDNN has no other kernel for the
    weight gradient in bfloat16 than one off the tensor cores. As a matrix product it has one: the
    rows are voxels, the columns the few channels of all of a voxel's neighbours, padded with zeros.
    """

    name = "padded_channels"
    summary = "The first and last convolution as zero-padded products, for tensor cores."

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """Pads inside the step: the weights keep their shapes."""
        return classes_changed(_narrow(model))


def _narrow(model: nn.Module) -> Iterator[tuple[nn.Module, type[nn.Module]]]:
    for module in model.modules():
        if type(module) is not nn.Conv3d or not _keeps_size(module):
            continue
        if module.in_channels < ALIGNMENT:
            yield module, _FewInputsConv3d
        elif module.out_channels < ALIGNMENT:
            yield module, _FewOutputsConv3d


def _keeps_size(convolution: nn.Conv3d) -> bool:
    """Of one group, over all voxels of the neighbourhood; odd, and zeros around the volume."""
    edges = {*convolution.kernel_size}
    return (
        len(edges) == 1
        and {*convolution.stride, *convolution.dilation, convolution.groups} == {1}
        and all(edge % 2 and (edge // 2,) * 3 == convolution.padding for edge in edges)
        and convolution.padding_mode == "zeros"
    )


class _FewInputsConv3d(nn.Conv3d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        columns = _neighbours(input, self.kernel_size[0])
        weight = _padded(self.weight.flatten(1))
        # Its channels are innermost in memory; who wants them outermost copies as before.
        return functional.linear(columns, weight, self.bias).movedim(-1, 1)


class _FewOutputsConv3d(nn.Conv3d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        weight = self.weight
        device = input.device.type
        if torch.is_autocast_enabled(device):
            # Outside of the function, so that it computes in one precision, backward too.
            dtype = torch.get_autocast_dtype(device)
            input, weight = input.to(dtype), weight.to(dtype)  # noqa: A001
        result: Tensor = _FewOutputs.apply(input, weight)  # type: ignore[no-untyped-call]
        return (
            result
            if self.bias is None
            else result + self.bias.to(result.dtype)[:, None, None, None]
        )


class _FewOutputs(torch.autograd.Function):
    """A convolution of few output channels, of which both gradients are matrix products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        """`x` [B, C, D, H, W] and `weight` [O, C, K, K, K] to [B, O, D, H, W]."""
        ctx.save_for_backward(x, weight)
        outputs, edge = weight.shape[0], weight.shape[2]
        more = -outputs % ALIGNMENT
        result = functional.conv3d(x, functional.pad(weight, (0,) * 9 + (more,)), padding=edge // 2)
        return result[:, :outputs].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients of both, of the few channels in the neighbourhood of every voxel."""
        x, weight = ctx.saved_tensors
        outputs, inputs, edge = weight.shape[:3]
        # From the other side: where a voxel adds to, not what adds to it.
        columns = _neighbours(gradients[0], edge)
        mirrored = weight.flip(2, 3, 4).movedim(1, -1).reshape(-1, inputs)
        of_x = columns @ _padded(mirrored.T).T
        voxels = x.movedim(1, -1).reshape(-1, inputs)
        product = columns.flatten(0, -2).T @ voxels
        of_weight = product[: outputs * edge**3].reshape(outputs, edge, edge, edge, inputs)
        return of_x.movedim(-1, 1), of_weight.movedim(-1, 1).flip(2, 3, 4)


def _neighbours(x: Tensor, edge: int) -> Tensor:
    """From `x` [B, C, D, H, W] the edge^3 voxels around each, zeros beyond the volume.

    [B, D, H, W, C * edge^3, rounded up to a multiple of ALIGNMENT by zeros].
    """
    around = functional.pad(x, (edge // 2,) * 6)
    for dimension in (2, 3, 4):
        around = around.unfold(dimension, edge, 1)
    return _padded(around.movedim(1, 4).flatten(4))


def _padded(matrix: Tensor) -> Tensor:
    """With zeros up to a multiple of ALIGNMENT columns."""
    return functional.pad(matrix, (0, -matrix.shape[-1] % ALIGNMENT))


class SeparableUpsampling(Part):
    """Trilinear doubling as one interpolation per axis.

    The gradient of torch's own adds to eight voxels each, by atomic additions; written per axis,
    every voxel of a gradient is gathered from its neighbours.
    """

    name = "separable_upsampling"
    summary = "Volumes are doubled axis by axis, so gradients are gathered, not added atomically."

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """The doubling layers of `model` get a class that does so."""
        return classes_changed(
            (module, _SeparableUpsample) for module in model.modules() if type(module) is Upsample
        )


class _SeparableUpsample(Upsample):
    def forward(self, x: Tensor) -> Tensor:
        # Axes are doubled in the order in which they lie in memory, or the layout would change.
        innermost = x.movedim(1, -1).is_contiguous()
        volume = (x.movedim(1, -1) if innermost else x).to(at_least_float32(x.dtype))
        for axis in (1, 2, 3) if innermost else (2, 3, 4):
            volume = _doubled(volume, axis)
        volume = volume.to(x.dtype)
        result: Tensor = self.conv(volume.movedim(-1, 1) if innermost else volume)
        return result


def _doubled(x: Tensor, axis: int) -> Tensor:
    """Linear interpolation to twice as many, at a quarter and three quarters of each; the ends
    repeat.
    """
    last = x.shape[axis] - 1
    before = torch.cat([x.narrow(axis, 0, 1), x.narrow(axis, 0, last)], axis)
    after = torch.cat([x.narrow(axis, 1, last), x.narrow(axis, last, 1)], axis)
    pairs = torch.stack([0.25 * before + 0.75 * x, 0.75 * x + 0.25 * after], axis + 1)
    return pairs.flatten(axis, axis + 1)
