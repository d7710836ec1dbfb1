"""Steps that launch CUDA graphs: a range per graph, marked where torch replays it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import SILENT, Phases, Progress, Work
from pytest_gpuperf.measure.cupti import cupti_collector, launch_ranges
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.measure.cupti.range_session import RangeSession, Values
from pytest_gpuperf.measure.trace.profile import Trace, Traced, parse
from pytest_gpuperf.model.measurement import Device, KernelTable
from tests.heard_progress import Heard
from tests.measure.cupti.fake import Fake, FakeTimer

CYCLES = "sm__cycles_elapsed.max"
METRICS = tuple(catalogue().metrics[name] for name in ("cycles", "ipc"))
HOPPER = Device("sm90", "NVIDIA H200", "nvidia-h200")


@dataclass
class Graph:
    """Does as much work as it says when it is replayed."""

    amount: float

    def replay(self) -> None:
        torch.cuda.CUDAGraph.replay(self)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def replay(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> object:
    """Torch's replay, as it is on a machine with a GPU."""

    def replay(graph: Graph) -> None:
        fake.note(f"replay {graph.amount:g}")
        fake.work(graph.amount)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", replay)
    return replay


def counted(fake: Fake, timer: FakeTimer, step: Callable[[], object], number: int) -> Values:
    """The values of the ranges of `step` in a session that has room for just these."""
    names = launch_ranges.range_names(number)
    with RangeSession((CYCLES,), len(names), cupti=fake.cupti, cuda=fake.cuda) as session:
        return launch_ranges.counted_in_graphs(session, step, timer.synchronize, number)


def between_kernels(fake: Fake) -> Callable[[], None]:
    """A step that replays two graphs between kernels."""

    def step() -> None:
        fake.work(1)
        Graph(10).replay()
        fake.work(2)
        fake.work(3)
        Graph(20).replay()

    return step


# Ranges


def test_a_range_per_graph_and_per_stretch(fake: Fake, timer: FakeTimer) -> None:
    found = counted(fake, timer, between_kernels(fake), 2)
    assert {name: values[CYCLES] for name, values in found.items()} == {
        "stretch 0": 1,
        "graph 0": 10,
        "stretch 1": 5,
        "graph 1": 20,
        "stretch 2": 0,
    }
    assert fake.alive == 0


def test_the_device_is_waited_for_before_every_mark(fake: Fake, timer: FakeTimer) -> None:
    counted(fake, timer, Graph(10).replay, 1)
    begun = fake.log.index("push stretch 0")
    ended = fake.log.index("RangeProfilerStop")
    marks = [line for line in fake.log[begun:ended] if line != "RangeProfilerPushRange"]
    assert marks == [
        *("push stretch 0", "synchronize", "RangeProfilerPopRange"),
        *("synchronize", "push graph 0", "replay 10", "synchronize", "RangeProfilerPopRange"),
        *("synchronize", "push stretch 1", "synchronize", "RangeProfilerPopRange"),
    ]


def test_every_pass_has_all_ranges(fake: Fake, timer: FakeTimer) -> None:
    fake.set("passes", 3)
    counted(fake, timer, between_kernels(fake), 2)
    assert fake.log.count("push graph 1") == 3


def test_another_number_of_graphs_than_the_trace_has(fake: Fake, timer: FakeTimer) -> None:
    for number in (
        1,
        3,
    ):
        fake.reset()
        with pytest.raises(
            MeasurementError,
            match=rf"the trace has {number} launches .* have 2 of torch\.cuda\.CUDAGraph\.replay",
        ):
            counted(fake, timer, between_kernels(fake), number)
        assert fake.alive == 0


# Torch's replay


def test_replay_is_given_back(replay: object, fake: Fake, timer: FakeTimer) -> None:
    counted(fake, timer, between_kernels(fake), 2)
    assert torch.cuda.CUDAGraph.replay is replay


