"""What becomes of a test that measures: passes, failures, what they say and what they leave."""

from __future__ import annotations

import html
import re

import pytest

from pytest_gpuperf.model.result import TEST_FAILED, Outcome, Unfinished
from tests.plugin.projects import Project

TWO_COMMANDS = [
    "*gpuperf record --*",
    '*gpuperf update-baseline --reason "first baseline"*',
]


# The verdicts


def test_what_is_the_same_or_better_passes_and_what_is_worse_fails(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        def test_same(gpuperf): gpuperf.measure(lambda: None)
        def test_faster(gpuperf): gpuperf.measure(lambda: None)

        @pytest.mark.optimization("tf32")
        def test_slower(gpuperf):
            def step():
                with gpuperf.phase("forward"): pass
                with gpuperf.phase("backward"): pass
            gpuperf.measure(step)
        """
    )
    a100.accept()
    factors = {
        "same": {"wall_time": 3, "ipc": 0.2, "duration": 3},  # only what is gated may fail
        "faster": {"cycles": 0.5},
        "slower": {"cycles/backward": 2},
    }
    result = a100.replay(factors=factors)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: cycles +50.00 % on NVIDIA A100-SXM4-80GB (sm80)",
            "configuration: tf32",
            "*metric*baseline*measured*change*tolerance*verdict",
            "*cycles*400.00 M*600.00 M*+50.00 %*0.5 %*regressed",
            "*cycles by phase: backward +100.00 %",
            'accept an intended change: gpuperf update-baseline replayed.json --reason "..."',
            "test_steps.py:*: Failed",
            "*= gpuperf =*",
            "NVIDIA A100-SXM4-80GB (sm80), driver *, torch *",
            "test_slower  cycles      600.00 M  +50.00 %  *  regressed",
            "test_faster  cycles      200.00 M  -50.00 %  *  improved",
            "test_same    step_time *  0 %  *  unchanged",
            "1 regressed, 1 improved, 1 unchanged, all 3 compared",
            "*= short test summary info =*",
            "FAILED test_steps.py::test_slower - Failed: gpuperf: cycles +50.00 % on *",
        ]
    )
    assert sum("update-baseline" in line for line in result.outlines) == 1
    result.stdout.no_fnmatch_line("*fixture.py*")  # no traceback into our code


def test_no_baseline_fails_with_the_two_commands_that_make_one(a100: Project) -> None:
    result = a100.run("--gpu-arch=sm80", "--gpuperf-run=run.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuperf: no baseline on NVIDIA A100-SXM4-80GB (sm80): baselines/sm80/*.yaml does *",
            *TWO_COMMANDS,
            "test_steps.py:*: Failed",
            "*= gpuperf =*",
        ]
    )
    assert sum("gpuperf record" in line for line in result.outlines) == 1
    result = a100.run("--gpuperf-missing=warn")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_step  step_time *no baseline", *TWO_COMMANDS])
    assert not a100.has_baseline()


def test_tests_with_one_cause_are_one_message_but_in_verbose_sessions_and_other_files(
    a100: Project,
) -> None:
    a100.tests(
        """
        import pytest

        @pytest.mark.parametrize("size", [1, 2, 3])
        def test_step(gpuperf, size): gpuperf.measure(lambda: None)
        """
    )
    for flag, whole in (("-n0", 1), ("-v", 3)):
        result = a100.run(flag, "--junitxml=junit.xml", "-p", "no:randomly")
        assert result.outlines.count("test_steps.py:4: Failed") == whole
        again = [line for line in result.outlines if line.startswith("same cause as test_step[")]
        assert len(again) == 3 - whole
        xml = (a100.root / "junit.xml").read_text(encoding="utf-8")
        assert xml.count("test_steps.py:4: Failed") == 2 * 3  # as message and as text
        assert "same cause" not in xml


def test_no_baseline_is_recorded_where_asked_but_for_a_test_that_fails(a100: Project) -> None:
    a100.tests(
        """
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)

        def test_wrong(gpuperf):
            gpuperf.measure(lambda: None)
            assert not "what the step computed was wrong"
        """
    )
    a100.run("--gpuperf-missing=record").assert_outcomes(passed=1, failed=1)
    before = a100.baseline_text()
    assert "test_wrong" not in before
    assert "recorded by --gpuperf-missing record" in before
    result = a100.run("test_steps.py::test_step")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["test_step  step_time *unchanged"])
    # What is there is not replaced.
    a100.device(factors={"": {"cycles": 5}})
    result = a100.run("--gpuperf-missing=record", "--gpuperf-processes=1")
    result.assert_outcomes(failed=2)
    assert a100.baseline_text() == before


def test_unsupported_is_named_once_and_fails_where_counters_are_required(a100: Project) -> None:
    a100.tests(
        """
        def test_one(gpuperf): gpuperf.measure(lambda: None)
        def test_two(gpuperf): gpuperf.measure(lambda: None)
        """
    )
    a100.accept()
    a100.device(unsupported={"cycles": "not on a MIG instance"})
    result = a100.run("--gpuperf-run=run.json")
    assert result.ret == 0
    assert str(result.stdout).count("gpuperf cannot measure cycles: not on a MIG instance") == 1
    result = a100.run("--gpuperf-require-counters")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "gpuperf: cannot read cycles on*: not on a MIG instance",
            "Type `gpuperf doctor` to see what is missing*",
        ]
    )


def test_no_counters_at_all_fail_with_the_remedy(a100: Project) -> None:
    a100.device(unavailable="ERR_NVGPUCTRPERM")
    result = a100.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["gpuperf: ERR_NVGPUCTRPERM. Ask for permission"])


# Measuring


def test_the_step_really_runs_after_its_reset(a100: Project) -> None:
    a100.tests(
        """
        def test_step(gpuperf):
            assert gpuperf.phase("forward") is gpuperf.phase("backward")
            with gpuperf.phase("forward"), gpuperf.phase("backward"):
                calls = []
            step, reset = (lambda: calls.append("step")), (lambda: calls.append("reset"))
            measured = gpuperf.measure(
                step, reset=reset, settings=lambda: {"known_afterwards": len(calls)}
            )
            assert calls == ["reset", "step"]
            assert measured.test == "test_steps.py::test_step"
            assert gpuperf.device.arch == "sm80"
            assert gpuperf.torch_device.type == "cpu"
        """
    )
    a100.run("--gpuperf-missing=warn").assert_outcomes(passed=1)
    (measured,) = a100.saved().measurements
    settings = measured.fingerprint.settings
    assert (settings["known_afterwards"], settings["metrics"]) == (2, "core")


def test_what_no_file_can_name_is_refused_by_its_test_and_the_others_go_on(a100: Project) -> None:
    """A test's file whose name is no text, and a suite with a comma; either may be typed."""
    source = (a100.root / "test_steps.py").read_text(encoding="utf-8")
    (a100.root / "a,b").mkdir()
    odd = ("test_\udcff.py", "a,b/test_odd.py")
    for name in odd:
        (a100.root / name).write_text(source, encoding="utf-8")
    # pytest's own cache cannot hold such a test, either.
    flags = ("--gpuperf-missing=warn", "-pno:cacheprovider")
    result = a100.run("test_steps.py", *odd, *flags)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1, failed=2)
    assert '"test_\\udcff.py::test_step" has half' in result.stdout.str()
    result.stdout.fnmatch_lines(
        ['*test_odd.py::test_step: the folder or file*"a,b" is not a valid name*']
    )
    saved = a100.saved()
    assert [m.test for m in saved.measurements] == ["test_steps.py::test_step"]
    assert "test_\\udcff.py" in saved.command


