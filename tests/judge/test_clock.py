"""Times of kernels at one clock: what a baseline teaches of it, and what is supposed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from scipy import stats

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.clock import (
    CLOCK,
    AtOneClock,
    at_one_clock,
    elasticity_of,
)
from pytest_gpuperf.judge.noise import places_of
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import (
    Reference,
    judge,
    samples_by_phase,
)
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import baseline_files, run_files
from tests import ROOT
from tests.examples import with_factor
from tests.judge.canaries import READ, measured
from tests.judge.test_interval import sum_by_hand
from tests.plugin.test_conditions import AT_NIGHT

STEPS_MHZ = (1980.0, 1995.0, 2010.0)
"""Of an H100's clock."""


def at_clocks(
    chance: Random, count: int, elasticity: float, clocks: Sequence[float] = STEPS_MHZ
) -> list[Measurement]:
    """Processes, each at one of these clocks, whose kernels vary by 0.1 % besides."""
    made = []
    for number in range(count):
        clock = chance.choice(clocks) / STEPS_MHZ[0]
        factor = clock**elasticity * math.exp(chance.gauss(0, 0.001))
        factor_of_clock = clock * STEPS_MHZ[0] / READ["sm_clock_mhz"]
        (one,) = measured({"kernel_time": factor}, {"sm_clock_mhz": factor_of_clock}, processes=1)
        made.append(replace(one, process=f"p{number}"))
    return made


def adjusted(
    before: Sequence[Measurement],
    now: Sequence[Measurement],
    canary: CanarySeries | None = None,
) -> AtOneClock | None:
    """The times of kernels at one clock, by what the baseline's canary, or this one, has read."""
    entry = baseline_files.entry_of(before, recorded="")
    known = canary or entry.canary
    assert known is not None
    rounds = samples_by_phase(now)[STEP]["kernel_time"]
    places = places_of(entry.gpus, entry.days)
    return at_one_clock(now, known, places, rounds, entry.step["kernel_time"], noise=0.001)


def is_learnt(before: Sequence[Measurement], now: Sequence[Measurement]) -> bool:
    made = adjusted(before, now)
    assert made is not None
    return made.elasticity.is_learnt


ALLOCATIONS = [("gpu", "1")] * 6
STEPS = [0.0, 0.008, 0.0, 0.008, 0.0, 0.008]
LEFT = [0.003, 0.003, -0.006, -0.006, 0.003, 0.003]
"""What of a time the clock does not explain: of either clock, 0 on average."""


@pytest.mark.parametrize(
    ("slope", "expected"),
    [
        *((-0.5, -0.5), (0.0, None), (-1.0, None)),
        *((0.2, 0.0), (-1.2, -1.0)),
        *((0.3, "not"), (-1.3, "not")),  # by 2.3 errors
    ],
)
def test_the_elasticity_by_hand(slope: float, expected: float | str | None) -> None:
    """Shrunk to a half by what is supposed, never out of -1 to 0, and nothing far out of it."""
    times = [18 + slope * clock + 0.2 * left for clock, left in zip(STEPS, LEFT, strict=True)]
    made = elasticity_of(times, STEPS, ALLOCATIONS, noise=1e-6)
    # Six processes, one mean and a slope.
    variance = sum((0.2 * left) ** 2 for left in LEFT) / 4
    weight, prior = 6 * 0.004**2 / variance, 1 / 0.35**2
    error = (weight + prior) ** -0.5
    if expected == "not":
        assert made is None
        return
    assert made is not None
    shrunk = (slope * weight - 0.5 * prior) / (weight + prior)
    assert made.mean == pytest.approx(shrunk if expected is None else expected, abs=1e-9)
    assert made.error == pytest.approx(error, abs=1e-9)


def test_what_differs_between_days_is_not_the_clocks_where_a_day_has_several() -> None:
    """Three processes each on two days, the second of which is 1 % slower."""
    clocks = [0.0, 0.008, 0.0, 0.016, 0.024, 0.016]
    days = ["1"] * 3 + ["2"] * 3
    times = [-0.4 * clock + 0.01 * (day == "2") for clock, day in zip(clocks, days, strict=True)]
    made = elasticity_of(times, clocks, [("gpu", day) for day in days], noise=1e-4)
    assert made is not None
    assert made.mean == pytest.approx(-0.4, abs=1e-3)
    # Of single days each, a day's own difference is noise like any other.
    each = [("gpu", str(day)) for day in range(6)]
    by_gpu = elasticity_of([-0.4 * clock for clock in STEPS], STEPS, each, noise=1e-4)
    assert by_gpu is not None
    assert by_gpu.mean == pytest.approx(-0.4, abs=1e-3)
    # And of GPUs which have one day each.
    gpus = [(gpu, "1") for gpu in ("a", "a", "a", "b", "b", "b")]
    by_day = elasticity_of(times, clocks, gpus, noise=1e-4)
    assert by_day is not None
    assert (by_day.mean, by_day.error) == pytest.approx((made.mean, made.error))


