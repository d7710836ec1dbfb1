"""How the network is executed: by which operators, with which marks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from suites.convnext_ddpm.marks import Mark, unmarked
from suites.convnext_ddpm.operators import FusedBlocks, Operators, TorchOperators


def concatenated(maps: Sequence[Tensor]) -> Tensor:
    """Maps [N, C, H, W] of one size, one after the other along their channels."""
    return torch.cat(list(maps), dim=1)


@dataclass(frozen=True)
class Execution:
    """What a network computes with."""

    operators: Operators = field(default_factory=TorchOperators)
    mark: Mark = unmarked
    """Around every operator, under the names of `marks.COMPONENTS`."""
    concatenate: Callable[[Sequence[Tensor]], Tensor] = concatenated
    """Joins maps; also where they are not on the device that computes."""
    blocks: FusedBlocks | None = field(init=False)
    """The operators again, where they do whole blocks; asked once, not in every block."""

    def __post_init__(self) -> None:
        fused = self.operators if isinstance(self.operators, FusedBlocks) else None
        object.__setattr__(self, "blocks", fused)