def test_a_fixture_may_measure(a100: Project) -> None:
    a100.tests(
        """
        import pytest

        @pytest.fixture
        def measured(gpuperf):
            return gpuperf.measure(lambda: None, name="in a fixture")

        def test_step(gpuperf, measured):
            gpuperf.measure(lambda: None)
        """
    )
    for code, flags, names in (
        (1, (), ["in a fixture"]),
        (0, ("--gpuperf-missing=warn",), ["in a fixture", "step"]),
    ):
        assert a100.run("--gpuperf-run=run.json", *flags).ret == code
        assert [measurement.name for measurement in a100.saved("run.json").measurements] == names


# What is written


def test_a_token_on_the_command_line_is_in_no_file_and_no_output(a100: Project) -> None:
    a100.conftest("\n\n\ndef pytest_addoption(parser):\n    parser.addoption('--api-token')\n")
    reports = [f"--gpuperf-report=out/report.{suffix}" for suffix in ("md", "html", "json")]
    token = ("--api-token", "s3cr3t")
    result = a100.run(*token, *reports, "--junitxml=out/junit.xml", "--gpuperf-run=out/r.json")
    result.assert_outcomes(failed=1)
    assert "s3cr3t" not in str(result.stdout)
    assert "--api-token" in a100.saved("out/r.json").command
    for file in (a100.root / "out").iterdir():
        assert b"s3cr3t" not in file.read_bytes(), file


