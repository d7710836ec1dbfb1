"""Processes of two revisions that were measured in turn: what both share is in no verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import pair_changes, paired_difference
from pytest_gpuperf.judge.noise import Scale, Variance
from pytest_gpuperf.judge.tolerance import PAIRED_SHARE, of_pairs, tolerance_for
from pytest_gpuperf.judge.verdict import judge, paired
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome, Verdict
from tests.examples import measurement

METRICS = catalogue().metrics
CYCLES, INSTRUCTIONS = METRICS["cycles"], METRICS["instructions"]
UNCHANGED, INCONCLUSIVE = Outcome.UNCHANGED, Outcome.INCONCLUSIVE
REGRESSED, IMPROVED = Outcome.REGRESSED, Outcome.IMPROVED


def one(process: str, **values: float) -> Measurement:
    return measurement({name: [value] for name, value in values.items()}, process=process)


def of(old: Sequence[float], new: Sequence[float], metric: str = "cycles") -> Verdict:
    """The verdict on one metric of these pairs."""
    (verdict,) = verdicts([({metric: a}, {metric: b}) for a, b in zip(old, new, strict=True)])
    return verdict


def verdicts(
    pairs: Sequence[tuple[Mapping[str, float], Mapping[str, float]]],
    tolerances: Mapping[str, str] | None = None,
) -> tuple[Verdict, ...]:
    made = [(one(f"a{n}", **a), one(f"b{n}", **b)) for n, (a, b) in enumerate(pairs)]
    new, reference = paired(made)
    return judge(new, reference, METRICS, tolerances or {})


@pytest.mark.parametrize(
    ("percent", "outcome"),
    [(0.26, INCONCLUSIVE), (0.5, REGRESSED), (-0.5, IMPROVED), (0.1, UNCHANGED), (0.0, UNCHANGED)],
)
def test_three_pairs_decide_what_is_beyond_chance(percent: float, outcome: Outcome) -> None:
    """0.25 % is the floor, half of that against a baseline; chance does 0.35 %."""
    new = [4e8 * (1 + percent / 100)] * 3
    assert of([4e8] * 3, new).outcome is outcome


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_than_three_pairs_are_no_regression(count: int) -> None:
    verdict = of([4e8] * count, [8e8] * count)
    assert (verdict.outcome, verdict.reason) == (INCONCLUSIVE, "too-few-processes")
    assert of([1e9] * count, [1e9] * count, "instructions").outcome is UNCHANGED


def test_what_the_gpu_does_meanwhile_is_in_no_verdict() -> None:
    """It gets slower by 1 % a pair: more than what is found, and neither side's fault."""
    drift = [4e8 * 1.01**number for number in range(5)]
    assert of(drift, drift).outcome is UNCHANGED
    assert of(drift, [1.005 * value for value in drift]).outcome is REGRESSED


def test_one_disturbed_pair_of_five_decides_nothing() -> None:
    assert of([4e8] * 5, [4e8, 4e8, 4.4e8, 4e8, 4e8]).outcome is UNCHANGED
    assert of([4e8] * 5, [4.02e8, 4.02e8, 3.6e8, 4.02e8, 4.02e8]).outcome is REGRESSED


def test_the_interval_is_of_the_pairs_differences() -> None:
    """Se = c s / sqrt(k); s of the pairs, with the class's for two processes as prior."""
    changes = (0.004, 0.005, 0.006)
    old = [4e8, 5e8, 6e8]
    new = [a * math.exp(change) for a, change in zip(old, changes, strict=True)]
    rounds_new, rounds_old = [[v] for v in new], [[v] for v in old]
    tolerance = of_pairs(tolerance_for(CYCLES))
    assert pair_changes(rounds_new, rounds_old, tolerance) == pytest.approx(changes)
    look = paired_difference(rounds_new, rounds_old, tolerance, Scale(Variance(4e-6, 22)))
    assert look.change == pytest.approx(0.005)
    assert look.error.root == pytest.approx(1.16 * 0.002 / math.sqrt(3))
    assert (look.error.degrees, look.reference.square) == (22, 0)
    assert look.floor == math.log1p(tolerance.floor)
    assert look.baseline == 5e8
    assert look.measured == pytest.approx(5e8 * math.exp(0.005))


@pytest.mark.parametrize(
    ("metric", "old", "new", "changes"),
    [
        ("l2_hit_rate", (30.0, 40.0, 50.0), (32.0, 40.0, 45.0), (2.0, 0.0, -5.0)),  # points
        ("layout_copies", (0.0, 4.0, 8.0), (2.0, 4.0, 6.0), (0.5, 0.0, -0.5)),  # of 4
        ("layout_copies", (0.0, 0.0, 0.0), (7.0, 8.0, 7.0), (7.0, 8.0, 7.0)),  # of nothing
    ],
)
def test_without_logarithms_pairs_differ_by_points_or_by_shares_of_the_old_ones_mean(
    metric: str, old: Sequence[float], new: Sequence[float], changes: Sequence[float]
) -> None:
    rounds_new, rounds_old = [[v] for v in new], [[v] for v in old]
    tolerance = of_pairs(tolerance_for(METRICS[metric]))
    assert pair_changes(rounds_new, rounds_old, tolerance) == pytest.approx(changes)


def test_floors_are_halved_but_for_exact_counts_and_what_somebody_wrote() -> None:
    """And pairs are of one GPU and one day, and ask for gains as for losses."""
    for tolerance, share in (
        (tolerance_for(CYCLES), PAIRED_SHARE),
        (tolerance_for(INSTRUCTIONS), 1),
        (tolerance_for(CYCLES, "2%"), 1),
    ):
        of_two = of_pairs(tolerance)
        assert of_two.floor == share * tolerance.floor
        assert of_two.equivalence == share * tolerance.equivalence
        assert of_two.scale == pytest.approx(math.sqrt(2) * tolerance.scale)
        assert (of_two.between_gpus, of_two.between_days, of_two.two_sided) == (0, 0, True)
    (verdict,) = verdicts([({"cycles": 4e8}, {"cycles": 4.05e8})] * 3, {"cycles": "2%"})
    assert verdict.outcome is not REGRESSED


def test_a_metric_that_one_process_lacks_has_no_pairs() -> None:
    both = {"cycles": 4e8, "instructions": 1e9}
    lacking = verdicts([({"cycles": 4e8}, both), (both, both), (both, both)])
    assert [(v.metric, v.outcome, v.reason) for v in lacking] == [
        ("cycles", UNCHANGED, "within-tolerance"),
        ("instructions", Outcome.REPORTED, "new-metric"),
    ]
    behind = verdicts([(both, {"cycles": 4e8}), (both, both), (both, both)])
    assert [(v.metric, v.outcome) for v in behind] == [
        ("cycles", UNCHANGED),
        ("instructions", Outcome.REPORTED),
    ]
