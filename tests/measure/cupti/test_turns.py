"""Workers on a GPU: each counts in a turn of its own, and the step has the sum."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.attached_workers import Workers
from pytest_gpuperf.measure.attachment import attached
from pytest_gpuperf.measure.collector import Collected, Phases, Plan, Work
from pytest_gpuperf.measure.cupti import library, turns
from pytest_gpuperf.measure.cupti.abi import ResultCode
from pytest_gpuperf.measure.cupti.turns import BlockCounter, BlockTrace
from pytest_gpuperf.measure.device import driver
from pytest_gpuperf.measure.trace.profile import Event
from pytest_gpuperf.model.measurement import STEP
from tests.examples import H200
from tests.measure.cupti.fake import Fake
from tests.measure.traces import copy, launched
from tests.serving import Asked, serving

METRICS = catalogue().metrics
INSTRUCTIONS, IPC = METRICS["instructions"], METRICS["ipc"]
KERNEL_TIME, LAUNCHES, IDLE = (METRICS[name] for name in ("kernel_time", "launches", "gpu_idle"))
PLAN = Plan((INSTRUCTIONS,), rounds=2)


def serve(pipe: Any, file: Path, script: tuple[tuple[Any, ...], ...] = ()) -> None:
    """A worker with a GPU of its own: does as much work as it is told, until that is None."""
    fake = Fake(file)
    library.load = lambda: fake.cupti  # type: ignore[assignment]
    driver.load = lambda: fake.cuda  # type: ignore[assignment]
    for what, *arguments in script:
        getattr(fake, what)(*arguments)
    while (amount := pipe.recv()) is not None:
        with attached("server"):
            fake.work(amount)
            fake.set("context", 1)
        pipe.send(None)


def served(file: Path, *script: tuple[Any, ...]) -> AbstractContextManager[Asked]:
    """A spawned worker; the result has it do so much work, and waits for that."""
    return serving(serve, file, script)


def collected(fake: Fake, step: Callable[[], object], workers: Workers, plan: Plan) -> Collected:
    workers.begin()
    work = Work(step, Phases(), workers=workers)
    return fake.collector(traced=lambda *_, **__: [*launched(10, 5, 1)]).collect(work, plan)


def of_step(measured: Collected) -> dict[str, tuple[float, ...]]:
    return {s.metric: s.values for s in measured.samples if s.phase == STEP}


def of_workers(workers: Workers) -> dict[str, dict[str, tuple[float, ...]]]:
    peers = workers.peers(H200)
    return {peer.name: {s.metric: s.values for s in peer.samples} for peer in peers}


def test_the_step_has_what_its_workers_have_counted_one_after_the_other(
    fake: Fake, fake_library: Path
) -> None:
    done: list[str] = []
    with Workers() as workers, served(fake_library) as one, served(fake_library) as other:

        def step() -> None:
            done.append("step")
            fake.work(1)
            one(3)
            other(5)

        measured = collected(fake, step, workers, PLAN)
        kept = of_workers(workers)
    assert of_step(measured)["instructions"] == (9, 9)
    assert kept == {"server": {"instructions": (3, 3)}, "server 2": {"instructions": (5, 5)}}
    # The warm-up, two rounds of our own, and two of each worker.
    assert len(done) == 1 + 2 + 2 * 2
    assert len(of_step(measured)["step_time"]) == 2
    assert measured.unsupported == ()


@pytest.mark.parametrize(("here", "there"), [(1, 3), (0, 3), (1, 0)])
def test_counts_are_added_and_a_rate_is_made_of_the_sums(
    here: float, there: float, fake: Fake, fake_library: Path
) -> None:
    """The n-th metric of a session counts its n-fold; only counts are asked of a worker."""
    plan = Plan((METRICS["active_cycles"], INSTRUCTIONS, IPC, METRICS["l2_hit_rate"]), rounds=1)
    with Workers() as workers, served(fake_library) as ask:

        def step() -> None:
            fake.work(here)
            ask(there)

        measured = collected(fake, step, workers, plan)
    values, lacking = of_step(measured), {one.metric for one in measured.unsupported}
    cycles, instructions = here + there, 2 * (here + there)
    assert (values["active_cycles"], values["instructions"]) == ((cycles,), (instructions,))
    if there:
        assert values["ipc"] == (instructions / cycles,)
        assert lacking == {"l2_hit_rate"}
    else:  # all of it is of this process, and as it has counted it
        assert (values["ipc"], values["l2_hit_rate"]) == ((3 * here,), (4 * here,))


def test_an_execution_is_one_pass_of_a_worker(fake: Fake, fake_library: Path) -> None:
    """Where all counters together take more, a worker counts each by itself."""
    fake.set("passes", 2)
    done: list[float] = []
    plan = Plan((INSTRUCTIONS, METRICS["pipe_fma"]), rounds=1)
    with Workers() as workers, served(fake_library) as ask:

        def step() -> None:
            done.append(1)
            ask(3)

        measured = of_step(collected(fake, step, workers, plan))
    assert (measured["instructions"], measured["pipe_fma"]) == ((3,), (3,))
    assert len(done) == 1 + 2 + 2


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            (("fail", "cuptiRangeProfilerEnable", ResultCode.ERROR_UNKNOWN.value),),
            "cannot be opened",
        ),
        ((("set", "passes", 2),), "2 passes are needed"),
        ((("set", "context", 0),), None),
    ],
)
def test_a_worker_that_cannot_count_leaves_the_step_without_the_metric(
    script: tuple[tuple[Any, ...], ...], reason: str | None, fake: Fake, fake_library: Path
) -> None:
    """Its context is made by its first execution, which is the warm-up."""
    with Workers() as workers, served(fake_library, *script) as ask:
        measured = collected(fake, lambda: ask(3), workers, PLAN)
    if reason is None:
        assert of_step(measured)["instructions"] == (3, 3)
        return
    assert "instructions" not in of_step(measured)
    (lacking,) = measured.unsupported
    assert lacking.metric == "instructions"
    assert lacking.reason.startswith("the worker server cannot count: ")
    assert reason in lacking.reason


def test_workers_of_one_name_that_come_and_go_cannot_have_turns(
    fake: Fake, fake_library: Path
) -> None:
    with Workers() as workers:

        def step() -> None:
            with served(fake_library) as one, served(fake_library) as other:
                one(1)
                other(2)

        with pytest.raises(MeasurementError, match='several workers "server" come and go'):
            collected(fake, step, workers, PLAN)


def test_one_that_comes_and_goes_can(fake: Fake, fake_library: Path) -> None:
    with Workers() as workers:

        def step() -> None:
            with served(fake_library) as ask:
                ask(2)

        measured = collected(fake, step, workers, Plan((INSTRUCTIONS,), rounds=1))
        assert of_workers(workers) == {"server": {"instructions": (2,)}}
    assert of_step(measured)["instructions"] == (2,)


def test_every_measurement_may_have_workers_of_its_own(fake: Fake, fake_library: Path) -> None:
    with Workers() as workers:
        for amount in (2, 3):
            with served(fake_library) as one, served(fake_library) as other:

                def step(ask: Asked = one, also: Asked = other, amount: int = amount) -> None:
                    ask(amount)
                    also(amount)

                measured = collected(fake, step, workers, PLAN)
            assert of_step(measured)["instructions"] == (2 * amount,) * 2


def test_a_worker_that_is_replaced_beside_another_cannot_have_turns(
    fake: Fake, fake_library: Path
) -> None:
    with Workers() as workers, ExitStack() as first, served(fake_library) as other:
        asked = [first.enter_context(served(fake_library)), other]

        def step() -> None:
            for ask in asked:
                ask(1)
            first.close()
            asked[0] = first.enter_context(served(fake_library))

        with pytest.raises(MeasurementError, match='several workers "server" come and go'):
            collected(fake, step, workers, PLAN)


def test_a_worker_that_does_nothing_in_its_turn_is_no_count(fake: Fake, fake_library: Path) -> None:
    executions = 0
    with Workers() as workers, served(fake_library) as ask:

        def step() -> None:
            nonlocal executions
            executions += 1
            if executions == 1:
                ask(3)

        with pytest.raises(MeasurementError, match="the worker server did nothing"):
            collected(fake, step, workers, PLAN)


def test_ranks_have_no_workers(fake: Fake) -> None:
    with Workers() as workers:
        work = Work(lambda: fake.work(1), Phases(), workers=workers, together=True)
        with pytest.raises(MeasurementError, match="several ranks can have no workers"):
            fake.collector(traced=lambda *_, **__: []).collect(work, PLAN)


# In the worker


def block(fake: Fake, **options: Any) -> BlockCounter:
    hardware = {"instructions": INSTRUCTIONS.hardware_name("sm90") or ""}
    return BlockCounter(hardware, cupti=fake.cupti, cuda=fake.cuda, **options)


def test_a_block_is_one_range_and_leaves_nothing_open(fake: Fake) -> None:
    for amount in (2.0, 5.0):
        counter = block(fake)
        counter.begin()
        fake.work(amount)
        assert counter.end() == {"instructions": amount}
        assert fake.alive == 0


def test_a_process_that_does_not_use_the_gpu_counts_nothing(fake: Fake) -> None:
    fake.set("context", 0)
    counter = block(fake)
    counter.begin()
    assert counter.end() == {"instructions": 0}


def test_what_came_before_the_first_use_of_the_gpu_is_not_passed_over(fake: Fake) -> None:
    fake.set("context", 0)
    counter = block(fake)
    counter.begin()
    fake.set("context", 1)
    with pytest.raises(MeasurementError, match="the first of its process to use the GPU"):
        counter.end()


class Recorded:
    """A profile with these events, in place of torch's."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events

    def start(self) -> None:
        pass

    def stop(self) -> Callable[[], list[Event]]:
        return lambda: self._events


