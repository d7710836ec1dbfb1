"""Counting a step in rounds and its phases once; in instrumented kernels, leaving nothing out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import MeasurementError
from pytest_gpuperf.measure.collector import Collected, Plan, Rounds, Work
from pytest_gpuperf.measure.cupti.counting import Counting, ranges_of
from pytest_gpuperf.measure.execution import Executions
from pytest_gpuperf.model.metric import Metric
from tests.measure.cupti.fake import Fake, FakeTimer, Step
from tests.measure.stand_ins import Memory, values

METRICS = catalogue().metrics
CYCLES, THREADS, ADDITIONS = (METRICS[n] for n in ("cycles", "thread_instructions", "sass_fadd"))


def counted(fake: Fake, work: Work, plan: Plan, *phases: str) -> Collected:
    """What is counted of this work, in whose warm-up these phases were, on a scripted H200."""
    executions = Executions(work, FakeTimer(fake), Memory())
    executions.phases = phases
    return Counting("sm90", executions).of(plan)


def of_step(step: Step, *metrics: Metric, rounds: int = 3) -> Collected:
    """What is counted of this step on a scripted H200."""
    phases = (name for name, _ in step.parts)
    return counted(step.fake, step.work, Plan(metrics, rounds), *phases)


def test_what_is_instrumented_is_counted_once_and_the_rest_in_rounds(fake: Fake) -> None:
    collected = of_step(Step(fake, ("forward", 2), ("backward", 4), between=0.5), CYCLES, THREADS)
    assert values(collected) == {
        ("step", "cycles"): (7.5,) * 3,
        ("step", "thread_instructions"): (7.5,),
        **{("forward", metric): (2.0,) for metric in ("cycles", "thread_instructions")},
        **{("backward", metric): (4.0,) for metric in ("cycles", "thread_instructions")},
    }
    assert fake.log.count("step") == 3 + 1 + 1
    made = {"chip": "GH100", "passes": 2, "rounds": 3, "counter_passes": 5, "ranges": 3}
    assert collected.settings == made
    assert fake.alive == 0


def test_rounds_end_when_they_are_enough(fake: Fake) -> None:
    asked: list[Rounds] = []

    def enough(rounds: Rounds) -> bool:
        asked.append({name: list(of) for name, of in rounds.items()})
        return len(asked) == 2

    step = Step(fake, ("forward", 3))
    of = counted(fake, step.work, Plan((CYCLES,), 5, enough), "forward")
    assert of.settings is not None
    assert of.settings["rounds"] == 2
    assert fake.log.count("step") == 2 + 1
    one = {"cycles": [3.0], "step_time": [5.0], "wall_time": [7.0], "peak_memory": [5e9]}
    assert asked == [one, {name: values * 2 for name, values in one.items()}]


def test_with_nothing_left_to_instrument_the_step_is_not_executed(fake: Fake) -> None:
    fake.set("unknown", THREADS.hardware_name("sm90") or "")
    assert of_step(Step(fake, ("forward", 2)), THREADS).samples == ()
    assert "step" not in fake.log


def test_a_metric_that_does_not_add_is_counted_over_the_step_itself(fake: Fake) -> None:
    step = Step(fake, ("forward", 2), between=0.5)
    assert values(of_step(step, replace(THREADS, additive=False), rounds=2)) == {
        ("step", "thread_instructions"): (3.0,) * 2,
        ("forward", "thread_instructions"): (2.0,),
    }


def test_what_does_not_exist_on_the_architecture_opens_nothing(fake: Fake) -> None:
    elsewhere = replace(CYCLES, hardware={"sm80": "sm__cycles_elapsed.max"})
    of = of_step(Step(fake), elsewhere)
    assert of.samples == ()
    assert [entry.reason for entry in of.unsupported] == ["does not exist on sm90"]
    assert fake.log == []


def test_nothing_between_phases_is_no_instruction(fake: Fake) -> None:
    # The fake has no number for a ratio over a range without work, as CUPTI for some of its sums.
    ratio = replace(THREADS, hardware={"default": "smsp__sass_inst_executed.per_second"})
    of = of_step(Step(fake, ("forward", 2)), ratio)
    assert values(of)["step", "thread_instructions"] == (2.0,)


@pytest.mark.parametrize("metric", [CYCLES, THREADS], ids=["rounds", "instrumented"])
@pytest.mark.parametrize("later", [[("b", 1.0)], [], [("a", 1.0), ("b", 1.0)]])
def test_phases_that_change_are_an_error(
    fake: Fake, later: list[tuple[str, float]], metric: Metric
) -> None:
    step = Step(fake, *later)
    with pytest.raises(MeasurementError, match="phases of the step change"):
        counted(fake, step.work, Plan((metric,), rounds=1), "a")
    assert fake.alive == 0


def test_a_border_that_cupti_refuses_ends_the_measurement_and_not_the_step(fake: Fake) -> None:
    fake.fail("cuptiRangeProfilerPushRange", 999, after=1)
    step = Step(fake, ("a", 1), ("b", 1))
    with pytest.raises(MeasurementError, match="cuptiRangeProfilerPushRange failed"):
        counted(fake, step.work, Plan((CYCLES,), rounds=1), "a", "b")
    assert fake.log.count("step") == 2


def test_the_ranges_of_a_step_have_different_names_and_every_second_is_a_phase() -> None:
    assert [entry.name for entry in ranges_of(["b", "b", "b#2", "b"])[1::2]] == [
        *("b", "b#3", "b#2", "b#4")
    ]
    for phases in ([], ["a"], ["a", "b", "a"], ["step#2", "a"]):
        ranges = ranges_of(phases)
        assert len({entry.name for entry in ranges}) == len(ranges) == 2 * len(phases) + 1
        assert [entry.phase for entry in ranges[1::2]] == phases
        assert {entry.phase for entry in ranges[::2]} == {"step"}


def test_nvidias_name_says_whether_kernels_are_instrumented() -> None:
    for name, instrumented in (
        ("smsp__sass_thread_inst_executed_op_fadd_pred_on.sum", True),
        ("sm__sass_inst_executed_op_global.sum", True),
        ("smsp__inst_executed.sum", False),
        ("smsp__pcsamp_warps_issue_stalled_gmma", False),
    ):
        metric = replace(CYCLES, hardware={"default": name, "sm70": None})
        assert metric.instrumented("sm90") == instrumented
        assert not metric.instrumented("sm70")
