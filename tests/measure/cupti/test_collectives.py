"""What a step does between its collectives, whoever begins them: a range per stretch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
import torch
from torch import distributed

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cupti import launch_ranges
from pytest_gpuperf.measure.cupti.range_session import RangeSession, Values
from tests.measure.cupti.fake import Fake, FakeTimer
from tests.measure.traces import named, shows

INSTRUCTIONS = "smsp__inst_executed.sum"
IN_A_COLLECTIVE = 100.0
"""The work of one on the scripted device."""


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


def begun_by(step: Callable[[], object]) -> int:
    """How many collectives are heard of while the step runs."""
    with launch_ranges.collectives_begun() as begun:
        step()
    return begun()


def between_collectives(fake: Fake, step: Callable[[], object], collectives: int) -> Values:
    """The values of the stretches of `step`, in a session that has room for just these."""
    with RangeSession((INSTRUCTIONS,), collectives + 1) as session:
        work, timer = Work(step, Phases()), FakeTimer(fake)
        return launch_ranges.counted_beside_collectives(session, work, timer, collectives)


def summing(fake: Fake, *amounts: float) -> Callable[[], None]:
    """A step that does these amounts of work, and sums over all ranks after each but the last."""

    def step() -> None:
        for number, amount in enumerate(amounts, 1):
            fake.work(amount)
            if number < len(amounts):
                distributed.all_reduce(torch.ones(2))

    return step


def gathered() -> None:
    distributed.all_gather_into_tensor(torch.empty(2), torch.ones(2))


def scattered() -> None:
    distributed.reduce_scatter_tensor(torch.empty(2), torch.ones(2))


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")  # names that torch had
@pytest.mark.parametrize(
    ("step", "collectives"),
    [
        pytest.param(lambda: None, 0, id="none"),
        pytest.param(lambda: distributed.all_reduce(torch.ones(2)), 1, id="sum"),
        pytest.param(lambda: distributed.broadcast(torch.ones(2), 0), 1, id="broadcast"),
        pytest.param(distributed.barrier, 1, id="barrier"),
        pytest.param(gathered, 1, id="gather"),
        pytest.param(scattered, 1, id="scatter"),
    ],
)
def test_collectives_are_heard_of_once_each(step: Callable[[], object], collectives: int) -> None:
    assert begun_by(step) == collectives


def test_gradients_are_what_they_are_unheard() -> None:
    weight = torch.ones(2, requires_grad=True)

    def step() -> None:
        summed = 3 * weight
        distributed.all_reduce(summed.detach())
        summed.sum().backward()  # type: ignore[no-untyped-call]

    assert begun_by(step) == 1
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


def test_after_the_block_and_after_a_step_that_raises_nothing_is_heard() -> None:
    def raises() -> None:
        distributed.barrier()
        raise ArithmeticError("the step's own")

    with (
        pytest.raises(ArithmeticError, match="the step's own"),
        launch_ranges.collectives_begun() as begun,
    ):
        raises()
    distributed.barrier()
    assert begun() == 1


@pytest.mark.usefixtures("on_the_device")
def test_what_a_collective_does_is_in_no_stretch(fake: Fake) -> None:
    """The device is waited for before each collective and after it."""
    whole = between_collectives(fake, lambda: fake.work(13), 0)["stretch 0"][INSTRUCTIONS]
    fake.reset()
    values = between_collectives(fake, summing(fake, 1, 5, 7), 2)
    of = {name: by_metric[INSTRUCTIONS] for name, by_metric in values.items()}
    assert of == {f"stretch {number}": whole * n / 13 for number, n in enumerate((1, 5, 7))}
    begun, ended = fake.log.index("push stretch 0"), fake.log.index("push stretch 1")
    marks = [line for line in fake.log[begun:ended] if line != "RangeProfilerPushRange"]
    assert marks == ["push stretch 0", "synchronize", "RangeProfilerPopRange", "synchronize"]


def collected(fake: Fake, steps: Callable[[], object], arrives: Callable[[], object]) -> Collected:
    """Collects a rank's step whose trace has two collectives, with what comes before each."""
    trace = named("conv", "ncclDevKernel_AllReduce", "add", "ncclDevKernel_AllReduce", "adam")
    work = Work(steps, Phases(), barrier=arrives, together=True)
    plan = Plan((catalogue().metrics["instructions"],), 1, warmup=1)
    return fake.collector(traced=shows(trace)).collect(work, plan)


@pytest.mark.usefixtures("on_the_device")
def test_a_rank_s_own_instructions_are_those_between_collectives(
    fake: Fake,
) -> None:
    arrived: list[None] = []
    made = collected(fake, summing(fake, 3, 4, 5), lambda: arrived.append(None))
    of = {sample.metric: sample.values for sample in made.samples}
    (whole,) = of["instructions"]
    assert of["own_instructions"] == (whole, whole)
    # Warming up, one round, a trace, and two executions more: as many as where launches are counted
    # one by one, which another rank may have to do.
    assert len(arrived) == 5


def test_where_a_step_begins_other_collectives_than_before_it_has_no_own_instructions(
    fake: Fake,
) -> None:
    twice, once = summing(fake, 3, 4, 5), summing(fake, 3, 9)
    arrived: list[None] = []
    # The trace is the third execution, and one that is counted the fourth.
    steps = ((once if number == 4 else twice)() for number in count(1))
    made = collected(fake, lambda: next(steps), lambda: arrived.append(None))
    assert len(arrived) == 5  # other ranks, of which it is not true, execute the step once more
    assert "own_instructions" not in {sample.metric for sample in made.samples}
    (lacking,) = made.unsupported
    assert lacking.metric == "own_instructions"
    assert lacking.reason == (
        "the step began 1 collectives, but 2 in an earlier execution, so its work differs between "
        "executions"
    )
