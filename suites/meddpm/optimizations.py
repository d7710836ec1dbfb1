"""The four configurations of the paper's Med-DDPM experiments, as context managers.

Each is composed of two independent parts: how float32 multiplications are rounded on the tensor
cores, and in which order a volume's elements lie in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from suites.precision import Float32Precision, float32_precision

Precision = Literal["ieee", "tf32", "bf16"]
"""What limits how exact a configuration is: `limits.LIMITS` has the limits."""


@dataclass(frozen=True)
class Optimization:
    """A named configuration of the training step."""

    name: str
    summary: str
    float32_precision: Float32Precision
    """For matrix products (cuBLAS) and for convolutions (cuDNN) alike."""
    memory_format: torch.memory_format
    """Of the weights and of every batch."""

    @property
    def precision(self) -> Precision:
        """The least exact arithmetic in it, by which its results are judged."""
        return self.float32_precision

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
