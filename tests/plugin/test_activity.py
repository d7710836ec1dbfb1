"""Activity and repetitions through pytest: chosen by the marker and by the call."""

from __future__ import annotations

import pytest

from tests.plugin.projects import Project

TESTS = """
    import pytest

    @pytest.mark.gpuperf(metrics="{}")
    def test_step(gpuperf):
        def step():
            with gpuperf.component("conv2d"):
                sum(range(1000))
        gpuperf.measure(step)
"""


@pytest.mark.parametrize(("metrics", "said"), [("activity", True), ("core", False)])
def test_on_the_cpu_activity_is_unsupported_and_no_fault(
    project: Project, metrics: str, said: bool
) -> None:
    project.tests(TESTS.format(metrics))
    result = project.run("--gpu-arch=cpu", "--gpuperf-missing=warn", "--gpuperf-require-counters")
    told = " ".join(str(result.stdout).split())
    assert ("copy_overlap: there is no GPU to trace" in told) is said
    (fault, _, _) = told.partition("= gpuperf =")
    assert "kernel_time" not in fault


def test_the_marker_asks_for_repetitions_and_the_call_has_the_last_word(project: Project) -> None:
    marked = "import pytest\npytestmark = pytest.mark.gpuperf(repetitions=7)\n"
    once = "def test_step(gpuperf): gpuperf.measure(lambda: None{})\n"
    for asked, count in (("", 7), (", repetitions=4", 4)):
        project.tests(marked + once.format(asked))
        run = f"--gpuperf-run={count}.json"
        project.run("--gpu-arch=cpu", "--gpuperf-no-judge", run).assert_outcomes(passed=1)
        (measurement,) = project.saved(f"{count}.json").measurements
        (times,) = (s.values for s in measurement.samples if s.metric == "wall_time")
        assert len(times) == count
