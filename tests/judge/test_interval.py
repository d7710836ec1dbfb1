"""The difference between processes and its standard error, against a second computation of both."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.interval import (
    Difference,
    centre,
    difference,
)
from pytest_gpuperf.judge.tolerance import tolerance_for
from tests.judge.test_noise import (
    ONE,
    OTHER,
    on_gpus,
    pooled_by_hand,
    set_aside_by_hand,
    spread_by_hand,
)
from tests.strategies import few

CYCLES = tolerance_for(catalogue().metrics["cycles"])
INSTRUCTIONS = tolerance_for(catalogue().metrics["instructions"])

positive = st.floats(1e-3, 1e15)
MEDIAN_COST = {1: 1.0, 2: 1.0, 3: 1.16, 5: 1.20, 9: 1.22}
rounds_of = st.lists(st.lists(positive, min_size=1, max_size=5), min_size=1, max_size=9)


def one_each(*values: float) -> list[list[float]]:
    """Processes of one round."""
    return [[value] for value in values]


def sum_by_hand(*terms: tuple[float, float]) -> tuple[float, float]:
    """The standard error of a sum of (variance, degrees of freedom), and its own degrees."""
    square = sum(one for one, _ in terms)
    return math.sqrt(square), square**2 / sum(one**2 / degrees for one, degrees in terms)


QUIET = one_each(*[100.0] * 5)


# The centre


def test_the_centre_is_the_median_of_the_processes_medians() -> None:
    assert centre([[3.0]]) == 3.0
    assert centre([[1.0, 2.0, 9.0]]) == 2.0
    assert centre([[1.0, 2.0]]) == 1.5
    assert centre([[1.0, 1.0, 50.0], [2.0], [3.0, 3.0]]) == 2.0


# The change and its standard error


@few
@given(rounds_of, rounds_of)
@example([[100.0]], [[100.0]])
@example([[101.0, 99.0]], one_each(100.0, 100.1, 99.9, 100.0, 103.0))
@example([[101.0, 99.0]], one_each(100.0, 100.3, 99.7, 100.0, 100.4))
@example([[100.0] * 50], one_each(100.0, 100.1, 99.9, 100.0, 103.0, 90.0))
@example([[100.0]], one_each(100.0, 100.0, 100.0, 103.0, 103.0))
def test_relative_metrics_are_compared_by_their_logarithms(
    new: list[list[float]], old: list[list[float]]
) -> None:
    look = difference(new, old, CYCLES)
    every = [math.log(median(process)) for process in old]
    aside = set_aside_by_hand(every, CYCLES.scale)
    logs = [value for position, value in enumerate(every) if position not in aside]
    spread, degrees = spread_by_hand(logs, CYCLES.scale)
    cost = MEDIAN_COST.get(len(new), 1.2533141373155)
    mean = sum(logs) / len(logs)
    assert look.logarithmic
    assert look.processes == len(new)
    assert look.changes == pytest.approx(
        [math.log(median(process)) - mean for process in new], abs=1e-9
    )
    assert look.change == pytest.approx(median(look.changes))
    assert look.baseline == pytest.approx(math.exp(mean))
    assert look.measured == pytest.approx(centre(new))
    # The baseline's mean, and the median of tonight's processes with tonight's noise.
    weight = min(8, degrees)
    odd = set_aside_by_hand(look.changes, spread, weight)
    tonight = [change for place, change in enumerate(look.changes) if place not in odd]
    night, known_by = pooled_by_hand(spread**2, weight, tonight)
    of_mean = spread**2 / len(logs), degrees
    error, together = sum_by_hand(of_mean, (cost**2 * night / len(new), known_by))
    assert look.error.root == pytest.approx(error, rel=1e-6)
    assert look.margin == pytest.approx(stats.t.isf(0.0025, together) * error, rel=1e-6)
    # What can be held is what no further process mends.
    held = stats.t.isf(0.0005, degrees) * math.sqrt(of_mean[0])
    floor = max(math.log1p(CYCLES.floor), held)
    assert look.floor == pytest.approx(floor, rel=1e-6)
    ratio = math.log1p(CYCLES.equivalence) / math.log1p(CYCLES.floor)
    assert look.equivalence == pytest.approx(ratio * floor, rel=1e-6)


# Tonight


def looked_at(*changes: float) -> Difference:
    """New processes that changed by this, against five equal ones of a known spread."""
    return difference([[100 * math.exp(change)] for change in changes], QUIET, CYCLES)


def test_one_process_of_a_night_that_is_far_off_says_nothing_of_the_others() -> None:
    quiet = looked_at(0.0, 0.0, 0.0, 0.0)
    look = looked_at(0.0, 0.0, 0.0, 0.0, 0.5)
    assert look.tonight == quiet.tonight
    assert look.margin < 1.1 * looked_at(*[0.0] * 5).margin
    # Of three nobody knows which one is odd, and two that agree are no accident.
    assert looked_at(0.0, 0.0, 0.5).margin > 1
    assert looked_at(0.0, 0.0, 0.0, 0.5, 0.5).margin > 0.5


# Days


TODAY, DAY = "n", 5e-4
"""s of a day, of cycles, for 20 degrees of freedom."""


@pytest.mark.parametrize(
    ("where", "days", "measured", "apart"),
    [
        # Of another day, or of two others: sum of the days' squared shares, and the new one's own.
        ("gggg", "mmmm", "g", 1 + 1),
        ("gggg", "mmtt", "g", 1 / 2 + 1),
        ("gggg", "mtwt", "g", 1 / 16 + 1 / 4 + 1 / 16 + 1),
        # None that both are of.
        ("gggg", "nnnn", "g", 0),
        ("gggg", "nnmm", "g", 1 / 4 + 1 / 4),
        ("gggg", "nmmm", "g", 9 / 16 + 9 / 16),
        # The days of the GPU that was measured.
        ("gggh", "mmmt", "g", 1 + 1),
        ("ghgh", "mnmn", "g", 1 + 1),
        # Not known.
        ("gggg", "", "g", 0),
    ],
)
def test_more_processes_do_not_help_against_a_day_that_they_share(
    where: str, days: str, measured: str, apart: float
) -> None:
    gpus = replace(on_gpus(where, *measured, days=days), day=TODAY)
    here = where.count(measured)
    # Days that are seen to agree are likelier to be alike.
    others = len({day for place, day in zip(where, days, strict=False) if place == measured}) or 1
    day = DAY**2 * 20 / (20 + others - 1), 20 + others - 1
    for new in (1, 3, 9):
        look = difference(one_each(*[100.0] * new), one_each(*[100.0] * 4), CYCLES, gpus)
        of_mean = look.spread.square / here, look.spread.degrees
        error, degrees = sum_by_hand(of_mean, *([(apart * day[0], day[1])] if apart else []))
        assert (look.lasting.root, look.lasting.degrees) == pytest.approx((error, degrees))
        assert look.of_one_day is (apart == 2)
        unknown = difference(
            one_each(*[100.0] * new), one_each(*[100.0] * 4), CYCLES, replace(gpus, day="")
        )
        assert unknown.reference.square == pytest.approx(of_mean[0])


def test_days_that_differ_by_more_than_is_assumed_say_it_themselves() -> None:
    """Four of them, a process each: less what the processes differ by, with n + 1 = 4 degrees."""
    changes = (0.0, 4e-3, 8e-3, 1.2e-2)
    old = [[1e6 * math.exp(change)] for change in changes]
    gpus = replace(on_gpus("gggg", "g", days="mtwd"), day=TODAY)
    look = difference([[1e6]], old, CYCLES, gpus)
    own = sum((change - 6e-3) ** 2 for change in changes)
    assert look.spread.square == pytest.approx(own / 3)
    # Processes of days that differ are as noisy as the days: there is nothing left to be theirs.
    day = DAY**2 * 20 / 23 * (4 / 16 + 1)
    assert look.lasting.square == pytest.approx(own / 3 / 4 + day)
    # Two on each day tell one from the other.
    twice = [process for process in old for _ in range(2)]
    gpus = replace(on_gpus("g" * 8, "g", days="mmttwwdd"), day=TODAY)
    told = difference([[1e6]], twice, CYCLES, gpus)
    spread = told.spread.square
    day = (own - 3 * spread / 2) / 3 * (4 / 16 + 1)
    error, degrees = sum_by_hand((spread / 8, told.spread.degrees), (day, 4))
    assert (told.lasting.root, told.lasting.degrees) == pytest.approx((error, degrees))


# GPUs


def test_counts_that_do_not_depend_on_the_gpu_are_compared_with_all() -> None:
    gpus = on_gpus((ONE, ONE, OTHER, OTHER), "another")
    look = difference([[1e6]], [[1e6]] * 4, INSTRUCTIONS, gpus)
    assert (look.change, look.is_unseen, look.widened) == (0.0, False, 0.0)


def test_an_outlier_is_left_out_with_its_gpu_and_day() -> None:
    """Whatever else is on file of it: positions stay aligned."""
    baseline = one_each(1.2e6, 1e6, 1.02e6, 1e6, 1.02e6, 1e6, 1e6)
    gpus = on_gpus((ONE, ONE, OTHER, ONE, OTHER, ONE, ONE), ONE, days="abcdefg")
    look = difference([[1e6]], baseline, CYCLES, gpus)
    rest = on_gpus((ONE, OTHER, ONE, OTHER, ONE, ONE), ONE, days="bcdefg")
    assert look == difference([[1e6]], baseline[1:], CYCLES, rest)
    assert look.change == pytest.approx(0, abs=1e-12)
