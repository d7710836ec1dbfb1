"""One training step of Med-DDPM: what the suite measures."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from suites.meddpm.data import Volumes
from suites.meddpm.model.diffusion import GaussianDiffusion3D
from suites.meddpm.optimizations import Optimization

LEARNING_RATE = 1e-5
"""Adam's learning rate in Med-DDPM's training."""

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a named part of the step: `with phase("forward"): ...`."""


class TrainingStep:
    """A training step on one volume, batch 1, in float32: forward, backward, optimizer.

    Calling it runs one step and returns the loss, without waiting for the device. `reset` puts
    everything the step changes back, so that every repetition does the same work on the same
    numbers. The state to return to is the one at construction: weights as given, the random
    generators as they were then (seed them before), Adam without history.

    Construction launches the kernels that a training script launches before its first step, and no
    others: a process that runs one step and never resets it can be watched from its start, as the
    paper's window does.

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
        self.device = torch.device(device)
        self.diffusion = diffusion.to(self.device)
        self.optimization = optimization
        self.phase = phase
        self.image = volumes.image.to(self.device)
        self.mask = volumes.mask.to(self.device)
        self.adam = torch.optim.Adam(self.diffusion.parameters(), lr=LEARNING_RATE)
        self._weights = [weight.detach().clone() for weight in self.diffusion.parameters()]
        self._cpu_generator = torch.get_rng_state()
        self._device_generator = (
            torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        )

    def __call__(self) -> Tensor:
        """One step. Returns the loss: a scalar on the device, detached."""
        with self.phase("forward"):
            loss: Tensor = self.diffusion(
                self.optimization.prepare(self.image), self.optimization.prepare(self.mask)
            )
        with self.phase("backward"):
            loss.backward()  # type: ignore[no-untyped-call]
        with self.phase("optimizer"):
            self.adam.step()
            self.adam.zero_grad(set_to_none=True)
        return loss.detach()

    @torch.no_grad()
    def reset(self) -> None:
        """Restores weights, Adam's state, gradients and random generators, in place."""
        if not self.adam.state:
            self._make_adam_state()
        # Over all tensors at once, as Adam does it: a reset comes before every pass, and a launch
        # for each of some 700 tensors is time that nobody measures.
        torch._foreach_copy_(list(self.diffusion.parameters()), self._weights)
        torch._foreach_zero_(
            [value for state in self.adam.state.values() for value in state.values()]
        )
        self.adam.zero_grad(set_to_none=True)
        torch.set_rng_state(self._cpu_generator)
        if self._device_generator is not None:
            torch.cuda.set_rng_state(self._device_generator, self.device)

    def _make_adam_state(self) -> None:
        """Has Adam allocate its state, which it otherwise does inside the first step.

        With zero gradients and no history its update is exactly zero.
        """
        for weight in self.diffusion.parameters():
            weight.grad = torch.zeros_like(weight)
        self.adam.step()
