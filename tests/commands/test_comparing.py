"""`gpuperf compare`: what is paired with what, and the command on runs that were recorded."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuperf import errors
from pytest_gpuperf.commands.compare import Chosen, compare
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.comparison import Comparison
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.storage import files, run_files
from tests import ROOT
from tests.examples import A100, measurement, run
from tests.kernel_steps import counted

H200 = "docs/runs/h200-meddpm.json"
OTHER_GPU = "docs/runs/h200-another-gpu.json"
CPU = "docs/runs/cpu-meddpm.json"
FIVE = "tests/data/h200-campaign/machine-3-0.json.xz"
SEEDED = "docs/runs/seeds/extra-kernel.json.xz"
"""Three processes, on the GPU of FIVE, of one more kernel in the step of tf32."""
BOTH = ("--config", "baseline", "--config", "tf32")


def gpuperf(*arguments: object, columns: int = 80) -> subprocess.CompletedProcess[str]:
    """Runs `gpuperf compare` where the committed runs are."""
    return subprocess.run(
        [sys.executable, "-m", "pytest_gpuperf", "compare", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": str(columns)},
    )


def printed(*arguments: object, columns: int = 80) -> list[str]:
    done = gpuperf(*arguments, columns=columns)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def refused(*arguments: object) -> str:
    """What it says to bad input, without the name of the command."""
    done = gpuperf(*arguments)
    assert (done.returncode, done.stdout) == (errors.BAD_CONFIGURATION, "")
    assert done.stderr.startswith("gpuperf: ")
    return done.stderr.removeprefix("gpuperf: ").removesuffix("\n")


# What is paired with what


def side(*measurements: Measurement, configuration: str | None = None) -> Chosen:
    return Chosen(Path("run.json"), "2026-03-01T12:00:00Z", measurements, configuration)


def of(test: str, configuration: str = "", **others: Any) -> Measurement:
    """A measurement of a test in tests/perf."""
    return measurement(test=f"tests/perf/{test}", configuration=configuration, **others)


def paired(found: Comparison) -> list[tuple[str, str]]:
    """The tests of the pairs, from the last :: on."""
    return [(one.a.test.split("::")[1], one.b.test.split("::")[1]) for one in found.pairs]


def test_by_test_and_name_in_the_order_of_a() -> None:
    one, two = of("x.py::one"), of("x.py::two")
    other_name = of("x.py::one", name="sampling")
    elsewhere = of("y.py::one")
    found = compare(side(two, one, other_name), side(one, elsewhere, two))
    assert paired(found) == [("two", "two"), ("one", "one")]
    assert [(e.test, e.name) for e in found.only_a] == [(one.test, "sampling")]
    assert [(e.test, e.name) for e in found.only_b] == [(elsewhere.test, "step")]


def test_all_processes_of_a_test_are_one_measurement() -> None:
    three = [of("x.py::one", process=name) for name in ("p1", "p2", "p3")]
    lone = [of("x.py::lone", process=name) for name in ("p1", "p2")]
    found = compare(side(*three, *lone), side(*three[:2]))
    (pair,) = found.pairs
    assert (pair.a.processes, pair.b.processes) == (3, 2)
    assert found.only_a[0].processes == 2


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x.py::step[baseline]", "x.py::step[tf32]"),
        ("x.py::step[64-baseline-cpu]", "x.py::step[64-tf32-cpu]"),
        ("x.py::step_baseline", "x.py::step_tf32"),
        ("x.py::TestBaseline::step", "x.py::TestBaseline::step"),
        ("baseline/x.py::step", "tf32/x.py::step"),
        ("baseline/x.py::step[baseline]", "baseline/x.py::step[tf32]"),
    ],
)
def test_two_configurations_of_one_test(a: str, b: str) -> None:
    found = compare(
        side(of(a, "baseline"), configuration="baseline"),
        side(of(b, "tf32"), configuration="tf32"),
    )
    assert len(found.pairs) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("x.py::step[64-baseline]", "x.py::step[32-tf32]"),
        ("x.py::training[baseline]", "x.py::sampling[tf32]"),
        ("x.py::step[baseline2]", "x.py::step[tf32]"),
    ],
)
def test_other_tests_are_not_paired(a: str, b: str) -> None:
    with pytest.raises(UsageFailure, match="nothing to compare"):
        compare(
            side(of(a, "baseline"), configuration="baseline"),
            side(of(b, "tf32"), configuration="tf32"),
        )


def test_one_configuration_of_both_keeps_the_tests_apart() -> None:
    chosen = side(of("x.py::step[tf32]", "tf32"), configuration="tf32")
    assert paired(compare(chosen, chosen)) == [("step[tf32]", "step[tf32]")]


def test_nothing_to_pair_lists_what_there_is() -> None:
    many = [of(f"x.py::t{number}") for number in range(12)]
    with pytest.raises(UsageFailure) as caught:
        compare(side(*many), side(of("y.py::t", name="sampling")))
    lines = str(caught.value).splitlines()
    assert lines[1:3] == ["a, run.json, has", "  tests/perf/x.py::t0"]
    assert lines[12:] == ["  and 2 more", "b, run.json, has", "  tests/perf/y.py::t, sampling"]


# The command


def test_two_configurations_of_a_run() -> None:
    found = printed(H200, *BOTH)
    assert "test_training_step[baseline] -> test_training_step[tf32] (1 process each)" in found
    assert "  cycles            2.4739 G   438.02 M  -82.29 %" in found
    assert not any(line.startswith("only in") for line in found)


def test_two_runs() -> None:
    found = printed(H200, OTHER_GPU, columns=120)
    assert sum(line.endswith("(1 process each)") for line in found) == 4
    assert any(line.startswith("measured on other GPUs of one name") for line in found)


def test_processes_have_intervals_and_what_has_no_partner_is_listed() -> None:
    found = printed(FIVE, SEEDED)
    assert "test_training_step[tf32] (5 and 3 processes)" in found
    (cycles,) = (line for line in found if line.startswith("  cycles "))
    assert " ".join(cycles.split()) == "cycles 433.81 M 438.16 M +1.00 % +0.75 to +1.24 %"
    assert found[found.index("only in a:") + 1].startswith("  suites/meddpm/test_training.py::")


def test_two_devices() -> None:
    found = " ".join(printed(CPU, H200, "--config", "tf32"))
    assert "a is of portable (cpu), b of NVIDIA H200 (sm90): what changes is the device" in found
    assert "workload differs: size 32 -> 128" in found


def test_one_configuration_of_two_runs() -> None:
    found = printed(H200, OTHER_GPU, "--config", "tf32")
    assert [line for line in found if line.endswith("each)")] == [
        "test_training_step[tf32] (1 process each)"
    ]
    assert "baseline" not in " ".join(found)


def test_one_configuration_of_one_run_with_another_of_another() -> None:
    found = printed(H200, FIVE, *BOTH)
    title = "test_training_step[baseline] -> test_training_step[tf32] (1 and 5 processes)"
    assert title in found


@pytest.mark.parametrize(
    ("patterns", "tests"),
    [
        (["*[tf32]"], 1),
        (["tf32"], 2),
        (["*[tf32]", "[baseline]"], 2),
    ],
)
def test_only_the_tests_that_match(patterns: Sequence[str], tests: int) -> None:
    words = [word for pattern in patterns for word in ("--test", pattern)]
    found = printed(H200, OTHER_GPU, *words)
    assert sum(line.endswith("each)") for line in found) == tests


def test_a_run_with_itself_has_not_changed() -> None:
    found = printed(H200, H200, "--config", "tf32")
    assert sum(line.endswith(" 0 %") for line in found) == 22


@pytest.mark.parametrize("columns", [120, 80, 50])
@pytest.mark.parametrize("words", [(H200, *BOTH), (FIVE, SEEDED), (CPU, H200)], ids=str)
def test_it_fits_the_terminal(words: tuple[str, ...], columns: int) -> None:
    assert max(map(len, printed(*words, columns=columns))) <= columns


def test_markdown() -> None:
    found = printed(FIVE, SEEDED, "--format", "markdown")
    assert found[0] == "# gpuperf compare"
    assert "| metric | a | b | change | 99.5 % interval |" in found
    assert "| cycles | 433.81 M | 438.16 M | +1.00 % | +0.75 to +1.24 % |" in found


def test_json_is_the_comparison() -> None:
    text = gpuperf(FIVE, SEEDED, "--format", "json").stdout
    found = files.adapter(Comparison).validate_json(text, strict=True)
    assert (found.schema, found.a.run, found.b.run) == (1, FIVE, SEEDED)
    (pair,) = found.pairs
    assert pair.metrics[0].unit == "cycles"
    assert pair.metrics[0].change == pytest.approx(0.01, rel=0.01)
    assert len(found.only_a) == 3
    assert set(json.loads(text)) == {"schema", "a", "b", "pairs", "only_a", "only_b"}


def test_who_reads_only_the_beginning_gets_no_traceback() -> None:
    command = f"{sys.executable} -m pytest_gpuperf compare {H200} {OTHER_GPU} --format json"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


# Kernels


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of an H200 with the kernel tables that one of its name made."""
    recorded = run_files.load(ROOT / H200)
    file = tmp_path_factory.mktemp("tables") / "run.json"
    measured = (
        replace(found, kernels=counted(f"{found.configuration}-core"))
        for found in recorded.measurements
    )
    run_files.save(replace(recorded, measurements=tuple(measured), verdicts=()), file)
    return file


