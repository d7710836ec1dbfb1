"""Proof files: the result of one `gpuperf prove`, as JSON."""

from __future__ import annotations

from pathlib import Path

from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.model.proof import Proof
from pytest_gpuperf.storage import files

SCHEMA = 1
_REMEDY = "Run `gpuperf prove` again, or name another file. gpuperf changed nothing"


def load(file: Path) -> Proof:
    """The proof in `file`. Raises BadFile or UsageFailure; the file is never changed."""
    try:
        data = files.read_json(file, _REMEDY)
    except FileNotFoundError:
        raise UsageFailure(
            f"{file}: no such proof file. `gpuperf prove --output {file} -- PYTEST-ARGS` writes it"
        ) from None
    return files.validate(data, Proof, file, SCHEMA, _REMEDY)
