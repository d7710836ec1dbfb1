"""`gpuperf baseline rename`, and what a session says of renamed tests."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.baselines import acceptance, reference
from pytest_gpuperf.model.entry import BaselineFile
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.storage import baseline_files, data_files
from tests.examples import H200, OTHER_H200, measurement
from tests.kernel_steps import table
from tests.plugin.projects import Project

FILE = Path("baselines/sm90/nvidia-h200/meddpm.yaml")
A, B = "suites/meddpm/a.py", "suites/meddpm/b.py"
FIRST, SECOND, OTHER = f"{A}::test_step[first]", f"{A}::test_step[second]", f"{B}::test_other"


@pytest.fixture(autouse=True)
def _accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tests with a baseline each, of which the first has an origin and a kernel table."""
    monkeypatch.chdir(tmp_path)
    for cycles, tests in ((4e8, (FIRST, SECOND, OTHER)), (3.9e8, (FIRST,))):
        made = [
            measurement(
                {"cycles": [cycles]},
                test=test,
                process=f"{cycles}/{number}",
                device=OTHER_H200 if number == 2 else H200,
                kernels=table(("conv", 900.0)) if test == FIRST and not number else None,
            )
            for test in tests
            for number in range(3)
        ]
        request = acceptance.AcceptanceRequest(Path("baselines"), "first", "2026-03-01T00:00:00Z")
        acceptance.accept(acceptance.proposals(made, request))


def baselines(file: Path = FILE) -> BaselineFile:
    loaded = baseline_files.load(file)
    assert loaded is not None
    return loaded


def rename(*arguments: str) -> int:
    return __main__.main(["baseline", "rename", *arguments])


def kernels_of(test: str, file: Path = FILE) -> bool:
    """Whether the test's kernel table is there, and that of its entry."""
    entry = baselines(file).tests[test]["step"]
    return data_files.load(file, entry.data, "").kernels == table(("conv", 900.0))


# Another name


def test_a_renamed_test_keeps_samples_origin_kernels_and_the_log_says_so() -> None:
    before = baselines()
    assert rename(FIRST, f"{A}::test_step[1st]") == errors.OK
    after = baselines()
    assert list(after.tests) == [f"{A}::test_step[1st]", SECOND, OTHER]
    (entry,), (old,) = after.tests[f"{A}::test_step[1st]"].values(), before.tests[FIRST].values()
    assert replace(entry, log=old.log) == old
    assert kernels_of(f"{A}::test_step[1st]")
    assert entry.log[:-1] == old.log
    assert entry.log[-1].reason == f"renamed from {FIRST}"
    assert entry.log[-1].processes == 3


def test_a_file_that_was_moved_takes_its_tests_along() -> None:
    """In its folder, and to another, which is another suite's."""
    assert rename(A, "suites/meddpm/c.py") == errors.OK
    moved = [test.replace(A, "suites/meddpm/c.py") for test in (FIRST, SECOND)]
    assert list(baselines().tests) == [OTHER, *moved]
    assert kernels_of(moved[0])
    before = baselines()
    assert rename("suites/meddpm/c.py", "suites/unet/c.py") == errors.OK
    assert list(baselines().tests) == [OTHER]
    assert data_files.unnamed(FILE, baselines()) == []
    there = [test.replace("meddpm", "unet") for test in moved]
    other = FILE.with_name("unet.yaml")
    for test, was in zip(there, moved, strict=True):
        entry, old = baselines(other).tests[test]["step"], before.tests[was]["step"]
        assert replace(entry, log=old.log) == old
    assert [*baselines(other).tests] == there
    assert kernels_of(there[0], other)