@pytest.mark.parametrize("kernels", [0, 3, 10])
def test_kernel_by_kernel(kernels: int, tables: Path) -> None:
    found = printed(tables, *BOTH, "--kernels", kernels, columns=150)
    titles = [line for line in found if line.startswith("kernels and gaps: ")]
    assert len(titles) == (1 if kernels else 0)
    rows = [line for line in found if re.search(r"\d launch(es)?$", line) and line[0] == " "]
    assert len(rows) == kernels
    assert not any("no kernels to compare" in line for line in found)


@pytest.mark.parametrize("columns", [120, 80, 50])
def test_kernels_fit_the_terminal(columns: int, tables: Path) -> None:
    assert max(map(len, printed(tables, *BOTH, columns=columns))) <= columns


def test_all_kernels_are_in_the_json(tables: Path) -> None:
    text = gpuperf(tables, *BOTH, "--format", "json", "--kernels", 1).stdout
    found = files.adapter(Comparison).validate_json(text, strict=True)
    blame = found.pairs[0].attribution
    assert blame is not None
    assert len(blame.entries) > 100
    without = json.loads(gpuperf(tables, *BOTH, "--format", "json", "--kernels", 0).stdout)
    assert without["pairs"][0]["blame"] is None


def test_kernels_of_two_devices(tables: Path, tmp_path: Path) -> None:
    recorded = run_files.load(tables)
    measured = (
        replace(found, fingerprint=replace(found.fingerprint, device=A100))
        for found in recorded.measurements
    )
    run_files.save(replace(recorded, measurements=tuple(measured)), tmp_path / "a100.json")
    found = printed(tmp_path / "a100.json", tables, "--test", "*[tf32]")
    assert any(line.startswith("kernels and gaps: ") for line in found)
    assert any("what changes is" in line for line in found)


