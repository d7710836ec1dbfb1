"""What a step does between its collectives, whoever begins them: a range per stretch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
import torch
from torch import distributed

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Collected, PhaseNames, Phases, Plan, Work
from pytest_gpuperf.measure.cupti import collectives
from pytest_gpuperf.measure.trace.profile import Trace
from pytest_gpuperf.model.measurement import STEP
from tests.measure.cupti.fake import Fake
from tests.measure.stand_ins import values
from tests.measure.traces import named, ran, shows

IN_A_COLLECTIVE = 100.0
"""The work of one on the scripted device."""
TWO = (torch.empty(2), torch.ones(2))


@pytest.fixture(autouse=True, scope="module")
def _one_rank() -> Iterator[None]:
    """A process group of this process alone: its collectives are begun as those of many are."""
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def on_the_device(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of all ranks are work of the scripted device, too."""
    packet: Any = torch.ops.c10d.allreduce_
    summed = packet.default

    def allreduce(*arguments: object) -> object:
        fake.work(IN_A_COLLECTIVE)
        return summed(*arguments)

    monkeypatch.setattr(packet, "default", allreduce)


def begun_by(step: Callable[[], object]) -> list[str]:
    """The collectives that are heard of while the step runs."""
    begun = PhaseNames()
    with collectives.heard_by(begun):
        step()
    return begun.names


def summing(fake: Fake, *amounts: float) -> Callable[[], None]:
    """A step that does these amounts of work, and sums over all ranks after each but the last."""

    def step() -> None:
        for number, amount in enumerate(amounts, 1):
            fake.work(amount)
            if number < len(amounts):
                distributed.all_reduce(torch.ones(2))

    return step


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names that torch had
@pytest.mark.parametrize(
    ("step", "begun"),
    [
        (lambda: None, []),
        (partial(distributed.all_reduce, torch.ones(2)), ["allreduce_"]),
        (partial(distributed.broadcast, torch.ones(2), 0), ["broadcast_"]),
        (distributed.barrier, ["barrier"]),
        (partial(distributed.all_gather_into_tensor, *TWO), ["_allgather_base_"]),
        (partial(distributed.reduce_scatter_tensor, *TWO), ["_reduce_scatter_base_"]),
    ],
)
def test_collectives_are_heard_of_once_each(step: Callable[[], object], begun: list[str]) -> None:
    assert begun_by(step) == begun


def test_gradients_are_what_they_are_unheard() -> None:
    weight = torch.ones(2, requires_grad=True)

    def step() -> None:
        summed = 3 * weight
        distributed.all_reduce(summed.detach())
        summed.sum().backward()  # type: ignore[no-untyped-call]

    assert begun_by(step) == ["allreduce_"]
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


def test_after_the_block_and_after_a_step_that_raises_nothing_is_heard() -> None:
    def raises() -> None:
        distributed.barrier()
        raise ArithmeticError("the step's own")

    begun = PhaseNames()
    with pytest.raises(ArithmeticError, match="the step's own"), collectives.heard_by(begun):
        raises()
    distributed.barrier()
    assert begun.names == ["barrier"]


TRACE = named("conv", "ncclDevKernel_AllReduce", "add", "ncclDevKernel_AllReduce", "adam")


def collected(
    fake: Fake, steps: Callable[[], object], arrives: Callable[[], object], trace: Trace = TRACE
) -> Collected:
    """Collects a rank's step whose trace has two collectives, with what comes before each."""
    work = Work(steps, Phases(), barrier=arrives, together=True)
    plan = Plan((catalogue().metrics["instructions"],), 1, warmup=1)
    return fake.collector(traced=shows(trace)).collect(work, plan)


@pytest.mark.usefixtures("on_the_device")
def test_a_rank_s_own_instructions_are_those_between_collectives(fake: Fake) -> None:
    """The device is waited for before each collective and after it."""
    arrived: list[None] = []
    of = values(collected(fake, summing(fake, 3, 4, 5), partial(arrived.append, None)))
    (whole,) = of[STEP, "instructions"]
    assert of[STEP, "own_instructions"] == (whole, whole)
    # Warming up, one round, a trace, and two executions more.
    assert len(arrived) == 5
    begun, ended = (fake.log.index(f"push {name}") for name in ("step#2", "step#3"))
    marks = [line for line in fake.log[begun:ended] if line != "RangeProfilerPushRange"]
    assert marks == ["push step#2", "synchronize", "RangeProfilerPopRange", "synchronize"]


def test_where_collectives_cannot_be_told_apart_there_is_a_reason(fake: Fake) -> None:
    twice, once = summing(fake, 3, 4, 5), summing(fake, 3, 9)
    # The trace is the third execution, and one that is counted the fourth.
    steps = ((once if number == 4 else twice)() for number in count(1))
    for step, trace, executions, reason in (
        (lambda: next(steps), TRACE, 5, "expected ['allreduce_', 'allreduce_'], got ['allreduce_"),
        (once, TRACE, 5, "the GPU ran 2 collectives, but torch.distributed began 1"),
        (twice, ran("kGk"), 3, "counters cannot separate collectives in a CUDA graph"),
    ):
        arrived: list[None] = []
        made = collected(fake, step, partial(arrived.append, None), trace)
        assert len(arrived) == executions  # other ranks, of which it is not true, do the same
        assert (STEP, "own_instructions") not in values(made)
        (lacking,) = made.unsupported
        assert lacking.metric == "own_instructions"
        assert reason in lacking.reason
        fake.reset()
