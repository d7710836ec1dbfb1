"""Times of kernels on nights of another clock: what the clock may do is in the interval."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import (
    Reference,
    judge,
)
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import baseline_files, run_files
from tests import ROOT
from tests.examples import with_factor
from tests.judge.canaries import READ, measured
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


@AT_NIGHT
@pytest.mark.parametrize(("elasticity", "without"), [(0.0, 0), (-0.7, 11), (-1.0, 16)])
def test_identical_code_at_any_clock_is_no_regression_and_4_percent_are_one(
    elasticity: float, without: int
) -> None:
    """Of 300 nights each; `without` are red where the clock is not known."""
    chance = Random(5)
    said: Counter[tuple[float, Outcome]] = Counter()
    regressed = 0
    for _ in range(300):
        before = at_clocks(chance, 5, elasticity)
        now = at_clocks(chance, 9, elasticity, [chance.choice(STEPS_MHZ)])
        for factor in (1.0, 1.04):
            slower = [with_factor(one, "kernel_time", factor) for one in now]
            said[factor, judged_by_entry(before, slower, with_canary=True).outcome] += 1
        plain = judged_by_entry(before, now, with_canary=False)
        regressed += plain.outcome is Outcome.REGRESSED
    assert regressed == without
    assert said[1.0, Outcome.REGRESSED] == 0
    assert said[1.0, Outcome.UNCHANGED] >= 280
    assert said[1.04, Outcome.UNCHANGED] == 0
    assert said[1.04, Outcome.REGRESSED] >= 260


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
) -> dict[str, Verdict]:
    """By metric of the step, or a phase, what is said of these where those are accepted."""
    entry = baseline_files.entry_of(before, recorded="")
    canary = entry.canary if with_canary else None
    reference = Reference({STEP: entry.step}, gpus=entry.gpus, days=entry.days, canary=canary)
    said = judge(now, reference, catalogue().metrics, WAITING)
    return {verdict.metric: verdict for verdict in said if verdict.phase == STEP}


def test_a_baseline_of_two_clocks_leaves_no_doubt_of_identical_code() -> None:
    """ConvNeXt's 21 time steps on two H100s, the baseline's five processes at 1980 and 1995 MHz.

    The same code: none is in doubt where the clock is known, and two are where it is not.
    """
    sessions = ("alone-0", "alone-1", "beside-0", "beside-1")
    accepted = [
        run_files.load(ROOT / "tests/data/h100-unjudged" / f"{one}.json.xz") for one in sessions
    ]
    accepted.append(run_files.load(ROOT / "tests/data/h100-clocks/first.json.xz"))
    again = run_files.load(ROOT / "tests/data/h100-clocks/again.json.xz")
    decided: Counter[tuple[bool, Outcome]] = Counter()
    for test in dict.fromkeys(one.test for one in again.measurements):
        before = [one for run in accepted for one in run.measurements if one.test == test]
        now = [one for one in again.measurements if one.test == test]
        for with_canary in (True, False):
            decided[with_canary, judged_by_entry(before, now, with_canary).outcome] += 1
    assert decided == {
        (True, Outcome.UNCHANGED): 21,
        (False, Outcome.UNCHANGED): 19,
        (False, Outcome.INCONCLUSIVE): 2,
    }
