"""The data beside baselines: what is kept of an entry, and what is refused."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.entry import EntryData
from pytest_gpuperf.model.measurement import STEP, KernelTable, Launch
from pytest_gpuperf.storage import baseline_files, data_files, files, run_files
from tests import strategies
from tests.corruption import changed, refusal, unreadable, without
from tests.examples import H200, TEST, measurement, run
from tests.kernel_steps import table

TABLE = table(("conv", 900.0, 5e6), ("add", 20.0, 1e5), ("conv", 900.0, 5e6), idle=30.0)
DATA = EntryData(data_files.SCHEMA, {STEP: {"cycles": ((5.0, 6.0), (7.0,))}}, kernels=TABLE)
PLACE = f"tests/{TEST}/{STEP}"


def kept(folder: Path, data: EntryData = DATA, test: str = TEST) -> tuple[Path, str]:
    """A baseline file's place with this data beside it, and the name of the data's file."""
    baseline = folder / "meddpm.yaml"
    content = data_files.content(data)
    name = data_files.name_of(test, STEP, content)
    files.write_atomically(data_files.folder_beside(baseline) / name, content)
    return baseline, name


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
        assert data_files.chosen(measured) == chosen


# There and back


@settings(max_examples=25)
@given(table=strategies.tables, test=strategies.texts)
def test_data_comes_back_the_same_under_a_name_of_its_content(
    tmp_path_factory: pytest.TempPathFactory, table: KernelTable, test: str
) -> None:
    data = replace(DATA, kernels=table)
    baseline, name = kept(tmp_path_factory.mktemp("data"), data, test)
    assert data_files.load(baseline, name, PLACE) == data
    assert kept(baseline.parent, data, test) == (baseline, name)
    assert kept(baseline.parent, replace(data, samples={}), test)[1] != name


@given(test=st.text())
def test_a_name_is_a_file_in_one_folder(test: str) -> None:
    name = data_files.name_of(test, STEP, b"content")
    assert Path(name).name == name
    assert not name.startswith(".")
    assert len(name.encode()) < 255
    assert name.endswith("-ed7002b439e9.json.xz")


def test_what_a_file_says_of_a_metric_that_is_measured_no_more_is_dropped(tmp_path: Path) -> None:
    step = {**DATA.samples[STEP], "own_instructions": ((5.0,),)}
    baseline, name = kept(tmp_path, replace(DATA, samples={STEP: step}))
    assert data_files.load(baseline, name, PLACE) == DATA


def test_what_no_entry_names_is_told(tmp_path: Path) -> None:
    baseline, name = kept(tmp_path)
    _, other = kept(tmp_path, test="test_other")
    folder = data_files.folder_beside(baseline)
    (folder / "notes.txt").write_text("ours")
    made = baseline_files.entry_of([measurement()], "2026-03-01")
    empty = baseline_files.empty(H200, "meddpm")
    known = baseline_files.with_entry(empty, TEST, STEP, replace(made, data=name))
    assert data_files.unnamed(baseline, known) == [folder / other]
    assert len(data_files.unnamed(baseline, empty)) == 2


# What cannot be trusted


def test_what_was_accepted_is_there_or_it_is_said_how_to_get_it(tmp_path: Path) -> None:
    baseline, name = kept(tmp_path)
    file = data_files.folder_beside(baseline) / name
    for wrong in ("", "../../etc/passwd", f"x/{name}", name.replace(".json", ".jsonl")):
        with pytest.raises(BadFile) as caught:
            data_files.load(baseline, wrong, PLACE)
        assert (caught.value.file, caught.value.entry) == (baseline, f"{PLACE}/data")
    content = file.read_bytes()
    for size in (0, 30, -1):
        file.write_bytes(content[:size])
        message = refusal(lambda _: data_files.load(baseline, name, PLACE), file, BadFile)
        assert "the file was changed: its digest is" in message
    with unreadable(file), pytest.raises(UsageFailure, match="cannot be read"):
        data_files.load(baseline, name, PLACE)
    file.unlink()
    with pytest.raises(BadFile, match=r"no such file\. Restore it from git"):
        data_files.load(baseline, name, PLACE)


LAUNCH = ("kernels", "launches", 1)
WRONG: list[tuple[tuple[str | int, ...], object, str]] = [
    (("schema",), 3, "Install the version of pytest-gpuperf"),
    ((*LAUNCH, "name"), 2, "launches/1: index 2 of 2 entries"),
    ((*LAUNCH, "name"), -1, "launches/1: index -1 of"),
    ((*LAUNCH, "duration"), -1, "launches/1: -1 ns"),
    ((*LAUNCH, "values"), [1], "launches/1/values: 1 values for 2 metrics"),
    ((*LAUNCH, "grid"), [1, 2], "launches/1/grid/2: Field requi"),
    (("kernels", "idle"), -5, "idles/0: -5 ns"),
    (("kernels", "site_of"), [0, 0], "site_of: 2 entries, expected 3"),
    (("kernels", "site_of"), [0, 0, 0], "site_of/0: index 0 of 0"),
    (
        ("kernels", "calls"),
        [{"name": "cudaMalloc", "site": 0, "count": 1}],
        "calls/0: index 0 of",
    ),
    (("kernels", "idle_at"), [{"site": 0, "idle": -1}], "idle_at/0: index 0 of 0"),
    (("kernels", "busy"), [5.0], "idles: 0 entries, expected 1"),
]


def test_what_cannot_be_true_is_refused(tmp_path: Path) -> None:
    data: Any = json.loads(lzma.decompress(data_files.content(DATA)))
    cases = [(changed(data, path, value), problem) for path, value, problem in WRONG]
    cases.append(
        (without(data, ("schema",)), "schema version None, but this version of gpuperf reads 2")
    )
    for wrong, problem in ([data], "expected a mapping"), *cases:
        content = files.packed(json.dumps(wrong).encode(), Path("x.xz"))
        file = tmp_path / data_files.name_of(TEST, STEP, content)
        file.write_bytes(content)
        message = refusal(lambda file: data_files.parsed(file, file.read_bytes()), file, BadFile)
        assert problem in message, problem


def test_runs_with_such_tables_are_refused_too(tmp_path: Path) -> None:
    bad = replace(TABLE, launches=(Launch(7, "kernel", None, None, 1.0),))
    run_files.save(run([measurement(kernels=bad)]), tmp_path / "run.json")
    message = refusal(run_files.load, tmp_path / "run.json", BadFile)
    assert "measurements/0/kernels/launches/0: index 7 of 2 entries" in message
