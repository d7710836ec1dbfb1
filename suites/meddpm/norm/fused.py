"""The fused norm as an operator of torch, which autograd, torch.compile and CUDA graphs take.

Statistics and sums are float32, or float64 for a volume of it, whatever the volume's dtype. The
result lies in memory as the volume does. Backward computes again what it needs of the volume, from
the statistics: nothing of its size is kept beside the volume itself.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

TILE = 2048
"""Elements that a program holds in registers at a time."""
WARPS = 8
"""Of a program: 8 elements of a tile per thread, which are a load of 16 bytes in bfloat16."""
LINE = 64
"""Channels of a tile where channels are innermost: a line of 128 bytes in bfloat16."""
PROGRAMS = 1584
"""Share a volume: 12 for each of the 132 SMs of an H200, which hold some 3 at once."""
PART = 128
"""Splits that the kernels between the two walks add up at a time."""


def missing() -> str | None:
    """Why the operator cannot run here at all, or None."""
    if importlib.util.find_spec("triton") is None:
        return "its kernels need Triton, which is not installed (the CUDA builds of torch bring it)"
    return None


def interpreted() -> bool:
    """Whether Triton runs kernels on the CPU here: TRITON_INTERPRET is set, as in the tests."""
    if missing():
        return False
    from triton.runtime.interpreter import InterpretedFunction

    from suites.meddpm.norm import kernels

    return isinstance(kernels.group_norm_moments, InterpretedFunction)


def group_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    groups: int,
    eps: float,
    *,
    silu: bool = False,
    shift: Tensor | None = None,
) -> Tensor:
    """GroupNorm of `x` [B, C, ...] + `shift` [B, C], then SiLU where `silu` says so.

    A volume whose channels are innermost in memory (channels_last) gives one of that layout, any
    other a contiguous one. C must be a multiple of `groups`. Raises ValueError otherwise.
    """
    if x.shape[1] % groups:
        raise ValueError(f"{x.shape[1]} channels cannot be divided into {groups} groups")
    if not _is_channels_last(x):
        x = x.contiguous()
    result: Tensor = _forward(x, weight, bias, shift, groups, eps, silu)[0]
    return result


def _is_channels_last(x: Tensor) -> bool:
    return x.movedim(1, -1).is_contiguous() and not x.is_contiguous()


@dataclass(frozen=True)
class _Plan:
    """How the programs of a walk share a volume [images, channels, voxels]."""

    images: int
    channels: int
    voxels: int
    groups: int
    channels_last: bool

    @cached_property
    def columns(self) -> int:
        """Channels of a tile."""
        if self.channels_last:
            return min(LINE, _power_of_two(self.channels))
        return max(1, min(TILE // _power_of_two(self.voxels), _power_of_two(self.channels)))

    @cached_property
    def rows(self) -> int:
        """Voxels of a tile."""
        return min(TILE // self.columns, _power_of_two(self.voxels))

    @cached_property
    def blocks(self) -> int:
        """Tiles beside each other that hold all channels."""
        return _divided(self.channels, self.columns)

    @cached_property
    def tiles(self) -> int:
        """Of a program, one after the other."""
        wanted = max(PROGRAMS // (self.images * self.blocks), 1)
        return _divided(_divided(self.voxels, self.rows), wanted)

    @cached_property
    def splits(self) -> int:
        """Programs that share the voxels of a channel; each has some."""
        return _divided(self.voxels, self.rows * self.tiles)

    @cached_property
    def grid(self) -> tuple[int, int, int]:
        """Programs of a walk: neighbours in memory run at the same time."""
        return self.blocks, self.splits, self.images

    @cached_property
    def width(self) -> int:
        """Channels of a group."""
        return self.channels // self.groups

    @cached_property
    def walk(self) -> Mapping[str, int]:
        """The arguments of every kernel that walks over the volume."""
        return {
            "voxels": self.voxels,
            "channels": self.channels,
            "tiles": self.tiles,
            "voxel_stride": self.channels if self.channels_last else 1,
            "channel_stride": 1 if self.channels_last else self.voxels,
            "ROWS": self.rows,
            "COLUMNS": self.columns,
            "num_warps": WARPS,
        }

    @cached_property
    def between(self) -> Mapping[str, int]:
        """The arguments of every kernel that adds up what the splits found."""
        return {
            "voxels": self.voxels,
            "channels": self.channels,
            "splits": self.splits,
            "WIDTH": self.width,
            "LANES": _power_of_two(self.width),
            "PART": PART,
        }


def _plan(x: Tensor, groups: int) -> _Plan:
    images, channels, *edges = x.shape
    channels_last = _is_channels_last(x)
    if not channels_last and not x.is_contiguous():
        raise ValueError(
            f"a volume with strides {x.stride()} is neither contiguous nor channels_last"
        )
    return _planned(images, channels, math.prod(edges), groups, channels_last)


_planned = lru_cache(maxsize=1024)(_Plan)
"""The same volumes come in every step, and the GPU may be waiting for the next kernel."""


def _divided(number: int, by: int) -> int:
    """Rounded up."""
    return -(-number // by)


def _power_of_two(number: int) -> int:
    """The first that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _type(x: Tensor) -> Any:
    import triton.language as tl

    return tl.float64 if x.dtype == torch.float64 else tl.float32


