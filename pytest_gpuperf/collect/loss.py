"""The loss that a step returns: whether it is a number, and the same after every reset.

Looked at in warm-up executions only: reading it waits for the device.
"""

from __future__ import annotations

import math
import sys
from numbers import Integral, Real
from typing import Any

from pytest_gpuperf.collect.base import Work, no_reset
from pytest_gpuperf.errors import UnsoundStep
from pytest_gpuperf.model import Scalar


class Losses:
    """The losses that the warm-up executions of one step returned, each after a reset.

    A loss is a float, or a tensor of floats; of a tensor with several elements (a sampled volume)
    the root of their mean square counts. A step that returns anything else has none, and nothing is
    looked at.
    """

    def __init__(self, work: Work) -> None:
        self._compared = work.reset is not no_reset and work.reproducible is not None
        self._allowed = work.reproducible or 0.0
        self._reset = "" if work.reset is no_reset else " after reset"
        self._seen: list[float] = []

    def add(self, returned: object) -> None:
        """Takes what one more execution returned.

        Raises UnsoundStep for a loss that is NaN or infinite, and for one that is further from the
        first than is allowed, where the work has a reset.
        """
        loss = _number(returned)
        if loss is None:
            return
        if not math.isfinite(loss):
            raise UnsoundStep(
                f"the loss is {loss}{self._reset}: a step that computes with it has counters that "
                "mean nothing. Look at the input, the weights, and what overflows in half "
                "precision; torch.autograd.set_detect_anomaly(True) names the operation"
            )
        self._seen.append(loss)
        first = self._seen[0]
        apart = _apart(first, loss)
        if self._compared and apart > self._allowed:
            raise UnsoundStep(
                f"two executions after reset gave the losses {_both(first, loss)}, "
                f"{100 * apart:.2g} % apart where {100 * self._allowed:.2g} % are allowed: "
                "counters of different work cannot be compared. Let reset put back all that the "
                "step changes (weights, optimizer, random generators). If the step only rounds "
                "differently every time, say how much: gpuperf.measure(..., reproducible=0.01), "
                "or reproducible=False to compare nothing"
            )

    def settings(self) -> dict[str, Scalar]:
        """The first loss and, where there was a second, the largest distance of any to it."""
        if not self._seen:
            return {}
        first, *others = self._seen
        found: dict[str, Scalar] = {"loss": _rounded(first)}
        if others:
            found["loss_apart"] = _rounded(max(_apart(first, other) for other in others))
        return found


def _number(returned: object) -> float | None:
    """The loss as a number; None for what is none."""
    if isinstance(returned, Real) and not isinstance(returned, Integral):
        return float(returned)
    torch: Any = sys.modules.get("torch")  # without it loaded, nothing is a tensor
    if torch is None or not isinstance(returned, torch.Tensor):
        return None
    if not returned.is_floating_point() or not returned.numel():
        return None
    if returned.numel() == 1:
        return float(returned.detach().item())
    # No copy of it is made: a volume may be most of what the device has room for.
    norm = torch.linalg.vector_norm(returned.detach())
    return float(norm) / math.sqrt(returned.numel())


def _apart(first: float, second: float) -> float:
    """The difference, relative to the larger; 0 where both are 0."""
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if largest else 0.0


def _both(first: float, second: float) -> str:
    """Both numbers, with as many digits as it takes to tell them apart."""
    for digits in (4, 6, 9, 17):
        texts = f"{first:.{digits}g}", f"{second:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return " and ".join(texts)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
