"""Parts that decide how volumes lie in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import torch
from torch import nn

from suites.meddpm.parts.base import Part


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
    summary = "Channels are innermost in memory."
    memory_format = torch.channels_last_3d
