"""Sampling with Med-DDPM: what users of a trained model wait for."""

from __future__ import annotations

import torch
from torch import Tensor

from suites.graph import StepGraph
from suites.meddpm.data import Volumes
from suites.meddpm.model.diffusion import GaussianDiffusion3D
from suites.meddpm.optimizations import Optimization

SEED = 250
"""Of the noise that a chain begins with, and of what its steps add."""


class SamplingStep:
    """`steps` steps of the reverse diffusion of one volume, from the time step `begin` - 1 down.

    Each draws x_{t-1} from p(x_{t-1} | x_t), given the mask (Ho et al. 2020, "Denoising Diffusion
    Probabilistic Models", algorithm 2, with x_0 clamped as in their code; Med-DDPM samples so with
    its 250 steps, Dorjsembe et al. 2024). A chain that begins at all 250 begins with noise; a
    shorter one with the volume under as much noise as its first step expects, so that it ends in
    a volume too.

    Use it inside `optimization.applied(diffusion)`, which converts the weights. The weights and the
    first volume stay as they are: `reset` only seeds the noise.
    """

    def __init__(
        self,
        diffusion: GaussianDiffusion3D,
        volumes: Volumes,
        optimization: Optimization,
        device: torch.device | str,
        *,
        begin: int,
        steps: int,
    ) -> None:
        """Raises ValueError for a chain that is not among the process's time steps."""
        if not 1 <= steps <= begin <= diffusion.timesteps:
            raise ValueError(
                f"{steps} steps from time step {begin - 1} down: the process has those from "
                f"{diffusion.timesteps - 1} to 0"
            )
        self._graph: StepGraph | None = None
        self.diffusion = diffusion.to(device)
        self.optimization = optimization
        self.mask = volumes.mask.to(device)
        # On the device before the chain begins: a step that made its own would wait for it.
        times = torch.arange(begin - 1, begin - 1 - steps, -1, device=device)
        self.times = torch.split(times, 1)
        self.reset()
        image = volumes.image.to(device)
        self.first = self.diffusion.q_sample(image, self.times[0], torch.randn_like(image))

    def __call__(self) -> Tensor:
        """The volume [1, 1, S, S, S] at the chain's end, on the device."""
        if self.optimization.captured and self._graph is None:
            self._graph = StepGraph(self._chain, self.reset)
        return self._chain() if self._graph is None else self._graph()

    @torch.no_grad()
    def _chain(self) -> Tensor:
        volume = self.optimization.prepare(self.first)
        mask = self.optimization.prepare(self.mask)
        for t in self.times:
            volume = self.diffusion.p_sample(volume, t, mask)
        return volume

    def reset(self) -> None:
        """Has the next call draw the same noise again."""
        torch.manual_seed(SEED)