@pytest.mark.parametrize(
    ("processes", "error", "is_learnt"),
    [
        (2, 0.35, False),  # a slope goes through any two
        (3, 0.35, False),  # without the one at another clock there is none
        (4, 0.0125, True),
    ],
)
def test_an_elasticity_is_learnt_of_two_processes_at_each_of_two_clocks(
    processes: int, error: float, is_learnt: bool
) -> None:
    clocks, places = STEPS[:processes], ALLOCATIONS[:processes]
    made = elasticity_of([-0.5 * clock for clock in clocks], clocks, places, 1e-4)
    assert made is not None
    assert made.error == pytest.approx(error, abs=1e-4)
    assert made.is_learnt is is_learnt


def test_where_no_clock_moved_and_none_was_read_nothing_is_supposed() -> None:
    chance = Random(4)
    one = at_clocks(chance, 8, -1.0, [1980.0])
    assert adjusted(one, at_clocks(chance, 3, -1.0, [1989.0])) is None  # 0.45 %
    assert adjusted(one, at_clocks(chance, 3, -1.0, [1995.0])) is not None
    several, now = (at_clocks(chance, count, -1.0) for count in (8, 3))
    unread = [replace(one, fingerprint=replace(one.fingerprint, conditions=None)) for one in now]
    assert adjusted(several, unread) is None
    assert adjusted([*several, replace(unread[0], process="x")], now) is None


@AT_NIGHT
@pytest.mark.parametrize(("elasticity", "as_measured"), [(0.0, 0), (-0.7, 11), (-1.0, 16)])
def test_identical_code_at_any_clock_is_no_regression_and_2_percent_are_one(
    elasticity: float, as_measured: int
) -> None:
    """Mostly decided. Of a baseline of one clock a faster one may hide what the code lost."""
    chance = Random(5)
    said: Counter[tuple[float, Outcome]] = Counter()
    regressed = hidden = 0
    for _ in range(300):
        before = at_clocks(chance, 5, elasticity)
        now = at_clocks(chance, 9, elasticity, [chance.choice(STEPS_MHZ)])
        for factor in (1.0, 1.02):
            slower = [with_factor(one, "kernel_time", factor) for one in now]
            verdict = judged_by_entry(before, slower, with_canary=True)
            said[factor, verdict.outcome] += 1
        hidden += verdict.outcome is Outcome.UNCHANGED and (verdict.tolerance or 0) < 0.0185
        plain = judged_by_entry(before, now, with_canary=False)
        regressed += plain.outcome is Outcome.REGRESSED
    assert regressed == as_measured
    assert said[1.0, Outcome.REGRESSED] == 0
    assert said[1.0, Outcome.UNCHANGED] >= 280
    # But for baselines of several clocks, which can hold no 2 %.
    assert hidden <= 3
    assert said[1.02, Outcome.UNCHANGED] <= 6
    assert said[1.02, Outcome.REGRESSED] >= 250


def in_a_process(number: int, clock_mhz: float, times: Mapping[str, float]) -> Measurement:
    """With these factors of its values, at this clock."""
    (one,) = measured(times, {"sm_clock_mhz": clock_mhz / READ["sm_clock_mhz"]}, processes=1)
    return replace(one, process=f"p{number}")


def test_a_clock_that_another_canary_read_or_one_side_only_is_not_known() -> None:
    chance = Random(4)
    several, now = at_clocks(chance, 8, -1.0), at_clocks(chance, 3, -1.0)
    entry = baseline_files.entry_of(several, recorded="")
    canary = entry.canary
    assert canary is not None
    of_another = replace(canary, code=("another", *canary.codes[1:]))
    half = replace(canary, readings={**canary.readings, CLOCK: (None, *canary.readings[CLOCK][1:])})
    for read, is_known in ((canary, True), (of_another, False), (half, False)):
        assert (adjusted(several, now, read) is not None) is is_known
    places, times = places_of(entry.gpus, entry.days), entry.step["kernel_time"]
    assert at_one_clock(now, canary, places, times[:2], times, noise=0.001) is None


def test_a_process_without_times_of_kernels_does_not_keep_those_of_others_from_one_clock() -> None:
    chance = Random(6)
    before, now = at_clocks(chance, 9, -1.0), at_clocks(chance, 4, -1.0, [1970.0])
    *timed, last = now
    untimed = replace(last, samples=tuple(s for s in last.samples if s.metric != "kernel_time"))
    all_of_them, alone = (said_by_entry(before, taken) for taken in ([*timed, untimed], timed))
    said, expected = all_of_them["kernel_time"], alone["kernel_time"]
    assert said.detail.startswith("adjusted to the clock (1970 MHz")
    assert (said.low, said.change, said.high) == (expected.low, expected.change, expected.high)


