"""The network's operators, composed of our kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from pytest_gpuperf.errors import UsageFailure
from suites.convnext_ddpm.kernels import convolutions, norms
from suites.convnext_ddpm.kernels.blocks import Blocks
from suites.convnext_ddpm.kernels.convolutions import Convolution
from suites.convnext_ddpm.kernels.device import DeviceLauncher
from suites.convnext_ddpm.kernels.launches import (
    Argument,
    Launch,
    Launcher,
    ceiling,
    check,
    named,
)
from suites.convnext_ddpm.kernels.norms import Norm
from suites.convnext_ddpm.operators import Epilogue


class KernelOperators:
    """See Operators. Not differentiable.

    They launch through `launcher`, by default on torch's current device. `fused` has bias, addend
    and activation in the convolution's kernel, the sigmoid in the gate's, and GELU and bias in the
    linear's; without it each is a kernel of its own. `blocks` makes them FusedBlocks too, of which
    `largest_work` says which are one kernel: see Blocks.
    Raises UsageFailure where the device has not what the convolution needs, and in every method for
    tensors that are not as Operators has them.
    """

    def __init__(
        self,
        launcher: Launcher | None = None,
        *,
        convolution: Convolution = "tiled",
        norm: Norm = "warp_shuffle",
        fused: bool = True,
        blocks: bool = False,
        largest_work: int | None = None,
    ) -> None:
        launcher = launcher or DeviceLauncher()
        reason = convolutions.unavailable_convolution(convolution, launcher.arch)
        if reason:
            raise UsageFailure(reason)
        self._launcher = launcher
        self._convolution = convolutions.KERNELS[convolution]
        self._norm = norms.KERNELS[norm]
        self._fused = fused
        if blocks:
            # Only then: having it is how operators say that they do blocks.
            self.block = Blocks(self, launcher, largest_work)

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
        check(x=x, weight=weight, bias=bias, addend=addend)
        shape = convolutions.Shape(
            *(x.shape[0], x.shape[1], weight.shape[0], x.shape[2], x.shape[3]),
            *(weight.shape[2], padding, groups),
        )
        result = _target(out, x, (shape.images, shape.outputs, shape.out_rows, shape.out_columns))
        plane = shape.out_rows * shape.out_columns
        stride, addend_plane = result.stride(0), 0 if addend is None else addend[0, 0].numel()
        if self._fused:
            launch = self._convolution(shape, epilogue, self._launcher.processors)
            sizes = (shape.rows, shape.columns, stride, addend_plane)
            self._launcher.launch(launch, x, weight, bias, addend, result, *sizes)
            return result
        launch = self._convolution(shape, Epilogue.NONE, self._launcher.processors)
        sizes = (shape.rows, shape.columns, stride, 0)
        self._launcher.launch(launch, x, weight, None, None, result, *sizes)
        if bias is not None:
            self._pointwise("add_bias", result, result, bias, plane, stride)
        if addend is not None:
            self._pointwise("add", result, result, addend, plane, stride, addend_plane)
        if epilogue is not Epilogue.NONE:
            activate = named("activate", convolutions.EPILOGUES[epilogue])
            self._pointwise(activate, result, result, result, plane, stride)
        return result

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
        """See Operators."""
        check(x=x, weight=weight, bias=bias)
        return self._norm(self._launcher, x, weight, bias, epsilon)

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor, *, gelu_first: bool = False
    ) -> Tensor:
        """See Operators."""
        check(x=x, weight=weight, bias=bias)
        outputs, inputs = weight.shape
        if gelu_first and not self._fused:
            activated = torch.empty_like(x)
            as_map = x[:, :, None, None]
            activate = named("activate", convolutions.EPILOGUES[Epilogue.GELU])
            self._pointwise(activate, as_map, x, activated, 1, inputs)
            x, gelu_first = activated, False
        out = x.new_empty(x.shape[0], outputs)
        launch = Launch(
            "pointwise.cu",
            named("linear", inputs, outputs, gelu_first),
            (ceiling(outputs, 8), x.shape[0], 1),
            256,
        )
        self._launcher.launch(launch, x, weight, bias if self._fused else None, out)
        if not self._fused:
            self._pointwise("add_bias", out[:, :, None, None], out, bias, 1, outputs)
        return out

    def gate(self, x: Tensor, attention: Tensor, *, out: Tensor | None = None) -> Tensor:
        """See Operators."""
        check(x=x, attention=attention)
        result, plane = _target(out, x, tuple(x.shape)), x.shape[2] * x.shape[3]
        if not self._fused:
            count, factors = attention.numel(), torch.empty_like(attention)
            launch = Launch("pointwise.cu", "sigmoid_of", (ceiling(count, 256), 1, 1), 256)
            self._launcher.launch(launch, attention, factors, count)
            attention = factors
        kernel = named("gate", self._fused)
        self._pointwise(kernel, result, x, attention, result, plane, result.stride(0))
        return result

    def upsample(self, x: Tensor) -> Tensor:
        """See Operators."""
        check(x=x)
        images, channels, rows, columns = x.shape
        out = x.new_empty(images, channels, 2 * rows, 2 * columns)
        self._pointwise("upsample", out, x, out, rows, columns)
        return out

    def space_to_depth(self, x: Tensor) -> Tensor:
        """See Operators. Raises UsageFailure for odd rows or columns."""
        check(x=x)
        images, channels, rows, columns = x.shape
        if rows % 2 or columns % 2:
            raise UsageFailure(f"space_to_depth needs even rows and columns, not {rows}x{columns}")
        out = x.new_empty(images, 4 * channels, rows // 2, columns // 2)
        self._pointwise("space_to_depth", out, x, out, rows, columns)
        return out

    def _pointwise(self, kernel: str, over: Tensor, *arguments: Argument) -> None:
        """A thread per element of `over` [N, C, H, W]."""
        images, channels, rows, columns = over.shape
        threads = min(256, ceiling(rows * columns, 32) * 32)
        grid = (ceiling(rows * columns, threads), channels, images)
        self._launcher.launch(Launch("pointwise.cu", kernel, grid, threads), *arguments)


def _target(out: Tensor | None, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`out`, if its images are contiguous and of this shape; a new tensor where there is none."""
    if out is None:
        return x.new_empty(shape)
    fits = tuple(out.shape) == shape and out[0].is_contiguous() and out.device == x.device
    if not fits or out.dtype is not torch.float32:
        raise UsageFailure(
            f"out is to be float32 of shape {shape} on {x.device}, with contiguous images; it is "
            f"{out.dtype} of shape {tuple(out.shape)} and strides {out.stride()} on {out.device}"
        )
    return out
