"""What other programs read of a session: JUnit's properties, pytest-benchmark's extra_info."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.plugin.projects import STEP, Project

SLOWER = """
    def test_slower(gpuperf):
        gpuperf.measure(lambda: None)
"""


@pytest.fixture
def a100(project: Project) -> Project:
    """A project on a scripted A100."""
    project.device()
    return project


def properties(project: Project, test: str) -> list[tuple[str, str]]:
    """The properties of a test in the project's JUnit file, in their order."""
    root = ElementTree.parse(project.root / "junit.xml").getroot()
    (case,) = (case for case in root.iter("testcase") if case.get("name") == test)
    return [(p.get("name", ""), p.get("value", "")) for p in case.iter("property")]


# JUnit


def test_a_junit_file_has_the_gated_metrics(a100: Project) -> None:
    a100.tests(SLOWER)
    a100.accept()
    a100.device(factors={"": {"cycles": 2}})
    result = a100.run("--junitxml=junit.xml")
    result.assert_outcomes(failed=1)
    assert properties(a100, "test_slower") == [
        ("gpuperf.device", "NVIDIA A100-SXM4-80GB (sm80)"),
        ("gpuperf.processes", "3"),
        ("gpuperf.cycles", "regressed"),
        ("gpuperf.cycles.measured", "800000000"),
        ("gpuperf.cycles.change", "x2"),
        ("gpuperf.instructions", "unchanged"),
        ("gpuperf.instructions.measured", "9000000000"),
        ("gpuperf.instructions.change", "0 %"),
        ("gpuperf.step_time", "unchanged"),
        ("gpuperf.step_time.measured", "284.5"),
        ("gpuperf.step_time.change", "0 %"),
    ]


def test_without_a_baseline_there_are_values(a100: Project) -> None:
    a100.tests(STEP)
    a100.run("--junitxml=junit.xml", "--gpuperf-missing=warn")
    found = dict(properties(a100, "test_step"))
    assert found["gpuperf.cycles"] == "no-baseline"
    assert found["gpuperf.cycles.measured"] == "400000000"
    assert "gpuperf.cycles.change" not in found


def test_without_judging_there_are_values_alone(a100: Project) -> None:
    a100.tests(STEP)
    a100.run("--junitxml=junit.xml", "--gpuperf-no-judge")
    found = dict(properties(a100, "test_step"))
    assert found["gpuperf.cycles.measured"] == "400000000"
    assert "gpuperf.cycles" not in found


