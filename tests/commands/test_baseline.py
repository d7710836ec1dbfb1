"""`gpuperf baseline`: what is listed and renamed; what a session says of renamed tests."""

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


def gpuperf(*arguments: str) -> int:
    return __main__.main(["baseline", *arguments])


def kernels_of(test: str, file: Path = FILE) -> bool:
    """Whether the test's kernel table is there, and that of its entry."""
    entry = baselines(file).tests[test]["step"]
    return data_files.load(file, entry.data, "").kernels == table(("conv", 900.0))


def touch(file: str) -> None:
    Path(file).parent.mkdir(parents=True)
    Path(file).touch()


# What there is


def test_every_entry_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpuperf("list") == errors.OK
    assert capsys.readouterr().out.splitlines() == [
        f"{FILE}: 3 baselines on NVIDIA H200",
        f"  {FIRST}: 2026-03-01, 3 processes, 2 GPUs, origin of 2026-03-01",
        f"  {SECOND}: 2026-03-01, 3 processes, 2 GPUs",
        f"  {OTHER}: 2026-03-01, 3 processes, 2 GPUs",
    ]
    assert gpuperf("list", "b.py") == errors.OK
    assert f"  {OTHER}" in capsys.readouterr().out
    assert gpuperf("list", "c.py") == errors.FAILED
    assert 'no entry matches "c.py"' in capsys.readouterr().err
    assert gpuperf("list", "--baselines", "elsewhere") == errors.BAD_CONFIGURATION
    assert "no baseline file under elsewhere" in capsys.readouterr().err


# Another name


def test_a_renamed_test_keeps_samples_origin_kernels_and_the_log_says_so() -> None:
    before = baselines()
    assert gpuperf("rename", FIRST, f"{A}::test_step[1st]") == errors.OK
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
    assert gpuperf("rename", A, "suites/meddpm/c.py") == errors.OK
    moved = [test.replace(A, "suites/meddpm/c.py") for test in (FIRST, SECOND)]
    assert list(baselines().tests) == [OTHER, *moved]
    assert kernels_of(moved[0])
    before = baselines()
    assert gpuperf("rename", "suites/meddpm/c.py", "suites/unet/c.py") == errors.OK
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
    assert gpuperf("rename", f"{A}::test_step[frist]", "x") == errors.FAILED
    said = capsys.readouterr().err
    assert f'has no entry. Did you mean "{FIRST}"' in said
    assert "`gpuperf baseline list` shows those that there are" in said
    assert gpuperf("rename", FIRST, SECOND) == errors.BAD_CONFIGURATION
    assert f"and {SECOND} has one" in capsys.readouterr().err
    assert FILE.read_bytes() == before


# Gone


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


# In a session


OLD = "def test_old(gpuperf): gpuperf.measure(lambda: None)\n"
NEW = OLD.replace("old", "new")
PARAMETERS = """
    import pytest

    @pytest.mark.parametrize("dtype", ["half", "full"])
    @pytest.mark.parametrize("device", ["host", "card"])
    def {name}(gpuperf, dtype, device): gpuperf.measure(lambda: None)
"""


def test_renamed_tests_are_told_by_their_parameters(project: Project) -> None:
    """One without any is the only one of its kind."""
    sizes = {"host-half": 1.0, "host-full": 2.0, "card-half": 5.0, "card-full": 6.0}
    project.device(factors={of: {"cycles": factor} for of, factor in sizes.items()})
    project.tests(PARAMETERS.format(name="test_two"))
    (project.root / "test_one.py").write_text(OLD, encoding="utf-8")
    project.accept_processes(*[1.0] * 5)
    project.tests(PARAMETERS.format(name="test_pair"))
    (project.root / "test_one.py").write_text(NEW, encoding="utf-8")
    said = project.run("--gpuperf-missing=warn").stdout.str().splitlines()
    (note,) = (line for line in said if line.startswith("note: test_new has no baseline, and "))
    assert note.startswith(
        ", and test_one.py::test_old, which is gone, has one", note.index(", and")
    )
    commands = [
        shlex.split(line)[2:] for line in said if line.startswith("  gpuperf baseline rename")
    ]
    old, new = "test_steps.py::test_two", "test_steps.py::test_pair"
    pairs = [["rename", f"{old}[{of}]", f"{new}[{of}]"] for of in sizes]
    plain = ["rename", "test_one.py::test_old", "test_one.py::test_new"]
    assert sorted(commands) == sorted([*pairs, plain])
    for command in commands:
        assert gpuperf(*command) == errors.OK
    project.run("--gpuperf-run=run.json").assert_outcomes(passed=5)
    outcomes = {result.outcome for result in project.saved("run.json").results()}
    assert outcomes == {Outcome.UNCHANGED}


BOTH = "".join(PARAMETERS.format(name=name) for name in ("test_a", "test_b"))
C, C_AND_D = PARAMETERS.format(name="test_c"), BOTH.replace("_a", "_c").replace("_b", "_d")


@pytest.mark.parametrize(
    ("before", "file", "after", "selected", "count"),
    [
        pytest.param(BOTH, "test_steps", C, (), 0, id="parameters of two do not tell"),
        pytest.param(BOTH, "test_steps", C_AND_D, (), 0, id="nor do those of two and two"),
        pytest.param(BOTH, "test_moved", BOTH, (), 8, id="names tell in a file that was moved"),
        pytest.param(OLD, "test_steps", OLD + NEW, ("-k", "new"), 0),
        pytest.param(
            *(OLD, "test_steps", OLD + NEW),
            *(("test_steps.py::test_new",), 0),
            id="one that was named says nothing of the others",
        ),
    ],
)
def test_only_what_is_certain_is_said_of_other_names(
    project: Project, before: str, file: str, after: str, selected: Sequence[str], count: int
) -> None:
    project.device()
    project.tests(before)
    project.accept_processes(*[1.0] * 5)
    (project.root / "test_steps.py").unlink()
    project.tests(after, name=file)
    said = project.run("--gpuperf-missing=warn", *selected).stdout.str().splitlines()
    pairs = [shlex.split(line)[3:] for line in said if line.startswith("  gpuperf baseline rename")]
    assert len(pairs) == count
    assert all(old.split("::")[1] == new.split("::")[1] for old, new in pairs)
