"""The collector's protocol: what is executed when, and what comes back."""

from __future__ import annotations

import gc
from itertools import count

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import CountersUnavailable
from pytest_gpuperf.measure.collector import Phases, Plan, Work
from pytest_gpuperf.measure.cupti import library
from pytest_gpuperf.measure.cupti.cupti_collector import CuptiCollector
from pytest_gpuperf.model.metric import Metric
from tests.heard_progress import Heard
from tests.measure.cupti.fake import Fake, Step
from tests.measure.stand_ins import values

METRICS = catalogue().metrics
CYCLES, IPC = METRICS["cycles"], METRICS["ipc"]
TRAINING = {"forward": 2.0, "backward": 4.0, "optimizer": 1.0}


@pytest.fixture
def collector(fake: Fake) -> CuptiCollector:
    return fake.collector()


def plan(
    *metrics: Metric, rounds: int = 2, repetitions: int | None = None, warmup: int = 1
) -> Plan:
    return Plan(metrics or (CYCLES, IPC), rounds, repetitions=repetitions, warmup=warmup)


def test_times_and_counters_of_the_step_and_its_phases(
    collector: CuptiCollector, fake: Fake
) -> None:
    collected = collector.collect(Step(fake, *TRAINING.items()).work, plan())
    assert values(collected) == {
        ("step", "step_time"): (5.0, 5.0),
        ("step", "wall_time"): (7.0, 7.0),
        ("step", "cycles"): (7.0, 7.0),
        ("step", "ipc"): (14.0, 14.0),
        **{(phase, "cycles"): (amount,) for phase, amount in TRAINING.items()},
        **{(phase, "ipc"): (2 * amount,) for phase, amount in TRAINING.items()},
    }
    assert collected.unsupported == ()
    assert fake.alive == 0


def test_the_step_is_reset_before_and_waited_for_inside_its_range(
    collector: CuptiCollector, fake: Fake
) -> None:
    collector.collect(Step(fake, ("a", 1)).work, plan(rounds=1))
    log = [
        line.removeprefix("RangeProfiler")
        for line in fake.log
        if line in {"reset", "step", "synchronize"}
        or "push" in line
        or line.endswith(("Start", "Stop", "PopRange"))
    ]
    whole = ["reset", "synchronize", "Start", "push step", "step"]
    whole += ["synchronize", "PopRange", "Stop"]
    phases = ["reset", "synchronize", "Start", "step", "synchronize", "push a"]
    phases += ["synchronize", "PopRange", "synchronize", "Stop"]
    assert log[-len(whole + phases) :] == whole + phases


def test_a_metric_without_a_value_in_a_phase_is_left_out_there(
    collector: CuptiCollector, fake: Fake
) -> None:
    for parts, cycles, having, says in (
        ([("a", 2.0), ("f", 1.0), ("a", 3.0)], 5.0, {"step", "f"}, 'phase "a" occurs 2 times'),
        ([("a", 0.0), ("f", 1.0)], 0.0, {"step", "f"}, 'ran in phase "a"'),
        ([("a", 0.0)], 0.0, set(), "ran in the step; nothing that"),
    ):
        fake.reset()
        collected = collector.collect(Step(fake, *parts).work, plan())
        measured = values(collected)
        assert measured["a", "cycles"] == (cycles,)
        assert {phase for phase, metric in measured if metric == "ipc"} == having
        assert [entry.metric for entry in collected.unsupported] == ["ipc"]
        assert says in collected.unsupported[0].reason


def test_what_the_step_raises_comes_out_unchanged(collector: CuptiCollector, fake: Fake) -> None:
    error = RuntimeError("CUDA error: an illegal memory access was encountered")

    def failing(execution: int) -> Work:
        numbers = count()
        marks = Phases()

        def run() -> None:
            with marks.mark("forward"):
                fake.work(1)
                number = next(numbers)
                assert gc.isenabled() is (number < 2)  # garbage is not looked for while it counts
                if number == execution:
                    fake.fail("cuptiRangeProfilerPopRange", 999)
                    raise error

        return Work(run, marks)

    for execution in range(7):
        fake.reset()
        with pytest.raises(RuntimeError) as caught:
            collector.collect(failing(execution), plan(rounds=2, repetitions=2, warmup=2))
        assert caught.value is error
        assert gc.isenabled()


def test_where_counters_cannot_be_read_the_times_remain(
    collector: CuptiCollector, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise CountersUnavailable("CUPTI was not found", "Install it")

    denied = "NVreg_RestrictProfilingToAdminUsers=0"
    for call, reason in (
        ("cuptiRangeProfilerEnable", denied),
        ("cuptiRangeProfilerStart", denied),
        ("", "CUPTI was not found. Install it"),
    ):
        fake.reset()
        fake.fail(call, 35)
        if not call:
            monkeypatch.setattr(library, "load", missing)
        collected = collector.collect(Step(fake, ("a", 1)).work, plan())
        assert values(collected) == {
            ("step", "step_time"): (5.0,) * 3,
            ("step", "wall_time"): (7.0,) * 3,
        }
        assert [entry.metric for entry in collected.unsupported] == ["cycles", "ipc"]
        assert reason in collected.unsupported[0].reason
        assert fake.alive == 0
    assert collector.software() == {}


def test_without_metrics_no_session_is_opened(collector: CuptiCollector, fake: Fake) -> None:
    collected = collector.collect(Step(fake).work, Plan(()))
    assert set(values(collected)) == {("step", "step_time"), ("step", "wall_time")}
    assert not any("Profiler" in line for line in fake.log)


# Progress


def test_every_execution_is_announced_before_it_is_prepared(
    collector: CuptiCollector, fake: Fake
) -> None:
    fake.set("passes", 2)
    diary: list[str] = []
    step = Step(fake, ("forward", 1.0))

    def noted() -> None:
        diary.append("step")
        step()

    work = Work(noted, step.marks, lambda: diary.append("reset"), progress=Heard(diary))
    collected = collector.collect(work, plan(rounds=3, repetitions=2, warmup=2))
    announced = [
        *("warming up 1 of 2", "warming up 2 of 2", "timing 1 of 2", "timing 2 of 2"),
        *(
            f"counting round {number} of at most 3, pass {done} of 2"
            for number in (1, 2, 3)
            for done in (1, 2)
        ),
        *(f"counting phases, pass {done} of 2" for done in (1, 2)),
    ]
    assert diary == [entry for text in announced for entry in (text, "reset", "step")]
    settings = collected.settings or {}
    chosen = {name: settings[name] for name in ("passes", "counter_passes", "ranges", "rounds")}
    assert chosen == {"passes": 2, "counter_passes": 3 * 2 + 2, "ranges": 2, "rounds": 3}
    # 7 ms each: two to warm up, two rounds of two passes, and two passes in phases.
    assert settings["floor_s"] == 0.056
    assert settings["cost_s"] == pytest.approx(
        sum(float(settings[f"{part}_s"]) for part in ("warmup", "times", "counters")), abs=0.01
    )
