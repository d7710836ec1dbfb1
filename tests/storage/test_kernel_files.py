"""The kernel tables beside baselines: what is kept of them, and what is refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_gpuperf.catalogue import kernel_families
from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.judge.attribution import Naming, attribute
from pytest_gpuperf.model.entry import KernelList
from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch
from pytest_gpuperf.storage import baseline_files, files, kernel_files, run_files
from tests import strategies
from tests.corruption import changed, refusal, unreadable, without
from tests.examples import A100, H200, TEST, measurement, run
from tests.kernel_steps import counted, table

TABLE = table(("conv", 900.0, 5e6), ("add", 20.0, 1e5), ("conv", 900.0, 5e6), idle=30.0)
LISTED = kernel_files.listed(TABLE)
SUITE = ("baseline-core", "channels_last-core", "tf32-core", "tf32_channels_last-core")
"""The four configurations of the Med-DDPM suite, recorded on an H200."""
NAMING = Naming(kernel_families.family, kernel_families.short_name)


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A baseline file, with the table of its only test beside it."""
    file = baseline_files.path_for(tmp_path, H200, "meddpm")
    beside = kernel_files.path_beside(file)
    content = kernel_files.content({TEST: {STEP: TABLE}}, H200, "meddpm")
    files.write_atomically(beside, content)
    return file


def found(baseline: Path, expected: KernelList | None = LISTED) -> KernelTable:
    """The table of the test's step."""
    return kernel_files.table_of(baseline, H200, "meddpm", TEST, STEP, expected)


def rewritten(baseline: Path, change: Callable[[Any], Any]) -> Path:
    """Changes what the file beside the baselines says; returns it."""
    beside = kernel_files.path_beside(baseline)
    text = json.dumps(change(files.read_json(beside, "")))
    beside.write_bytes(files.packed(text, beside))
    return beside


# Where they are


@pytest.mark.parametrize(
    ("yaml", "beside"),
    [
        ("a/meddpm.yaml", "a/meddpm.kernels.json.xz"),
        ("a/odd.name.yaml", "a/odd.name.kernels.json.xz"),
    ],
)
def test_they_are_beside_the_baselines_of_their_suite(yaml: str, beside: str) -> None:
    assert kernel_files.path_beside(Path(yaml)) == Path(beside)


# Which table an entry gets

BAD = replace(TABLE, metrics=(), mismatch="the trace has 3 kernels and the counters 4")
TRACED = table(("conv", 900.0), ("add", 20.0))


@pytest.mark.parametrize(
    ("tables", "chosen"),
    [
        ([], None),
        ([None, None], None),
        ([None, TABLE, TRACED], TABLE),
        ([TRACED, None, TABLE], TABLE),
        ([TRACED, replace(TRACED, idle=9.0)], TRACED),
        ([BAD, None], None),
        ([BAD, TRACED], TRACED),
    ],
    ids=[
        *("no process", "no table", "the first", "the one that was counted"),
        *("none was counted", "none that can be trusted", "what can be trusted"),
    ],
)
def test_one_process_stands_for_all(
    tables: list[KernelTable | None], chosen: KernelTable | None
) -> None:
    measured = [measurement(process=f"p{n}", kernels=table) for n, table in enumerate(tables)]
    assert kernel_files.chosen(measured) == chosen


# What the baseline file says of a table


def test_each_kernel_is_a_row_with_its_launches() -> None:
    names = ("ampere_sgemm_128x64_tn", "Memcpy DtoD (Device -> Device)", "ampere_sgemm_32x32_tn")
    step = table(*((names[index], 1.0) for index in (2, 0, 1, 0, 0)))
    assert kernel_files.listed(step).launches == (
        ("copy", "Memcpy DtoD (Device -> Device)", 1),
        ("gemm", "ampere_sgemm_128x64_tn", 3),
        ("gemm", "ampere_sgemm_32x32_tn", 1),
    )


@pytest.mark.parametrize("name", SUITE)
def test_no_launch_of_a_recorded_step_is_left_out(name: str) -> None:
    step = counted(name)
    rows = kernel_files.listed(step).launches
    assert sum(launches for _, _, launches in rows) == len(step.launches)
    assert len({row[:2] for row in rows}) == len(rows)


def test_two_executions_of_one_step_differ_in_their_digest_alone() -> None:
    one, other = (kernel_files.listed(counted(name)) for name in ("tf32-core", "tf32-core-1"))
    assert one.launches == other.launches
    assert one.digest != other.digest


def with_launch(**changes: Any) -> KernelTable:
    """The table with another first launch."""
    return replace(TABLE, launches=(replace(TABLE.launches[0], **changes), *TABLE.launches[1:]))


@pytest.mark.parametrize(
    "other",
    [
        with_launch(duration=900_000.1),
        with_launch(grid=(2, 1, 1)),
        with_launch(values=(1.0, None)),
        with_launch(name=1),
        replace(TABLE, names=("conv2", "add")),
        replace(TABLE, idle=0.0),
        replace(TABLE, launches=TABLE.launches[::-1][:2]),
    ],
)
def test_whatever_is_another_has_another_digest(other: KernelTable) -> None:
    assert kernel_files.digest(other) != LISTED.digest


def test_a_digest_is_short_and_always_the_same() -> None:
    assert LISTED.digest == "9f41ab6b6a1a8875"


# There and back


@given(table=strategies.tables)
def test_a_table_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, table: KernelTable
) -> None:
    baseline = tmp_path_factory.mktemp("tables") / "meddpm.yaml"
    content = kernel_files.content({TEST: {STEP: table}}, H200, "meddpm")
    files.write_atomically(kernel_files.path_beside(baseline), content)
    assert found(baseline, kernel_files.listed(table)) == table


