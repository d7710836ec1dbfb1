"""Limits and ratios in a session: every outcome, where measurements are found, and labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.model.measurement import Device
from pytest_gpuperf.model.result import Expectation, Outcome
from pytest_gpuperf.storage import run_files
from tests.examples import measurement, run
from tests.plugin.projects import Project, refused
from tests.plugin.scripted import A100

A100_DEVICE = Device("sm80", A100["name"], architectures.slug(A100["name"]), "scripted")
ONE = ("--gpuperf-missing=warn", "--gpuperf-processes=1")
"""Without baselines, and without fresh processes: a scripted device repeats its numbers."""
REPLAY = ("--gpuperf-missing=warn", "--gpuperf-replay=run.json")
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


def limited(limit: str) -> str:
    """One step with limits."""
    return f"""
        import pytest

        @pytest.mark.gpuperf(limit={limit})
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
    """


def recorded(project: Project, tests: Mapping[str, Sequence[float]], *, metric: str) -> None:
    """Saves a run, run.json, with a process per number, by test."""
    found = [
        measurement(
            {metric: [value]},
            test=f"test_steps.py::{test}",
            suite="test_steps",
            process=f"p{number}",
            configuration=test.partition("[")[2].rstrip("]"),
            device=A100_DEVICE,
            settings={"metrics": "core"},
        )
        for test, values in tests.items()
        for number, value in enumerate(values)
    ]
    run_files.save(run(found), project.root / "run.json")


def two(project: Project, over: Sequence[float], under: Sequence[float]) -> None:
    """Saves a run of cycles of both configurations."""
    recorded(project, {"test_step[tf32]": over, "test_step[baseline]": under}, metric="cycles")


def expected(project: Project, *arguments: str) -> list[Expectation]:
    """What the JSON report says of the expectations, after a run with these arguments."""
    project.run(*arguments, "--gpuperf-report=report.json")
    return list(run_files.load(project.root / "report.json").expectations)


def test_a_ratio_that_holds(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.25'))
    result = a100.run(*ONE, "-s", "--gpuperf-report=report.md")
    result.assert_outcomes(passed=3)
    line = "expected of cycles: tf32 / baseline below 0.25: 0.2 (0.1991 to 0.2009), holds"
    result.stdout.fnmatch_lines(["*came of it: Expectation(*", "test_step*tf32*", line])
    (saved,) = a100.saved().expectations
    assert saved.outcome is Outcome.HOLDS
    assert (saved.test, saved.subject) == ("test_steps.py::test_claim", "tf32 / baseline")
    report = (a100.root / "report.md").read_text(encoding="utf-8")
    row = "| cycles | tf32 / baseline | below 0.25 | 0.2 (0.1991 to 0.2009) | holds |"
    assert row in report


@pytest.mark.parametrize(
    ("over", "bound", "outcome", "code"),
    [
        ([100e6] * 3, "below=0.3", Outcome.HOLDS, 0),
        ([100e6] * 3, "below=0.2", Outcome.BROKEN, 1),
        ([100e6] * 3, "above=0.3", Outcome.BROKEN, 1),
        ([100e6] * 3, "above=0.2, below=0.3", Outcome.HOLDS, 0),
        ([100e6] * 3, "above=0.25", Outcome.INCONCLUSIVE, 1),
        ([100e6], "below=0.2", Outcome.INCONCLUSIVE, 1),
    ],
)
def test_every_outcome_of_a_ratio(
    over: list[float], bound: str, outcome: Outcome, code: int, project: Project
) -> None:
    two(project, over, [400e6] * 3)
    project.tests(claimed(f'"cycles", "tf32", "baseline", {bound}'))
    (found,) = expected(project, *REPLAY)
    assert found.outcome is outcome
    result = project.run(*REPLAY)
    assert result.ret == code
    result.assert_outcomes(passed=3 - code, failed=code)
    lenient = project.run(*REPLAY, "--gpuperf-inconclusive=warn")
    lenient.assert_outcomes(
        passed=3 - (outcome is Outcome.BROKEN), failed=int(outcome is Outcome.BROKEN)
    )


def test_a_broken_ratio_says_by_how_much(project: Project) -> None:
    two(project, [100e6] * 3, [400e6] * 3)
    project.tests(claimed('"cycles", "tf32", "baseline", below=0.2'))
    result = project.run(*REPLAY)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: cycles of tf32 / baseline is not as expected on *A100-SXM4-80GB (sm80)",
            "  expected of cycles: tf32 / baseline below 0.2: 0.25 (0.249* to 0.250*), broken",
            "  99.5 % interval, 3 processes",
        ]
    )
    assert "fixture.py" not in str(result.stdout).split("short test summary")[0]


def test_one_process_is_too_few(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.1'))
    result = a100.run(*ONE)
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: cycles of tf32 / baseline is inconclusive on*",
            "  It lies beyond, but one process in fifty is slow by itself: 3 are needed*",
            "*--gpuperf-inconclusive warn",
        ]
    )


def test_measurements_of_one_test_are_compared_by_name(project: Project) -> None:
    project.device()
    project.tests(
        """
        def test_step(gpuperf):
            gpuperf.measure(lambda: None, name="tf32")
            gpuperf.measure(lambda: None, name="baseline")
            gpuperf.expect_ratio("cycles", "tf32", "baseline", above=0.9, below=1.1)
        """
    )
    project.run(*ONE).assert_outcomes(passed=1)
    assert [entry.outcome for entry in project.saved().expectations] == [Outcome.HOLDS]


def test_a_test_compares_more_than_once_and_measures_on(project: Project) -> None:
    project.device()
    project.tests(
        """
        def test_step(gpuperf):
            gpuperf.measure(lambda: None, name="a")
            gpuperf.measure(lambda: None, name="b")
            gpuperf.expect_ratio("cycles", "a", "b", below=1.1)
            gpuperf.expect_ratio("instructions", "a", "b", above=0.9)
            gpuperf.measure(lambda: None, name="c")
            gpuperf.expect_ratio("cycles", "c", "b", below=1.1)
        """
    )
    project.run(*ONE).assert_outcomes(passed=1)
    assert len(project.saved().expectations) == 3


def test_of_several_tests_two_configurations_of_one_are_compared(project: Project) -> None:
    project.device()
    project.tests(claimed('"cycles", "tf32", "baseline", below=1.1'), name="test_steps")
    project.tests(STEPS, name="test_more")
    result = project.run(*ONE)
    assert result.ret == 0  # each file in the root directory is a suite of its own

    both = STEPS + STEPS.replace("test_step", "test_other").replace("import pytest", "")
    project.tests(both + claimed('"cycles", "tf32", "baseline", below=1.1')[len(STEPS) :])
    (project.root / "test_more.py").unlink()
    result = project.run(*ONE)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines(
        ['gpuperf: *test_claim: which "tf32" and "baseline" are compared? There are *test_other*']
    )


@pytest.mark.parametrize("way", ["deselected", "skipped", "later", "failed"])
def test_what_was_not_measured_is_skipped_with_the_reason(way: str, a100: Project) -> None:
    source = claimed('"cycles", "tf32", "baseline", below=0.25')
    if way == "skipped":
        source = source.replace(
            "marks=pytest.mark.optimization(name)",
            'marks=[pytest.mark.optimization(name), pytest.mark.skip("no")]',
        )
    if way == "failed":
        source = source.replace("gpuperf.measure", "assert name != 'tf32'; gpuperf.measure")
    if way == "later":
        source = source.replace(STEPS, "") + STEPS
    a100.tests(source)
    result = a100.run(*ONE, "-rs", *(("-k", "baseline or claim") if way == "deselected" else ()))
    assert result.parseoutcomes()["skipped"] == (3 if way == "skipped" else 1)
    result.stdout.fnmatch_lines(
        ['SKIPPED*gpuperf: "tf32" was not measured in this process: its test was not selected,*']
    )


def test_other_suites_and_configurations_do_not_answer(a100: Project) -> None:
    a100.tests(STEPS, name="test_others")
    a100.tests(
        """
        def test_claim(gpuperf):
            gpuperf.expect_ratio("cycles", "tf32", "baseline", below=1)
        """
    )
    result = a100.run(*ONE, "test_others.py", "test_steps.py")
    result.assert_outcomes(passed=2, skipped=1)


def test_under_xdist_another_worker_may_have_measured_it(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.25'))
    assert a100.run_apart(*ONE, "-n0").ret == 0
    result = a100.run_apart(*ONE, "-n2", "--dist=each", "--tx=2*popen", "-rs")
    assert result.ret == 0  # each worker measures everything
    result = a100.run_apart(*ONE, "-n2", "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*was not measured in this process:*-n0 keeps all*"])


def test_expectations_travel_from_xdist_workers(project: Project) -> None:
    two(project, [100e6] * 3, [400e6] * 3)
    project.tests(claimed('"cycles", "tf32", "baseline", below=0.2'))
    result = project.run_apart(*REPLAY, "-n2", "--dist=loadfile", "--gpuperf-report=report.json")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["expected of cycles: tf32 / baseline below 0.2: *, broken"])
    (found,) = run_files.load(project.root / "report.json").expectations
    assert found.outcome is Outcome.BROKEN


def test_a_metric_that_was_not_collected_is_skipped_and_named(a100: Project) -> None:
    a100.tests(claimed('"tensor_utilization", "tf32", "baseline", above=1.5'))
    result = a100.run(*ONE, "-rs")
    result.assert_outcomes(passed=2, skipped=1)
    says = "tensor_utilization was not collected for tf32: --gpuperf-metrics reference has it"
    result.stdout.fnmatch_lines([f"SKIPPED*gpuperf: {says}"])
    assert not a100.saved().expectations

    result = a100.run(*ONE, "--gpuperf-require-counters")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines([f"*tf32 / baseline above 1.5: unsupported ({says})"])


def test_a_metric_that_does_not_exist_there_says_why(project: Project) -> None:
    project.device(unsupported={"cycles": "no such counter on this chip"})
    project.tests(claimed('"cycles", "tf32", "baseline", below=1'))
    result = project.run(*ONE, "-rs")
    result.stdout.fnmatch_lines(["SKIPPED*cycles was not collected for tf32: no such counter*"])
    project.tests(claimed('"flops", "tf32", "baseline", below=1'))
    result = project.run(*ONE, "-rs")
    result.stdout.fnmatch_lines(["SKIPPED*flops was not collected for tf32: what measures NVIDIA*"])


def test_zeros_are_skipped(project: Project) -> None:
    recorded(
        project,
        {"test_step[tf32]": [0.0], "test_step[baseline]": [0.0]},
        metric="tensor_utilization",
    )
    project.tests(claimed('"tensor_utilization", "tf32", "baseline", above=1.5'))
    for required in ((), ("--gpuperf-require-counters",)):
        result = project.run(*REPLAY, "-rs", "-k", "claim or step", *required)
        result.stdout.fnmatch_lines(["SKIPPED*both are 0, and zeros have no ratio*"])


@pytest.mark.parametrize(
    ("verified", "labelled"),
    [
        ("None", False),
        ("()", True),
        ('("sm90",)', True),
        ('"sm90"', True),
        ('("sm70", "sm80")', False),
        ('"sm80+"', False),
    ],
)
@pytest.mark.parametrize("bound", ["below=0.3", "below=0.2"])
def test_what_nobody_has_seen_says_so_everywhere(
    bound: str, verified: str, labelled: bool, project: Project
) -> None:
    two(project, [100e6] * 3, [400e6] * 3)
    project.tests(claimed(f'"cycles", "tf32", "baseline", {bound}, verified={verified}'))
    reports = ("--gpuperf-report=report.md", "--gpuperf-report=report.json")
    result = project.run(*REPLAY, *reports)
    (found,) = run_files.load(project.root / "report.json").expectations
    assert found.verified is not labelled
    label = "(not yet verified on sm80)"
    failed = result.ret != 0
    assert str(result.stdout).count(label) == (labelled * (1 + failed))
    markdown = (project.root / "report.md").read_text(encoding="utf-8")
    assert (label in markdown) is labelled


def test_without_judging_nothing_is_expected(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.01'))
    result = a100.run("--gpuperf-no-judge", "-s")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["*came of it: None*"])
    assert not a100.saved().expectations


@pytest.mark.parametrize("flags", [ONE, ("--gpuperf-no-judge",)], ids=["judged", "not"])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ('"cycle", "tf32", "baseline", below=1', 'expect_ratio of "cycle": no such metric'),
        ('"cycles", "tf32", "baseline"', "a bound is needed"),
        ('"cycles", "tf32", "baseline", below=0', "below=0: a ratio above zero"),
        ('"cycles", "tf32", "baseline", above=2, below=1', "no ratio lies between"),
        ('"cycles", "tf32", "baseline", below=1, verified="sm99"', 'unknown architecture "sm99"'),
    ],
)
def test_a_mistake_in_a_ratio_is_a_usage_error(
    arguments: str, says: str, flags: tuple[str, ...], a100: Project
) -> None:
    a100.tests(claimed(arguments))
    result = a100.run(*flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stdout.fnmatch_lines([f"gpuperf: *{says}*", f"refused: *{says}*"])


def test_a_limit_that_holds(a100: Project) -> None:
    a100.tests(limited('{"duration": "300ms", "cycles": "401.5M"}'))
    result = a100.run(*ONE)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "expected of duration: test_step below 300.00 ms: 285.00 ms (* ms to * ms), holds",
            "expected of cycles: test_step below 401.50 M: 400.00 M (398.74 M to 401.26 M), holds",
        ]
    )
    assert [entry.outcome for entry in a100.saved().expectations] == [Outcome.HOLDS] * 2


@pytest.mark.parametrize(
    ("cycles", "outcome", "says"),
    [
        ([300e6] * 3, Outcome.HOLDS, ""),
        ([400e6] * 3, Outcome.INCONCLUSIVE, "is inconclusive on"),
        ([500e6] * 3, Outcome.BROKEN, "is beyond a limit on"),
        ([500e6], Outcome.INCONCLUSIVE, "is inconclusive on"),
    ],
)
def test_every_outcome_of_a_limit(
    cycles: list[float], outcome: Outcome, says: str, project: Project
) -> None:
    recorded(project, {"test_step": cycles}, metric="cycles")
    project.tests(limited('{"cycles": "400M"}'))
    (found,) = expected(project, *REPLAY)
    assert found.outcome is outcome
    result = project.run(*REPLAY)
    result.assert_outcomes(passed=int(not says), failed=int(bool(says)))
    if says:
        result.stdout.fnmatch_lines(
            [
                f"gpuperf: test_step {says} NVIDIA A100-SXM4-80GB (sm80)",
                f"  expected of cycles: test_step below 400.00 M: *, {outcome.value}",
            ]
        )
    lenient = project.run(*REPLAY, "--gpuperf-inconclusive=warn")
    assert (lenient.ret == 0) == (outcome is not Outcome.BROKEN)


def test_a_limit_of_one_measurement_among_several_is_named(project: Project) -> None:
    project.device()
    project.tests(
        limited('{"cycles": "500M"}').replace("lambda: None", 'lambda: None, name="forward"')
    )
    result = project.run(*ONE)
    result.stdout.fnmatch_lines(["expected of cycles: test_step, forward, below 500.00 M: *holds"])


def test_a_limit_of_what_is_not_collected(a100: Project) -> None:
    a100.tests(limited('{"tensor_utilization": "30%"}'))
    result = a100.run(*ONE)
    result.assert_outcomes(passed=1)
    says = "*test_step above 30.00 %: unsupported (it was not among the metrics measured)"
    result.stdout.fnmatch_lines([says])
    result = a100.run(*ONE, "--gpuperf-require-counters")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["gpuperf: test_step could not read the counters*", says])


def test_without_judging_there_is_no_limit(a100: Project) -> None:
    a100.tests(limited('{"cycles": "1"}'))
    a100.run("--gpuperf-no-judge").assert_outcomes(passed=1)


def test_limits_travel_from_xdist_workers(a100: Project) -> None:
    a100.tests(limited('{"cycles": "500M"}'))
    result = a100.run_apart(*ONE, "-n2")
    result.stdout.fnmatch_lines(["expected of cycles: test_step below 500.00 M: *, holds"])


@pytest.mark.parametrize(
    ("limit", "says"),
    [
        ('"250ms"', "limit='250ms': write a mapping"),
        ('{"cycle": "1"}', 'limit for "cycle": no such metric'),
        ('{"duration": "250"}', "limit '250' for duration: write a time in ns, us, ms or s"),
        ('{"duration": "3GiB"}', "limit '3GiB' for duration: write a time"),
        ('{"ipc": "3M"}', "limit '3M' for ipc: write a plain number"),
    ],
)
def test_a_wrong_limit_stops_at_collection(limit: str, says: str, a100: Project) -> None:
    a100.tests(limited(limit))
    text = refused(a100.run(*ONE))
    assert "test_steps.py::test_step: @pytest.mark.gpuperf:" in text
    assert says in text


def test_a_narrow_terminal_has_room(a100: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.25, verified=["sm90"]'))
    result = a100.run(*ONE)
    ours = str(result.stdout).split("= gpuperf =")[1].splitlines()
    assert all(len(line) <= 60 for line in ours)
    assert "(not yet verified on sm80)" in " ".join(" ".join(ours).split())


def test_a_saved_run_keeps_them(a100: Project) -> None:
    a100.tests(claimed('"cycles", "tf32", "baseline", below=0.25'))
    a100.run(*ONE, "--gpuperf-run=saved.json")
    data = json.loads((a100.root / "saved.json").read_text(encoding="utf-8"))
    assert [entry["outcome"] for entry in data["expectations"]] == ["holds"]
    assert a100.saved("saved.json").expectations[0].below == 0.25
