"""Parts that decide in which precision the network computes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn

from suites.meddpm.model.unet import UNet3D
from suites.meddpm.parts.base import Part, classes_changed
from suites.precision import Float32Precision, float32_precision


class _Float32(Part):
    float32_precision: ClassVar[Float32Precision]

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:  # noqa: ARG002
        """Sets torch's precision of float32 products."""
        return float32_precision(self.float32_precision)


class Ieee(_Float32):
    """Full float32, which torch has off for convolutions unless it is asked for."""

    name = "ieee"
    summary = "Float32 products without TF32."
    float32_precision = "ieee"


class Tf32(_Float32):
    """TF32. Before sm80, and on a CPU, there is none, and it changes nothing."""

    name = "tf32"
    summary = "Float32 products and convolutions in TF32."
    float32_precision = "tf32"


class BFloat16(Part):
    """Mixed precision around the network; process, loss, weights and Adam stay float32."""

    name = "bf16"
    summary = "Autocast to bfloat16; weights, loss and Adam stay float32."
    least_arch = "sm80"

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """The networks in `model` open autocast themselves, however they are called."""
        return classes_changed(
            (module, _AutocastUNet3D) for module in model.modules() if type(module) is UNet3D
        )


class _AutocastUNet3D(UNet3D):
    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        # The attention's recomputation in backward is outside this block: torch's checkpoint
        # opens the autocast again that it was called under.
        with torch.autocast(x.device.type, torch.bfloat16):
            noise = super().forward(x, t)
        return noise.float()
