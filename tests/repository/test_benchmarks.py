"""What measuring cost on an H200 stays within the design's bound."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import costs
from tests import ROOT

RUN = ROOT / "docs" / "runs" / "h200-meddpm.json"


def test_every_configuration_of_the_recorded_run_is_within_its_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert costs.main([str(RUN)]) == 0
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "configuration"
    assert len(rows) == 4
    assert all(0 < float(row.split()[-1]) <= 1 for row in rows)


def test_a_bad_run_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert costs.main([str(tmp_path / "none.json")]) == 4
    assert "none.json" in capsys.readouterr().err
