"""A training step that a CPU does in a fraction of a second: all kinds of layers, few of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from suites.meddpm.data import Volumes, load
from suites.meddpm.model import GaussianDiffusion3D, UNet3D
from suites.meddpm.optimizations import composed
from suites.meddpm.step import TrainingStep
from suites.training import Phase


def network() -> GaussianDiffusion3D:
    """Two levels, attention at the lower one; always of the same weights."""
    torch.manual_seed(11)
    return GaussianDiffusion3D(
        UNet3D(3, 1, model_channels=32, channel_multipliers=(1, 2), attention_factors=(2,))
    )


@cache
def volumes() -> Volumes:
    """The phantom, on 8 x 8 x 8 voxels."""
    with TemporaryDirectory() as folder:
        return load("synthetic", 8, Path(folder))


def unmarked(name: str) -> nullcontext[None]:  # noqa: ARG001 -- as a Phase has it
    """Marks no phase."""
    return nullcontext()


@contextmanager
def training_step(
    configuration: str = "baseline", phase: Phase = unmarked
) -> Iterator[TrainingStep]:
    """A step under one of the configurations."""
    diffusion, optimization = network(), composed(configuration)
    with optimization.applied(diffusion):
        yield TrainingStep(diffusion, volumes(), optimization, phase, "cpu")
