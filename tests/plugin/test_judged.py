"""No green without a verdict: the last line, what may be required, and the session's exit code."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from fnmatch import fnmatch
from typing import Any

import pytest

from pytest_gpuperf.report.conclusion import findings
from tests import ROOT
from tests.commands.revisions import git
from tests.plugin.projects import Project, refused
from tests.plugin.test_sharing import properties

SHARED = {"other_processes": [4711]}
TWO = """
    def test_one(gpuperf): gpuperf.measure(lambda: None)
    def test_two(gpuperf): gpuperf.measure(lambda: None)
"""
REQUIRED = "--gpuperf-require-judged"


def recorded(project: Project, change: Callable[[dict[str, Any]], None]) -> str:
    """Leaves the project a run in place of the device, every fingerprint of it changed so."""
    assert project.run("--gpuperf-no-judge", "--gpuperf-run=run.json").ret == 0
    (project.root / "device.json").unlink()
    file = project.root / "run.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for measurement in data["measurements"]:
        change(measurement["fingerprint"])
    file.write_text(json.dumps(data), encoding="utf-8")
    return "--gpuperf-replay=run.json"


def shared(fingerprint: dict[str, Any]) -> None:
    fingerprint["conditions"] = {"before": {}, "after": SHARED}


def last_lines(result: pytest.RunResult) -> list[str]:
    """The lines of our section of the summary; ours is the last section in these projects."""
    lines = result.outlines
    start = next(n for n, text in enumerate(lines) if text.strip("=") == " gpuperf ")
    following = range(start + 1, len(lines))
    end = next(n for n in following if re.match(r"=|.* in [\d.]+s", lines[n]))
    return lines[start + 1 : end]


@pytest.mark.parametrize(
    ("value", "lacks", "says"),
    [
        ("unfit", "GPU disturbed: shared", "shared with 1 other process*"),
        ("no-baseline", "no baseline", "*test_steps.yaml does not exist"),
    ],
)
def test_what_lacks_a_verdict_is_counted_and_fails_where_one_is_required(
    a100: Project, value: str, lacks: str, says: str
) -> None:
    flags, is_unfit = ["--gpuperf-missing=warn", "--gpuperf-run=judged.json"], value == "unfit"
    if is_unfit:
        a100.accept()
        flags.append(recorded(a100, shared))
    line = f"1 not compared ({lacks})"
    # Without the flag the test passes, or is skipped.
    result = a100.run(*flags, "-q", "--gpuperf-report=report.md", "--junitxml=junit.xml")
    assert result.ret == int(is_unfit)
    assert result.parseoutcomes().get("failed", 0) == 0
    assert last_lines(result)[-1].startswith(line)
    report = (a100.root / "report.md").read_text(encoding="utf-8")
    assert line in report.replace("\\", "")
    assert ("gpuperf.judged", value) in properties(a100, "test_step")
    result = a100.run(*flags, REQUIRED)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "gpuperf: test_step was not compared on NVIDIA A100*: *. --gpuperf-require-judged "
            "fails such tests",
            f"  {says}",
        ]
    )
    assert last_lines(result)[-1].startswith(line)


def test_nothing_is_recorded_of_a_test_that_had_to_be_judged(a100: Project) -> None:
    a100.run("--gpuperf-missing=record", REQUIRED).assert_outcomes(failed=1)
    assert not a100.has_baseline()


def test_verdicts_cannot_be_required_and_not_asked_for(a100: Project) -> None:
    for flags, said in (([REQUIRED], REQUIRED), ([], "ini setting gpuperf_require_judged")):
        text = refused(a100.run("--gpuperf-no-judge", *flags))
        assert f"{said} fails tests that are not compared" in text
        assert "--gpuperf-no-judge compares none. Leave one of the two out" in text
        a100.ini("gpuperf_require_judged = true")


# The last line


def test_without_a_measurement_there_is_no_such_line(a100: Project) -> None:
    a100.tests("def test_of_others(gpuperf): gpuperf.device")
    result = a100.run(REQUIRED)
    assert result.ret == 0
    assert "= gpuperf =" not in result.stdout.str()


# A session in which nothing could be judged


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_session_that_was_unfit_as_a_whole_fails_and_says_what_to_do(
    a100: Project, workers: tuple[str, ...]
) -> None:
    a100.tests(TWO)
    a100.accept()
    flags = (recorded(a100, shared), "--gpu-arch=sm80", *workers)
    result = a100.run(*flags)
    result.assert_outcomes(skipped=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    said = " ".join(last_lines(result))
    assert "failed: no measurement was compared (2 GPU disturbed: shared). Measure again" in said
    assert said.endswith("2 not compared (GPU disturbed: shared)")


def test_what_was_judged_beside_it_leaves_the_exit_code(a100: Project) -> None:
    a100.tests(TWO)
    a100.accept()
    replay = recorded(a100, lambda _: None)
    file = a100.root / "run.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    shared(data["measurements"][1]["fingerprint"])
    file.write_text(json.dumps(data), encoding="utf-8")
    result = a100.run(replay)
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == 0
    assert last_lines(result)[-1] == "1 unchanged, 1 not compared (GPU disturbed: shared)"
    # Where verdicts are required the test fails that has none, by name.
    result = a100.run(replay, REQUIRED)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["gpuperf: test_two was not compared on*"])


def test_other_exit_codes_stay(a100: Project) -> None:
    a100.accept()
    replay = recorded(a100, shared)
    a100.tests(
        """
        import pytest

        def test_ends_all(): pytest.exit("enough", returncode=7)
        """,
        name="test_the_end",
    )
    result = a100.run(replay, "test_steps.py", "test_the_end.py")
    assert result.ret == 7


# Packages that are not from the checkout

USES = """
    import gpnet

    def test_one(gpuperf): gpuperf.measure(lambda: None)
    def test_two(gpuperf): gpuperf.measure(lambda: None)
