"""Proof files: what was written comes back, and what cannot be trusted is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_gpuperf.errors import BadFile, UsageFailure
from pytest_gpuperf.model.proof import Firing, Proof
from pytest_gpuperf.storage import files, proof_files
from tests import ROOT, strategies
from tests.corruption import Wrong, is_named, refusal, unreadable
from tests.examples import proof, trial

PLAIN: Any = files.to_plain(proof(trial(), trial("wait", Firing.PASSED), blind={"a": ("b",)}))
FIRST = ("trials", 0)
REMEDY = "Run `gpuperf prove` again, or name another file. gpuperf changed nothing"


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for property tests, which write it many times."""
    return tmp_path_factory.mktemp("proofs") / "proof.json"


@strategies.whole_files
@given(proven=strategies.proofs)
def test_a_proof_comes_back_the_same(shared: Path, proven: Proof) -> None:
    files.write_atomically(shared, files.to_json(proven))
    assert proof_files.load(shared) == proven


def test_the_recorded_proof_is_read() -> None:
    proven = proof_files.load(ROOT / "docs" / "runs" / "prove-first-test.json")
    assert proven.holds
    assert all(one.firing is Firing.RED and one.is_named for one in proven.trials)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    def says(place: Path, problem: str) -> None:
        with pytest.raises(UsageFailure, match=re.escape(f"{place}: {problem}")):
            proof_files.load(place)

    file = tmp_path / "proof.json"
    says(file, f"no such proof file. `gpuperf prove --output {file} -- PYTEST-ARGS` writes it")
    says(tmp_path, "cannot be read (Is a dir")
    file.write_text(json.dumps(PLAIN), encoding="utf-8")
    with unreadable(file):
        says(file, "cannot be read (Permission denied)")


def test_what_is_no_proof_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    for content, problem in (
        (b"", "line 1 column 1: invalid JSON"),
        (b"[]", "expected a mapping, found list"),
        (b"{}", "schema: schema version None, but this version of gpuperf reads 1"),
        (b'{"schema": 1, "measurements": []}', "created: Field required"),
    ):
        file.write_bytes(content)
        message = refusal(proof_files.load, file, BadFile)
        assert problem in message
        assert message.endswith(f". {REMEDY}")


def test_whatever_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"

    def write(data: object) -> Path:
        file.write_text(json.dumps(data), encoding="utf-8")
        return file

    wrong: Wrong = [
        (("schema",), 2, None, "schema version 2"),
        (("extra",), 1, None, "Unexpected keyword argument"),
        (("trials",), {}, None, "Input should be a valid"),
        ((*FIRST, "firing"), "green", None, "Input should be 'red', 'passed'"),
        ((*FIRST, "share"), "1 %", None, "Input should be a valid number"),
        ((*FIRST, "share"), float("nan"), None, "finite number"),
        ((*FIRST, "metrics", 0), None, None, "Input should be a valid string"),
        (("device", "arch"), 90, None, "Input should be a valid string"),
        (("failing",), {"a": None}, ("failing", "a"), "Input should be a valid string"),
        (("blind", "a"), "b", None, "Input should be a valid"),
    ]
    is_named(proof_files.load, write, PLAIN, wrong)
