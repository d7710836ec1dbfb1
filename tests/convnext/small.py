"""Models that a CPU samples from in milliseconds."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.convnext_ddpm.model import Network, seeded_network
from suites.convnext_ddpm.shape import Shape
from suites.convnext_ddpm.step import seeded_model
from suites.convnext_ddpm.transfers import Model

SHAPE = Shape(8, (4, 6, 10))
"""Three levels; no number of channels is a multiple of 32."""
TIMESTEPS = 6


def model(shape: Shape = SHAPE, batch: int = 1) -> Model:
    """Always the same weights and noise."""
    return seeded_model(shape, batch, TIMESTEPS)


def images(shape: Shape, batch: int, rows: int = 0, columns: int = 0) -> Tensor:
    """Noise [N, C, H, W]; of the shape's size, or of other rows and columns."""
    generator = torch.Generator().manual_seed(5)
    size = (batch, shape.channels, rows or shape.size, columns or shape.size)
    return torch.randn(size, generator=generator)


@torch.no_grad()
def exact(shape: Shape, x: Tensor, t: Tensor) -> Tensor:
    """What the seeded network answers in float64."""
    network: Network = seeded_network(shape).double()
    answer: Tensor = network(x.double(), t)
    return answer


def error(answer: Tensor, exact: Tensor) -> float:
    """The largest error of an element, as a share of the largest exact one."""
    return ((answer.double() - exact).abs().max() / exact.abs().max()).item()