"""


def test_a_copy_of_the_project_elsewhere_is_told_once_and_fails_where_verdicts_are_required(
    a100: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("environment", "src"):
        (a100.root / folder).mkdir()
        (a100.root / folder / "gpnet.py").write_text(f"# {folder}\n", encoding="utf-8")
    for words in (("init", "-q"), ("add", "src"), ("commit", "-q", "-m", "a")):
        git(a100.root, *words)
    used = (a100.root / "environment").rename(a100.root.parent / f"{a100.root.name}-environment")
    a100.tests(TWO)
    a100.accept()
    a100.tests(USES)
    for place, flags, code, told in (
        (a100.root / "src", (REQUIRED,), 0, 0),
        (used, (), 0, 1),
        (used, (REQUIRED, "-n1"), 1, 1),
    ):
        monkeypatch.setenv("PYTHONPATH", f"{place}{os.pathsep}{ROOT}")
        report = ("--gpuperf-report=report.md", "--gpuperf-run=run.json")
        result = a100.run_apart(*flags, *report)
        assert result.ret == code
        said = " ".join(last_lines(result))
        fails = "failed: " if flags else ""
        told_so = f"{fails}the tests used {used}/gpnet.py instead of src/gpnet.py. "
        assert said.count(told_so) == told
        assert said.count("Type `pip install -e .`") == told
        revisions = {m.fingerprint.revision for m in a100.saved("run.json").measurements}
        assert (revisions == {""}) is bool(told)
        headline = (a100.root / "report.md").read_text(encoding="utf-8").partition("\n")[0]
        assert ("the tests used" in headline) is bool(told)
        (finding,) = findings(a100.saved("run.json")) or [None]
        assert (finding is not None and finding.key == ("night", "other-code")) is bool(told)
        accepted = a100.gpuperf("update-baseline", "run.json", "--reason=a", "--test=*", "--yes")
        assert ("objection: the tests used " in accepted.stdout.str()) is bool(told)
        (a100.root / "run.json").unlink()


# Fresh processes


def test_the_command_that_records_judges_nothing_whatever_is_required(a100: Project) -> None:
    a100.ini("gpuperf_require_judged = true")
    result = a100.gpuperf("record", "--processes=1", "--run=run.json", "--", REQUIRED)
    assert result.ret == 0, result.stderr.str()
    assert len(a100.saved("run.json").measurements) == 1


def test_what_is_tolerated_is_in_a_run_by_the_marker_and_else_by_the_suite(a100: Project) -> None:
    """Also where nothing is judged: `gpuperf ab` judges it later."""
    a100.tests("""
        import pytest

        @pytest.mark.gpuperf(tolerance={"cycles": "2%"})
        def test_step(gpuperf):
            gpuperf.measure(lambda: None)
    """)
    a100.accept()
    (file,) = a100.root.glob("baselines/*/*/*.yaml")
    known = a100.baseline_text().replace("tolerance: {}", "tolerance: {cycles: 3%, ipc: 4%}")
    file.write_text(known, encoding="utf-8")
    for flags in ((), ("--gpuperf-no-judge",)):
        assert a100.run("--gpuperf-run=run.json", *flags).ret == 0
        (measurement,) = a100.saved("run.json").measurements
        assert measurement.tolerance == {"cycles": "2%", "ipc": "4%"}
    file.write_text("no baseline", encoding="utf-8")
    assert a100.run("--gpuperf-no-judge", "--gpuperf-run=run.json").ret == 0
    assert a100.saved("run.json").measurements[0].tolerance == {"cycles": "2%"}


LEAVES = """
    import pytest

    def test_step(gpuperf):
        gpuperf.measure(lambda: None)
        {}gpuperf.measure(lambda: None, name="sampling")

    def test_other(gpuperf):
        gpuperf.measure(lambda: None)
