"""One training step of a model: forward, backward, optimizer, and the way back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from pytest_gpuperf.model.measurement import Scalar
from suites.graph import StepGraph

Phase = Callable[[str], AbstractContextManager[None]]
"""Marks a named part of the step: `with phase("forward"): ...`."""


def _unmarked(name: str) -> AbstractContextManager[None]:  # noqa: ARG001 -- as a Phase has it
    return nullcontext()


class ModelTraining:
    """A training step of `model` in float32: forward, backward, Adam.

    Calling it runs one step and returns the loss, without waiting for the device. `reset` puts
    everything the step changes back, so that every repetition does the same work on the same
    numbers. The state to return to is the one at construction: weights as given, the random
    generators as they were then (seed them before), Adam without history.

    Construction launches the kernels that a training script launches before its first step, and no
    others: a process that runs one step and never resets it can be watched from its start, as the
    paper's window does. Whatever is compiled or captured is so in the first call.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[], Tensor],
        learning_rate: float,
        phase: Phase,
        device: torch.device | str,
        *,
        adam: Mapping[str, Any] | None = None,
        captured: bool = False,
    ) -> None:
        """`loss` runs the model, which is on `device`, and returns a scalar.

        `adam` are more arguments of torch's Adam. A `captured` step is one CUDA graph, which has
        no phases; it needs a GPU and `adam={"capturable": True}`.
        """
        self.device = torch.device(device)
        # While it is captured nothing runs, and afterwards its parts cannot be told apart.
        self.phase = _unmarked if captured else phase
        self.adam = torch.optim.Adam(model.parameters(), lr=learning_rate, **(adam or {}))
        self.first_call_s: float | None = None
        """Seconds until the first call returned: with what was compiled or captured in it."""
        self._model = model
        self._loss = loss
        self._captured = captured
        self._graph: StepGraph | None = None
        self._weights = [weight.detach().clone() for weight in model.parameters()]
        self._cpu_generator = torch.get_rng_state()
        self._device_generator = (
            torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        )

    def __call__(self) -> Tensor:
        """One step. Returns the loss: a scalar on the device, detached."""
        if self.first_call_s is not None:
            return self._called()
        begun = time.perf_counter()
        loss = self._called()
        self.first_call_s = round(time.perf_counter() - begun, 3)
        return loss

    def settings(self) -> dict[str, Scalar]:
        """What belongs to a measurement of it, after the fact: the seconds of the first call."""
        return {} if self.first_call_s is None else {"first_call_s": self.first_call_s}

    def _called(self) -> Tensor:
        if not self._captured:
            return self._step()
        if self._graph is None:
            self._graph = StepGraph(self._step, self.reset)
        return self._graph()

    def _step(self) -> Tensor:
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
