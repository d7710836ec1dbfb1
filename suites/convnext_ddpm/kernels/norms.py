"""Layer norm in one kernel, two or three."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from suites.convnext_ddpm.kernels.launches import Launch, Launcher, ceiling, named

Norm = Literal["naive", "warp_shuffle", "three_kernel"]
SOURCE = "layer_norm.cu"
THREADS, EACH = 256, 16
"""Threads of a block that holds a slice of an image, and elements of a thread."""
RESIDENT_THREADS = 1024
"""Of a block that holds a whole image."""

Computed = Callable[[Launcher, Tensor, Tensor, Tensor, float], Tensor]
"""Of x [N, C, H, W], with weight and bias [C], and epsilon."""


def naive(launcher: Launcher, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float) -> Tensor:
    """A block per image, which sums by a tree in shared memory and reads the image three times."""
    out = torch.empty_like(x)
    kernel = named("norm_naive", x.shape[1], _plane(x))
    launcher.launch(
        Launch(SOURCE, kernel, (x.shape[0], 1, 1), 256), x, weight, bias, out, float(epsilon)
    )
    return out


def warp_shuffle(
    launcher: Launcher, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    """Sums by shuffles within warps: one kernel for a small image, two for a large one.

    A small image is held by one block, in registers. Of a large one, each block of the first kernel
    sums a slice, and each warp of the second merges the slices' sums.
    """
    images, channels = x.shape[:2]
    count, out = channels * _plane(x), torch.empty_like(x)
    if count <= RESIDENT_THREADS * EACH:
        threads = min(RESIDENT_THREADS, max(32, ceiling(count, 32 * EACH) * 32))
        kernel = named("norm_resident", channels, _plane(x), threads, EACH, _vector(x))
        launcher.launch(
            Launch(SOURCE, kernel, (images, 1, 1), threads), x, weight, bias, out, float(epsilon)
        )
        return out
    _scaled(launcher, x, weight, bias, _partials(launcher, x), out, epsilon, merge=True)
    return out


def three_kernel(
    launcher: Launcher, x: Tensor, weight: Tensor, bias: Tensor, epsilon: float
) -> Tensor:
    """Partial sums, one block per image that merges them, and the scaling."""
    partials, out = _partials(launcher, x), torch.empty_like(x)
    moments = x.new_empty(x.shape[0], 2)
    kernel = named("norm_reduce", x.shape[1] * _plane(x), THREADS * EACH)
    launcher.launch(
        Launch(SOURCE, kernel, (x.shape[0], 1, 1), 32), partials, moments, float(epsilon)
    )
    _scaled(launcher, x, weight, bias, moments, out, epsilon, merge=False)
    return out


KERNELS: dict[Norm, Computed] = {
    "naive": naive,
    "warp_shuffle": warp_shuffle,
    "three_kernel": three_kernel,
}


def _partials(launcher: Launcher, x: Tensor) -> Tensor:
    count = x.shape[1] * _plane(x)
    slices = ceiling(count, THREADS * EACH)
    partials = x.new_empty(x.shape[0], slices, 2)
    kernel = named("norm_partial", count, THREADS, EACH, _vector(x))
    launcher.launch(Launch(SOURCE, kernel, (slices, x.shape[0], 1), THREADS), x, partials)
    return partials


def _scaled(
    launcher: Launcher,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    moments: Tensor,
    out: Tensor,
    epsilon: float,
    *,
    merge: bool,
) -> None:
    slices = ceiling(x.shape[1] * _plane(x), THREADS * EACH)
    kernel = named("norm_scale", x.shape[1], _plane(x), THREADS, EACH, _vector(x), merge)
    grid = (slices, x.shape[0], 1)
    launcher.launch(
        Launch(SOURCE, kernel, grid, THREADS), x, weight, bias, moments, out, float(epsilon)
    )


def _plane(x: Tensor) -> int:
    return x.shape[2] * x.shape[3]


def _vector(x: Tensor) -> int:
    """Floats that are loaded at once: four, where no four are of two channels."""
    return 4 if _plane(x) % 4 == 0 and x.data_ptr() % 16 == 0 else 1
