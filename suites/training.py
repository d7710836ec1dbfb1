"""One training step of a model: forward, backward, optimizer, and the way back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a named part of the step: `with phase("forward"): ...`."""


class ModelTraining:
    """A training step of `model` in float32: forward, backward, Adam.

    Calling it runs one step and returns the loss, without waiting for the device. `reset` puts
    everything the step changes back, so that every repetition does the same work on the same
    numbers. The state to return to is the one at construction: weights as given, the random
    generators as they were then (seed them before), Adam without history.

    Construction launches the kernels that a training script launches before its first step, and no
    others: a process that runs one step and never resets it can be watched from its start, as the
    paper's window does.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], Tensor],
        learning_rate: float,
        phase: Phase,
        device: torch.device | str,
    ) -> None:
        """`loss` runs the model, which is on `device`, and returns a scalar."""
        self.device = torch.device(device)
        self.phase = phase
        self.adam = torch.optim.Adam(model.parameters(), lr=learning_rate)
        self._model = model
        self._loss = loss
        self._weights = [weight.detach().clone() for weight in model.parameters()]
        self._cpu_generator = torch.get_rng_state()
        self._device_generator = (
            torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        )

    def __call__(self) -> Tensor:
        """One step. Returns the loss: a scalar on the device, detached."""
        with self.phase("forward"):
            loss = self._loss()
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
        torch._foreach_copy_(list(self._model.parameters()), self._weights)
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
        for weight in self._model.parameters():
            weight.grad = torch.zeros_like(weight)
        self.adam.step()
