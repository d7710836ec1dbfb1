"""The published schemas: up to date, and of one mind with what loading a file accepts."""

from __future__ import annotations

import json
import lzma
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from jsonschema import Draft202012Validator

from pytest_gpuperf.errors import BadFile
from pytest_gpuperf.model import entry
from pytest_gpuperf.model.result import Run
from pytest_gpuperf.storage import files, run_files
from tests import ROOT, strategies
from tests.corruption import changed, without
from tests.examples import measurement, run, verdict

FOLDER = ROOT / "docs" / "schema"
COMMITTED = {
    "run": (
        *("docs/runs/cpu-*", "docs/runs/h200-*", "docs/runs/seeds/*", "docs/runs/collectors/*"),
        "tests/data/h200-campaign/*",
    ),
    "baseline": ("baselines/**/*.yaml",),
    "data": ("baselines/*/*/*/*.json.xz",),
}
PLAIN: Any = files.to_plain(run([measurement(phases={"forward": {"cycles": [1.0]}})], [verdict()]))
PUBLISHED: dict[str, Any] = {
    kind: json.loads((FOLDER / f"{kind}.schema.json").read_text(encoding="utf-8"))
    for kind in COMMITTED
}
VALIDATORS = {kind: Draft202012Validator(schema) for kind, schema in PUBLISHED.items()}


def problems(kind: str, data: object) -> list[str]:
    """What is wrong with `data`, by the committed schema."""
    return [
        f"{error.json_path}: {error.message[:200]}" for error in VALIDATORS[kind].iter_errors(data)
    ]


def read(file: Path) -> Any:
    """What a file holds, as any program reads it."""
    content = file.read_bytes()
    if file.suffix == ".yaml":
        return yaml.load(content, Loader=yaml.CSafeLoader)
    return json.loads(lzma.decompress(content) if file.suffix == ".xz" else content)


def thinned(data: Any) -> Any:
    """About 5 of the items of each list: a run has 100,000 launches, one like the other."""
    if isinstance(data, dict):
        return {key: thinned(value) for key, value in data.items()}
    if isinstance(data, list):
        return [thinned(item) for item in data[:: max(1, len(data) // 5)]]
    return data


def test_the_committed_schemas_are_up_to_date_and_valid() -> None:
    script = runpy.run_path(str(ROOT / "script" / "schema"))
    # No file has the doctor's answers: tests/commands/test_doctor.py has them.
    assert list(script["KINDS"]) == [*COMMITTED, "doctor"]
    assert script["main"](["--check"]) == 0
    for kind, published in PUBLISHED.items():
        Draft202012Validator.check_schema(published)
        assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert published["$id"] == f"urn:pytest-gpuperf:{kind}:{script['KINDS'][kind][1]}"


def test_committed_files_validate() -> None:
    for kind in COMMITTED:
        committed = [file for pattern in COMMITTED[kind] for file in sorted(ROOT.glob(pattern))]
        committed = committed[:: len(committed) // 8 or 1]
        assert committed, kind
        for file in committed:
            assert not problems(kind, thinned(read(file))), file


@strategies.whole_files
@given(saved=strategies.run_files, baselines=strategies.baselines)
def test_whatever_is_saved_validates(saved: Run, baselines: entry.BaselineFile) -> None:
    assert not problems("run", json.loads(files.to_json(saved)))
    assert not problems("baseline", json.loads(files.to_json(baselines)))


def test_what_loading_refuses_the_schema_refuses(file: Path) -> None:
    first, said = ("measurements", 0), ("verdicts", 0)
    assert not problems("run", PLAIN)
    wrong: list[Any] = [
        changed(PLAIN, ["schema"], 2),
        changed(PLAIN, ["extra"], 1),
        changed(PLAIN, [*first, "test"], None),
        changed(PLAIN, [*first, "samples", 0, "values"], ["1"]),
        changed(PLAIN, [*first, "samples", 0, "values", 0], None),
        changed(PLAIN, [*first, "workload"], {"size": [1]}),
        changed(PLAIN, [*first, "fingerprint", "software"], {"torch": 2}),
        changed(PLAIN, [*said, "outcome"], "slower"),
        changed(PLAIN, [*said, "processes"], 1.5),
        without(PLAIN, [*first, "fingerprint"]),
        without(PLAIN, [*said, "reason"]),
        [],
    ]
    for data in wrong:
        file.write_text(json.dumps(data), encoding="utf-8")
        with pytest.raises(BadFile):
            run_files.load(file)
        assert problems("run", data), data
