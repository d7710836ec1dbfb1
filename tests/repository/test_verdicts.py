"""Every recorded run is judged as it was before: no verdict and no attribution moves unnoticed."""

from __future__ import annotations

import pytest

from benchmarks import verdicts

RUNS = dict(verdicts.recorded_runs())
RECORDED = verdicts.recorded()


def test_all_runs_are_recorded() -> None:
    assert {*RUNS} == {*RECORDED}


@pytest.mark.parametrize("file", RECORDED)
def test_a_run_is_judged_as_it_was_recorded(file: str) -> None:
    assert verdicts.said_of(RUNS[file]) == RECORDED[file]
