"""Limits and ratios in a session: every outcome, where measurements are found, and labels."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.result import Outcome
from tests.plugin.projects import Project

ONE = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
"""Without baselines, and without fresh processes: a scripted device repeats its numbers."""
STEPS = """
    import pytest

    @pytest.mark.parametrize("name", [
        pytest.param(name, marks=pytest.mark.optimization(name)) for name in ("baseline", "tf32")
    ])
    def test_step(gpuperf, name):
        gpuperf.measure(lambda: None)
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100, on which tf32 takes a fifth of the cycles."""
    project.device(factors={"[tf32]": {"cycles": 0.2}})
    return project


def claimed(arguments: str) -> str:
    """Two configurations, and what is expected of them."""
    return f"""{STEPS}
    def test_claim(gpuperf):
        print("came of it:", gpuperf.expect_ratio({arguments}))
    """


def test_a_ratio_that_holds(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.25'))
    result = a100.run(*ONE, "-s", "--gpuperf-report=report.md")
    result.assert_outcomes(passed=3)
    line = "tf32 / baseline: cycles 0.2, below 0.25: holds"
    result.stdout.fnmatch_lines(["*came of it: Expectation(*", "test_step*tf32*", line])
    (saved,) = a100.saved().expectations
    assert saved.outcome is Outcome.HOLDS
    assert (saved.test, saved.subject) == ("test_steps.py::test_claim", "tf32 / baseline")
    report = (a100.root / "report.md").read_text(encoding="utf-8")
    row = "| tf32 / baseline | cycles | below 0.25 | 0.2 (0.1991 to 0.2009) | - | - | - | holds |"
    assert row in report
