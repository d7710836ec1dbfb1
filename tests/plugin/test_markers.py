"""Markers: where a test runs, how it is measured, and that a wrong one stops at collection."""

from __future__ import annotations

import pytest

from tests.plugin.projects import STEP, Project, refused


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100."""
    project.device()
    return project


def marked(marker: str, fixture: str = "gpuperf") -> str:
    return f"""
        import pytest

        @pytest.mark.{marker}
        def test_step({fixture}):
            {"gpuperf.measure(lambda: None)" if fixture else "pass"}
    """


def test_markers_are_registered(project: Project) -> None:
    shown = str(project.run("--markers").stdout)
    for name in ("gpu:", "gpu_arch(", "gpuperf(", "optimization("):
        assert f"@pytest.mark.{name}" in shown


def test_strict_markers_know_ours_and_refuse_others(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.mark.gpu
        @pytest.mark.gpu_arch("sm80")
        @pytest.mark.gpuperf(metrics="core")
        @pytest.mark.optimization("tf32")
        def test_step(gpuperf):
            pass
        """
    )
    a100.run("--strict-markers").assert_outcomes(passed=1)
    a100.tests(marked("gpuprf"))
    result = a100.run("--strict-markers")
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*'gpuprf' not found in `markers`*"])


@pytest.mark.parametrize("fixture", ["gpuperf", ""])
def test_gpu_is_skipped_with_the_reason_where_there_is_none(fixture: str, project: Project) -> None:
    project.tests(marked("gpu", fixture))
    result = project.run("-rs", "--gpu-arch=cpu")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs a GPU; there is none here*"])


def test_gpu_runs_on_a_gpu(a100: Project) -> None:
    a100.tests(marked("gpu"))
    a100.run("--gpuperf-no-judge").assert_outcomes(passed=1)


@pytest.mark.parametrize("names", ['"sm80"', '"sm70+"', '"sm80+"', '"sm90", "sm80"'])
def test_gpu_arch_runs_on_the_architectures_it_names(names: str, a100: Project) -> None:
    a100.tests(marked(f"gpu_arch({names})"))
    a100.run("--gpuperf-no-judge").assert_outcomes(passed=1)