def test_what_is_supposed_of_a_clock_is_supposed_of_the_gpu_s_own_processes() -> None:
    """Beside another GPU, whose kernels take 3 % longer: by its mean the step would be faster."""
    own = [in_a_process(n, 1980.0, {}) for n in range(3)]
    device = replace(own[0].fingerprint.device, identity="another")
    others = [
        replace(slow, fingerprint=replace(slow.fingerprint, device=device))
        for slow in (in_a_process(n, 1980.0, {"kernel_time": 1.03}) for n in range(3, 6))
    ]
    # 0.51 % longer at a clock of 0.52 % less, of which a half is the clock's: the rest is 0.25 %.
    late = in_a_process(6, 1980.0 * math.exp(-0.0052), {"kernel_time": math.exp(0.0051)})
    said = said_by_entry([*own, *others], [late])["kernel_time"]
    assert said.outcome is Outcome.UNCHANGED
    assert "assumption" in said.detail
    assert said.change == pytest.approx(math.expm1(0.0025), abs=1e-6)


def test_what_is_supposed_of_a_clock_is_a_term_of_the_error() -> None:
    """At 0.75 % less of it kernels take half of that longer, give or take a third of it."""
    before = [in_a_process(number, 1995.0, {}) for number in range(5)]
    supposed, moved = 0.35 * math.log(1995 / 1980), 0.5 * math.log(1995 / 1980)
    # Beside what the baseline's five do not know.
    error, degrees = sum_by_hand((supposed**2, 20), (1e-6 * 20 / 24 / 5, 24))
    for longer, outcome in ((1.003, Outcome.UNCHANGED), (1.01, Outcome.UNCHANGED)):
        said = said_by_entry(before, [in_a_process(5, 1980.0, {"kernel_time": longer})])
        kernels = said["kernel_time"]
        assert kernels.outcome is outcome
        assert kernels.change == pytest.approx(math.expm1(math.log(longer) - moved), abs=1e-5)
        held = math.expm1(stats.t.isf(0.0005, degrees) * error)
        assert kernels.tolerance == pytest.approx(held, rel=0.02)
    slow = [in_a_process(n, 1980.0, {"kernel_time": 1.03}) for n in range(5, 8)]
    assert said_by_entry(before, slow)["kernel_time"].outcome is Outcome.REGRESSED


@pytest.mark.parametrize("middle", [1973.0, 1980.0, 1987.0])
def test_of_new_processes_at_several_clocks_that_of_the_one_in_the_middle_counts(
    middle: float,
) -> None:
    before = [in_a_process(number, 1980.0, {}) for number in range(5)]
    longer = {0.0: middle, 0.02: 1987.0, -0.02: 1973.0, 0.03: 1987.0, -0.03: 1973.0}
    now = [
        in_a_process(number, clock, {"kernel_time": 1 + by})
        for number, (by, clock) in enumerate(longer.items())
    ]
    made = adjusted(before, now)
    assert made is not None
    assert made.error == pytest.approx(0.35 * abs(math.log(middle / 1980)), abs=1e-6)


def of_day(one: Measurement, day: int) -> Measurement:
    return replace(one, fingerprint=replace(one.fingerprint, measured=f"2026-03-0{day}T06:00:00Z"))


def test_a_slope_that_may_be_something_elses_is_not_learnt() -> None:
    chance = Random(9)
    now = at_clocks(chance, 3, 0.0, [1995.0])
    one, other = (at_clocks(chance, 5, 0.0, [clock]) for clock in (1980.0, 1995.0))
    named = [replace(late, process=f"q{number}") for number, late in enumerate(other)]
    faster = [with_factor(late, "kernel_time", 0.994) for late in named]
    # Each of two days had a clock of its own.
    assert not is_learnt([*one, *(of_day(late, 2) for late in faster)], now)
    mixed = [of_day(each, 1 + number % 2) for number, each in enumerate([*one, *named])]
    assert is_learnt(mixed, now)
    # One process alone had another clock.
    assert not is_learnt([*one, faster[0]], now)
    # Kernels do not take three times as much longer as the clock is slower.
    steep = at_clocks(chance, 9, -3.0)
    assert adjusted(steep, now) is None
    # Nobody has seen what they do two steps further on.
    assert adjusted(at_clocks(chance, 9, -0.5), at_clocks(chance, 3, -0.5, [1955.0])) is None


