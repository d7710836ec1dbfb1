"""The four configurations of the paper's Med-DDPM experiments, as context managers.

Each is composed of two independent parts: how float32 multiplications are rounded on the tensor
cores, and in which order a volume's elements lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

Float32Precision = Literal["ieee", "tf32"]
"""ieee: full float32. tf32: 10 bits of mantissa in the factors of convolutions and products."""


@dataclass(frozen=True)
class Optimization:
    """A named configuration of the training step."""

    name: str
    summary: str
    float32_precision: Float32Precision
    """For matrix products (cuBLAS) and for convolutions (cuDNN) alike."""
    memory_format: torch.memory_format
    """Of the weights and of every batch."""

    def unavailable(self, arch: str) -> str | None:  # noqa: ARG002 - others depend on `arch`
        """Why this configuration cannot run on `arch`, or None where it can.

        All four run everywhere. Before sm80, and on a CPU, there is no TF32 and the tf32
        configurations do what their counterparts do; the paper reports them on sm70, unchanged.
        """
        return None

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Sets the precision and converts `model`, once.

        torch's global state is as it was afterwards, also when the block raises, and the
        model's weights are contiguous again.
        """
        with float32_precision(self.float32_precision):
            _convert(model, self.memory_format)
            try:
                yield
            finally:
                _convert(model, torch.contiguous_format)

    def prepare(self, batch: Tensor) -> Tensor:
        """`batch` [B, C, D, H, W] in this configuration's memory layout.

        Called inside the step: the paper converts every batch right before the model. A batch
        of one channel has the same layout either way and is returned as it is.
        """
        return batch.contiguous(memory_format=self.memory_format)


def float32_precision(precision: Float32Precision) -> AbstractContextManager[None]:
    """Sets the precision of float32 matrix products and convolutions on a GPU, for a block.

    TF32 is on for cuDNN unless switched off, so "ieee" has to say so too.
    """
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        return _by_fp32_precision(precision)
    return _by_allow_tf32(precision)


@contextmanager
def _by_fp32_precision(precision: Float32Precision) -> Iterator[None]:
    """By the settings of torch 2.9 and later, without touching the older ones.

    Each operation's setting, when it was never made, follows the backend's, and that the one
    for everything. "Never made" cannot be set again once an operation's own setting was
    written (cuDNN starts out in such a state), so only those are written that stand against the
    backend's setting. Older setters write several settings at once and older getters raise where
    the two disagree; neither is called here, so a program that uses either finds it unchanged.
    """
    # typed Any: these attributes are made at run time, in part by replaced modules
    everything: Any = torch.backends
    backend: Any = torch.backends.cudnn  # in spite of its name the setting of all of CUDA
    operations: list[Any] = [
        torch.backends.cuda.matmul,
        torch.backends.cudnn.conv,  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn,
    ]

    # A getter answers for the backend with what it inherits; its own value shows without parent.
    everything_before = everything.fp32_precision
    everything.fp32_precision = "none"
    backend_before = backend.fp32_precision
    everything.fp32_precision = everything_before

    own_before: list[tuple[Any, str]] = []
    try:
        backend.fp32_precision = precision
        for operation in operations:
            if operation.fp32_precision != precision:
                own_before.append((operation, operation.fp32_precision))
                operation.fp32_precision = precision
        yield
    finally:
        for operation, before in own_before:
            operation.fp32_precision = before
        backend.fp32_precision = backend_before


@contextmanager
def _by_allow_tf32(precision: Float32Precision) -> Iterator[None]:
    """By the settings of torch before 2.9."""
    # Not `cuda.matmul.allow_tf32`: that would lose the difference between "high" and "medium".
    matmul_before = torch.get_float32_matmul_precision()
    cudnn_before = torch.backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = precision == "tf32"
        yield
    finally:
        torch.set_float32_matmul_precision(matmul_before)
        torch.backends.cudnn.allow_tf32 = cudnn_before


def _convert(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Lays out the model's 5-dimensional parameters in `memory_format`, in place."""
    model.to(memory_format=memory_format)  # type: ignore[call-overload]


OPTIMIZATIONS: dict[str, Optimization] = {
    optimization.name: optimization
    for optimization in (
        Optimization(
            "baseline",
            "float32 throughout, TF32 off",
            "ieee",
            torch.contiguous_format,
        ),
        Optimization(
            "tf32",
            "TF32 in matrix products and convolutions",
            "tf32",
            torch.contiguous_format,
        ),
        Optimization(
            "channels_last",
            "channels innermost in memory, TF32 off",
            "ieee",
            torch.channels_last_3d,
        ),
        Optimization(
            "tf32_channels_last",
            "TF32, and channels innermost in memory",
            "tf32",
            torch.channels_last_3d,
        ),
    )
}
"""The paper's Baseline, OPT1, OPT2 and OPT12 (section 5), by our names."""