def test_what_the_step_raises_comes_out_and_replay_is_given_back(
    replay: object, fake: Fake, timer: FakeTimer
) -> None:
    def breaks() -> None:
        Graph(10).replay()
        raise ArithmeticError("the step's own")

    with pytest.raises(ArithmeticError, match="the step's own"):
        counted(fake, timer, breaks, 1)
    assert torch.cuda.CUDAGraph.replay is replay
    assert fake.alive == 0


def test_what_the_replay_raises_comes_out(
    fake: Fake, timer: FakeTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(graph: Graph) -> None:
        raise ArithmeticError(f"no graph of {graph.amount:g}")

    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", broken)
    with pytest.raises(ArithmeticError, match="no graph of 10"):
        counted(fake, timer, Graph(10).replay, 1)
    assert torch.cuda.CUDAGraph.replay is broken  # type: ignore[comparison-overlap]
    assert fake.alive == 0


def test_a_mark_that_fails_is_raised_after_the_step(
    replay: object, fake: Fake, timer: FakeTimer
) -> None:
    ended = []

    def step() -> None:
        between_kernels(fake)()
        ended.append("ended")

    for call in ("cuptiRangeProfilerPushRange", "cuptiRangeProfilerPopRange"):
        for after in (1, 2):
            fake.reset()
            fake.fail(call, 999, after)
            with pytest.raises(MeasurementError, match=call):
                counted(fake, timer, step, 2)
            assert ended.pop() == "ended"
            assert torch.cuda.CUDAGraph.replay is replay


# Tables


def traced(kinds: str, *, launched: str = "") -> Trace:
    """A trace of k(ernels), c(opies) and G(raphs), as they ran one after the other.

    `launched` are the same positions, 0 to 9, in the order in which the host launched them.
    """
    of = {"k": "kernel", "c": "copy", "G": "graph"}
    order = launched or "".join(map(str, range(len(kinds))))
    return Trace(
        tuple(
            Traced(f"{kind}{n}", of[kind], None, None, 100.0 * n, 50.0, float(order.index(str(n))))
            for n, kind in enumerate(kinds)
        )
    )


def cycles(trace: Trace, number: int) -> list[float | None]:
    """The cycles of each launch, where graph n has 100 + n of them and stretch n has n."""
    values = {
        name: {CYCLES: float(name.split()[1]) + (100 if name.startswith("graph") else 0)}
        for name in launch_ranges.range_names(number)
    }
    found = launch_ranges.graph_table(trace, METRICS, "sm90", values)
    assert found.mismatch == ""
    assert found.metrics == ("cycles", "ipc")
    return [launch.values[0] if launch.values else None for launch in found.launches]


def test_graphs_and_kernels_that_are_alone_have_values() -> None:
    for kinds, expected in (
        ("G", [100]),
        ("GG", [100, 101]),
        ("kGk", [0, 100, 1]),
        ("kkGk", [None, None, 100, 1]),
        ("GkkGk", [100, None, None, 101, 2]),
        ("cGckGk", [None, 100, None, None, 101, 2]),
    ):
        assert cycles(traced(kinds), kinds.count("G")) == expected


def test_what_is_not_counted_has_no_values_and_copies_have_none_to_have() -> None:
    values = {name: {CYCLES: 1.0} for name in launch_ranges.range_names(1)}
    found = launch_ranges.graph_table(traced("kkGc"), METRICS, "sm90", values)
    assert [launch.values for launch in found.launches] == [
        (None, None),
        (None, None),
        (1.0, None),
        (),
    ]


def test_launching_decides_what_is_between_what() -> None:
    # On several streams: what was launched first ran last.
    assert cycles(traced("kGkG", launched="3210"), 2) == [2, 101, 1, 100]
    # Both kernels were launched between the graphs, although one ran before them.
    assert cycles(traced("kGkG", launched="3201"), 2) == [None, 101, None, 100]


def test_where_launching_is_not_known_only_graphs_have_values() -> None:
    trace = traced("kGk")
    kernel = replace(trace.entries[2], launched=None)
    assert cycles(Trace((*trace.entries[:2], kernel)), 1) == [None, 100, None]


def test_a_trace_tells_when_the_host_launched() -> None:
    def event(name: str, category: str, begun: float, correlation: int) -> dict[str, object]:
        arguments = {"correlation": correlation}
        return {"name": name, "cat": category, "ts": begun, "dur": 1, "args": arguments}

    found = parse(
        [
            event("cudaGraphLaunch", "cuda_runtime", 10, 1),
            event("cuLaunchKernel", "cuda_driver", 15, 2),
            event("k1", "kernel", 30, 1),
            event("k2", "kernel", 40, 1),
            event("k3", "kernel", 20, 2),
            event("k4", "kernel", 50, 3),
        ]
    )
    assert [(entry.name, entry.launched) for entry in found.entries] == [
        ("k3", -5000),
        ("CUDA graph of 2 kernels", -10_000),
        ("k4", None),
    ]
    assert found.graphs == (1,)


# The collector


def kernels(
    fake: Fake, timer: FakeTimer, step: Callable[[], object], progress: Progress = SILENT
) -> KernelTable:
    made = CuptiCollector(
        HOPPER, timer=timer, load_cupti=lambda: fake.cupti, load_driver=lambda: fake.cuda
    )
    work = Work(step, Phases(), lambda: fake.work(1e6), progress=progress)
    return made.kernels(work, METRICS)


@pytest.fixture
def tracing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says what torch's profiler finds, which needs a GPU for it."""

    def finds(kinds: str) -> None:
        monkeypatch.setattr(cupti_collector, "trace", lambda *_: traced(kinds))

    return finds


def test_graphs_are_counted_in_ranges(
    fake: Fake, timer: FakeTimer, tracing: Callable[[str], None]
) -> None:
    tracing("kGkkG")
    found = kernels(fake, timer, between_kernels(fake))
    assert found.mismatch == ""
    assert [launch.values[0] for launch in found.launches] == [1, 10, None, None, 20]
    assert [launch.kind for launch in found.launches].count("graph") == 2
    assert fake.alive == 0


def test_a_step_without_graphs_is_counted_by_launch(
    fake: Fake, timer: FakeTimer, tracing: Callable[[str], None]
) -> None:
    tracing("kck")

    def step() -> None:
        fake.work(3)
        fake.work(4)

    found = kernels(fake, timer, step)
    assert found.mismatch == ""
    assert [launch.values[0] if launch.values else None for launch in found.launches] == [
        *(3, None, 4)
    ]
    assert not any(line.startswith("push ") for line in fake.log)


def test_graphs_of_others_are_a_mismatch_and_names_and_times_stay(
    fake: Fake, timer: FakeTimer, tracing: Callable[[str], None]
) -> None:
    tracing("kGG")
    found = kernels(fake, timer, Graph(5).replay)
    assert "graphs are launched by other means" in found.mismatch
    assert found.metrics == ()
    assert [(found.names[one.name], one.values) for one in found.launches] == [
        ("k0", ()),
        ("G1", ()),
        ("G2", ()),
    ]
    assert fake.alive == 0


def test_metrics_that_cannot_be_counted_are_a_mismatch(
    fake: Fake, timer: FakeTimer, tracing: Callable[[str], None]
) -> None:
    tracing("kG")
    missing = replace(METRICS[0], hardware={"default": "nothing"})
    fake.set("unknown", "nothing")
    made = CuptiCollector(
        HOPPER, timer=timer, load_cupti=lambda: fake.cupti, load_driver=lambda: fake.cuda
    )
    found = made.kernels(Work(Graph(5).replay, Phases()), (missing,))
    assert found.mismatch == "none of the metrics can be counted here"


def test_the_trace_and_every_pass_are_announced(
    fake: Fake, timer: FakeTimer, tracing: Callable[[str], None]
) -> None:
    for kinds in (
        "kGkkG",
        "kk",
    ):
        fake.reset()
        tracing(kinds)
        fake.set("passes", 2)
        heard = Heard()
        kernels(fake, timer, between_kernels(fake), heard)
        assert heard.said == [
            "tracing kernels",
            "counting kernels, pass 1 of 2 (2)",
            "counting kernels, pass 2 of 2 (1)",
        ]
