"""What other programs read of a session: JUnit's properties, pytest-benchmark's extra_info."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.report.interchange import share
from tests.examples import kernels_changed, measurement, result, verdict
from tests.plugin.projects import Project


def properties(project: Project, test: str) -> list[tuple[str, str]]:
    """The properties of a test in the project's JUnit file, in their order."""
    root = ElementTree.parse(project.root / "junit.xml").getroot()
    (case,) = (case for case in root.iter("testcase") if case.get("name") == test)
    return [(p.get("name", ""), p.get("value", "")) for p in case.iter("property")]


# JUnit


def shared(*verdicts: Verdict) -> list[tuple[str, object]]:
    """What a test says of one measurement."""
    said: list[tuple[str, object]] = []
    made = measurement({"cycles": [4e8], "ipc": [2.0], "copies": [0.0]}, configuration="")
    share([result([made] * 3, *verdicts)], said, {"benchmark": {"extra_info": {}}})
    return said


def test_a_junit_file_has_the_gated_metrics() -> None:
    """Without a judge or a baseline there are values."""
    known = [("gpuperf.device", "NVIDIA H200 (sm90)"), ("gpuperf.processes", "3")]
    assert shared(kernels_changed(), verdict(measured=4e8, change=1.0)) == [
        *known,
        ("gpuperf.judged", "yes"),
        ("gpuperf.kernels", "kernels-changed"),
        ("gpuperf.cycles", "regressed"),
        ("gpuperf.cycles.measured", "400000000"),
        ("gpuperf.cycles.change", "x2"),
    ]
    values = [("gpuperf.cycles.measured", "400000000")]
    assert shared() == [*known, ("gpuperf.judged", "not-asked"), *values]
    missing = verdict(outcome=Outcome.NO_BASELINE, baseline=None, measured=4e8, change=None)
    judged = [("gpuperf.judged", "no-baseline"), ("gpuperf.cycles", "no-baseline")]
    assert shared(missing) == [*known, *judged, *values]


def test_configuration_names_limits_and_the_tests_own_properties_are_there(a100: Project) -> None:
    """Hostile names leave the XML well formed."""
    names = ["]]>", "a\nb", "<x y='\"'>", "&amp;", "\x00\x1b[31m", "a::b%", "größe"]
    a100.tests(
        f"""
        import pytest

        def test_x(): pass
        def test_y(gpuperf): pass

        @pytest.mark.optimization("tf32")
        @pytest.mark.gpuperf(limit={{"cycles": "500M"}})
        def test_step(gpuperf, request):
            request.node.user_properties.append(("own", 1))
            for name in ("sampling", *{names!a}):
                gpuperf.measure(lambda: None, name=name)
        """
    )
    a100.run("--junitxml=junit.xml", "--gpuperf-missing=warn")
    seen = properties(a100, "test_step")
    assert ("own", "1") in seen
    assert ("gpuperf.sampling.configuration", "tf32") in seen
    assert ("gpuperf.sampling.cycles", "no-baseline") in seen
    printable = ["".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in n) for n in names]
    of_cycles = [name for name, _ in seen if name.endswith(".cycles")]
    assert of_cycles[1:] == [f"gpuperf.{name}.cycles" for name in printable]
    limit, *_ = (value for name, value in seen if name == "gpuperf.expected")
    assert limit.startswith("test_step, sampling: cycles 400.00 M, below 500.00 M: ")
    assert limit.endswith("holds")
    # Tests that do not measure have none.
    assert not properties(a100, "test_x")
    assert not properties(a100, "test_y")


def test_a_repeated_test_has_the_properties_of_its_last_execution() -> None:
    said: list[tuple[str, object]] = [("own", 1)]
    for cycles in (4e8, 5e8):
        share([result(measurement({"cycles": [cycles]}))], said, {})
    assert [value for name, value in said if name in ("own", "gpuperf.cycles.measured")] == [
        *(1, "500000000"),
    ]


# pytest-benchmark

BOTH = """
    def test_step(benchmark, gpuperf):
        benchmark.extra_info["own"] = 1
        benchmark(lambda: None)
        gpuperf.measure(lambda: None)
"""
BENCHMARKED = ("-p", "benchmark", "--benchmark-json=benchmark.json", "--benchmark-max-time=0.01")


def extra_info(project: Project) -> dict[str, Any]:
    """What pytest-benchmark's file says of its only benchmark."""
    text = (project.root / "benchmark.json").read_text(encoding="utf-8")
    (benchmark,) = json.loads(text)["benchmarks"]
    info: dict[str, Any] = benchmark["extra_info"]
    return info


def test_a_regression_is_in_the_benchmark_of_its_test(a100: Project) -> None:
    # Projects here do without pytest-benchmark.
    plain = "-p no:hypothesispytest -p no:asyncio"
    a100.pytester.makeini(f"[pytest]\naddopts = --strict-markers {plain}\n")
    a100.tests(BOTH)
    off = a100.run("--benchmark-disable", "--gpuperf-missing=record")
    off.assert_outcomes(passed=1)
    a100.measure_processes("run.json", 2, 2, 2)
    result = a100.run(*BENCHMARKED, "--gpuperf-replay=run.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines_random(["*= gpuperf =*", "*- benchmark: 1 tests -*", "test_step *"])
    info = extra_info(a100)["gpuperf"]["step"]
    assert info["metrics"]["cycles"] == {
        "value": 800_000_000,
        "unit": "cycles",
        "outcome": "regressed",
        "change": pytest.approx(1),
    }
    assert (info["device"], info["arch"]) == ("NVIDIA A100-SXM4-80GB", "sm80")
    assert info["metrics"]["ipc"]["value"] == pytest.approx(0.84)
    assert "outcome" not in info["metrics"]["ipc"]
    assert extra_info(a100)["own"] == 1
