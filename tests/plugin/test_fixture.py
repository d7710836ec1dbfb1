"""The fixture by itself, on recorded processes: outcomes of limits and ratios, and what is refused.

Whether pytest is told the same is in test_outcomes.py and test_expectations.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_gpuperf.baselines.judgement import Judging
from pytest_gpuperf.errors import MeasurementError, UsageFailure
from pytest_gpuperf.measure.instrument import RecordedRun
from pytest_gpuperf.model.measurement import Device, Measurement
from pytest_gpuperf.model.result import Expectation, Outcome
from pytest_gpuperf.plugin.fixture import GpuPerf
from pytest_gpuperf.plugin.markers import MarkerOptions
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.text.progress import Display
from pytest_gpuperf.storage import run_files
from tests.examples import default_settings, measurement, run

A100 = Device("sm80", "NVIDIA A100", "nvidia-a100")
SUITE = "test_steps"
BASELINE, TF32, CLAIM = ("a/test_steps.py::" + name for name in ("t[baseline]", "t[tf32]", "claim"))
THREE = [400e6] * 3


def processes(test: str, metric: str, values: Sequence[float], **more: Any) -> list[Measurement]:
    """A process per value of the metric."""
    return [
        measurement(
            {metric: [value]}, test=test, suite=SUITE, process=f"p{number}", device=A100,
            configuration=test.partition("[")[2].rstrip("]"), settings={"metrics": "core"}, **more,
        )
        for number, value in enumerate(values)
    ]  # fmt: skip


class Recorded:
    """A session that replays these measurements, and has no baselines."""

    def __init__(self, root: Path, measurements: Sequence[Measurement], **changes: Any) -> None:
        file = root / "run.json"
        run_files.save(run(measurements), file)
        settings = replace(default_settings(root), missing="warn", **changes)
        self.instrument: Any = RecordedRun(file)
        self._session: Any = SimpleNamespace(
            settings=settings,
            decides=settings.judge,
            instrument=self.instrument,
            others=None,
            judging=Judging(settings, None),
            task=None,
            display=Display(lambda: None),
            width=96,
            context=lambda: CommandContext("suites"),
        )

    def of(self, test: str, **traits: Any) -> GpuPerf:
        """The fixture of this test."""
        configuration = test.partition("[")[2].rstrip("]")
        return GpuPerf(self._session, MarkerOptions(test, SUITE, configuration, **traits))


def compared(
    root: Path,
    over: Sequence[float],
    *,
    under: Sequence[float] = THREE,
    metric: str = "cycles",
    bounds: Mapping[str, float] | None = None,
    **settings: Any,
) -> tuple[Expectation | None, str, GpuPerf]:
    """What came of a ratio of two measured configurations, what it says, and the fixture."""
    measured = processes(TF32, metric, over) + processes(BASELINE, metric, under)
    session = Recorded(root, measured, **settings)
    for test in (TF32, BASELINE):
        session.of(test).measure(lambda: None)
    claim = session.of(CLAIM)
    try:
        claim.expect_ratio(metric, "tf32", "baseline", **(bounds or {"below": 0.2}))  # type: ignore[arg-type]
    except (pytest.fail.Exception, pytest.skip.Exception) as error:
        said = f"{type(error).__name__}: {error.msg}"
    else:
        said = ""
    expected = next((e for result in claim.results for e in result.expectations), None)
    return expected, said, claim


@pytest.mark.parametrize(
    ("over", "outcome", "fails"),
    [
        ([100e6] * 3, Outcome.HOLDS, ()),
        ([200e6] * 3, Outcome.BROKEN, ("fail", "warn")),
        ([200e6], Outcome.INCONCLUSIVE, ("fail",)),
    ],
)
def test_every_outcome_of_a_limit_and_of_a_ratio(
    tmp_path: Path, over: Sequence[float], outcome: Outcome, fails: Sequence[str]
) -> None:
    for way in ("fail", "warn"):
        answer, said, claim = compared(tmp_path, over, bounds={"below": 0.3}, inconclusive=way)
        assert answer is not None
        assert (answer.outcome, claim.results[0].name) == (outcome, "tf32 / baseline")
        assert said.startswith("Failed: gpuperf: tf32 / baseline: cycles 0.") is (way in fails)
        session = Recorded(tmp_path, processes(TF32, "cycles", over), inconclusive=way)
        limited = session.of(TF32, limit={"cycles": "120M"})
        if way in fails:
            with pytest.raises(pytest.fail.Exception, match=r"cycles 200.00 M .* on NVIDIA A100"):
                limited.measure(lambda: None)
        else:
            limited.measure(lambda: None)
        assert [e.outcome for e in limited.results[0].expectations] == [outcome]


def test_without_judging_nothing_is_expected(tmp_path: Path) -> None:
    assert compared(tmp_path, THREE, judge=False)[:2] == (None, "")
    session = Recorded(tmp_path, processes(TF32, "cycles", [5e8]), judge=False)
    session.of(TF32, limit={"cycles": "1"}).measure(lambda: None)


def test_what_was_not_collected_is_skipped_or_fails_where_counters_are_required(
    tmp_path: Path,
) -> None:
    metric = "tensor_utilization"
    for required, ends in ((False, pytest.skip.Exception), (True, pytest.fail.Exception)):
        session = Recorded(tmp_path, processes(TF32, "cycles", THREE), require_counters=required)
        own = session.of(TF32)
        own.measure(lambda: None)
        with pytest.raises(ends, match=f"{metric} was not collected"):
            own.expect_ratio(metric, "step", "step", below=1.0)
        with pytest.raises(pytest.skip.Exception, match='"fp16" was not measured in this process'):
            own.expect_ratio("cycles", "fp16", "step", below=1.0)
        assert len(own.results) == 1 + required
        limited = session.of(TF32, limit={metric: "30%"})
        with suppress(pytest.fail.Exception) if required else nullcontext():
            limited.measure(lambda: None)
            assert not required
        (answer,) = limited.results[0].expectations
        assert (answer.outcome, answer.above) == (Outcome.UNSUPPORTED, 30.0)


def test_zeros_have_no_ratio_and_are_skipped(tmp_path: Path) -> None:
    for required in (False, True):
        answer, said, _ = compared(
            tmp_path, [0.0], under=[0.0], metric="tensor_utilization", require_counters=required
        )
        assert answer is None
        assert said.startswith("Skipped: gpuperf: ")
        assert "both values are 0, so they have no ratio" in said


def test_what_nobody_has_seen_is_labelled(tmp_path: Path) -> None:
    _, _, claim = compared(tmp_path, THREE, bounds={"above": 0.5})
    cases: tuple[tuple[Any, bool], ...] = (
        (None, False),
        ((), True),
        (("sm90",), True),
        ("sm90", True),
        (("sm70", "sm80"), False),
        ("sm80+", False),
    )
    for verified, labelled in cases:
        said = claim.expect_ratio("cycles", "tf32", "baseline", above=0.5, verified=verified)
        assert said is not None
        assert said.verified is not labelled, verified
        assert said.detail == ("not yet verified on sm80" if labelled else "")


def test_a_mistake_in_a_ratio_is_a_usage_failure_also_where_nothing_is_judged(
    tmp_path: Path,
) -> None:
    for judge in (True, False):
        _, _, claim = compared(tmp_path, THREE, bounds={"above": 0.5}, judge=judge)
        for metric, more, says in (
            ("cycle", {"below": 1}, 'expect_ratio of "cycle": no such metric'),
            ("cycles", {}, "pass a bound"),
            ("cycles", {"below": 1, "verified": ["sm80", "sm99"]}, 'architecture "sm99"'),
        ):
            arguments: Any = more
            with pytest.raises(UsageFailure, match=says):
                claim.expect_ratio(metric, "tf32", "baseline", **arguments)


SENSELESS: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, 'measures "step" twice. Give each measurement of a test its own'),
    ({"name": "a\ud800"}, r'"a\\ud800" has half of a surrogate pair'),
    ({"name": "x", "workload": {"data": "\udcff"}}, r'"\\udcff" has half of a surrogate pair'),
    ({"name": "x", "workload": {"\udcff": 1}}, r'"\\udcff" has half of a surrogate pair'),
    ({"name": 3}, "the measurement's name is 3, but must be a str"),
    ({"name": ""}, "the measurement's name is '', but must be a str"),
    *(
        ({"name": "x", "workload": wrong}, "but must be a dict with names as keys")
        for wrong in (["size"], {3: "a"})
    ),
    *(
        ({"name": "x", "workload": {"x": wrong}}, rf'workload\["x"\] is {said}, but must be')
        for wrong, said in (
            *((None, "None"), (math.nan, "nan"), (-math.inf, "-inf")),
            *(([1], r"\[1\]"), (1j, "1j")),
        )
    ),
    ({"name": "x", "repetitions": 0}, "repetitions=0 must be a whole number from 1 on"),
    ({"name": "x", "reproducible": 2}, "reproducible=2 must be the allowed"),
    (
        {"name": "x", "step": 0.5},
        r"the step is of type float. Pass .* itself, gpuperf.measure(step)",
    ),
    (
        {"name": "x", "reset": 3},
        r"the reset is of type int. .* gpuperf.measure(step, reset=reset)",
    ),
)


def test_what_makes_no_sense_is_refused_before_it_is_measured(tmp_path: Path) -> None:
    session = Recorded(tmp_path, processes(TF32, "cycles", THREE))
    made = session.of(TF32)
    made.measure(lambda: None)
    for arguments, says in SENSELESS:
        with pytest.raises(UsageFailure, match=says.replace("(", r"\(").replace(")", r"\)")):
            made.measure(**{"step": lambda: None, **arguments})
    assert len(made.results) == 1


def test_the_instrument_gets_what_call_and_marker_say(tmp_path: Path) -> None:
    """Numbers of numpy as Python's; how far losses may be apart, first by the call."""
    given: Any = {"size": np.int64(128), "rate": np.float32(0.5), "on": True, "data": "synthetic"}
    plain: Any = {"size": 128, "rate": 0.5, "on": True, "data": "synthetic"}
    session = Recorded(tmp_path, processes(TF32, "cycles", THREE, workload=plain))
    asked, recorded = [], session.instrument.measure
    own: Any = {"reproducible": 0.02, "rounds": 3, "repetitions": 7, "metrics": "+l2_hit_rate"}
    marked = session.of(TF32, **own)

    def measure(subject: Any, work: Any, plan: Any) -> Any:
        sets = (subject.metric_set, [m.name for m in plan.metrics if m.name == "l2_hit_rate"])
        often = (plan.rounds, plan.repetitions, plan.extremes)
        asked.append((subject.workload, work.reproducible, often, *sets))
        assert subject.configuration == "tf32"
        return recorded(subject, work, plan)

    session.instrument.measure = measure
    marked.measure(lambda: None, workload=given)
    called = session.of(TF32, reproducible=0, repetitions=7)
    called.measure(lambda: None, reproducible=0.5, repetitions=4, workload=plain)
    assert asked == [
        (plain, 0.02, (3, 7, True), "core,l2_hit_rate", ["l2_hit_rate"]),
        (plain, 0.5, (5, 4, True), "core", []),
    ]
    assert [type(value) for value in asked[0][0].values()] == [int, float, bool, str]


def test_a_window_that_fails_is_a_note(tmp_path: Path) -> None:
    session = Recorded(tmp_path, processes(TF32, "cycles", THREE), protocol="paper-window")

    def broken(*_: object) -> None:
        raise MeasurementError("the cat sat on the GPU")

    session.instrument.with_window = broken
    made = session.of(TF32)
    made.measure(lambda: None)
    assert made.results[0].notes == ("paper window missing: the cat sat on the GPU",)
