"""Baseline files of schema 1: read as those of today, and refused where they cannot be trusted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.measurement import STEP
from pytest_gpuperf.storage import baseline_files, data_files, files, schema_1
from tests import ROOT
from tests.corruption import changed

OLD = ROOT / "tests" / "data" / "schema-1" / "meddpm.yaml"
"""Two entries of the CPU's baselines as they were, with their kernel tables beside them."""
NEW = ROOT / "baselines" / "cpu" / "portable" / "meddpm.yaml"
TEST = "suites/meddpm/test_training.py::test_training_step[channels_last]"
RANKS = "suites/meddpm/test_ranks.py::test_training_step_over_ranks[fsdp2-tf32-2]"


@pytest.fixture(scope="module")
def plain() -> Any:
    """What the old file says."""
    return yaml.load(OLD.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)


def test_an_entry_says_what_it_said() -> None:
    loaded = baseline_files.load(OLD)
    assert loaded is not None
    assert (loaded.schema, loaded.suite, [*loaded.tests]) == (2, "meddpm", [RANKS, TEST])
    entry = loaded.tests[TEST][STEP]
    assert (entry.recorded, entry.where) == ("2026-11-23", ("838fbb58b5ce 2026-11-23 x5",))
    assert entry.metrics["operators"] == 3591
    assert {"graph_breaks", "recompilations"} <= {*entry.zero}
    assert entry.origin is not None
    assert entry.origin.metrics["flops"] == 32181628928
    assert [(log.processes, bool(log.moved)) for log in entry.log] == [
        *((3, False), (5, True), (5, False), (5, False))
    ]
    assert entry.log[1].moved["flops"] == "-87.50 %"


def test_the_rest_of_an_entry_is_its_data(plain: Any) -> None:
    tables = files.read_json(OLD.with_name("meddpm.kernels.json.xz"), "")
    data = schema_1.entry_data(plain, tables, TEST, STEP)
    assert data.samples["step"]["operators"] == ((3591.0, 3591.0),) * 5
    assert {"forward", "backward", "optimizer"} < {*data.samples}
    assert data.kernels is not None
    assert sum(1 for _ in data.kernels.launches) > 40
    assert schema_1.entry_data(plain, {}, TEST, STEP).kernels is None
    # So were the committed ones made.
    migrated = baseline_files.load(NEW)
    assert migrated is not None
    assert data_files.load(NEW, migrated.tests[TEST][STEP].data, "") == data
    old = baseline_files.load(OLD)
    assert old is not None
    assert old.tests[TEST][STEP].metrics == migrated.tests[TEST][STEP].metrics


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("accepted",), None),
        (("tests", TEST, STEP, "samples"), None),
        (("tests", TEST, STEP, "samples", "step", "operators"), [["many"]]),
        (("tests", TEST, STEP, "units"), ["a"]),
        (("tests", TEST, STEP, "workload"), []),
        (("metric_units", "flops"), "GFLOP"),
    ],
)
def test_what_cannot_be_trusted_is_refused(
    plain: Any, file: Path, place: tuple[str, ...], value: object
) -> None:
    file.write_text(yaml.safe_dump(changed(plain, place, value)), encoding="utf-8")
    with pytest.raises(BadFile) as caught:
        baseline_files.load(file)
    assert caught.value.file == file


def test_saving_over_an_old_file_would_lose_its_rounds_and_is_refused(file: Path) -> None:
    file.write_bytes(OLD.read_bytes())
    loaded = baseline_files.load(file)
    assert loaded is not None
    with pytest.raises(UsageFailure, match="--migrate"):
        baseline_files.save(loaded, file)
    assert file.read_bytes() == OLD.read_bytes()


def test_one_that_was_cut_short_is_refused(file: Path) -> None:
    text = OLD.read_text(encoding="utf-8")
    file.write_text(text[: text.index("\naccepted:") + 1], encoding="utf-8")
    with pytest.raises(BadFile, match="KeyError: 'accepted'"):
        baseline_files.load(file)
