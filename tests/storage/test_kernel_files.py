"""The kernel tables beside baselines: what is kept of them, and what is refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.entry import KernelList
from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch
from pytest_gpuperf.storage import baseline_files, files, kernel_files, run_files
from tests import strategies
from tests.corruption import changed, refusal, unreadable, without
from tests.examples import H200, TEST, measurement, run
from tests.kernel_steps import counted, operators, table

TABLE = table(("conv", 900.0, 5e6), ("add", 20.0, 1e5), ("conv", 900.0, 5e6), idle=30.0)
LISTED = kernel_files.listed(TABLE)
SUITE = ("baseline-core", "channels_last-core", "tf32-core", "tf32_channels_last-core")
"""The four configurations of the Med-DDPM suite, recorded on an H200."""


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    """A baseline file, with the table of its only test beside it."""
    file = baseline_files.path_for(tmp_path, H200, "meddpm")
    beside = kernel_files.path_beside(file)
    content = kernel_files.content({TEST: {STEP: TABLE}}, H200, "meddpm")
    files.write_atomically(beside, content)
    return file


def accepted(baseline: Path, expected: KernelList | None = LISTED) -> KernelTable:
    """The table of the test's step."""
    return kernel_files.table_of(baseline, H200, "meddpm", TEST, STEP, expected)


# Which table an entry gets


def test_one_process_stands_for_all() -> None:
    bad = replace(TABLE, metrics=(), mismatch="the trace has 3 kernels and the counters 4")
    traced = table(("conv", 900.0), ("add", 20.0))
    tables: Sequence[KernelTable | None]
    for tables, chosen in (
        ([], None),
        ([None, None], None),
        ([None, TABLE, traced], TABLE),
        ([traced, None, TABLE], TABLE),  # the one that was counted
        ([traced, replace(traced, idle=9.0)], traced),  # none was counted
        ([bad, None], None),  # none that can be trusted
        ([bad, traced], traced),
    ):
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


def test_no_launch_of_a_recorded_step_is_left_out() -> None:
    listed = {name: kernel_files.listed(counted(name)) for name in (*SUITE, "tf32-core-1")}
    for name, kernels in listed.items():
        rows = kernels.launches
        assert sum(launches for _, _, launches in rows) == len(counted(name).launches)
        assert len({row[:2] for row in rows}) == len(rows)
    # Two executions of one step differ in their digest alone.
    one, other = listed["tf32-core"], listed["tf32-core-1"]
    assert one.launches == other.launches
    assert one.digest != other.digest


def with_launch(**changes: Any) -> KernelTable:
    """The table with another first launch."""
    return replace(TABLE, launches=(replace(TABLE.launches[0], **changes), *TABLE.launches[1:]))


def test_a_digest_is_always_the_same_and_another_of_whatever_is_another() -> None:
    others = (
        with_launch(duration=900_000.1),
        with_launch(grid=(2, 1, 1)),
        with_launch(values=(1.0, None)),
        with_launch(name=1),
        replace(TABLE, names=("conv2", "add")),
        replace(TABLE, idle=0.0),
        replace(TABLE, launches=TABLE.launches[::-1][:2]),
    )
    assert LISTED.digest == kernel_files.digest(TABLE) == "9f41ab6b6a1a8875"
    assert len({kernel_files.digest(one) for one in (TABLE, *others)}) == 1 + len(others)
    # An edit elsewhere in a file moves lines.
    lines = [operators(("mm", f"model.py:{line} Net.forward")) for line in (3, 4)]
    assert lines[0] != lines[1]
    assert len({kernel_files.digest(one) for one in lines}) == 1


# There and back


@settings(max_examples=25)
@given(table=strategies.tables)
def test_a_table_comes_back_the_same(
    tmp_path_factory: pytest.TempPathFactory, table: KernelTable
) -> None:
    baseline = tmp_path_factory.mktemp("tables") / "meddpm.yaml"
    content = kernel_files.content({TEST: {STEP: table}}, H200, "meddpm")
    assert content == kernel_files.content({TEST: {STEP: table}}, H200, "meddpm")
    text = lzma.decompress(content).decode()
    assert text.startswith('{"schema":1,"arch":"sm90","device":"NVIDIA H200","suite":"meddpm"')
    kernel_files.path_beside(baseline).write_bytes(content)
    assert accepted(baseline, kernel_files.listed(table)) == table


