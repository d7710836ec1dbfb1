"""Parts that decide how volumes lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from suites.meddpm.parts.base import Part, classes_changed

ALIGNMENT = 8
"""Channels of bfloat16 in the 16 bytes that tensor cores take operands in; twice those of TF32."""


class _Layout(Part):
    memory_format: ClassVar[torch.memory_format]

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Converts the weights, once; they are contiguous again afterwards."""
        _convert(model, self.memory_format)
        try:
            yield
        finally:
            _convert(model, torch.contiguous_format)


def _convert(model: nn.Module, memory_format: torch.memory_format) -> None:
    """Lays out the model's 5-dimensional parameters in `memory_format`, in place."""
    model.to(memory_format=memory_format)  # type: ignore[call-overload]


class Contiguous(_Layout):
    """torch's own."""

    name = "contiguous"
    summary = "Voxels are innermost in memory."
    memory_format = torch.contiguous_format


class ChannelsLast(_Layout):
    """What the tensor cores' convolutions take."""

    name = "channels_last"
    summary = "Channels are innermost in memory, in the weights and in every batch."
    memory_format = torch.channels_last_3d


class PaddedChannels(Part):
    """The first and the last convolution, of 3 and of 1 channels, on the tensor cores.

    cuDNN has no other kernel for the weight gradient of so few than one off the tensor cores.
    """

    name = "padded_channels"
    summary = (
        f"Convolutions of fewer than {ALIGNMENT} channels get channels of zeros up to "
        f"{ALIGNMENT}, for the tensor cores: the same function of the same weights."
    )

    def applied(self, model: nn.Module) -> AbstractContextManager[None]:
        """Pads inside the step: the weights keep their shapes."""
        return classes_changed(
            (module, _PaddedConv3d)
            for module in model.modules()
            if type(module) is nn.Conv3d
            and min(module.in_channels, module.out_channels) < ALIGNMENT
        )


class _PaddedConv3d(nn.Conv3d):
    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 -- torch's name
        more_in = max(ALIGNMENT - self.in_channels, 0)
        more_out = max(ALIGNMENT - self.out_channels, 0)
        volume = functional.pad(input, (0, 0, 0, 0, 0, 0, 0, more_in))
        weight = functional.pad(self.weight, (0, 0, 0, 0, 0, 0, 0, more_in, 0, more_out))
        bias = None if self.bias is None else functional.pad(self.bias, (0, more_out))
        result = functional.conv3d(
            volume, weight, bias, self.stride, self.padding, self.dilation, self.groups
        )
        return result[:, : self.out_channels]
