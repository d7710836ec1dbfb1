"""One training step of Med-DDPM: what the suite measures."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.meddpm.data import Volumes
from suites.meddpm.model.diffusion import GaussianDiffusion3D
from suites.meddpm.optimizations import Optimization
from suites.training import ModelTraining, Phase

LEARNING_RATE = 1e-5
"""Adam's learning rate in Med-DDPM's training."""


class TrainingStep(ModelTraining):
    """A training step on one volume, batch 1: forward, backward, optimizer.

    Use it inside `optimization.applied(diffusion)`, which converts the weights.
    """

    def __init__(
        self,
        diffusion: GaussianDiffusion3D,
        volumes: Volumes,
        optimization: Optimization,
        phase: Phase,
        device: torch.device | str,
    ) -> None:
        self.diffusion = diffusion.to(device)
        self.optimization = optimization
        self.image = volumes.image.to(device)
        self.mask = volumes.mask.to(device)
        super().__init__(
            self.diffusion,
            self._forward,
            LEARNING_RATE,
            phase,
            device,
            adam=optimization.adam,
            captured=optimization.captured,
        )

    def _forward(self) -> Tensor:
        loss: Tensor = self.diffusion(
            self.optimization.prepare(self.image), self.optimization.prepare(self.mask)
        )
        return loss
