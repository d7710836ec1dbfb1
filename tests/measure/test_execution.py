"""Executions of a step: its loss, its phases, its times, and the clocks that tell them."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pytest_gpuperf.errors import MeasurementError, UnsoundStep
from pytest_gpuperf.measure.collector import REPRODUCIBLE, Phases, Plan, Work
from pytest_gpuperf.measure.execution import CudaTimer, Executions, Losses
from pytest_gpuperf.model.measurement import STEP
from tests.heard_progress import Heard
from tests.measure.stand_ins import Memory, Timer

nan, inf = math.nan, math.inf


def losses(*returned: object, reset: bool = True, reproducible: float | None = REPRODUCIBLE) -> Any:
    """The settings after these were returned."""
    given = {"reset": lambda: None} if reset else {}
    work = Work(lambda: None, Phases(), reproducible=reproducible, **given)  # type: ignore[arg-type]
    seen = Losses(work)
    for value in returned:
        seen.add(value)
    return seen.settings()


def test_a_loss_is_a_float_or_a_tensor_of_floats() -> None:
    for returned, loss in (
        ({"loss": torch.tensor(0.5), "logits": None}, 0.5),  # as Hugging Face's models return it
        (0.25, 0.25),
        (np.float32(0.25), 0.25),
        (torch.tensor(0.25), 0.25),
        (torch.tensor([[0.25]], dtype=torch.bfloat16), 0.25),
        (torch.tensor(0.25, requires_grad=True), 0.25),
        (torch.tensor([3.0, -4.0]), 3.53553),
        (0.123456789, 0.123457),
    ):
        assert losses(returned) == {"loss": pytest.approx(loss, rel=1e-6)}, returned


def test_what_is_no_loss_is_not_looked_at() -> None:
    tensors = (torch.tensor(3), torch.empty(0), np.array(nan))
    for returned in (None, 3, True, "0.25", (0.25,), {"losses": nan}, *tensors):
        assert losses(returned, None, returned) == {}


async def coroutine() -> float:
    return 0.25


async def asynchronous() -> AsyncIterator[float]:
    yield 0.25


class Promise:
    def __await__(self) -> Iterator[None]:
        yield


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (coroutine, "coroutine"),
        (lambda: (number for number in (0.25,)), "generator"),
        (asynchronous, "async_generator"),
        (Promise, "Promise"),
    ],
)
def test_what_has_not_run_when_the_step_returns_stops_the_measurement(
    step: Callable[[], object], kind: str
) -> None:
    """A warning that a coroutine was never awaited would be an error here."""
    with pytest.raises(UnsoundStep, match=f"of type {kind}, .* did no work"):
        losses(step())


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_a_loss_that_is_no_number_stops_the_measurement(value: float) -> None:
    for returned in (value, torch.tensor(value), torch.tensor([1.0, value])):
        with pytest.raises(UnsoundStep, match=r"^the loss is (nan|-?inf) after reset, .* Check"):
            losses(returned)
    with pytest.raises(UnsoundStep, match=r"^the loss is (nan|-?inf), so "):
        losses(0.5, value, reset=False)


@pytest.mark.parametrize(
    ("first", "second", "allowed", "apart"),
    [
        (0.1234, 0.1234, 0.0, 0.0),
        (0.1234, 0.12345, 1e-3, 0.000405),
        (0.1, 0.2, None, 0.5),
        (0.0, 0.0, 0.0, 0.0),
        (0.1234, 0.1236, 1e-3, "the losses 0.1234 and 0.1236, 0.16 % apart .allowed: 0.1 %"),
        (1.0, 1.0 + 2e-8, 0.0, "the losses 1 and 1.00000002, 2e-06 % apart .allowed: 0 %"),
        (0.0, 1e-9, 1e-3, "the losses 0 and 1e-09, 1e\\+02 % apart"),
    ],
)
def test_two_losses_may_be_as_far_apart_as_is_allowed(
    first: float, second: float, allowed: float | None, apart: float | str
) -> None:
    if isinstance(apart, str):
        with pytest.raises(UnsoundStep, match=apart):
            losses(first, first, second, reproducible=allowed)
    else:
        settings = losses(first, second, reproducible=allowed)
        assert settings["loss_apart"] == pytest.approx(apart, rel=1e-3)
    # Without a reset they may change.
    assert "loss_apart" in losses(first, second, reset=False)


# The rest of an execution


def test_executions_have_phases_times_a_peak_of_memory_and_a_loss() -> None:
    phases, heard, returned = Phases(), Heard(), [0.5]

    def step() -> float:
        for name in ("forward", "backward"):
            with phases.mark(name):
                pass
        return returned[0]

    executions = Executions(Work(step, phases, lambda: None, progress=heard), Timer(), Memory())
    executions.warm_up(Plan(()))
    assert executions.phases == ("forward", "backward")
    assert executions.settings() == {"loss": 0.5}
    assert (executions.series, executions.wall_ms) == ({}, 0.0)
    executions.repeat(2)
    executions.execute(timed=False)
    assert heard.said == ["warming up 1 of 1", "timing 1 of 2", "timing 2 of 2"]
    assert executions.settings() == {"loss": 0.5, "loss_apart": 0.0}
    assert executions.wall_ms == 7.0
    assert executions.series == {
        ("step", "step_time"): [5.0, 5.0],
        ("step", "wall_time"): [7.0, 7.0],
        ("step", "peak_memory"): [5e9, 5e9],
    }
    returned[0] = 0.6
    with pytest.raises(UnsoundStep, match=r"the losses 0\.5 and 0\.6"):
        executions.repeat(None)


def test_phases_that_change_are_refused() -> None:
    phases, names = Phases(), iter("ab")

    def step() -> None:
        with phases.mark(next(names)):
            pass

    with pytest.raises(MeasurementError, match=r"change from .* first \['a'\], then \['b'\]"):
        Executions(Work(step, phases), Timer(), Memory()).warm_up(Plan((), warmup=2))


class Gpu:
    """A GPU with a current stream and another one; the host's clock stands where nobody waits."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.current = self.other = 0.0
        self.executions = 0
        gpu = self

        class Event:
            def __init__(self, *, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = max(gpu.now, gpu.current)

            def synchronize(self) -> None:
                gpu.now = max(gpu.now, self.at)

            def elapsed_time(self, other: Event) -> float:
                return 1e3 * (other.at - self.at)

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)
        monkeypatch.setattr("time.perf_counter", lambda: self.now)

    def synchronize(self) -> None:
        """Takes 10 us beside what there is to be waited for."""
        self.now = max(self.now, self.current, self.other) + 1e-5

    def step(self, launching_ms: float, current_ms: float, other_ms: float) -> None:
        """Launches so much work on both streams."""
        self.executions += 1
        self.now += launching_ms / 1e3
        self.current, self.other = self.now + current_ms / 1e3, self.now + other_ms / 1e3