def test_of_ranks_nobody_knows_whose_clock_and_whose_time_it_is() -> None:
    chance = Random(11)
    before, now = at_clocks(chance, 9, -1.0), at_clocks(chance, 9, -1.0, [1970.0])
    ranks = [replace(one, workload={**one.workload, "ranks": 2}) for one in now]
    for measured_now, change in ((now, 0.0), (ranks, 0.012)):
        said = said_by_entry(before, measured_now)["kernel_time"]
        assert said.change == pytest.approx(change, abs=0.004)


# Recorded


def test_a_clock_of_another_step_explains_the_times_of_kernels_as_far_as_it_goes() -> None:
    """ConvNeXt's time steps on an H100, in five sessions within four minutes, the same code.

    In the last its clock was a step of 15 MHz lower, 0.75 %, and so were kernels: up to 0.82 %.
    """
    folder = ROOT / "tests" / "data" / "h100-clocks"
    faster = [run_files.load(folder / f"faster-{number}.json.xz") for number in range(1, 5)]
    slower = run_files.load(folder / "slower.json.xz")
    for test in dict.fromkeys(one.test for one in slower.measurements):
        before = [one for run in faster for one in run.measurements if one.test == test]
        now = [one for one in slower.measurements if one.test == test]
        for count in (1, len(now)):
            said = said_by_entry(before, now[:count])
            assert said["kernel_time"].outcome is Outcome.UNCHANGED, test
            assert said["kernel_time"].tolerance == pytest.approx(0.0105, abs=7e-4)
            assert said["instructions"].outcome is Outcome.UNCHANGED
        # 3 % on top of it are the code's.
        more = [with_factor(one, "kernel_time", 1.03) for one in now]
        assert said_by_entry(before, more)["kernel_time"].outcome is Outcome.REGRESSED


def judged_by_entry(
    before: Sequence[Measurement], now: Sequence[Measurement], with_canary: bool
) -> Verdict:
    """What is said of kernel_time, with as many looks as there are processes for."""
    count: int | None = 1
    while count is not None:
        said = said_by_entry(before, now[:count], with_canary=with_canary)["kernel_time"]
        count = next_look([said], count, len(now))
    return said


WAITING = {"cycles": "any", "step_time": "any"}
"""The suite's tolerances, which launches of a CPU that is busy and idle in turn come up to."""


def said_by_entry(
    before: Sequence[Measurement],
    now: Sequence[Measurement],
    *,
    with_canary: bool = True,
    phase: str = STEP,
) -> dict[str, Verdict]:
    """By metric of the step, or a phase, what is said of these where those are accepted."""
    entry = baseline_files.entry_of(before, recorded="")
    canary = entry.canary if with_canary else None
    reference = Reference({STEP: entry.step}, gpus=entry.gpus, days=entry.days, canary=canary)
    said = judge(now, reference, catalogue().metrics, WAITING)
    return {verdict.metric: verdict for verdict in said if verdict.phase == phase}


def test_a_baseline_of_two_clocks_says_what_the_clock_does_to_kernels() -> None:
    """ConvNeXt's 21 time steps on two H100s, the baseline's five processes at 1980 and 1995 MHz.

    The same code, and at one clock none is in doubt: 19 of them are held to 0.7 %. Where no clock
    is known 4 are, and the others to what the clocks make of the baseline.
    """
    sessions = ("alone-0", "alone-1", "beside-0", "beside-1")
    accepted = [
        run_files.load(ROOT / "tests/data/h100-unjudged" / f"{one}.json.xz") for one in sessions
    ]
    accepted.append(run_files.load(ROOT / "tests/data/h100-clocks/first.json.xz"))
    again = run_files.load(ROOT / "tests/data/h100-clocks/again.json.xz")
    held: dict[bool, list[float]] = {True: [], False: []}
    decided: Counter[tuple[bool, Outcome]] = Counter()
    for test in dict.fromkeys(one.test for one in again.measurements):
        before = [one for run in accepted for one in run.measurements if one.test == test]
        now = [one for one in again.measurements if one.test == test]
        for with_canary in (True, False):
            said = judged_by_entry(before, now, with_canary)
            decided[with_canary, said.outcome] += 1
            held[with_canary].append(said.tolerance or 0.0)
    assert decided == {
        (True, Outcome.UNCHANGED): 21,
        (False, Outcome.UNCHANGED): 19,
        (False, Outcome.INCONCLUSIVE): 2,
    }
    assert [sum(one < 0.007 for one in held[known]) for known in (True, False)] == [19, 4]
    assert all(one <= plain for one, plain in zip(held[True], held[False], strict=True))
    assert max(held[False]) == pytest.approx(0.045, abs=5e-4)