def _native(x: Tensor) -> bool:
    """Whether the kernels may use instructions of an NVIDIA GPU that compute in float32."""
    return x.is_cuda and x.dtype != torch.float64


@torch.library.custom_op("meddpm::group_norm", mutates_args=())
def _forward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Tensor | None,
    groups: int,
    eps: float,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, and per image the means by channel, the means and 1 / deviations by group."""
    from suites.meddpm.norm import kernels

    plan, acc = _plan(x, groups), _type(x)
    y, channel_means, means, deviations = _allocated(x, weight, bias, shift, groups, eps, silu)
    parts = channel_means.new_empty((2, plan.images, plan.splits, plan.channels))
    shifts = bias if shift is None else shift.contiguous()  # not read where there is none
    fused = {"SHIFTED": shift is not None, "WIDTH": plan.width, "ACC": acc}
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.group_norm_moments[plan.grid](x, parts[0], parts[1], ACC=acc, **plan.walk)
        kernels.group_norm_combine[groups, plan.images](
            *(parts[0], parts[1], shifts, channel_means, means, deviations),
            chunk=plan.rows * plan.tiles,
            EPS=eps,
            **{**plan.between, **fused},
        )
        kernels.group_norm_normalise[plan.grid](
            *(x, y, weight, bias, shifts, means, deviations),
            SILU=silu,
            NATIVE=_native(x),
            **fused,
            **plan.walk,
        )
    return y, channel_means, means, deviations


@_forward.register_fake
def _allocated(
    x: Tensor,
    weight: Tensor,  # noqa: ARG001 -- an operator's arguments
    bias: Tensor,  # noqa: ARG001
    shift: Tensor | None,  # noqa: ARG001
    groups: int,
    eps: float,  # noqa: ARG001
    silu: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    images, channels = x.shape[:2]
    acc = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (
        torch.empty_like(x),
        x.new_empty((images, channels), dtype=acc),
        x.new_empty((images, groups), dtype=acc),
        x.new_empty((images, groups), dtype=acc),
    )


@torch.library.custom_op("meddpm::group_norm_backward", mutates_args=())
def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: Tensor | None,
    channel_means: Tensor,
    means: Tensor,
    deviations: Tensor,
    silu: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, and per image and channel those of weight, bias and shift."""
    from suites.meddpm.norm import kernels

    groups = means.shape[1]
    plan, acc = _plan(x, groups), _type(x)
    dx, dweight, dbias, dshift = _gradients_allocated(
        dy, x, weight, bias, shift, channel_means, means, deviations, silu
    )
    if dy.stride() != x.stride():
        dy = torch.empty_like(x).copy_(dy)
    parts = means.new_empty((2, plan.images, plan.splits, plan.channels))
    shared = means.new_empty((2, plan.images, groups))
    shifts = bias if shift is None else shift.contiguous()  # not read where there is none
    fused = {"SHIFTED": shift is not None, "WIDTH": plan.width, "ACC": acc}
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        kernels.group_norm_gradient_sums[plan.grid](
            *(x, dy, weight, bias, shifts, means, deviations, parts[0], parts[1]),
            SILU=silu,
            NATIVE=_native(x),
            **fused,
            **plan.walk,
        )
        kernels.group_norm_combine_gradients[groups, plan.images](
            *(parts[0], parts[1], weight, channel_means, means, deviations),
            *(dweight, dbias, dshift, shared[0], shared[1]),
            **{**plan.between, **fused},
        )
        kernels.group_norm_gradient[plan.grid](
            *(x, dy, dx, weight, bias, shifts, means, deviations, shared[0], shared[1]),
            SILU=silu,
            NATIVE=_native(x),
            **fused,
            **plan.walk,
        )
    return dx, dweight, dbias, dshift


@_backward.register_fake
def _gradients_allocated(
    dy: Tensor,  # noqa: ARG001 -- an operator's arguments
    x: Tensor,
    weight: Tensor,  # noqa: ARG001
    bias: Tensor,  # noqa: ARG001
    shift: Tensor | None,
    channel_means: Tensor,
    means: Tensor,  # noqa: ARG001
    deviations: Tensor,  # noqa: ARG001
    silu: bool,  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        torch.empty_like(x),
        torch.empty_like(channel_means),
        torch.empty_like(channel_means),
        channel_means.new_empty(channel_means.shape if shift is not None else (0,)),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, shift, _, _, ctx.silu = inputs
    ctx.save_for_backward(x, weight, bias, shift, *output[1:])
    ctx.set_materialize_grads(False)  # of the statistics, which nobody differentiates


def _differentiate(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if dy is None:
        return (None,) * 7
    x, weight, bias, shift, *statistics = ctx.saved_tensors
    dx, dweight, dbias, dshift = _backward(dy, x, weight, bias, shift, *statistics, ctx.silu)
    return (
        dx,
        _summed(dweight).to(weight.dtype),
        _summed(dbias).to(bias.dtype),
        None if shift is None else dshift.to(shift.dtype),
        *(None, None, None),
    )


def _summed(by_image: Tensor) -> Tensor:
    return by_image[0] if len(by_image) == 1 else by_image.sum(0)


_forward.register_autograd(_differentiate, setup_context=_save)
