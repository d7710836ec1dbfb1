"""Activity, components and repetitions through pytest: chosen, measured, judged, reported."""

from __future__ import annotations

from tests.plugin.projects import Project

TESTS = """
    import pytest

    @pytest.mark.gpuperf(metrics="activity")
    def test_step(gpuperf):
        def step():
            with gpuperf.component("conv2d"):
                sum(range(1000))
                with gpuperf.component("gelu"):
                    sum(range(1000))
        gpuperf.measure(step)
"""
CPU = ("--gpu-arch=cpu", "--gpuperf-no-judge", "--gpuperf-rounds=1")


def samples(project: Project) -> dict[tuple[str, str], tuple[float, ...]]:
    (measurement,) = project.saved().measurements
    return {(s.phase, s.metric): s.values for s in measurement.samples}


def test_components_on_the_cpu_are_kept_and_replayed(project: Project) -> None:
    project.tests(TESTS)
    project.run(*CPU, "--gpuperf-run=first.json").assert_outcomes(passed=1)
    (measured,) = project.saved("first.json").measurements
    assert measured.components == ("conv2d", "gelu")
    replayed = project.run("--gpuperf-replay=first.json", "--gpuperf-no-judge", "-v")
    replayed.assert_outcomes(passed=1)
    replayed.stdout.fnmatch_lines_random(["  component *", "  conv2d *", "  gelu *"])
    # Without the set nothing hears them.
    project.tests(TESTS.replace('"activity"', '"core"'))
    project.run(*CPU).assert_outcomes(passed=1)
    (measured,) = project.saved().measurements
    assert measured.components == ()
    assert {phase for phase, _ in samples(project)} == {"step"}


def test_on_the_cpu_activity_is_unsupported_and_no_fault(project: Project) -> None:
    project.tests(TESTS)
    result = project.run("--gpu-arch=cpu", "--gpuperf-missing=warn", "--gpuperf-require-counters")
    told = " ".join(str(result.stdout).split())
    assert "copy_overlap: there is no GPU to trace" in told
    (fault, _, _) = told.partition("= gpuperf =")
    assert "kernel_time" not in fault


def test_the_marker_asks_for_repetitions_and_the_call_has_the_last_word(project: Project) -> None:
    marked = "import pytest\npytestmark = pytest.mark.gpuperf(repetitions=7)\n"
    once = "def test_step(gpuperf): gpuperf.measure(lambda: None{})\n"
    for asked, count in (("", 7), (", repetitions=4", 4)):
        project.tests(marked + once.format(asked))
        project.run(*CPU, "--gpuperf-run=run.json").assert_outcomes(passed=1)
        (measurement,) = project.saved("run.json").measurements
        (times,) = (s.values for s in measurement.samples if s.metric == "wall_time")
        assert len(times) == count
        (project.root / "run.json").unlink()
