"""When a timeline is taken, and where it goes."""

from __future__ import annotations

import pytest

from pytest_gpuperf.model.measurement import Timeline
from tests.plugin import scripted
from tests.plugin.projects import STEP, Project

ALWAYS = "--gpuperf-timeline=always"
LINE = "timeline: 2 samples of 100 us; tensor pipe 23 %, SMs 45 % on average; idle 50 % of the time"
COUNTERS = {**scripted.A100["counters"], "step_time": 0.2}
"""The step takes as long by itself as while it is sampled."""
PHASES = """
    def test_step(gpuperf):
        def step():
            with gpuperf.phase("forward"):
                pass
            with gpuperf.phase("backward"):
                pass
        gpuperf.measure(step)
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project with one test, on a scripted A100 with a baseline."""
    project.device(counters=COUNTERS)
    project.tests(STEP)
    project.accept_processes(*[1.0] * 5)
    return project


def timelines(project: Project, name: str | None = None) -> list[Timeline | None]:
    """The timelines of a run that was saved, one per process."""
    return [measurement.timeline for measurement in project.saved(name).measurements]


def test_it_is_taken_when_asked_for(a100: Project) -> None:
    for number, (flag, setting, taken) in enumerate(
        (("never", "", False), ("always", "", True), ("", "gpuperf_timeline = always", True))
    ):
        a100.ini(setting)
        flags = (f"--gpuperf-timeline={flag}",) if flag else ()
        run = f"run-{number}.json"
        result = a100.run(*flags, "--gpuperf-report=report.md", f"--gpuperf-run={run}")
        result.assert_outcomes(passed=1)
        (measured,) = a100.saved(run).measurements
        assert (measured.timeline is not None) is taken
        assert ("timeline_s" in measured.fingerprint.settings) is taken  # how long it took
        assert (LINE in " ".join(str(result.stdout).split())) is taken
        report = (a100.root / "report.md").read_text(encoding="utf-8")
        assert ("timeline: 2 samples of 100 us; tensor pipe 23 %" in report) is taken


def test_it_has_the_step_s_phases(a100: Project) -> None:
    a100.tests(PHASES)
    a100.run(ALWAYS, "--gpuperf-missing=warn")
    (said,) = timelines(a100)
    assert said is not None
    assert [phase.name for phase in said.phases] == ["forward", "backward"]


def test_fresh_processes_take_none(a100: Project) -> None:
    a100.device(counters=COUNTERS, factors={"": {"cycles": 2}})
    a100.run(ALWAYS)
    assert [said is not None for said in timelines(a100)] == [True, False, False]


def test_a_replayed_run_keeps_its_own(a100: Project) -> None:
    a100.run(ALWAYS, "--gpuperf-run=run.json")
    result = a100.run("--gpuperf-replay=run.json", ALWAYS, "--gpuperf-report=report.json")
    assert result.ret == 0
    assert timelines(a100, "run.json") == timelines(a100, "report.json")


def test_a_collector_that_cannot_says_so_and_the_test_passes(project: Project) -> None:
    project.tests(STEP)
    result = project.run("--gpu-arch=cpu", ALWAYS, "--gpuperf-missing=warn")
    assert result.ret == 0
    (said,) = timelines(project)
    assert said is not None
    assert said.obstacle == "the collector cpu does not sample: the collector cupti does"
    result.stdout.fnmatch_lines(["timeline: not sampled: the collector cpu does not sample*"])