def test_what_is_not_there_or_would_be_written_over_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = FILE.read_bytes()
    assert rename(f"{A}::test_step[frist]", "x") == errors.FAILED
    said = capsys.readouterr().err
    assert f'has no entry in {FILE}. Did you mean "{FIRST}"' in said
    assert rename(A, B, "--baselines", "elsewhere") == errors.BAD_CONFIGURATION
    assert "there is no baseline file in elsewhere" in capsys.readouterr().err
    assert rename(FIRST, SECOND) == errors.BAD_CONFIGURATION
    assert f"as {SECOND} has an entry" in capsys.readouterr().err
    assert FILE.read_bytes() == before


# Gone


def touch(file: str) -> None:
    Path(file).parent.mkdir(parents=True)
    Path(file).touch()


def test_a_test_is_gone_with_its_file_or_where_that_was_collected_without_it() -> None:
    touch(A)
    for test, collected, gone in (
        (FIRST, [FIRST], False),
        (FIRST, [SECOND], True),
        (FIRST, [OTHER], False),
        (OTHER, [FIRST], True),
        (OTHER, [], True),
    ):
        assert reference.is_gone(test, collected, Path.cwd()) is gone, (test, collected)


C, D = "suites/unet/c.py", "suites/unet/d.py"


@pytest.mark.parametrize(
    ("before", "now", "new", "old"),
    [
        ([f"{C}::test_old"], [f"{C}::test_new"], f"{C}::test_new", f"{C}::test_old"),
        # Parameters tell, and names in a file that was moved.
        (
            [f"{C}::test_two[half]", f"{C}::test_two[full]"],
            [f"{C}::test_pair[half]", f"{C}::test_pair[full]"],
            f"{C}::test_pair[full]",
            f"{C}::test_two[full]",
        ),
        (
            [f"{C}::test_a[half]", f"{C}::test_b[half]"],
            [f"{D}::test_a[half]", f"{D}::test_b[half]"],
            f"{D}::test_b[half]",
            f"{C}::test_b[half]",
        ),
        # Of two with these parameters, and of one that is still there, nobody knows.
        ([f"{C}::test_a[1]", f"{C}::test_b[1]"], [f"{C}::test_c[1]"], f"{C}::test_c[1]", ""),
        ([f"{C}::test_old"], [f"{C}::test_old", f"{C}::test_new"], f"{C}::test_new", ""),
    ],
)
def test_what_a_test_was_called_before_is_told_where_it_is_certain(
    before: Sequence[str], now: Sequence[str], new: str, old: str
) -> None:
    folder = Path("others")
    made = [measurement(test=test, suite="unet") for test in before]
    request = acceptance.AcceptanceRequest(folder, "first", "2026-03-01T00:00:00Z", force=True)
    acceptance.accept(acceptance.proposals(made, request))
    one = measurement(test=new, suite="unet")
    assert reference.forerunner(one, folder, now, Path.cwd()) == old
    other = measurement(test=new, suite="unet", workload={"size": 64})
    assert reference.forerunner(other, folder, now, Path.cwd()) == ""


# In a session


OLD = "def test_old(gpuperf): gpuperf.measure(lambda: None)\n"
NEW = OLD.replace("old", "new")


def test_a_session_says_how_a_renamed_test_keeps_its_baseline(project: Project) -> None:
    project.device()
    project.tests(OLD)
    project.accept_processes(*[1.0] * 5)
    project.tests(OLD + NEW)
    typed = "  gpuperf baseline rename test_steps.py::test_old test_steps.py::test_new"
    # One that was named says nothing of the others.
    for selected in (("-k", "new"), ("test_steps.py::test_new",)):
        assert typed not in project.run("--gpuperf-missing=warn", *selected).outlines
    project.tests(NEW)
    said = project.run("--gpuperf-missing=warn")
    assert typed in said.outlines
    said.stdout.fnmatch_lines(["note: test_new has no baseline, but test_steps.py::test_old, *"])
    assert __main__.main(shlex.split(typed)[1:]) == errors.OK
    project.run("--gpuperf-run=run.json").assert_outcomes(passed=1)
    outcomes = {result.outcome for result in project.saved("run.json").results()}
    assert outcomes == {Outcome.UNCHANGED}
