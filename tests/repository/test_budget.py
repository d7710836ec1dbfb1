"""What the suites may cost, counted: benchmarks/budget.yaml has the numbers, which are exact.

A test that joins a selection, and an execution that joins a measurement, fail here.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import yaml

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import enough_rounds
from pytest_gpuperf.measure.collector import Collector, Phases, Plan, Work
from pytest_gpuperf.measure.cpu.cpu_collector import CpuCollector
from suites.convnext_ddpm.configurations import CONFIGURATIONS
from suites.meddpm.optimizations import composed
from tests import ROOT
from tests.measure.cupti.conftest import fake, fake_library, loaded
from tests.measure.cupti.fake import Fake
from tests.plugin.projects import Project

__all__ = ["fake", "fake_library", "loaded"]

BUDGET: dict[str, Any] = yaml.safe_load((ROOT / "benchmarks/budget.yaml").read_text("utf-8"))


def executions(
    collector: Collector, *phases: str, fake: Fake | None = None, decided: bool = True
) -> int:
    """How often a step whose rounds agree is executed, with the flags' defaults."""
    marks, done = Phases(), [0]

    def step() -> None:
        done[0] += 1
        for phase in phases or ("",):
            with marks.mark(phase) if phase else nullcontext():
                if fake:
                    fake.work(1.0)

    enough = partial(enough_rounds, metrics=catalogue().metrics, tolerances={})
    plan = Plan(catalogue().hardware_set("core"))
    collector.collect(Work(step, marks), Plan(plan.metrics, enough=enough) if decided else plan)
    return done[0]


def test_a_step_is_executed_as_often_as_the_budget_says(fake: Fake) -> None:
    cupti = partial(executions, fake.collector(), fake=fake)
    assert BUDGET["executions"] == {
        "cupti": cupti(),
        "cupti, with phases": cupti("forward", "backward"),
        "cupti, to record": cupti("forward", "backward", decided=False),
        "cpu": executions(CpuCollector(), "forward", "backward"),
    }


def test_a_test_takes_as_many_processes_as_the_budget_says(project: Project) -> None:
    project.device()
    project.tests("def test_step(gpuperf): gpuperf.measure(lambda: None)")
    project.accept_processes(*[1.0] * 5)
    taken = {}
    for outcome, factors in (("unchanged", {}), ("regressed", {"": {"cycles": 2}})):
        project.device(factors=factors)
        project.run(f"--gpuperf-run={outcome}.json")
        taken[outcome] = len(project.saved(f"{outcome}.json").measurements) - 1
    assert BUDGET["processes"] == taken


@pytest.mark.parametrize("selection", BUDGET["selections"])
def test_a_selection_has_the_tests_that_the_budget_says(selection: str, checkout: Project) -> None:
    lines = checkout.run(*selection.split(), "--gpu-arch=cpu", "--collect-only", "-q").outlines
    tests = [line for line in lines if "::" in line]
    measuring = [test for test in tests if "::test_claim" not in test and "_quality" not in test]
    assert BUDGET["selections"][selection] == {
        "tests": len(tests),
        "measure": len(measuring),
        "compile": sum(map(compiled, tests)),
    }


def compiled(test: str) -> bool:
    """Whether the configuration of the test with this id is compiled."""
    file, _, name = test.partition("::")
    function, _, configuration = name.rstrip("]").partition("[")
    if function in ("test_claim", "test_loading"):
        return False
    if function == "test_training_step_over_ranks":
        configuration = configuration.split("-")[1]  # of how many, and shared in which way
    if "meddpm" in file:
        return any(part.name == "compile" for part in composed(configuration).parts)
    return CONFIGURATIONS[configuration].compiled
