"""The loss that a step returns: what counts as one, and which ones stop a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.measure.collector import REPRODUCIBLE, Phases, Work
from pytest_gpuperf.measure.execution import Losses

nan, inf = math.nan, math.inf


def losses(*returned: object, reset: bool = True, reproducible: float | None = REPRODUCIBLE) -> Any:
    """The settings after these were returned."""
    given = {"reset": lambda: None} if reset else {}
    work = Work(lambda: None, Phases(), reproducible=reproducible, **given)  # type: ignore[arg-type]
    seen = Losses(work)
    for value in returned:
        seen.add(value)
    return seen.settings()


@pytest.mark.parametrize(
    ("returned", "loss"),
    [
        (0.25, 0.25),
        (np.float32(0.25), 0.25),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([[0.25]], dtype=torch.bfloat16), 0.25),
        (torch.tensor(0.25, requires_grad=True), 0.25),
        (torch.tensor([3.0, -4.0]), 3.53553),
        (0.123456789, 0.123457),
    ],
)
def test_a_loss_is_a_float_or_a_tensor_of_floats(returned: object, loss: float) -> None:
    assert losses(returned) == {"loss": pytest.approx(loss, rel=1e-6)}


@pytest.mark.parametrize(
    "returned",
    [None, 3, True, "0.25", (0.25,), {"loss": nan}, torch.tensor(3), torch.empty(0), np.array(nan)],
)
def test_what_is_no_loss_is_not_looked_at(returned: object) -> None:
    assert losses(returned, None, returned) == {}


@pytest.mark.parametrize("value", [nan, inf, -inf])
@pytest.mark.parametrize("made", [float, torch.tensor, lambda v: torch.tensor([1.0, v])])
def test_a_loss_that_is_no_number_stops_the_measurement(
    value: float, made: Callable[[float], object]
) -> None:
    with pytest.raises(UnsoundStep, match=r"^the loss is (nan|-?inf) after reset: .* Look at"):
        losses(made(value))


def test_without_a_reset_the_loss_has_to_be_a_number_and_may_change() -> None:
    assert losses(0.5, 0.4, reset=False) == {"loss": 0.5, "loss_apart": 0.2}
    with pytest.raises(UnsoundStep, match=r"^the loss is nan: "):
        losses(0.5, nan, reset=False)


@pytest.mark.parametrize(
    ("first", "second", "allowed"),
    [(0.1234, 0.1234, 0.0), (0.1234, 0.12345, 1e-3), (0.1, 0.2, None), (0.0, 0.0, 0.0)],
)
def test_two_losses_may_be_as_far_apart_as_is_allowed(
    first: float, second: float, allowed: float | None
) -> None:
    found = losses(first, second, reproducible=allowed)
    assert found["loss_apart"] == pytest.approx(abs(first - second) / (second or 1), rel=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "allowed", "says"),
    [
        (0.1234, 0.1236, 1e-3, "gave the losses 0.1234 and 0.1236, 0.16 % apart where 0.1 % are"),
        (1.0, 1.0 + 2e-8, 0.0, "gave the losses 1 and 1.00000002, 2e-06 % apart where 0 %"),
        (0.0, 1e-9, 1e-3, "gave the losses 0 and 1e-09, 1e\\+02 % apart"),
    ],
)
def test_two_losses_further_apart_stop_the_measurement(
    first: float, second: float, allowed: float, says: str
) -> None:
    with pytest.raises(UnsoundStep, match=says):
        losses(first, first, second, reproducible=allowed)