@pytest.mark.parametrize(
    ("ms", "together", "step_time", "executions"),
    [
        ((1.0, 10.0, 0.0), False, 11.0, 3),
        # Where the device is done when its stream is, the wait takes nothing.
        ((1.0, 0.0, 0.0), False, 1.0, 3),
        ((0.1, 0.1, 0.0), False, 0.2, 4),
        # The step ends when its kernels do.
        ((1.97, 0.0, 5.6), False, 7.57, 5),
        ((1.0, 3.0, 8.0), False, 9.0, 5),
        # Ranks execute it equally often.
        ((1.0, 3.0, 8.0), True, 4.0, 3),
    ],
)
def test_a_step_ends_when_its_kernels_do_on_whatever_stream(
    ms: tuple[float, float, float],
    together: bool,
    step_time: float,
    executions: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = Gpu(monkeypatch)
    made = Executions(
        Work(lambda: gpu.step(*ms), Phases(), together=together), CudaTimer(), Memory()
    )
    made.repeat(3)
    made.end_with_all_streams()
    assert made.series[STEP, "step_time"] == pytest.approx([step_time] * 3, abs=0.02)
    assert gpu.executions == executions


# Compilation


@pytest.mark.parametrize(
    ("compiles", "planned", "together", "warmed", "compiling"),
    [
        ([], 1, False, 1, ""),
        ([1], 1, False, 2, ""),  # in the second nothing is compiled: that is seen
        ([1, 2], 1, False, 3, ""),  # as for a number that changes
        ([1, 2], 4, False, 4, ""),
        ([*range(1, 5)], 1, False, 5, ""),  # as for a few shapes that take turns
        ([*range(1, 7)], 1, False, 7, "6 of 7"),
        ([*range(1, 9)], 1, False, 9, "8 of 9"),  # torch gives up
        ([*range(1, 99)], 1, False, 9, "9 of 9"),
        ([1, 2], 1, True, 1, ""),
    ],
)
def test_it_is_warmed_up_until_nothing_is_compiled(
    compiles: list[int],
    planned: int,
    together: bool,
    warmed: int,
    compiling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def step() -> None:
        made.append(len(made) + 1)
        compiled = sum(number in compiles for number in made)
        dynamo = SimpleNamespace(counters={"stats": {"unique_graphs": compiled}})
        monkeypatch.setitem(sys.modules, "torch._dynamo.utils", dynamo)

    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    executions = Executions(Work(step, Phases(), together=together), Timer(), Memory())
    executions.warm_up(Plan((), warmup=planned))
    assert (executions.warm_ups, len(made)) == (warmed, warmed)
    assert executions.settings() == ({"compiling": compiling} if compiling else {})
