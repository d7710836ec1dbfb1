"""Thirty causes of slower steps: each patch applies, and what is said of it is scored.

Of models of others only what is written down is looked at: their packages are not here.
"""

from __future__ import annotations

import json
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.causes import patches, scores, steps
from benchmarks.causes.patches import Cause, Expected
from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.measure.collector import Phases, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from pytest_gpuperf.model.measurement import KernelTable
from pytest_gpuperf.storage import run_files
from pytest_gpuperf.storage.files import to_plain
from tests import ROOT
from tests.examples import verdict
from tests.kernel_steps import NAMING

CAUSES = patches.causes()
OURS = {name: cause for name, cause in CAUSES.items() if (ROOT / cause.file).exists()}


@pytest.mark.parametrize("cause", OURS.values(), ids=list(OURS))
def test_a_patch_stands_in_its_file_once_and_its_line_is_the_one_expected(cause: Cause) -> None:
    expected = patches.expected(cause)
    source = (ROOT / cause.file).read_text("utf-8")
    lines = patches.patched(source, cause).splitlines()
    assert source != "\n".join(lines)
    shown = [line.strip() for line in lines[expected.first - 1 : expected.last]]
    assert shown == [cause.line] if cause.line else shown[0].startswith("def ")
    re.compile(cause.modules)


@cache
def as_it_is(step: str) -> KernelTable:
    """The same of a step without a cause."""
    return operators(next(name for name in OURS if CAUSES[name].step == step), patched=False)


def operators(name: str, *, patched: bool) -> KernelTable:
    """What the step of a cause asks of torch on a CPU."""
    cause, phases = CAUSES[name], Phases()
    with patches.applied(cause) if patched else nullcontext():
        with steps.step(cause.step, phases.mark, "cpu") as step:
            return CpuCollector(ROOT).kernels(Work(step, phases, step.reset), ())


@pytest.mark.parametrize("name", ["gelu-float64", "repeated-pixels"])
def test_a_cause_is_put_into_a_step_and_its_line_named(name: str) -> None:
    before, after = as_it_is(CAUSES[name].step), operators(name, patched=True)
    assert len(after.launches) > len(before.launches)
    blame = to_plain(attribute([after], [before], NAMING))
    (score,) = scores.scores(report(name, blame), [patches.expected(CAUSES[name])])
    assert score.right_place, score.said


STEP_TIME = {
    "phase": "step",
    "metric": "step_time",
    "outcome": "regressed",
    "baseline": 100.0,
    "measured": 102.0,
    "change": 0.02,
    "low": 0.015,
    "high": 0.025,
}


def report(name: str, blame: Any) -> dict[str, Any]:
    """What was said of the time of one cause's step, and of what it comes from."""
    test = f"test_causes.py::test_cause[{name}]"
    return {
        "verdicts": [{**STEP_TIME, "test": test}],
        "blames": [{"test": test, "blame": blame}],
    }


SEEN = ROOT / "tests" / "data" / "h200-causes"
"""Seven losses on one H200, with their kernels, and the step as it is on another."""
SEVEN_EXPECTED = [Expected(**e) for e in json.loads((SEEN / "expected.json").read_text("utf-8"))]


@cache
def seen(side: str, *, counters: bool) -> dict[str, KernelTable]:
    """What was launched, by cause."""
    run = run_files.load(SEEN / f"{side}.json.xz")
    run = run if counters else scores.without_counters(run)
    tables = {m.test.partition("[")[2].rstrip("]"): m.kernels for m in run.measurements}
    return {name: table for name, table in tables.items() if table is not None}


@pytest.mark.parametrize("counters", [True, False], ids=["counted", "without counters"])
@pytest.mark.parametrize("expected", SEVEN_EXPECTED, ids=lambda expected: str(expected.name))
def test_losses_on_an_h200_have_their_line_module_and_kind(
    expected: Expected, counters: bool
) -> None:
    (before,) = seen("clean", counters=counters).values()
    after = seen("patched", counters=counters)[expected.name]
    # Of an exact count, which a process more would have settled: times are of two GPUs.
    count = replace(verdict("launches", unit="launches"), baseline=1541.0, measured=1560.0)
    blame = to_plain(attribute(after, before, NAMING, [count]))
    (score,) = scores.scores(report(expected.name, blame), [expected])
    assert (score.right_place, score.right_kind) == (True, True), score.said