def test_configuration_names_limits_and_the_tests_own_properties_are_there(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.mark.optimization("tf32")
        @pytest.mark.gpuperf(limit={"cycles": "500M"})
        def test_step(gpuperf, request):
            request.node.user_properties.append(("own", 1))
            gpuperf.measure(lambda: None, name="sampling")
        """
    )
    a100.run("--junitxml=junit.xml", "--gpuperf-missing=warn")
    found = properties(a100, "test_step")
    assert ("own", "1") in found
    assert ("gpuperf.sampling.configuration", "tf32") in found
    assert ("gpuperf.sampling.cycles", "no-baseline") in found
    (limit,) = (value for name, value in found if name == "gpuperf.expected")
    assert limit.startswith("expected of cycles: test_step, sampling below 500.00 M: 400.00 M")
    assert limit.endswith("holds")


def test_kernels_that_changed_are_said(a100: Project) -> None:
    a100.device(kernels=[["conv", 900, 5e6]])
    a100.tests(STEP)
    a100.accept_processes(1, 1, 1, kernels=True)
    a100.device(kernels=[["conv", 900, 5e6], ["add", 300, 5e6]])
    a100.run("--gpuperf-kernels=always", "--junitxml=junit.xml")
    assert ("gpuperf.kernels", "kernels-changed") in properties(a100, "test_step")


def test_a_test_that_is_run_again_has_each_property_once(a100: Project) -> None:
    a100.tests(STEP)
    conftest = a100.root / "conftest.py"
    conftest.write_text(
        conftest.read_text(encoding="utf-8")
        + """
from _pytest.runner import runtestprotocol

def pytest_runtest_protocol(item, nextitem):
    runtestprotocol(item, nextitem=nextitem, log=False)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        item.ihook.pytest_runtest_logreport(report=report)
    return True
""",
        encoding="utf-8",
    )
    a100.run("--junitxml=junit.xml", "--gpuperf-missing=warn")
    names = [name for name, _ in properties(a100, "test_step")]
    assert "gpuperf.cycles" in names
    assert len(names) == len(set(names))


def test_tests_that_do_not_measure_have_no_properties(a100: Project) -> None:
    a100.tests("def test_x(): pass\ndef test_y(gpuperf): pass")
    a100.run("--junitxml=junit.xml")
    assert not properties(a100, "test_x")
    assert not properties(a100, "test_y")


def test_hostile_names_leave_the_xml_well_formed(a100: Project) -> None:
    names = ["]]>", "a\nb", "<x y='\"'>", "&amp;", "\x00\x1b[31m", "a::b%", "größe"]
    a100.tests(
        f"""
        def test_step(gpuperf):
            for name in {names!a}:
                gpuperf.measure(lambda: None, name=name)
        """
    )
    a100.run("--junitxml=junit.xml", "--gpuperf-missing=warn", "--gpuperf-report=report.md")
    found = [name for name, _ in properties(a100, "test_step") if name.endswith(".cycles")]
    printable = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in n) for n in names]
    assert found == [f"gpuperf.{name}.cycles" for name in printable]


# pytest-benchmark

BOTH = """
    def test_step(benchmark, gpuperf):
        benchmark.extra_info["own"] = 1
        benchmark(lambda: None)
        gpuperf.measure(lambda: None)
"""
BENCHMARKED = ("-p", "benchmark", "--benchmark-json=benchmark.json", "--benchmark-max-time=0.01")


@pytest.fixture
def benchmarked(a100: Project) -> Project:
    """The same, where pytest-benchmark is there to be used."""
    # Projects here do without it.
    a100.pytester.makeini("[pytest]\naddopts = --strict-markers -p no:hypothesispytest\n")
    return a100


def extra_info(project: Project) -> dict[str, Any]:
    """What pytest-benchmark's file says of its only benchmark."""
    text = (project.root / "benchmark.json").read_text(encoding="utf-8")
    (found,) = json.loads(text)["benchmarks"]
    info: dict[str, Any] = found["extra_info"]
    return info


def test_a_regression_is_in_the_benchmark_of_its_test(benchmarked: Project) -> None:
    benchmarked.tests(BOTH)
    benchmarked.accept()
    benchmarked.device(factors={"": {"cycles": 2}})
    result = benchmarked.run_apart(*BENCHMARKED)
    result.assert_outcomes(failed=1)
    cycles = extra_info(benchmarked)["gpuperf"]["step"]["metrics"]["cycles"]
    assert cycles == {
        "value": 800_000_000,
        "unit": "cycles",
        "outcome": "regressed",
        "change": pytest.approx(1),
    }
    info = extra_info(benchmarked)["gpuperf"]["step"]
    assert (info["device"], info["arch"]) == ("NVIDIA A100-SXM4-80GB", "sm80")
    assert info["metrics"]["ipc"]["value"] == pytest.approx(0.84)
    assert "outcome" not in info["metrics"]["ipc"]
    assert extra_info(benchmarked)["own"] == 1


def test_where_benchmarks_are_off_nothing_goes_wrong(benchmarked: Project) -> None:
    benchmarked.tests(BOTH)
    result = benchmarked.run_apart("--benchmark-disable", "--gpuperf-missing=warn")
    result.assert_outcomes(passed=1)


def test_a_fixture_of_that_name_that_is_another_is_left_alone(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.fixture
        def benchmark(): return {"extra_info": {}}

        def test_step(benchmark, gpuperf):
            gpuperf.measure(lambda: None)
        """
    )
    a100.run("--gpuperf-missing=warn").assert_outcomes(passed=1)