def test_recorded_tables_blame_the_same_when_they_come_back(tmp_path: Path) -> None:
    tables = {name: {STEP: counted(name)} for name in SUITE}
    beside = kernel_files.path_beside(tmp_path / "meddpm.yaml")
    beside.write_bytes(kernel_files.content(tables, H200, "meddpm"))
    # The tables of a whole suite: 137 kB, of 1.0 MB.
    assert beside.stat().st_size < 200_000
    known = kernel_files.load_for(tmp_path / "meddpm.yaml", H200, "meddpm")
    assert known is not None
    assert known.tests == tables
    for measured in ("tf32-core-1", "tf32_channels_last-core"):
        back = attribute(counted(measured), known.tests["tf32-core"][STEP], NAMING)
        assert back == attribute(counted(measured), counted("tf32-core"), NAMING)
        assert back.launched.changed is (measured != "tf32-core-1")


def test_the_same_tables_make_the_same_file() -> None:
    tables = {TEST: {STEP: TABLE}}
    one, other = (kernel_files.content(tables, H200, "meddpm") for _ in range(2))
    assert one == other


# What cannot be trusted


def test_what_was_accepted_is_found(baseline: Path) -> None:
    assert found(baseline) == TABLE


def test_an_entry_without_kernels_says_how_to_get_them(baseline: Path) -> None:
    with pytest.raises(BadFile, match=r"the entry has no kernels.*gpuperf record") as caught:
        found(baseline, None)
    assert str(caught.value).startswith(f"{baseline}: tests/{TEST}/step: ")


def test_a_file_that_is_gone_says_how_to_get_it_back(baseline: Path) -> None:
    kernel_files.path_beside(baseline).unlink()
    assert kernel_files.load_for(baseline, H200, "meddpm") is None
    with pytest.raises(BadFile, match=r"no such file\. Restore it from git, or delete it"):
        found(baseline)


def test_a_file_that_cannot_be_read_is_no_missing_one(baseline: Path) -> None:
    with unreadable(kernel_files.path_beside(baseline)):
        with pytest.raises(UsageFailure, match="cannot be read"):
            found(baseline)


@pytest.mark.parametrize("size", [0, 1, 30, -1])
def test_a_file_that_was_cut_short_is_refused(baseline: Path, size: int) -> None:
    beside = kernel_files.path_beside(baseline)
    beside.write_bytes(beside.read_bytes()[:size])
    message = refusal(lambda _: found(baseline), beside, BadFile)
    assert "not compressed by xz" in message or "not JSON" in message
    assert "Restore it from git" in message


LAUNCH = ("tests", TEST, STEP, "launches", 1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda data: [data], "expected a mapping"),
        (lambda data: without(data, ("schema",)), "schema version None is not 1"),
        (lambda data: changed(data, ("schema",), 2), "Install the version of pytest-gpuperf"),
        (lambda data: changed(data, ("arch",), "sm80"), 'arch: "sm80", in a file that lies where'),
        (lambda data: changed(data, ("device",), "NVIDIA H100"), 'device: "NVIDIA H100", in a'),
        (lambda data: changed(data, ("suite",), "other"), 'suite: "other", in a file that lies'),
        (lambda data: changed(data, ("tests",), {}), f"tests/{TEST}/step: no such entry"),
        (lambda data: changed(data, (*LAUNCH, "name"), 2), "launches/1/name: 2, and there are 2"),
        (lambda data: changed(data, (*LAUNCH, "name"), -1), "launches/1/name: -1, and there are"),
        (lambda data: changed(data, (*LAUNCH, "duration"), -1), "launches/1/duration: -1 ns"),
        (lambda data: changed(data, (*LAUNCH, "values"), [1]), "launches/1/values: 1, of 2 metri"),
        (lambda data: changed(data, (*LAUNCH, "grid"), [1, 2]), "launches/1/grid/2: Field requi"),
        (lambda data: changed(data, ("tests", TEST, STEP, "idle"), -5), f"{STEP}/idle: -5 ns"),
        (lambda data: changed(data, ("tests", TEST, STEP, "idle"), 5), "not the table that was ac"),
    ],
)
def test_what_cannot_be_true_is_refused(
    baseline: Path, change: Callable[[Any], Any], problem: str
) -> None:
    beside = rewritten(baseline, change)
    assert problem in refusal(lambda _: found(baseline), beside, BadFile)


def test_one_of_another_device_is_refused(baseline: Path) -> None:
    beside = kernel_files.path_beside(baseline)
    beside.write_bytes(kernel_files.content({TEST: {STEP: TABLE}}, A100, "meddpm"))
    assert "those of" in refusal(lambda _: found(baseline), beside, BadFile)


def test_runs_with_such_tables_are_refused_too(tmp_path: Path) -> None:
    bad = replace(TABLE, launches=(Launch(7, "kernel", None, None, 1.0),))
    run_files.save(run([measurement(kernels=bad)]), tmp_path / "run.json")
    message = refusal(run_files.load, tmp_path / "run.json", BadFile)
    assert "measurements/0/kernels/launches/0/name: 7, and there are 2 names" in message


def test_compression_is_that_of_xz(baseline: Path) -> None:
    text = lzma.decompress(kernel_files.path_beside(baseline).read_bytes()).decode()
    assert text.startswith('{"schema":1,"arch":"sm90","device":"NVIDIA H200","suite":"meddpm"')
