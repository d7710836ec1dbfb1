"""`gpuperf compare`: what is paired with what, and the command on runs that were recorded."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf import __main__, errors
from pytest_gpuperf.commands.compare import compare
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.comparison import Chosen, Comparison
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import run_files
from tests import ROOT
from tests.examples import measurement, run
from tests.kernel_steps import counted

H200 = "docs/runs/h200-meddpm.json"
OTHER_GPU = "docs/runs/h200-another-gpu.json"
FIVE = "tests/data/h200-campaign/machine-3-0.json.xz"
SEEDED = "docs/runs/seeds/extra-kernel.json.xz"
"""Three processes, on the GPU of FIVE, of one more kernel in the step of tf32."""


loaded = cache(run_files.load)
"""A run is read once."""


class Command:
    """`gpuperf compare`, where the committed runs are."""

    def __init__(self, capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._patch = patch
        patch.chdir(ROOT)
        patch.setattr(run_files, "load", loaded)

    def __call__(self, *arguments: object, columns: int = 80) -> tuple[int, str, str]:
        """Its exit code, and what it says and complains of in a terminal of so many columns."""
        self._patch.setenv("COLUMNS", str(columns))
        code = __main__.main(["compare", *map(str, arguments)])
        return (code, *self._capsys.readouterr())

    def lines(self, *arguments: object, columns: int = 80) -> list[str]:
        """What it prints."""
        code, said, complaint = self(*arguments, columns=columns)
        assert (code, complaint) == (0, "")
        return said.splitlines()

    def refused(self, *arguments: object) -> str:
        """What it says to bad input, without the name of the command."""
        code, said, complaint = self(*arguments)
        assert (code, said) == (errors.BAD_CONFIGURATION, "")
        assert complaint.startswith("gpuperf: ")
        return complaint.removeprefix("gpuperf: ").removesuffix("\n")


@pytest.fixture
def gpuperf(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    return Command(capsys, monkeypatch)


# What is paired with what


def side(*measurements: Measurement) -> Chosen:
    return Chosen(Path("run.json"), measurements)


def of(test: str, **others: Any) -> Measurement:
    """A measurement of a test in tests/perf."""
    return measurement(test=f"tests/perf/{test}", **others)


def paired(comparison: Comparison) -> list[tuple[str, str]]:
    """The tests of the pairs, from the last :: on."""
    return [
        (one.before[0].test.split("::")[1], one.result.test.split("::")[1])
        for one in comparison.pairs
    ]


def test_by_test_and_name_in_the_order_of_a() -> None:
    one, two = of("x.py::one"), of("x.py::two")
    other_name = of("x.py::one", name="sampling")
    elsewhere = of("y.py::one")
    comparison = compare(side(two, one, other_name), side(one, elsewhere, two))
    assert paired(comparison) == [("two", "two"), ("one", "one")]
    assert [(e.test, e.name) for (e,) in comparison.only_a] == [(one.test, "sampling")]
    assert [(e.test, e.name) for (e,) in comparison.only_b] == [(elsewhere.test, "step")]


def test_nothing_to_pair_lists_what_there_is() -> None:
    many = [of(f"x.py::t{number}") for number in range(12)]
    with pytest.raises(UsageFailure) as caught:
        compare(side(*many), side(of("y.py::t", name="sampling")))
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["a, run.json, has", "  tests/perf/x.py::t0"]
    assert lines[12:] == ["  and 2 more", "b, run.json, has", "  tests/perf/y.py::t, sampling"]


# The command


def test_two_runs(gpuperf: Command) -> None:
    lines = gpuperf.lines(H200, OTHER_GPU, columns=120)
    assert sum(line.endswith("(1 process each)") for line in lines) == 4
    assert any(line.startswith("measured on two GPUs of one model") for line in lines)


def test_processes_have_intervals_and_what_has_no_partner_is_listed(gpuperf: Command) -> None:
    lines = gpuperf.lines(FIVE, SEEDED)
    assert "test_training_step[tf32] (5 and 3 processes)" in lines
    (cycles,) = (line for line in lines if line.startswith("  cycles "))
    assert " ".join(cycles.split()) == "cycles 433.83 M 438.16 M +1.00 % +0.77 to +1.23 %"
    assert lines[lines.index("only in a:") + 1].startswith("  suites/meddpm/test_training.py::")


def test_who_reads_only_the_beginning_gets_no_traceback() -> None:
    """As `gpuperf compare ... | head -1` has it, in a process of its own."""
    command = [sys.executable, "-m", "pytest_gpuperf", "compare", H200, OTHER_GPU]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, cwd=ROOT)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


# Kernels


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run of an H200, of a test whose kernels were FP32's and are those of TF32."""
    recorded, folder = run_files.load(ROOT / H200), tmp_path_factory.mktemp("tables")
    (tf32,) = (m for m in recorded.measurements if m.configuration == "tf32")
    files = folder / "before.json", folder / "after.json"
    for file, name in zip(files, ("baseline", "tf32"), strict=True):
        measured = replace(tf32, kernels=counted(f"{name}-core"))
        run_files.save(replace(recorded, measurements=(measured,), verdicts=()), file)
    return files


def test_so_many_lines_about_kernels(gpuperf: Command, tables: tuple[Path, Path]) -> None:
    for kernels in (0, 3, 10):
        lines = gpuperf.lines(*tables, "--kernels", kernels, columns=150)
        titles = [at for at, line in enumerate(lines) if line.startswith("kernels: ")]
        assert len(titles) == (1 if kernels else 0)
        assert [len(lines) - at for at in titles] == [kernels] * len(titles)
        assert not any("no kernels to compare" in line for line in lines)


# Bad input


def test_tests_that_are_unknown_or_of_one_side_only(gpuperf: Command) -> None:
    said = gpuperf.refused(H200, OTHER_GPU, "--test", "tf64").splitlines()
    assert said[0].startswith('no test of the run matches "tf64"')
    assert "  suites/meddpm/test_training.py::test_training_step[tf32]" in said
    said = gpuperf.refused(FIVE, SEEDED, "--test", "*[baseline]").splitlines()
    assert said[0].endswith("so there is nothing to compare")
    assert said[-1] == f"b, {SEEDED}, has none"


def test_files_that_are_missing_or_empty(gpuperf: Command, tmp_path: Path) -> None:
    assert gpuperf.refused(H200, "other.json") == "other.json: no such run file"
    file = tmp_path / "run.json"
    run_files.save(run([]), file)
    assert gpuperf.refused(file, H200).endswith("has no measurements to compare")


def test_bad_words(gpuperf: Command) -> None:
    assert gpuperf.refused(H200, OTHER_GPU, "--kernels", -1).startswith("--kernels -1 must be 0")
    for words in (
        (),
        (H200, H200, H200),
        (H200, OTHER_GPU, "--kernels", "few"),
    ):
        code, said, complaint = gpuperf(*words)
        assert (code, said) == (errors.BAD_CONFIGURATION, "")
        assert "usage: gpuperf" in complaint