def test_one_side_without_kernels(tables: Path) -> None:
    found = printed(tables, H200)
    assert found.count("no kernels to compare: b was measured without them") == 1


# Bad input


def test_one_run_alone() -> None:
    assert refused(H200) == (
        f"{H200}: compare it with what? Name a second run, or two of its configurations "
        "(--config A --config B); it has baseline, tf32, channels_last, tf32_channels_last"
    )
    assert "compare it with what?" in refused(H200, "--config", "tf32")


@pytest.mark.parametrize(
    ("words", "file"),
    [
        ((H200, "--config", "tf32", "--config", "tf64"), H200),
        ((H200, OTHER_GPU, "--config", "tf64"), H200),
        ((H200, SEEDED, "--config", "tf32", "--config", "tf64"), SEEDED),
    ],
)
def test_an_unknown_configuration_lists_those_there_are(words: tuple[str, ...], file: str) -> None:
    said = refused(*words)
    assert said.startswith(f'{file} has no configuration "tf64"; it has ')
    assert said.endswith("tf32" if file == SEEDED else "tf32_channels_last")


def test_three_configurations() -> None:
    assert refused(H200, *BOTH, "--config", "channels_last") == (
        "--config is given 3 times: two configurations can be compared"
    )


def test_an_unknown_test() -> None:
    said = refused(H200, OTHER_GPU, "--test", "tf64").splitlines()
    assert said[0].startswith('no test of the run matches "tf64"')
    assert "  suites/meddpm/test_training.py::test_training_step[tf32]" in said


def test_tests_that_only_one_side_has() -> None:
    said = refused(FIVE, SEEDED, "--test", "*[baseline]").splitlines()
    assert said[0].startswith("nothing to compare")
    assert said[-1] == f"b, {SEEDED}, has none"


@pytest.mark.parametrize("number", [-1, "few"])
def test_a_bad_number_of_kernels(number: object) -> None:
    done = gpuperf(H200, *BOTH, "--kernels", number)
    assert (done.returncode, done.stdout) == (errors.BAD_CONFIGURATION, "")
    assert f"--kernels {number}: a whole number from 0" in done.stderr or (
        f"--kernels: invalid int value: '{number}'" in done.stderr
    )


def test_a_run_without_measurements(tmp_path: Path) -> None:
    run_files.save(run([]), tmp_path / "empty.json")
    assert refused(tmp_path / "empty.json", H200).endswith("has no measurements to compare")


def test_a_missing_file() -> None:
    assert refused(H200, "other.json") == "other.json: no such run file"


def test_a_damaged_file(tmp_path: Path) -> None:
    text = (ROOT / H200).read_text(encoding="utf-8")
    damaged = tmp_path / "damaged.json"
    damaged.write_text(text.replace('"schema": 1', '"schema": 0', 1), encoding="utf-8")
    assert refused(damaged, H200).startswith(f"{damaged}: schema: schema version 0 is not 1")
    damaged.write_text(text[: len(text) // 2], encoding="utf-8")
    assert refused(H200, damaged).startswith(f"{damaged}: line ")


@pytest.mark.parametrize("words", [(), ("--format", "html", H200, H200), (H200, H200, H200)])
def test_bad_words(words: tuple[str, ...]) -> None:
    done = gpuperf(*words)
    assert done.returncode == errors.BAD_CONFIGURATION
    assert "usage: gpuperf" in done.stderr
