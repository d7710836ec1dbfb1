"""The published schemas: up to date, and of one mind with what loading a file accepts."""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model import entry
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import files, run_files, schemas
from tests import ROOT, strategies
from tests.corruption import changed, without
from tests.examples import measurement, run, verdict

FOLDER = ROOT / "docs" / "schema"
RUNS = sorted(
    file
    for pattern in (
        *("docs/runs/cpu-*", "docs/runs/h200-*", "docs/runs/seeds/*", "docs/runs/collectors/*"),
        "tests/data/h200-campaign/*",
    )
    for file in ROOT.glob(pattern)
)
BASELINES = sorted((ROOT / "baselines").rglob("*.yaml"))
TABLES = sorted((ROOT / "baselines").rglob("*.kernels.json.xz"))
PLAIN: Any = files.to_plain(run([measurement(phases={"forward": {"cycles": [1.0]}})], [verdict()]))


def published(kind: str) -> dict[str, Any]:
    """The committed schema of a kind of file."""
    found: dict[str, Any] = read(FOLDER / f"{kind}.schema.json")
    return found


def problems(kind: str, data: object) -> list[str]:
    """What is wrong with `data`, by the committed schema."""
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in Draft202012Validator(published(kind)).iter_errors(data)
    ]


def read(file: Path) -> Any:
    """The JSON in a file, as any program reads it."""
    content = file.read_bytes()
    return json.loads(lzma.decompress(content) if file.suffix == ".xz" else content)


def name(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_the_committed_schemas_are_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "script" / "schema"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("kind", schemas.KINDS)
def test_a_schema_is_one_of_2020_12(kind: str) -> None:
    found = published(kind)
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["$id"] == f"urn:pytest-gpuperf:{kind}:1"


def test_entries_are_described() -> None:
    described = published("run")["$defs"]["Launch"]["properties"]
    assert described["duration"]["description"] == (
        "Nanoseconds on the GPU, from a trace without counters."
    )
    assert described["grid"]["description"].startswith("Blocks; null for copies")


# What is committed


@pytest.mark.parametrize("file", RUNS, ids=name)
def test_committed_runs_validate(file: Path) -> None:
    assert not problems("run", read(file))


@pytest.mark.parametrize("file", BASELINES, ids=name)
def test_committed_baselines_validate(file: Path) -> None:
    assert not problems("baseline", yaml.safe_load(file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", TABLES, ids=name)
def test_committed_kernel_tables_validate(file: Path) -> None:
    assert not problems("kernels", read(file))


def test_another_program_agrees(tmp_path: Path) -> None:
    run_files.save(run([measurement()], [verdict()]), tmp_path / "run.json")
    command = [sys.executable, "-m", "check_jsonschema", "--schemafile"]
    command += [str(FOLDER / "run.schema.json"), str(tmp_path / "run.json")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


# What is loaded


@given(strategies.run_files)
def test_every_run_that_is_saved_validates(found: Run) -> None:
    assert not problems("run", json.loads(files.to_json(found)))


@given(strategies.baselines)
def test_every_baseline_that_is_saved_validates(found: entry.BaselineFile) -> None:
    assert not problems("baseline", json.loads(files.to_json(found)))


FIRST = ("measurements", 0)
SAID = ("verdicts", 0)


@pytest.mark.parametrize(
    "data",
    [
        changed(PLAIN, ["schema"], 2),
        changed(PLAIN, ["schema"], "1"),
        changed(PLAIN, ["extra"], 1),
        changed(PLAIN, ["measurements"], {}),
        changed(PLAIN, [*FIRST, "test"], None),
        changed(PLAIN, [*FIRST, "extra"], "x"),
        changed(PLAIN, [*FIRST, "samples", 0, "values"], ["1"]),
        changed(PLAIN, [*FIRST, "samples", 0, "values", 0], None),
        changed(PLAIN, [*FIRST, "workload"], {"size": [1]}),
        changed(PLAIN, [*FIRST, "fingerprint", "software"], {"torch": 2}),
        changed(PLAIN, [*SAID, "outcome"], "slower"),
        changed(PLAIN, [*SAID, "points"], 0),
        changed(PLAIN, [*SAID, "processes"], 1.5),
        without(PLAIN, ["created"]),
        without(PLAIN, [*FIRST, "fingerprint"]),
        without(PLAIN, [*SAID, "reason"]),
        [],
    ],
)
def test_what_loading_refuses_the_schema_refuses(data: object, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(BadFile):
        run_files.load(file)
    assert problems("run", data)
    assert not problems("run", PLAIN)
