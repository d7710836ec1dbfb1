"""What is launched, and who launches it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from pytest_gpuperf.errors import UsageFailure

Argument = Tensor | int | float | None
"""Of a kernel: a pointer to a tensor's elements, an int, a float, or a null pointer."""


@dataclass(frozen=True)
class Launch:
    """A kernel and the threads that run it."""

    source: str
    """The file's name, in sources/."""
    kernel: str
    """As C++ names it, with the template's constants: norm_naive<32, 4096>."""
    grid: tuple[int, int, int]
    """Blocks, in x, y and z."""
    threads: int
    """Per block."""
    cluster: int = 1
    """Blocks, in x, that may read each other's shared memory."""
    shared_bytes: int = 0
    """Per block, beside what the kernel declares."""


class Launcher(Protocol):
    """Runs kernels on one device, in the order of their launch."""

    arch: str
    """sm90"""
    processors: int
    """Streaming multiprocessors: fewer blocks than these leave some of them idle."""

    def launch(self, launch: Launch, *arguments: Argument) -> None:
        """Puts the kernel on the device's current stream, and does not wait for it."""
        ...


def named(kernel: str, *constants: int | bool) -> str:
    """A kernel with its template's constants, as C++ has them."""
    said = (str(c).lower() if isinstance(c, bool) else str(c) for c in constants)
    return f"{kernel}<{', '.join(said)}>"


def ceiling(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def check(**tensors: Tensor | None) -> None:
    """Raises UsageFailure for a tensor that the kernels would misread."""
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if tensor.dtype is not torch.float32 or not tensor.is_contiguous():
            raise UsageFailure(
                f"the kernels take contiguous float32: {name} is {tensor.dtype} of shape "
                f"{tuple(tensor.shape)} and strides {tensor.stride()}"
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise UsageFailure(
                f"the kernels have no backward, and {name} requires gradients: compute under "
                "torch.no_grad(), or with TorchOperators"
            )
