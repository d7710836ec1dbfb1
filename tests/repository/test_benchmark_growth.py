"""What grows over a thousand measurements is told apart from hundreds that differ by chance."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.growth import Floats, Row, Trend, judged, pooled, read, trend
from tests import ROOT

ROW = Row(0.33, 0.2, 0.01, 0.002, 1e9, 2e9)


def minutes(seed: int, tests: int = 800) -> tuple[Floats, Floats]:
    """What tests and fixed work took on a shared machine, each of 1 s.

    Half of what the machine does to a test it does to the fixed work.
    """
    random = np.random.default_rng(seed)
    spells = np.repeat(random.normal(0, 0.02, tests // 100), 100)
    times = 1 + spells + random.normal(0, 0.01, tests)
    return times, 1 + spells / 2 + random.normal(0, 0.01, tests)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.02, 0.05, -0.03])
def test_a_trend_is_found_through_what_the_machine_does(share: float) -> None:
    times, fixed = minutes(seed=7)
    found = trend(times * (1 + share * np.linspace(-0.5, 0.5, len(times))), fixed)
    assert found.share == pytest.approx(share, abs=found.half)
    assert found.half < 0.01


def test_a_thousand_measurements_on_an_h200_were_within_every_bound() -> None:
    """Their host became faster after the first half, which fixed pieces of work explain."""
    rows = read(ROOT / "tests" / "data" / "h200-growth" / "rows.csv")
    assert len(rows) == 1000
    assert judged(rows)[1]
    slower = [replace(one, seconds=one.seconds * (1 + 4e-5 * n)) for n, one in enumerate(rows)]
    assert not judged(slower)[1]


def test_sessions_are_pooled_by_their_intervals_and_memory_is_the_worst_one_s() -> None:
    for trends, share, half in (
        ([Trend(0.01, 0.01)], 0.01, 0.01),
        ([Trend(0.03, 0.02), Trend(0.0, 0.01)], 0.006, 0.01 / 1.25**0.5),
    ):
        both = pooled(trends)
        assert both.share == pytest.approx(share)
        assert both.half == pytest.approx(half)
    slow = [replace(ROW, seconds=0.33 * (1 + 0.03 * max(0, n - 199) / 800)) for n in range(1000)]
    assert not judged(slow)[1]
    large = [replace(ROW, host_bytes=1e9 * (1 + 0.02 * (n > 500))) for n in range(1000)]
    said, held = judged([ROW] * 1000, large)
    assert (said.split(",")[0], held) == ("host +2.00%", False)
