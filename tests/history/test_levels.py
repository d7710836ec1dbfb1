"""On which nights levels changed: exactly, at their night, and not by noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

import numpy as np
import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.history.levels import NightlyValues, Trend, segmented, trends
from pytest_gpuperf.model.metric import Metric

CYCLES, INSTRUCTIONS, IPC, HITS, STALLS = (
    catalogue().metrics[name]
    for name in ("cycles", "instructions", "ipc", "l2_hit_rate", "stall_barrier")
)
LAUNCHES, ALLOCATIONS = (catalogue().metrics[one] for one in ("launches", "driver_allocations"))


def noisy(nights: int, seed: int = 1, sigma: float = 1e-3) -> list[float]:
    """Cycles of so many nights on which nothing changes."""
    return [*(4e8 * np.exp(np.random.default_rng(seed).normal(size=nights) * sigma))]


def exact(logarithms: Iterable[float]) -> list[float]:
    """Cycles without any noise, so far from what they usually are."""
    return [4e8 * math.exp(one) for one in logarithms]


def swaying(sigma: float, nights: int = 21) -> list[float]:
    """Cycles that go up and down by as much as to have exactly this standard deviation."""
    return exact(math.sqrt(2) * sigma * (night % 2) for night in range(nights))


def of_tests(asked: Iterable[tuple[Metric, Sequence[float]]]) -> list[Trend]:
    """Of as many tests."""
    return trends([NightlyValues(metric, values) for metric, values in asked])


def of_cycles(series: Iterable[Sequence[float]]) -> list[Trend]:
    """Of as many tests."""
    return of_tests((CYCLES, values) for values in series)


def trend(values: Sequence[float], metric: Metric = CYCLES) -> Trend:
    """Of one series, where nothing else is known."""
    return trends([NightlyValues(metric, values)])[0]


def test_the_segments_are_those_that_ruptures_finds_without_a_jump() -> None:
    """Of series of all lengths together, in no order of these."""
    ruptures = pytest.importorskip("ruptures", reason='needs pip install "pytest-gpuperf[test]"')
    rng = np.random.default_rng(3)
    lengths = rng.permutation([*range(4, 9), 40, 120] * 6)
    moves = [(rng.random(n) < 0.1) * rng.normal(size=n) * 4 for n in lengths]
    series = [np.cumsum(of) + rng.normal(size=len(of)) for of in moves]
    oracle = ruptures.KernelCPD(kernel="linear", min_size=2, jump=1)
    theirs = [oracle.fit(z.reshape(-1, 1)).predict(pen=9.0)[:-1] for z in series]
    assert segmented([np.zeros(0), np.zeros(1), *series], 9.0) == [[], [], *theirs]


@pytest.mark.parametrize(("change", "nights"), [(0.01, 2), (-0.01, 2), (0.006, 6), (0.5, 2)])
def test_a_step_is_found_at_its_night_when_a_few_have_seen_it(change: float, nights: int) -> None:
    values = noisy(60 + nights)
    values[60:] = [value * (1 + change) for value in values[60:]]
    (one,) = trend(values).changes
    assert (one.before, one.at) == (59, 60)
    assert one.change == pytest.approx(change, abs=4 * one.error)
    assert one.worse is (change > 0)
    assert one.matters


def test_nothing_is_found_in_noise() -> None:
    years = of_cycles(noisy(365, seed) for seed in range(60))
    changes = [change for one in years for change in one.changes]
    assert len(changes) <= 1
    assert not any(change.matters for change in changes)


def lasting(seed: int, nights: int = 400) -> list[float]:
    """Logarithms of noise of 0.3 %, of which 70 % is left a night later."""
    new = np.random.default_rng(seed).normal(size=nights) * 3e-3
    return [*accumulate(new, lambda last, one: 0.7 * last + math.sqrt(1 - 0.7**2) * one)]


def test_noise_that_lasts_for_some_nights_is_no_change_and_hides_none_for_long() -> None:
    logarithms = [lasting(seed) for seed in range(12)]
    assert not any(one.changes for one in of_cycles(map(exact, logarithms)))
    logarithms[0][200:] = [one + 0.015 for one in logarithms[0][200:]]
    first, *others = of_cycles(exact(one[:230]) for one in logarithms)
    (change,) = first.changes
    assert abs(change.at - 200) <= 2
    assert not any(one.changes for one in others)


@pytest.mark.parametrize("slow", [lambda year: 0.01 * math.sin(6.283 * year), lambda y: 0.03 * y])
@pytest.mark.parametrize("step", [0.0, 0.02])
def test_what_moves_slowly_has_no_step_but_for_one_that_is_sharp(
    slow: Callable[[float], float], step: float
) -> None:
    years = [noisy(400, seed, 2e-3) for seed in range(12)]
    moved = [math.exp(slow(night / 365) + step * (night >= 250)) for night in range(400)]
    found = of_cycles([[v * m for v, m in zip(year, moved, strict=True)] for year in years])
    changes = [change for one in found for change in one.changes if change.matters]
    assert [change.at for change in changes] == [250] * len(years) * bool(step)
    assert all(change.change == pytest.approx(0.02, abs=5 * change.error) for change in changes)


@pytest.mark.parametrize("nights", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("metric", [INSTRUCTIONS, ALLOCATIONS])
def test_an_exact_count_has_changed_the_same_night(nights: int, metric: Metric) -> None:
    still = 1e9 if metric is INSTRUCTIONS else 0.0
    for after in (1, 2, 5, 20):
        (change,) = trend([still] * nights + [2e9] * after, metric=metric).changes
        assert (change.at, change.error, change.doubtful) == (nights, 0, after == 1)
        assert change.change == (pytest.approx(1) if still else None)


@pytest.mark.parametrize("share", [0.05, 0.3])
def test_a_value_that_comes_and_goes_is_one_of_its_level(share: float) -> None:
    flickers = 1562.0 + (np.random.default_rng(8).random((30, 400)) < share)
    still = [1562.0] * 400
    asked = [
        *flickers.tolist(),
        [*still[:-1], 1563.0],
        [*still[:-1], 1570.0],
        [*still, *[1563] * 9],
    ]
    *found, as_others, further, stays = of_tests((LAUNCHES, values) for values in asked)
    assert not any(one.changes for one in found)
    assert [one.at for one in trend([5.0] * 50 + [6.0, 7.0, 9.0], metric=LAUNCHES).changes] == [50]
    assert as_others.changes == ()
    assert as_others.pending
    assert [[change.at for change in one.changes] for one in (further, stays)] == [[399], [400]]


@pytest.mark.parametrize("at", [0, 17, 59])
def test_one_night_that_stands_apart_is_no_change(at: int) -> None:
    values = noisy(60)
    values[at] *= 1.05
    one = trend(values)
    assert (one.changes, one.set_aside) == ((), (at,))
    assert one.pending is (at == 59)  # the next night will tell


def device(slow: Mapping[int, float]) -> list[Trend]:
    """Of twelve tests on one machine, which is slower on some nights."""
    nights = [noisy(60, 100 + test) for test in range(12)]
    return of_cycles(
        [value * (1 + slow.get(night, 0.0)) for night, value in enumerate(values)]
        for values in nights
    )


def test_a_machine_that_is_slow_on_two_nights_of_three_has_no_other_level() -> None:
    slow = {30: 0.012, 31: 0.008, 33: 0.016}
    for one in device(slow):
        assert (one.changes, one.set_aside) == ((), (30, 31, 33))
    alone = [
        trend([v * (1 + slow.get(n, 0)) for n, v in enumerate(noisy(60, s))]) for s in range(4)
    ]
    assert any(one.changes for one in alone)  # which one series cannot know


def test_a_machine_that_is_slow_from_a_night_on_has() -> None:
    for one in device(dict.fromkeys(range(30, 60), 0.01)):
        assert [(change.before, change.at) for change in one.changes] == [(29, 30)]
    for one in device({59: 0.01}):
        assert (one.changes, one.set_aside, one.pending) == ((), (59,), True)


def test_what_is_within_the_tolerance_is_known_and_does_not_matter() -> None:
    values = [
        value * (1 if night < 40 else 1.003) for night, value in enumerate(noisy(80, 2, 2e-4))
    ]
    (one,) = trend(values).changes
    assert (one.at, one.matters) == (40, False)


def test_fewer_compiled_graphs_are_better_and_none_is_worse() -> None:
    graphs = catalogue().metrics["compiled_graphs"]
    for levels, worse in (((2.0, 1.0), False), ((1.0, 0.0), True), ((1.0, 2.0), True)):
        values = [level for level in levels for _ in range(8)]
        found = trend(values, metric=graphs)
        assert [(change.at, change.worse) for change in found.changes] == [(8, worse)]


@pytest.mark.parametrize(("share", "others", "found"), [(0.95, 0, 0), (1.05, 0, 1), (1.05, 1, 0)])
def test_a_change_is_believed_beyond_what_all_nights_of_all_series_can_look_like(
    share: float, others: int, found: int
) -> None:
    """Twice the logarithm of 30 nights, which with another series are 60."""
    still = [0.0] * 30
    gain = 26 * 4 / 30  # for each square of a change by one standard deviation
    step = trend(exact(still)).noise * math.sqrt(share * 2 * math.log(30) / gain)
    first, *_ = of_cycles([exact([0.0] * 26 + [step] * 4), *[exact(still)] * others])
    assert len(first.changes) == found


@pytest.mark.parametrize(
    ("before", "after", "of_mean"),
    [(3.0, 0.0, 1 / 2), (0.0, 4.0, 1), (0.0, 12.0, 1)],
    ids=["to 0", "from 0", "from 0 to more"],
)
def test_the_error_of_a_change_is_a_share_of_the_level_before_or_from_0_of_the_mean(
    before: float, after: float, of_mean: float
) -> None:
    """Values that may be 0 are judged, and their noise is, as shares of the mean of all."""
    one = trend([before] * 20 + [after] * 20, metric=STALLS)
    (change,) = one.changes
    assert change.error == pytest.approx(of_mean * one.noise / math.sqrt(10), rel=1e-9)


@pytest.mark.parametrize(
    ("metric", "values", "change"),
    [
        (CYCLES, [4e8] * 20 + [6e8] * 19 + [12e8], 0.5),
        (CYCLES, [6e8] * 20 + [3e8] * 19 + [1.5e8], -0.5),
        (IPC, [0.4] * 20 + [0.6] * 19 + [0.9], 0.5),
        (HITS, [40.0] * 20 + [60.0] * 19 + [50.0], 20.0),
        (STALLS, [0.0] * 20 + [2.0] * 19 + [42.0], None),
        (STALLS, [2.0] * 20 + [0.0] * 19 + [40.0], -1.0),
    ],
)
def test_changes_are_shares_of_the_level_before_or_points_and_the_last_night_waits(
    metric: Metric, values: list[float], change: float | None
) -> None:
    one = trend(values, metric=metric)
    assert [step.at for step in one.changes] == [20]
    (found,) = one.changes
    assert found.change == (None if change is None else pytest.approx(change, rel=1e-9))
    increased = change is None or change > 0
    of_metric = {IPC.name: None, HITS.name: not increased}
    assert found.worse is of_metric.get(metric.name, increased)
    assert one.pending
    assert one.set_aside == (39,)
    assert one.levels == pytest.approx((values[0], values[-2]))


@pytest.mark.parametrize(
    ("values", "levels"),
    [([], ()), ([3.0], (3.0,)), ([1.0, 2.0], (1.5,)), ([0.0] * 9, (0.0,)), ([5.0] * 9, (5.0,))],
)
def test_few_values_and_zeros_have_one_level(
    values: list[float], levels: tuple[float, ...]
) -> None:
    """Of two nights nobody can say which one stands apart."""
    one = trend(values)
    assert (one.changes, one.set_aside, one.pending, one.levels) == ((), (), False, levels)


@pytest.mark.parametrize(("between", "apart"), [(1, ()), (2, ()), (3, (30, 33)), (9, (30, 39))])
def test_nights_that_agree_within_two_do_not_stand_apart(
    between: int, apart: tuple[int, ...]
) -> None:
    one = trend(exact(0.05 * (night in (30, 30 + between)) for night in range(60)))
    assert one.set_aside == apart


@pytest.mark.parametrize(("nights", "share"), [(0, 1), (1, 1), (2, 20 / 21), (21, 1 / 2)])
def test_the_noise_that_is_assumed_counts_for_twenty_nights(nights: int, share: float) -> None:
    """And gives way to nights without any as these come."""
    (one,) = of_cycles([[4e8] * nights])
    assert one.noise == pytest.approx(1e-3 * math.sqrt(share), rel=1e-9)
    assert (one.points, one.tolerance) == (False, 0.005)


def test_the_noise_is_that_of_the_nights_between_which_most_of_it_lies() -> None:
    """Here it lasts for three nights, in which the next one is mostly like the last."""
    lasting = exact(math.sqrt(2) * 0.02 * (night // 3 % 2) for night in range(60))
    one = trend(lasting)
    assert one.noise == pytest.approx(0.02, rel=1e-9)
    assert one.changes == ()


def test_percentages_and_ratios_share_no_noise() -> None:
    """One is in points, the other in shares: a hundred times as large."""
    hits = [60 + math.sqrt(2) * 0.4 * (night % 2) for night in range(21)]
    ratios = [0.6] * 21
    found = of_tests([(HITS, hits), (IPC, ratios), (HITS, hits)])
    assert [one.noise for one in found] == pytest.approx([0.4, 1.5e-3 / math.sqrt(2), 0.4])
    assert [(one.points, one.tolerance) for one in found[:1]] == [(True, 0.75)]


def test_a_class_shares_its_noise_and_none_has_less_than_it_shows() -> None:
    of_class = [(CYCLES, swaying(sigma)) for sigma in (0.02, 0.012, 0.05)]
    elsewhere = [(INSTRUCTIONS, [1e9] * 21)] * 4
    typical, quiet, loud, counts, *_ = (one.noise for one in of_tests([*of_class, *elsewhere]))
    assert typical == pytest.approx(0.02, rel=1e-9)
    assert quiet == pytest.approx(math.sqrt((0.02**2 + 0.012**2) / 2), rel=1e-9)
    assert loud == pytest.approx(0.05, rel=1e-9)
    assert counts == 0  # exact


def test_a_class_has_no_say_where_a_series_cannot_be_as_noisy() -> None:
    """So little is seen of it in one series of a thousand: 5.92 is that of chi2 with 20 degrees."""
    quiet, *_ = of_cycles([swaying(0.004), *[swaying(0.05)] * 4])
    assert quiet.noise == pytest.approx(0.004 * math.sqrt((20 / 5.92104 + 1) / 2), rel=1e-4)


def test_tests_of_two_nights_say_nothing_of_the_noise_of_their_class() -> None:
    _, new, _ = of_cycles([swaying(0.02), [4e8] * 2, [4e8] * 2])
    assert new.noise == pytest.approx(0.02 * math.sqrt(20 / 21), rel=1e-9)


@pytest.mark.parametrize(("changes", "loud"), [(1, False), (7, False), (8, True)])
def test_few_changes_are_no_noise_and_many_are(changes: int, loud: bool) -> None:
    """Of differences between two or three nights, a change is in two or three."""
    levels = [min(night // 6, changes) % 2 for night in range(61)]
    one = trend(exact(0.01 * level for level in levels))
    assert (one.noise > 1e-3) is loud
    assert loud or [change.at for change in one.changes] == [6 * (n + 1) for n in range(changes)]


@pytest.mark.parametrize(("nights", "loud"), [((5, 10), False), ((5, 10, 15), True)])
def test_few_nights_that_stand_apart_are_no_noise_and_many_are(
    nights: tuple[int, ...], loud: bool
) -> None:
    one = trend(exact(0.01 * (night in nights) for night in range(21)))
    assert (one.noise > 1e-3) is loud
    assert one.set_aside == (() if loud else nights)


@pytest.mark.parametrize(
    ("slow", "of", "by", "apart"),
    [
        (3, 5, 0.002, True),
        (2, 5, 0.002, False),  # fewer than half of them
        (2, 4, 0.002, False),  # half of them: by half as much, which is too little
        (1, 2, 0.002, False),
        (1, 2, 0.010, True),
        (5, 5, 0.001, False),
    ],
)
def test_a_night_is_set_aside_in_all_tests_where_half_of_them_were_slow(
    slow: int, of: int, by: float, apart: bool
) -> None:
    """0.2 % are too little to be told in a single one."""
    one_night = exact(by * (night == 30) for night in range(60))
    found = of_cycles([one_night] * slow + [exact([0.0] * 60)] * (of - slow))
    assert [one.set_aside for one in found] == [(30,) if apart else ()] * of


def test_a_slow_night_is_one_of_the_class_that_it_slows() -> None:
    slow = exact(0.002 * (night == 30) for night in range(60))
    for metric, values in ((INSTRUCTIONS, [1e9] * 60), (HITS, [60.0] * 60)):
        found = of_tests([(CYCLES, slow)] * 3 + [(metric, values)] * 7)
        assert [one.set_aside for one in found] == [(30,)] * 3 + [()] * 7


def on_days(slow: Sequence[int], runs: Sequence[Sequence[int]], days: Sequence[int]) -> list[Trend]:
    """Of tests that took part in some of a device's runs, each of a day; some runs were slow."""
    asked = []
    for of in runs:
        values = exact(0.002 * (run in slow) for run in of)
        asked.append(NightlyValues(CYCLES, values, [days[run] for run in of]))
    return trends(asked)


def test_tests_that_are_newer_than_others_have_the_same_slow_nights() -> None:
    found = on_days([40], [range(60)] * 3 + [range(20, 60)] * 3, range(60))
    assert [one.set_aside for one in found] == [(40,)] * 3 + [(20,)] * 3


def test_runs_of_one_day_are_nights_of_their_own_in_their_order() -> None:
    """Two that were slow, with two between: in another order they would be neighbours."""
    twice_a_day = [run // 2 for run in range(60)]
    found = on_days([30, 33], [range(60)] * 3 + [range(0, 60, 2)], twice_a_day)
    assert [one.set_aside for one in found] == [(30, 33)] * 3 + [(15,)]


def test_where_every_night_stands_apart_nothing_is_known_of_the_last() -> None:
    """A test of the nights on which the machine was slow alone."""
    slow = range(10, 365, 30)
    daily = NightlyValues(CYCLES, exact(0.02 * (day in slow) for day in range(365)), range(365))
    last = NightlyValues(CYCLES, exact(0.3 * (day == slow[-1]) for day in slow), slow)
    *_, one = trends([*[daily] * 3, last])
    assert len(one.set_aside) == len(slow)
    assert (one.levels, one.changes, one.pending) == ((), (), False)
