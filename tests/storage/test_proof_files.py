"""Proof files: what was written comes back, and what cannot be trusted is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.proof import Firing, Proof
from pytest_gpuperf.storage import files, proof_files
from tests import ROOT, strategies
from tests.corruption import Wrong, is_named
from tests.examples import proof, trial

PLAIN: Any = files.to_plain(proof(trial(), trial("wait", Firing.PASSED), blind={"a": ("b",)}))
FIRST = ("trials", 0)


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


def test_where_there_is_none_it_is_said_what_writes_one(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"
    says = f"no such proof file. `gpuperf prove --output {file} -- PYTEST-ARGS` writes it"
    with pytest.raises(UsageFailure, match=re.escape(f"{file}: {says}")):
        proof_files.load(file)


def test_whatever_is_wrong_is_named(tmp_path: Path) -> None:
    file = tmp_path / "proof.json"

    def write(data: object) -> Path:
        file.write_text(json.dumps(data), encoding="utf-8")
        return file

    wrong: Wrong = [
        (("schema",), 2, None, "schema version 2"),
        (("extra",), 1, None, "Unexpected keyword argument"),
        ((*FIRST, "firing"), "green", None, "Input should be 'red', 'passed'"),
        ((*FIRST, "share"), float("nan"), None, "finite number"),
        (("failing",), {"a": None}, ("failing", "a"), "Input should be a valid string"),
        (("blind", "a"), "b", None, "Run `gpuperf prove` again, or name another file"),
    ]
    is_named(proof_files.load, write, PLAIN, wrong)