def test_a_session_leaves_a_run_reports_and_junit_s_file(a100: Project) -> None:
    """What they advise is what the terminal does, but for the failure's own, of its test alone."""
    reports = [f"--gpuperf-report=out/report.{suffix}" for suffix in ("md", "json", "html")]
    flags = ("-k", "step", *reports, "--tb=no", "--junitxml=junit.xml")
    result = a100.run(*flags)
    (file,) = a100.run_files()
    result.stdout.fnmatch_lines(
        [
            "report written: out/report.md",
            "report written: out/report.json",
            f"1 not compared (no baseline); run .gpuperf/runs/{file.name}",
        ]
    )
    run = a100.saved()
    (measurement,) = run.measurements
    assert measurement.test == "test_steps.py::test_step"
    assert measurement.fingerprint.device.name == "NVIDIA A100-SXM4-80GB"
    assert measurement.fingerprint.settings["collector"] == "scripted"
    outcomes = {verdict.metric: verdict.outcome for verdict in run.verdicts}
    assert (outcomes["cycles"], outcomes["ipc"]) == (Outcome.NO_BASELINE, Outcome.REPORTED)
    assert run.command == " ".join(flags)
    assert a100.saved("out/report.json").verdicts == run.verdicts
    text = (a100.root / "out" / "report.md").read_text(encoding="utf-8")
    assert "| cycles |" in text
    xml = (a100.root / "junit.xml").read_text(encoding="utf-8")
    assert "gpuperf: no baseline on" in xml
    assert "fingerprint" not in xml
    printed = [line.strip() for line in result.outlines if line.startswith("  gpuperf ")]
    assert printed == [
        "gpuperf record -- -k step --tb=no --junitxml=junit.xml",
        'gpuperf update-baseline --reason "first baseline"',
    ]
    page = (a100.root / "out" / "report.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub("<[^>]*>", "", page))
    assert all(command in text for command in printed)
    assert xml.count("<property ") == 3 + 2 * 3  # device, processes, judged; two per gated metric


def test_a_run_says_what_was_skipped_or_failed_and_by_which_entry_it_was_judged(
    a100: Project,
) -> None:
    """But for tests that do not use us, and for what failed by its verdict."""
    a100.tests("""
        def test_step(gpuperf): gpuperf.measure(lambda: None)
        def test_late(gpuperf): gpuperf.measure(lambda: None)
    """)
    a100.accept()
    a100.device(factors={"::test_step": {"cycles": 2.0}})
    a100.tests("""
        import pytest

        def test_step(gpuperf): gpuperf.measure(lambda: None)

        def test_late(gpuperf):
            gpuperf.measure(lambda: None)
            assert False

        def test_broken(gpuperf): assert False

        @pytest.mark.gpu_arch("sm90")
        def test_elsewhere(gpuperf): gpuperf.measure(lambda: None)

        def test_at_once(gpuperf):
            pytest.skip("not today")

        def test_foreign(): assert False

        @pytest.mark.skip(reason="is none of ours")
        def test_of_others(): pass
    """)
    assert a100.run("--gpuperf-run=judged.json", "--gpuperf-report=a.html").ret == 1
    run = a100.saved("judged.json")
    assert {test.partition("::test_")[2]: why for test, why in run.skipped.items()} == {
        "late": TEST_FAILED,
        "broken": TEST_FAILED,
        "elsewhere": "runs only on sm90, but this device is sm80",
        "at_once": "not today",
    }
    judged_by = [(entry.test, entry.name) for entry in run.judged_by if entry.recorded]
    assert judged_by == [(f"test_steps.py::test_{test}", "step") for test in ("step", "late")]
    assert "4</b> incomplete" in (a100.root / "a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("flag", ["--gpuperf-run", "--gpuperf-report"])
def test_what_cannot_be_written_is_refused_before_anything_is_measured(
    flag: str, a100: Project
) -> None:
    a100.pytester.mkdir("folder.json")
    result = a100.run(f"{flag}=folder.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *folder.json: cannot be written (it is a folder). Name a file"]
    )
    result.assert_outcomes()


def test_a_link_out_of_the_project_is_refused_before_anything_is_measured(
    a100: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (a100.root / ".gpuperf").symlink_to(outside)
    result = a100.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *.gpuperf/runs leads out of the project, to {outside}*"])
    assert a100.run("--gpuperf-run=run.json", "--gpuperf-missing=warn").ret == pytest.ExitCode.OK
    assert [*outside.iterdir()] == []


def test_a_run_that_cannot_be_saved_any_more_is_said_beside_the_failures(a100: Project) -> None:
    a100.tests(
        """
        from pathlib import Path

        def test_step(gpuperf):
            Path("run.json").mkdir()
            gpuperf.measure(lambda: None)

        def test_other():
            pass
        """
    )
    result = a100.run("--gpuperf-run=run.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        ["gpuperf: no baseline*", "usage error: *run.json: cannot be written*"]
    )


def test_what_was_measured_before_the_session_was_ended_is_kept(project: Project) -> None:
    """As by a job's time limit; so does a test that crashes the interpreter."""
    project.device()
    project.tests(
        """
        import os, signal

        def test_first(gpuperf):
            gpuperf.measure(lambda: None)

        def test_second(gpuperf):
            gpuperf.measure(lambda: None)

        def test_third(gpuperf):
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    project.run_apart("--gpuperf-missing=warn", "--gpuperf-run=run.json.xz")
    run = project.saved("run.json.xz")
    assert [m.test for m in run.measurements] == [
        "test_steps.py::test_first",
        "test_steps.py::test_second",
    ]
    assert run.verdicts
    # Nobody has seen how it ended.
    assert run.unfinished == Unfinished(ran=2, collected=3)
    assert run.command.endswith("--gpuperf-missing=warn --gpuperf-run=run.json.xz")


# Where a test fails

FAILING = """
    import pytest

    def measured(gpuperf):
        gpuperf.measure(lambda: None)  # of the project, and not of ours

    def test_slower(gpuperf):
        gpuperf.measure(lambda: None)

    def test_helped(gpuperf):
        measured(gpuperf)

    def test_raises(gpuperf):
        gpuperf.measure(lambda: [][1])

    def test_refused(gpuperf):
        gpuperf.measure(lambda: None, workload={"a": None})

    def test_skipped(gpuperf):
        gpuperf.expect_ratio("cycles", "a", "b", below=1.0)
    """
PLACES = {"slower": 7, "helped": 4, "raises": 13, "refused": 16}
"""The lines of FAILING at which they fail."""


@pytest.mark.parametrize("style", ["auto", "line", "native"])
def test_a_failure_is_at_the_tests_own_line(a100: Project, style: str) -> None:
    """Without ours, but in a full trace; so is a skip."""
    a100.tests(FAILING)
    result = a100.run(f"--tb={style}", "-v", "-rfs", "--junitxml=junit.xml")
    result.assert_outcomes(failed=4, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED [[]1] test_steps.py:19: gpuperf: *"])
    text = "\n".join(result.outlines)
    for name, line in PLACES.items():
        assert re.search(rf"test_steps\.py(:|\", line ){line}(:|,|$)", text, re.MULTILINE), name
    xml = (a100.root / "junit.xml").read_text(encoding="utf-8")
    for said in (text, xml):
        assert "fixture.py" not in said
        assert "outcomes.py" not in said
    assert "test_steps.py:7: Failed" in xml
    result.stdout.fnmatch_lines(
        ["FAILED test_steps.py::test_slower - Failed: gpuperf: no baseline on*"]
    )
    if style == "auto":
        result = a100.run("-k", "slower", "--full-trace")
        result.stdout.fnmatch_lines(["*fixture.py:*", "*test_steps.py:7: Failed"])


def test_what_is_run_again_is_measured_again_and_counts_once(a100: Project) -> None:
    """pytest-rerunfailures: of a test that is run until it passes the last is what it measured."""
    pytest.importorskip("pytest_rerunfailures")
    a100.tests(
        """
        runs = []

        def test_flaky(gpuperf):
            gpuperf.measure(lambda: None)
            runs.append(1)
            assert len(runs) == 3

        def test_refused(gpuperf):
            gpuperf.measure(lambda: None, workload={"a": None})
        """
    )
    again = ("-p", "rerunfailures", "--reruns=2")
    result = a100.run(*again, "--gpuperf-missing=warn", "--gpuperf-run=run.json", "--tb=no")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert len(a100.saved("run.json").measurements) == 1
    lines = result.outlines
    assert sum(line.startswith("test_flaky ") for line in lines) == 1
    assert sum(line.startswith("usage error: ") for line in lines) == 1
    assert "1 not compared (no baseline); run run.json" in lines
