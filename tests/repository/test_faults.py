"""The table of faults: each row is shown by a test that is there."""

from __future__ import annotations

import ast
import re

from tests import ROOT

COLUMNS = 5


def rows() -> list[list[str]]:
    """The cells of every row that is not a heading."""
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "fault" and set(row[0]) != {"-"}]


def names_of_tests() -> set[str]:
    """All there are, whatever room they are in."""
    trees = [
        ast.parse(file.read_text(encoding="utf-8")) for file in (ROOT / "tests").rglob("test_*.py")
    ]
    return {node.name for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_fault_is_shown_by_a_test_that_is_there() -> None:
    known, missing = names_of_tests(), []
    for row in rows():
        assert len(row) == COLUMNS, row
        assert all(row), row
        match = re.fullmatch(r"`(test_\w+)`", row[-1])
        assert match, row
        if match[1] not in known:
            missing.append(match[1])
    assert missing == []


def test_no_fault_is_there_twice() -> None:
    faults = [row[0] for row in rows()]
    assert sorted({*faults}) == sorted(faults)