# What cannot be trusted


def test_what_was_accepted_is_there_or_it_is_said_how_to_get_it(baseline: Path) -> None:
    assert accepted(baseline) == TABLE
    with pytest.raises(BadFile, match=r"the entry has no kernels.*gpuperf record") as caught:
        accepted(baseline, None)
    assert str(caught.value).startswith(f"{baseline}: tests/{TEST}/step: ")
    with unreadable(kernel_files.path_beside(baseline)):
        with pytest.raises(UsageFailure, match="cannot be read"):
            accepted(baseline)


def test_a_file_that_is_gone_or_was_cut_short_says_how_to_get_it_back(baseline: Path) -> None:
    beside = kernel_files.path_beside(baseline)
    content = beside.read_bytes()
    for size in (0, 1, 30, -1):
        beside.write_bytes(content[:size])
        message = refusal(lambda _: accepted(baseline), beside, BadFile)
        assert "not compressed by xz" in message or "not JSON" in message
        assert "Restore it from git" in message
    beside.unlink()
    assert kernel_files.load_for(baseline, H200, "meddpm") is None
    with pytest.raises(BadFile, match=r"no such file\. Restore it from git, or delete it"):
        accepted(baseline)


HERE = ("tests", TEST, STEP)
LAUNCH = (*HERE, "launches", 1)
WRONG: list[tuple[tuple[str | int, ...], object, str]] = [
    (("schema",), 2, "Install the version of pytest-gpuperf"),
    (("arch",), "sm80", 'arch: "sm80", in a file that lies where those of'),
    (("device",), "NVIDIA H100", 'device: "NVIDIA H100", in a'),
    (("suite",), "other", 'suite: "other", in a file that lies'),
    (("tests",), {}, f"tests/{TEST}/step: no such entry"),
    ((*LAUNCH, "name"), 2, "launches/1: 2, and there are 2"),
    ((*LAUNCH, "name"), -1, "launches/1: -1, and there are"),
    ((*LAUNCH, "duration"), -1, "launches/1: -1 ns"),
    ((*LAUNCH, "values"), [1], "launches/1/values: 1, of 2"),
    ((*LAUNCH, "grid"), [1, 2], "launches/1/grid/2: Field requi"),
    ((*HERE, "idle"), -5, f"{STEP}/idles/0: -5 ns"),
    ((*HERE, "site_of"), [0, 0], "site_of: 2, and there are 3"),
    ((*HERE, "site_of"), [0, 0, 0], "site_of/0: 0, and there are 0"),
    (
        (*HERE, "calls"),
        [{"name": "cudaMalloc", "site": 0, "count": 1}],
        "calls/0: 0, and there",
    ),
    ((*HERE, "idle_at"), [{"site": 0, "idle": -1}], "idle_at/0: 0, and there are 0"),
    ((*HERE, "busy"), [5.0], "idles: 0, and there are 1"),
    ((*HERE, "idle"), 5, "not the table that was ac"),
]


def test_what_cannot_be_true_is_refused(baseline: Path) -> None:
    beside = kernel_files.path_beside(baseline)
    data: Any = files.read_json(beside, "")
    cases = [(changed(data, path, value), problem) for path, value, problem in WRONG]
    cases.append((without(data, ("schema",)), "schema version None is not 1"))
    for wrong, problem in ([data], "expected a mapping"), *cases:
        beside.write_bytes(files.packed(json.dumps(wrong).encode(), beside))
        assert problem in refusal(lambda _: accepted(baseline), beside, BadFile), problem


def test_runs_with_such_tables_are_refused_too(tmp_path: Path) -> None:
    bad = replace(TABLE, launches=(Launch(7, "kernel", None, None, 1.0),))
    run_files.save(run([measurement(kernels=bad)]), tmp_path / "run.json")
    message = refusal(run_files.load, tmp_path / "run.json", BadFile)
    assert "measurements/0/kernels/launches/0: 7, and there are 2" in message