@pytest.mark.parametrize("fixture", ["gpuperf", ""])
@pytest.mark.parametrize(
    ("names", "says"),
    [
        ('"sm90"', "only on sm90; this device is sm80"),
        ('"sm86+"', "only on sm86+; this device is sm80"),
        ('"sm70", "sm75"', "only on sm70, sm75; this device is sm80"),
        ('"cpu"', "only on cpu; this device is sm80"),
    ],
)
def test_gpu_arch_is_skipped_with_the_reason_elsewhere(
    names: str, says: str, fixture: str, a100: Project
) -> None:
    a100.tests(marked(f"gpu_arch({names})", fixture))
    result = a100.run("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines([f"SKIPPED*{says}"])


def test_gpu_arch_of_class_and_function_both_hold(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.mark.gpu_arch("sm80+")
        class TestSteps:
            @pytest.mark.gpu_arch("sm90+")
            def test_newer(self): pass

            def test_any(self): pass
        """
    )
    a100.run().assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize("fixture", ["gpuperf", ""])
@pytest.mark.parametrize(
    ("marker", "says"),
    [
        ("gpu_arch()", "@pytest.mark.gpu_arch: architectures are needed"),
        ("gpu_arch(80)", "@pytest.mark.gpu_arch: architectures are needed"),
        ('gpu_arch("sm99")', '@pytest.mark.gpu_arch: unknown architecture "sm99"'),
        ('gpu_arch("sm8+")', '@pytest.mark.gpu_arch: unknown architecture "sm8"'),
        ("optimization()", "the marker optimization takes one name"),
        ('optimization("a", "b")', "the marker optimization takes one name"),
        ("optimization(1)", "the marker optimization takes one name"),
        ('gpuperf("paper")', "the marker gpuperf takes keywords only, not 'paper'"),
        (
            'gpuperf(metric="core")',
            'no keyword "metric"; known are metrics, tolerance, rounds, repetitions, limit',
        ),
        ('gpuperf(metrics="all")', "metrics='all': no set and no metric is named"),
        ('gpuperf(metrics="+all")', "metrics='+all': no set and no metric is named"),
        ('gpuperf(metrics="+")', "metrics='+': no set and no metric is named"),
        ('gpuperf(metrics=["core"])', "metrics=['core']: write sets and metrics"),
        ('gpuperf(metrics="core,l2_hits")', 'named "l2_hits". Did you mean "l2_hit_rate"?'),
        ("gpuperf(rounds=0)", "rounds=0: a whole number from 1 on is needed"),
        ('gpuperf(rounds="5")', "rounds='5': a whole number from 1 on is needed"),
        ("gpuperf(rounds=True)", "rounds=True: a whole number from 1 on is needed"),
        ('gpuperf(tolerance="1%")', "tolerance='1%': write a mapping"),
        ('gpuperf(tolerance={"cycle": "1%"})', 'tolerance for "cycle": no such metric'),
        ('gpuperf(tolerance={"cycles": 0.01})', 'write a share such as "1%"'),
        ('gpuperf(tolerance={"cycles": "1pt"})', "points are for percentages"),
        ('gpuperf(tolerance={"tensor_utilization": "1%"})', 'tolerance is in points: "1pt"'),
    ],
)
def test_a_wrong_marker_stops_at_collection_and_names_the_test(
    marker: str, says: str, fixture: str, a100: Project
) -> None:
    a100.tests(marked(marker, fixture))
    text = refused(a100.run())
    assert says in text
    assert "test_steps.py::test_step" in text
    assert not a100.run_files()


def test_a_wrong_marker_stops_a_bare_collection_too(a100: Project) -> None:
    a100.tests(marked("gpuperf(rounds=0)"))
    assert "rounds=0" in refused(a100.run("--collect-only"))


def test_collection_alone_needs_no_device(project: Project) -> None:
    project.ini("gpu_arch = sm120")
    project.tests(marked('gpu_arch("sm80")'))
    assert project.run("--collect-only").ret == 0


def test_tolerance_decides_over_pass_and_regression(a100: Project) -> None:
    a100.tests(STEP)
    a100.accept()
    a100.device(factors={"": {"cycles": 1.04}})
    a100.run().assert_outcomes(failed=1)
    a100.tests(marked('gpuperf(tolerance={"cycles": "5%"})'))
    result = a100.run()
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*cycles*+4.00 %*5 %*unchanged*"])


def test_rounds_and_metrics_reach_the_collector(a100: Project) -> None:
    a100.tests(marked('gpuperf(rounds=3, metrics="paper")'))
    a100.run("--gpuperf-no-judge", "--gpuperf-rounds=8")
    (measurement,) = a100.saved().measurements
    assert {len(sample.values) for sample in measurement.samples} == {3}
    assert measurement.fingerprint.settings["metrics"] == "paper"
    assert "l2_hit_rate" in str(measurement.fingerprint.settings["asked"])


def test_single_metrics_reach_the_collector_beside_sets(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.mark.gpuperf(metrics="dram_bytes, l2_hit_rate")
        def test_step(gpuperf): gpuperf.measure(lambda: None)
        def test_other(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    a100.run("--gpuperf-no-judge", "--gpuperf-metrics=ipc")
    asked = {m.test: m.fingerprint.settings["asked"] for m in a100.saved().measurements}
    core = "cycles active_cycles instructions ipc duration"
    assert asked == {
        "test_steps.py::test_step": f"{core} l2_hit_rate dram_bytes",
        "test_steps.py::test_other": core,
    }


def test_a_plus_adds_to_what_was_asked_for(a100: Project) -> None:
    a100.tests(marked('gpuperf(metrics="+dram_bytes")'))
    a100.run("--gpuperf-no-judge", "--gpuperf-metrics=l2_hit_rate")
    (measurement,) = a100.saved().measurements
    asked = str(measurement.fingerprint.settings["asked"]).split()
    assert asked[-2:] == ["l2_hit_rate", "dram_bytes"]
    assert measurement.fingerprint.settings["metrics"] == "l2_hit_rate,dram_bytes"


def test_the_closest_marker_wins_keyword_by_keyword(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        pytestmark = pytest.mark.gpuperf(rounds=2, metrics="paper")

        @pytest.mark.gpuperf(rounds=4)
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
        """
    )
    a100.run("--gpuperf-no-judge")
    (measurement,) = a100.saved().measurements
    assert {len(sample.values) for sample in measurement.samples} == {4}
    assert measurement.fingerprint.settings["metrics"] == "paper"


def test_optimization_is_the_configuration_of_the_measurement(a100: Project) -> None:
    a100.tests(marked('optimization("channels_last")'))
    result = a100.run()
    result.stdout.fnmatch_lines(["configuration: channels_last"])
    (measurement,) = a100.saved().measurements
    assert measurement.configuration == "channels_last"