def test_a_trace_has_what_the_block_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [*launched(10, 5, 1), *launched(20, 7, 2), copy(30, 2, "HtoD (Pinned -> Device)", 8)]
    monkeypatch.setattr(turns, "Profile", lambda **_: Recorded(events))
    fake_torch = type("Torch", (), {"cuda": type("Cuda", (), {"synchronize": staticmethod(int)})})
    monkeypatch.setattr(turns, "_torch_with_context", lambda: fake_torch)
    trace = BlockTrace(["kernel_time", "launches", "copy_bytes_h2d_pinned", "graph_breaks"])
    trace.begin()
    expected = {"kernel_time": 12_000, "launches": 2, "copy_bytes_h2d_pinned": 8, "graph_breaks": 0}
    assert trace.end() == expected


def test_without_a_gpu_nothing_is_launched() -> None:
    trace = BlockTrace(["launches"])
    trace.begin()
    assert trace.end() == {"launches": 0}


def test_traces_are_of_all_workers_at_once(fake: Fake, fake_library: Path) -> None:
    """These have no torch that uses a GPU: the step's own launch is all."""
    plan = Plan((), rounds=1, activity=(KERNEL_TIME, LAUNCHES, IDLE))
    with Workers() as workers, served(fake_library) as one, served(fake_library) as other:

        def step() -> None:
            one(1)
            other(1)

        measured = of_step(collected(fake, step, workers, plan))
        kept = of_workers(workers)
    assert measured["launches"] == (1,) * len(measured["launches"])
    assert sorted(kept) == ["server", "server 2"]
    assert [set(counts) for counts in kept.values()] == [{"kernel_time", "launches"}] * 2
