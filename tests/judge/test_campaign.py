"""The judge on identical code, as it was really measured: an A/A campaign on H200s.

`tests/data/h200-campaign` holds 21 fresh processes of the four Med-DDPM configurations, on nine
GPUs of three machines that were started apart, one file per GPU. docs/evidence.md has the command
that recorded them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest

from pytest_gpuperf.baselines.calibration import findings, trials
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.stopping import enough_rounds, settled
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.entry import Calibration
from pytest_gpuperf.model.measurement import STEP, Measurement
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import baseline_files, run_files
from tests import ROOT
from tests.examples import with_factor
from tests.plugin.test_conditions import AT_NIGHT

FILES = sorted((ROOT / "tests" / "data" / "h200-campaign").glob("*.json.xz"))
CONFIGURATIONS = ("baseline", "tf32", "channels_last", "tf32_channels_last")
CYCLES = (STEP, "cycles")
each_configuration = pytest.mark.parametrize(
    "configuration",
    ["tf32", *(pytest.param(n, marks=AT_NIGHT) for n in CONFIGURATIONS if n != "tf32")],
)
with_and_without_calibration = pytest.mark.parametrize("calibrated", [False, True])


@cache
def measured(configuration: str) -> tuple[Measurement, ...]:
    """All processes of one configuration."""
    every = [m for file in FILES for m in run_files.load(file).measurements]
    return tuple(m for m in every if m.configuration == configuration)


@cache
def calibration() -> Calibration:
    """What the campaign says of the noise."""
    (seen,) = findings([run_files.load(file) for file in FILES], "2026-11-21")
    return seen.calibration


def verdicts_on(
    new: Sequence[Measurement], baseline: Sequence[Measurement], *, calibrated: bool = False
) -> tuple[Verdict, ...]:
    """What is said of `new`, of which no more rounds are counted than are enough.

    `baseline` was accepted, with all its rounds.
    """
    new = [as_counted(measurement) for measurement in new]
    entry = baseline_files.entry_of(baseline, recorded="")
    known = Reference(
        {STEP: entry.step},
        gpus=entry.gpus,
        days=entry.days,
        calibration=calibration() if calibrated else None,
    )
    return judge(new, known, catalogue().metrics, {})


def as_counted(measurement: Measurement) -> Measurement:
    """The same with as many rounds as the judge asks a process for."""
    metrics = catalogue().metrics
    step = {s.metric: s.values for s in measurement.samples if s.phase == STEP}
    rounds = next(
        count
        for count in range(1, 6)
        if count == 5 or enough_rounds({n: v[:count] for n, v in step.items()}, metrics, {})
    )
    samples = (replace(s, values=s.values[:rounds]) for s in measurement.samples)
    return replace(measurement, samples=tuple(samples))


def outcome(verdicts: Sequence[Verdict], metric: str) -> Outcome:
    """The outcome of one metric of the whole step."""
    return next(v.outcome for v in verdicts if (v.phase, v.metric) == (STEP, metric))


def test_the_campaign_is_as_large_as_was_asked_for_and_no_trial_of_it_alarms() -> None:
    for seen in map(measured, CONFIGURATIONS):
        assert len({m.process for m in seen}) == 21
        assert len({m.fingerprint.device.identity for m in seen}) == 9
        assert {m.fingerprint.device.name for m in seen} == {"NVIDIA H200"}
    assert (calibration().trials, calibration().false_alarms) == (84, 0)


@each_configuration
@with_and_without_calibration
def test_identical_code_is_unchanged_in_every_trial(configuration: str, calibrated: bool) -> None:
    processes = measured(configuration)
    judged = 0
    for baseline, queue in trials(processes):
        verdicts = verdicts_on(queue[:1], baseline, calibrated=calibrated)
        gated = [v for v in verdicts if v.outcome is not Outcome.REPORTED]
        assert {v.metric for v in gated} == {"cycles", "instructions", "step_time"}
        assert settled(gated)
        assert {v.outcome for v in gated} == {Outcome.UNCHANGED}
        judged += 1
    assert judged == 21


def test_two_rounds_are_nearly_always_enough() -> None:
    every = [as_counted(m) for name in CONFIGURATIONS for m in measured(name)]
    rounds = [len(s.values) for m in every for s in m.samples if (s.phase, s.metric) == CYCLES]
    assert len(rounds) == 84
    assert sum(count == 2 for count in rounds) >= 80


@each_configuration
@pytest.mark.parametrize("share", [0.0005, -0.0005, 0.006])
def test_a_twentieth_of_a_percent_of_instructions_is_found_in_every_set_of_three(
    configuration: str, share: float
) -> None:
    processes = measured(configuration)
    for start in range(3):
        baseline = processes[start::4][:5]
        held_out = [process for process in processes if process not in baseline]
        for first in range(len(held_out) - 2):
            some = held_out[first : first + 3]
            three = [with_factor(one, "instructions", 1 + share) for one in some]
            seen = outcome(verdicts_on(three, baseline), "instructions")
            # Where no time of the step grew, half a percent of a count costs nothing.
            lost = Outcome.OUTWEIGHED if share < 0.005 else Outcome.REGRESSED
            free = {lost, Outcome.REGRESSED} if share > 0 else {Outcome.IMPROVED}
            assert seen in free
            alone = outcome(verdicts_on(three[:1], baseline), "instructions")
            assert alone is Outcome.INCONCLUSIVE


@each_configuration
@pytest.mark.parametrize("share", [0.01, -0.01])
def test_a_percent_of_cycles_is_found_on_a_gpu_that_the_baseline_has(
    configuration: str, share: float
) -> None:
    by_gpu: dict[str, list[Measurement]] = {}
    for measurement in measured(configuration):
        by_gpu.setdefault(measurement.fingerprint.device.identity, []).append(measurement)
    (five,) = (processes for processes in by_gpu.values() if len(processes) == 5)
    for left_out in range(5):
        order = five[left_out:] + five[:left_out]
        moved = [with_factor(one, "cycles", 1 + share) for one in order[:3]]
        said = verdicts_on(moved, order[3:])
        (seen,) = (v for v in said if (v.phase, v.metric) == (STEP, "cycles"))
        # Or it is in doubt where two processes of a baseline were further apart than it is.
        sure, doubt = (
            (Outcome.REGRESSED, Outcome.INCONCLUSIVE)
            if share > 0
            else (Outcome.IMPROVED, Outcome.UNCHANGED)
        )
        in_doubt = (seen.minimum_detectable_effect or 0) > 0.017
        assert seen.outcome is sure or (in_doubt and seen.outcome is doubt)
