"""A reset for steps of torch: weights, optimizers and random generators as they were.

Repeated executions must begin in the same state. States are put back in place, so addresses stay,
as CUDA graphs and compiled steps require. The step allocates nothing that a later step of a
training would not allocate.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pytest_gpuperf.errors import UsageFailure

if TYPE_CHECKING:
    import torch

    Restore = Callable[[], object]

ZERO_AT_FIRST = ("Adadelta", "Adam", "Adamax", "AdamW", "RMSprop", "SGD")
"""Optimizers of torch whose state is all zero before their first step (torch.optim)."""


@runtime_checkable
class Stateful(Protocol):
    """A module, an optimizer, a scheduler, a gradient scaler: anything with a state."""

    def state_dict(self) -> Mapping[str, Any]:
        """The state."""

    def load_state_dict(self, state: Any) -> object:
        """Takes a state."""


def reset_of(*parts: Stateful) -> Callable[[], None]:
    """Copies the states of `parts` and of all random generators, and returns their restorer.

    Modules keep parameters, buffers and gradients; optimizers their state and the values of their
    groups. An optimizer before its first step keeps the state that this step makes, as zeros (of
    ZERO_AT_FIRST), so that no later execution allocates it. Raises UsageFailure for a part without
    a state, and without any part.
    """
    import torch

    for part in parts or (None,):
        if not isinstance(part, Stateful):
            raise UsageFailure(
                "reset_of takes modules, optimizers and other objects with a state_dict, but got "
                f"a {type(part).__name__}. Write for example reset_of(model, optimizer)"
            )
    restores = [_restore(part) for part in parts]
    restores.append(_generators())

    def reset() -> None:
        with torch.no_grad():
            for restore in restores:
                restore()

    return reset


def _restore(part: Any) -> Restore:
    import torch

    if isinstance(part, torch.nn.Module):
        return _module(part)
    if isinstance(part, torch.optim.Optimizer):
        return _optimizer(part)
    state = copy.deepcopy(part.state_dict())
    return lambda: part.load_state_dict(copy.deepcopy(state))


def _module(module: torch.nn.Module) -> Restore:
    tensors = [*module.parameters(), *module.buffers()]
    kept = [(one, one.detach().clone()) for one in tensors]
    gradients = [(one, None if one.grad is None else one.grad.clone()) for one in tensors]

    def restore() -> None:
        for tensor, value in kept:
            tensor.copy_(value)
        for tensor, gradient in gradients:
            if gradient is None or tensor.grad is None:
                tensor.grad = None if gradient is None else gradient.clone()
            else:
                tensor.grad.copy_(gradient)

    return restore


def _optimizer(optimizer: torch.optim.Optimizer) -> Restore:
    states = {parameter: _copied(state) for parameter, state in optimizer.state.items()}
    groups = [
        {key: copy.deepcopy(value) for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    # Only the first gradient is not damped.
    begins_with_zero = type(optimizer).__name__ in ZERO_AT_FIRST and not any(
        group.get("dampening") for group in groups
    )

    def restore() -> None:
        for parameter, state in [*optimizer.state.items()]:
            if parameter in states:
                _put_back(state, states[parameter])
            elif begins_with_zero:
                for value in state.values():
                    value.zero_()
            else:
                del optimizer.state[parameter]
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            _put_back(group, values)

    return restore


def _copied(state: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {
        key: value.detach().clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value)
        for key, value in state.items()
    }


def _put_back(state: Any, values: Mapping[str, Any]) -> None:
    """Gives a mapping these values, tensors in place."""
    import torch

    for key, value in values.items():
        now = state.get(key)
        if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor):
            now.copy_(value)
        else:
            state[key] = copy.deepcopy(value)


def _generators() -> Restore:
    """Restores the states of Python's, NumPy's and torch's generators, of all GPUs too."""
    import numpy as np
    import torch

    ours, numpys, torchs = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda: Any = torch.cuda  # untyped in part
    on_gpus = cuda.get_rng_state_all() if cuda.is_initialized() else []

    def restore() -> None:
        random.setstate(ours)
        np.random.set_state(numpys)
        torch.set_rng_state(torchs)
        cuda.set_rng_state_all(on_gpus)

    return restore