"""
SECOND = 'gpuperf.measure(lambda: None, name="sampling")'
SKIPPING = 'gpuperf.measure(lambda: pytest.skip("no data"), name="sampling")'


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        (SECOND, SKIPPING, "test_step, sampling (no data)"),
        ("gpuperf.measure(lambda: None)\n", "return\n", "test_step, test_step, sampling"),
        (
            "def test_step",
            '@pytest.mark.skip(reason="later")\n    def test_step',
            "test_step (later), *",
        ),
    ],
    ids=["skips in the step", "measures nothing", "is marked"],
)
def test_what_has_an_entry_and_was_not_measured_is_listed_and_fails_where_required(
    a100: Project, before: str, after: str, left: str
) -> None:
    source = LEAVES.format("")
    a100.tests(source)
    a100.accept()
    a100.tests(source.replace(before, after, 1))
    quiet = ("-W", "ignore")
    for flags, code, fails in (((), 0, ""), ((REQUIRED, "-n1"), 1, "failed: ")):
        result = a100.run(*quiet, *flags)
        assert result.ret == code
        says = f"{fails}the baseline has tests that were not measured: {left}"
        assert fnmatch(" ".join(str(result.stdout).split()), f"*{says}*")


def test_what_did_not_run_is_not_missed(a100: Project) -> None:
    a100.tests(LEAVES.format(""))
    a100.accept()
    one = "test_steps.py::test_other"
    for flags in ((REQUIRED, one), ("--gpuperf-no-judge",)):
        result = a100.run(*flags)
        assert result.ret == 0
        result.stdout.no_fnmatch_line("*that were not measured*")
    # Nor what needs other hardware, or has failed, which the session says anyway.
    marked = LEAVES.format("").replace("def test_step", "@pytest.mark.{}\n    def test_step")
    a100.tests(marked.format("gpu_arch('sm90')"))
    assert a100.run(REQUIRED).ret == 0
    a100.tests(LEAVES.format("assert False; "))
    a100.run(REQUIRED).stdout.no_fnmatch_line("*that were not measured*")
