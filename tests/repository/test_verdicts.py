"""Every recorded run is judged as it was before: no verdict and no attribution moves unnoticed."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from benchmarks import recorded, verdicts

known: Mapping[str, verdicts.Said] = verdicts.known()


def test_all_runs_are_known() -> None:
    assert {name for name, _ in verdicts.recorded_runs()} == {*known}


@pytest.mark.parametrize("file", known)
def test_a_run_is_judged_as_it_was_recorded(file: str) -> None:
    assert verdicts.said_of(recorded.run(file)) == known[file]
