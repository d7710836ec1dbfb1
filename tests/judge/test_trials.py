"""A/A trials: every held-out process is judged once, and false alarms are counted honestly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from pytest_gpuperf.judge.trials import BASELINE, Look, Trials, allocation, folds, trials
from pytest_gpuperf.model.entry import Spread
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Outcome
from tests.judge.test_spread import Design, grouped, simulated

REGRESSED, INCONCLUSIVE, UNCHANGED = Outcome.REGRESSED, Outcome.INCONCLUSIVE, Outcome.UNCHANGED


def named(design: Design) -> list[Measurement]:
    return simulated(Random(0), design, Spread(0, 0, 0, 0), rounds=1)


@pytest.mark.parametrize(
    ("design", "spanned"),
    [([[6]], 1), ([[10, 10]], 2), ([[9], [1], [1]], 3), ([[2] * 3] * 3, 5)],
    ids=str,
)
def test_a_baseline_is_of_as_many_allocations_as_possible(design: Design, spanned: int) -> None:
    processes = named(design)
    laid = list(folds(processes))
    for baseline, held_out in laid:
        assert len(baseline) == BASELINE
        assert len({allocation(m) for m in baseline}) == spanned
        assert sorted(m.process for m in (*baseline, *held_out)) == sorted(
            m.process for m in processes
        )
    assert list(folds(processes[::-1])) == laid


@pytest.mark.parametrize("count", range(BASELINE + 1))
def test_too_few_processes_have_no_trial(count: int) -> None:
    assert list(folds(named([[count]]))) == []
    counted = trials(grouped(named([[count]])), lambda *_: Look(REGRESSED, None))
    assert counted == Trials(0, 0, 0)
    assert counted.at_most is None


@pytest.mark.parametrize("design", [[[6]], [[8]], [[11]], [[10, 10], [7]]], ids=str)
@pytest.mark.parametrize("outcome", [REGRESSED, INCONCLUSIVE, UNCHANGED, Outcome.IMPROVED])
def test_every_process_is_one_trial_however_many_folds(design: Design, outcome: Outcome) -> None:
    processes = named(design)
    judged = {m.process for _, held_out in folds(processes) for m in held_out}
    counted = trials(grouped(processes, processes), lambda *_: Look(outcome, None))
    count = 2 * len(judged)
    assert len(judged) == len(processes) or len(processes) < 8
    assert counted == Trials(
        count, count * (outcome is REGRESSED), count * (outcome is INCONCLUSIVE)
    )


def test_further_looks_take_other_processes_of_the_same_allocation() -> None:
    looks: list[list[Measurement]] = []

    def inconclusive(baseline: Sequence[Measurement], new: Sequence[Measurement]) -> Look:
        assert not {m.process for m in baseline} & {m.process for m in new}
        looks.append(list(new))
        return Look(INCONCLUSIVE, {1: 3, 3: 5, 5: 9, 9: None}[len(new)])

    counted = trials(grouped(named([[12, 5]])), inconclusive)
    assert counted == Trials(17, 0, 17)
    for look in looks:
        assert len({allocation(m) for m in look}) == 1
        assert len({m.process for m in look}) == len(look)
    by_day = {day: {len(look) for look in looks if allocation(look[0])[1] == day} for day in DAYS}
    # The second day's five are held out together when the baseline is of the first day alone.
    assert by_day == {DAYS[0]: {1, 3, 5, 9}, DAYS[1]: {1, 3, 5}}


DAYS = ("2026-03-01", "2026-03-02")


def test_a_trial_ends_with_the_last_look_that_there_are_processes_for() -> None:
    def at_three(_: Sequence[Measurement], new: Sequence[Measurement]) -> Look:
        return Look(INCONCLUSIVE, 3) if len(new) == 1 else Look(REGRESSED, None)

    assert trials(grouped(named([[7]])), at_three) == Trials(6, 0, 6)
    assert trials(grouped(named([[8]])), at_three) == Trials(8, 8, 0)


def test_an_alarm_in_any_fold_makes_the_trial_a_false_alarm() -> None:
    processes = named([[12]])
    once = next(held_out[0].process for _, held_out in folds(processes))
    seen: list[str] = []

    def alarmed(_: Sequence[Measurement], new: Sequence[Measurement]) -> Look:
        seen.append(new[0].process)
        first = new[0].process == once and seen.count(once) == 1
        return Look(REGRESSED if first else INCONCLUSIVE, None)

    assert trials(grouped(processes), alarmed) == Trials(12, 1, 11)
    assert seen.count(once) > 1


@pytest.mark.parametrize("count", [1, 6, 76, 2000])
def test_without_alarms_the_bound_is_that_of_the_rule_of_three(count: int) -> None:
    assert Trials(count, 0, 0).at_most == pytest.approx(1 - 0.05 ** (1 / count))


@pytest.mark.parametrize(("alarms", "count"), [(1, 20), (3, 76), (19, 20)])
def test_at_the_bound_so_few_alarms_have_a_chance_of_one_in_twenty(alarms: int, count: int) -> None:
    rate = Trials(count, alarms, 0).at_most
    assert rate is not None
    chances = [math.comb(count, i) * rate**i * (1 - rate) ** (count - i) for i in range(alarms + 1)]
    assert sum(chances) == pytest.approx(0.05)


def test_if_all_trials_alarm_any_rate_is_possible() -> None:
    assert Trials(4, 4, 0).at_most == 1
