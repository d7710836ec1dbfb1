"""The reset of a step's parts: every execution does what the first did."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.reset import ZERO_AT_FIRST, reset_of

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adadelta": torch.optim.Adadelta,
    "Adam": lambda of: torch.optim.Adam(of, lr=0.1, amsgrad=True),
    "Adamax": torch.optim.Adamax,
    "AdamW": lambda of: torch.optim.AdamW(of, lr=torch.tensor(0.1), foreach=False),
    "RMSprop": lambda of: torch.optim.RMSprop(of, lr=0.1, momentum=0.9, centered=True),
    "SGD": lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9, nesterov=True),
    "SGD, plain": lambda of: torch.optim.SGD(of, lr=0.1),
    "SGD, damped": lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9, dampening=0.5),
    "Rprop": lambda of: torch.optim.Rprop(of, lr=0.1),
    "Adagrad": lambda of: torch.optim.Adagrad(of, lr=0.1),
}


class Net(torch.nn.Module):
    """A step that draws numbers, and has buffers in and outside of its state."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)
        self.norm, self.drop = torch.nn.BatchNorm1d(8), torch.nn.Dropout()
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What a step computes."""
        self.seen.add_(1)
        drawn = random.random() + np.random.random() + float(torch.rand(()))
        y: torch.Tensor = self.last(self.drop(self.norm(self.first(x)))) * drawn * self.seen
        return y


def made(name: str) -> tuple[Net, torch.optim.Optimizer, Callable[[], float]]:
    """A net, its optimizer of this name, and their step, which says its loss."""
    torch.manual_seed(0)
    net, batch = Net(), torch.arange(12.0).reshape(3, 4)
    optimizer = OPTIMIZERS[name](net.parameters())

    def step() -> float:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return net, optimizer, step


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", [0, 2])
def test_several_steps_after_a_reset_are_those_before(name: str, before: int) -> None:
    net, optimizer, step = made(name)
    for _ in range(before):
        step()
    reset = reset_of(net, optimizer)
    first = [step() for _ in range(3)]
    for _ in range(2):
        reset()
        assert [step() for _ in range(3)] == first
    assert len({*first}) == 3


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_nothing_moves_and_nothing_is_made_anew(name: str) -> None:
    assert name in ZERO_AT_FIRST
    net, optimizer, step = made(name)
    reset = reset_of(net, optimizer)
    step()

    def places() -> list[int]:
        states = (value for state in optimizer.state.values() for value in state.values())
        tensors = (*net.parameters(), *net.buffers(), *states)
        return [one.data_ptr() for one in tensors if isinstance(one, torch.Tensor)]

    before = places()
    reset()
    assert all(parameter.grad is None for parameter in net.parameters())
    step()
    assert places() == before


def test_gradients_schedulers_and_scalers_are_put_back() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))  # makes its state
    net(torch.ones(2, 4)).sum().backward()
    gradients = [one.grad.clone() for one in net.parameters() if one.grad is not None]
    reset = reset_of(net, optimizer, scheduler, scaler)
    for _ in range(2):
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        scaler.update(7.0)
        assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (0.1, 1)
        reset()
        assert (optimizer.param_groups[0]["lr"], scheduler.last_epoch) == (1.0, 0)
        assert scaler.get_scale() == 65536.0
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradient)
    optimizer.zero_grad()
    reset()
    assert net.first.weight.grad is not None


@pytest.mark.parametrize("parts", [(), (None,), (torch.ones(1),), ({"a": 1},)])
def test_what_has_no_state_is_refused(parts: tuple[Any, ...]) -> None:
    with pytest.raises(UsageFailure, match=r"reset_of\(model, optimizer\)"):
        reset_of(*parts)
