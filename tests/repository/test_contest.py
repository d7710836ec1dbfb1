"""How often the judge is right on labelled nights, on few series of `benchmarks.contest`.

At night there are more of them; the full table is docs/runs/contest.json. Seeds are fixed, so a
failure is a change of the rule.
"""

from __future__ import annotations

import os

import pytest

from benchmarks import contest
from tests import EVERY
from tests.plugin.test_conditions import AT_NIGHT

SERIES = 100 if os.environ.get(EVERY) else 10
NOISY = ("0.35 %", "1 %", "5 %")
WORSE_THAN_ASSUMED = ("0.05 %, nights of 0.3 %", "0.1 %, days 0.1 %")
"""Days twice as far apart as is assumed, and nights of six times the baseline's noise."""
AT_ONE_PERCENT = ("0.05 %", "0.1 %", "0.1 %, heavy tails", "0.1 %, clock of 0.3 %")


@pytest.mark.parametrize(
    "nights",
    [
        *AT_ONE_PERCENT[1:2],
        *(
            pytest.param(name, marks=AT_NIGHT)
            for name in NOISY + WORSE_THAN_ASSUMED + AT_ONE_PERCENT
        ),
        *(pytest.param(name, marks=AT_NIGHT) for name in contest.sources() if "record" in name),
    ],
)
def test_identical_code_is_hardly_ever_called_slower_or_left_undecided(nights: str) -> None:
    counts = contest.scored(nights, 1, range(SERIES))
    most = 0.005 * counts["verdicts"] if nights in WORSE_THAN_ASSUMED else 0
    assert counts[f"{contest.OURS}|false"] <= most
    assert counts[f"{contest.OURS}|open"] <= 0.1 * counts["verdicts"]
    if nights in AT_ONE_PERCENT:
        assert contest.smallest(counts, contest.OURS) in contest.SIZES[:3]


def test_a_rule_that_is_better_on_both_is_named() -> None:
    counts = {
        "series": 100,
        "gpuperf|false": 1,
        "gpuperf|found 0.4": 100,
        "fixed 5 %|found 0.4": 99,
    }
    assert contest.smallest(counts, "gpuperf") == contest.smallest(counts, "fixed 5 %") == 0.4
    (said,) = contest.beaten({"nights": counts})
    assert said.startswith("nights: fixed 5 % (0, 0.4)")
