"""Markers: where a test runs, how it is measured, and that a wrong one stops at collection."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.measure.collector import REPRODUCIBLE
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.plugin.markers import allowed_distance, elsewhere, traits_of
from tests.plugin.projects import Project, refused

A100 = Device("sm80", "NVIDIA A100", "nvidia-a100")
CPU = Device(architectures.CPU, "portable", "portable")
mark: Any = pytest.mark


def item(*marks: pytest.MarkDecorator, path: str = "suites/meddpm/test_x.py") -> Any:
    """A test with these markers, the closest first, as far as they are read from it."""
    own = [decorator.mark for decorator in marks]

    def named(name: str) -> list[pytest.Mark]:
        return [one for one in own if one.name == name]

    return SimpleNamespace(
        nodeid=f"{path}::test_step",
        path=Path("/root") / path,
        config=SimpleNamespace(rootpath=Path("/root")),
        iter_markers=named,
        get_closest_marker=lambda name: next(iter(named(name)), None),
    )


def test_the_folder_is_the_suite_and_in_the_root_the_file() -> None:
    assert traits_of(item()).suite == "meddpm"
    assert traits_of(item(path="test_steps.py")).suite == "test_steps"


def test_the_closest_marker_wins_keyword_by_keyword() -> None:
    near = mark.gpuperf(rounds=4, limit={"cycles": "1M"})
    far = mark.gpuperf(rounds=2, metrics="paper", tolerance={"cycles": "5%"})
    traits = traits_of(item(near, far, mark.optimization("tf32"), mark.optimization("else")))
    assert (traits.rounds, traits.metrics, traits.configuration) == (4, "paper", "tf32")
    assert (traits.limit, traits.tolerance) == ({"cycles": "1M"}, {"cycles": "5%"})


def test_metrics_stand_in_the_flags_place_or_come_on_top() -> None:
    for marker, measured in (
        (item(), "core"),
        (item(mark.gpuperf(metrics="paper")), "paper"),
        (item(mark.gpuperf(metrics=" +dram_bytes")), "core,dram_bytes"),
    ):
        assert traits_of(marker).measured("core") == measured


def test_where_a_test_runs() -> None:
    for marker, device, says in (
        (mark.gpu, A100, ""),
        (mark.gpu, CPU, "needs a GPU, but this machine has none, or --gpu-arch cpu is set"),
        *((mark.gpu_arch(*names), A100, "") for names in (["sm80"], ["sm70+"], ["sm90", "sm80"])),
        (mark.gpu_arch("sm90"), A100, "runs only on sm90, but this device is sm80"),
        (mark.gpu_arch("sm86+"), A100, "runs only on sm86+, but this device is sm80"),
        (mark.gpu_arch("sm70", "sm75"), A100, "runs only on sm70, sm75, but this device is sm80"),
        (mark.gpu_arch("cpu"), A100, "runs only on cpu, but this device is sm80"),
    ):
        assert elsewhere(item(marker), device) == says, marker
    # That of a class and that of its function both hold.
    both = item(mark.gpu_arch("sm90+"), mark.gpu_arch("sm80+"))
    assert elsewhere(both, A100) == "runs only on sm90+, but this device is sm80"


WRONG = (
    (mark.gpu_arch(), "@pytest.mark.gpu_arch: name architectures"),
    (mark.gpu_arch("sm99"), '@pytest.mark.gpu_arch: unknown architecture "sm99"'),
    (mark.gpu_arch("sm8+"), '@pytest.mark.gpu_arch: unknown architecture "sm8"'),
    (mark.optimization(), "the marker optimization takes one name"),
    *((mark.gpus(*given), "the marker gpus takes one number") for given in ((), (1, 2), ("2",))),
    (mark.gpus(0), "@pytest.mark.gpus: n=0 must be a whole number"),
    (mark.gpuperf("paper"), "the marker gpuperf takes keywords only, not 'paper'"),
    (
        mark.gpuperf(metric="core"),
        'unknown keyword "metric". Use metrics, tolerance, rounds, repetitions, limit',
    ),
    (mark.gpuperf(metrics="all"), """metrics='all': "all" is neither a set nor a metric"""),
    (mark.gpuperf(metrics=["core"]), "metrics=['core'] must be sets and metrics"),
    (mark.gpuperf(rounds=0), "rounds=0 must be a whole number from 1 on"),
    (mark.gpuperf(rounds="5"), "rounds='5' must be a whole number from 1 on"),
    (mark.gpuperf(repetitions=1.5), "repetitions=1.5 must be a whole number from 1 on"),
    (mark.gpuperf(tolerance="1%"), "tolerance='1%' must be a mapping"),
    (
        mark.gpuperf(tolerance={"cycle": "1%"}),
        'tolerance for "cycle": no such metric. Did you mean "cycles"? `gpuperf metrics` lists',
    ),
    (mark.gpuperf(tolerance={"cycles": 0.01}), 'is not valid. Write a value above zero: "1%"'),
    (mark.gpuperf(limit="250ms"), "limit='250ms' must be a mapping"),
    (mark.gpuperf(limit={"cycle": "1"}), 'limit for "cycle": no such metric'),
    (
        mark.gpuperf(limit={"duration": "250"}),
        "limit '250' for duration is not valid. Write a time in ns, us",
    ),
    (mark.gpuperf(reproducible=1), "reproducible=1 must be the allowed"),
)


def test_a_wrong_marker_is_refused_and_names_the_test() -> None:
    for marker, says in WRONG:
        with pytest.raises(UsageFailure) as refusal:
            traits_of(item(marker))
        assert says in str(refusal.value)
        assert str(refusal.value).startswith("suites/meddpm/test_x.py::test_step: ")


def test_how_far_losses_may_be_apart() -> None:
    for written, distance in ((True, REPRODUCIBLE), (False, None), (0, 0.0), (0.5, 0.5)):
        assert allowed_distance(written) == distance


# In a session


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


def test_tests_of_elsewhere_are_skipped_and_a_marker_gpu_of_somebody_else_is_left_alone(
    project: Project,
) -> None:
    """Whether they measure or not. Without a GPU only tests of ours are skipped for the marker."""
    project.tests(
        """
        import pytest

        @pytest.mark.gpu
        def test_of_theirs(): pass

        @pytest.mark.gpu
        def test_of_ours(gpuperf): gpuperf.measure(lambda: None)

        @pytest.mark.gpu
        @pytest.mark.optimization("tf32")
        def test_of_ours_too(): pass

        @pytest.mark.gpu_arch("cpu")
        def test_here(): pass

        @pytest.mark.gpu_arch("sm90")
        def test_elsewhere(): pass
        """
    )
    result = project.run("-rs", "--gpu-arch=cpu")
    result.assert_outcomes(passed=2, skipped=3)
    result.stdout.fnmatch_lines(
        ["SKIPPED*needs a GPU, but this machine has none*", "SKIPPED*runs only on sm90, but this*"]
    )


def test_a_test_that_measures_nothing_says_so(project: Project) -> None:
    project.device()
    project.tests(
        """
        import pytest

        def test_forgets(gpuperf): pass

        def test_asks_for_the_device(gpuperf): gpuperf.device

        def test_skips(gpuperf): pytest.skip("not today")

        def test_measures(gpuperf): gpuperf.measure(lambda: None)

        def test_compares(gpuperf): gpuperf.expect_ratio("cycles", "a", "b", below=1)
        """
    )
    result = project.run("--gpuperf-missing=warn", "-Wdefault::pytest.PytestWarning")
    result.assert_outcomes(passed=3, skipped=2, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "test_steps.py::test_forgets",
            "*PytestWarning: this test requests the fixture gpuperf but measures nothing with it",
        ]
    )


def test_a_fixture_that_nobody_could_know_of_is_refused(project: Project) -> None:
    """What it measured was in no run, and a worker's GPU was not the test's alone."""
    project.device()
    project.tests(
        """
        import pytest

        def test_too_late(request):
            request.getfixturevalue("gpuperf").measure(lambda: None)

        @pytest.mark.usefixtures("gpuperf")
        def test_in_time(request):
            request.getfixturevalue("gpuperf").measure(lambda: None)
        """
    )
    result = project.run("--gpuperf-missing=warn")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(['gpuperf: test_steps.py::test_too_late *usefixtures("gpuperf")*'])
    assert [one.test for one in project.saved().measurements] == ["test_steps.py::test_in_time"]


def test_a_wrong_marker_stops_at_collection(project: Project) -> None:
    project.device()
    for fixture, argument in (("gpuperf", "-q"), ("", "--collect-only")):
        project.tests(marked("gpuperf(rounds=0)", fixture))
        text = refused(project.run(argument))
        assert "test_steps.py::test_step: @pytest.mark.gpuperf: rounds=0" in text
    assert not project.run_files()


def test_collection_alone_needs_no_device(project: Project) -> None:
    project.ini("gpu_arch = sm120")
    project.tests(marked('gpu_arch("sm80")'))
    assert project.run("--collect-only").ret == 0
