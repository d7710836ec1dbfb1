"""What the canary explains of a change, and what it does not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge import machine
from pytest_gpuperf.judge.machine import (
    MOST_UNKNOWN,
    TRAITS,
    AtOneClock,
    at_one_clock,
    between,
    elasticity_of,
    kinds,
    moved,
)
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import (
    KNOWN_KIND,
    OTHER_GPU,
    Reference,
    judge,
    samples_by_phase,
)
from pytest_gpuperf.model.entry import Canaries
from pytest_gpuperf.model.measurement import STEP, Canary, Conditions, Device, Measurement, Reading
from pytest_gpuperf.model.result import Outcome, Verdict
from pytest_gpuperf.storage import baseline_files, run_files
from tests import ROOT
from tests.examples import H200, OTHER_H200, measurement, with_factor
from tests.shared_gpu import verdicts_where_nvml_shows_nobody

RECORDED = ROOT / "tests" / "data" / "h200-canary"
"""Two GPUs of one host, at the same time: all of Med-DDPM on each, ConvNeXt on the first."""
CODE = "sm90-a88008dc1c46"
READ = {
    "arithmetic_cycles": 2160956.0,
    "sm_clock_mhz": 1978.8,
    "tensor_cycles": 1541000.0,
    "tensor_clock_mhz": 1797.6,
    "l2_cycles": 1816000.0,
    "dram_cycles": 3927000.0,
    "dram_ns": 1999900.0,
    "time_share": 1.0,
    "launch_us": 3.3,
    "host_ms": 0.29,
}
STEP_MS, KERNELS_NS = 1.15, 1_044_000.0
BASELINE: Mapping[str, float] = {
    "cycles": 2_584_000.0,
    "step_time": STEP_MS,
    "kernel_time": KERNELS_NS,
    "instructions": 228_350_000.0,
}


def reading(**changes: float) -> Reading:
    """A state of the device with this canary; each change is a factor."""
    values = {name: value * changes.get(name, 1.0) for name, value in READ.items()}
    return Reading(canary=Canary(CODE, values))


def known(*processes: Mapping[str, float], code: str = CODE) -> Canaries:
    """What a baseline's processes read: factors, of each before and after alike."""
    series = {
        name: tuple(value * changes.get(name, 1.0) for changes in processes)
        for name, value in READ.items()
    }
    return Canaries((code,) * len(processes), series, series)


AS_BEFORE = known({}, {}, {})


def measured(
    changes: Mapping[str, float],
    canary: Mapping[str, float],
    *,
    processes: int = 3,
    device: Device = H200,
    after: Mapping[str, float] | None = None,
) -> list[Measurement]:
    """Processes whose metrics and canary are those of the baseline times these factors."""
    before = reading(**canary)
    conditions = Conditions(before, before if after is None else reading(**after))
    series = {name: [value * changes.get(name, 1.0)] for name, value in BASELINE.items()}
    return [
        measurement(series, process=f"p{number}", conditions=conditions, device=device)
        for number in range(processes)
    ]


def verdicts(
    measurements: Sequence[Measurement],
    canary: Canaries | None = AS_BEFORE,
    tolerances: Mapping[str, str] | None = None,
) -> dict[str, Verdict]:
    """By metric, against five processes of a baseline on the same GPU."""
    samples = {STEP: {name: [[value]] * 3 for name, value in BASELINE.items()}}
    reference = Reference(samples, gpus=(H200.identity,) * 3, canary=canary)
    judged = judge(measurements, reference, catalogue().metrics, tolerances or {})
    return {verdict.metric: verdict for verdict in judged}


def outcomes(*case: object, **cases: object) -> dict[str, str]:
    """What is not unchanged."""
    said = verdicts(*case, **cases)  # type: ignore[arg-type]
    return {n: v.outcome.value for n, v in said.items() if v.outcome is not Outcome.UNCHANGED}


# Kinds of GPUs


SHORT: Mapping[str, float] = {"dram_cycles": 0.977, "dram_ns": 0.977}
"""What the canary reads on the second kind of H200, and the step takes 2.4 % more cycles there."""


def on_a_gpu_that_nobody_has_met(
    cycles: float,
    canary: Mapping[str, float],
    known_canary: Canaries | None,
    *,
    processes: int = 3,
) -> Verdict:
    """Against two GPUs of each kind, with two processes each."""
    factors = [factor for factor in (1.0, 1.001, 1.024, 1.025) for _ in range(2)]
    reference = Reference(
        {STEP: {"cycles": [[BASELINE["cycles"] * factor] for factor in factors]}},
        gpus=tuple(f"gpu-{number // 2}" for number in range(8)),
        canary=known_canary,
    )
    new = measured({"cycles": cycles}, canary, processes=processes)
    said = judge(new, reference, catalogue().metrics, {})
    return next(verdict for verdict in said if verdict.metric == "cycles")


OF_BOTH = known(*[{}] * 4, *[SHORT] * 4)


def test_on_a_gpu_that_nobody_has_met_its_kind_says_what_to_expect() -> None:
    for cycles, canary in ((1.0, {}), (1.025, SHORT)):
        said = on_a_gpu_that_nobody_has_met(cycles, canary, OF_BOTH)
        assert said.outcome is Outcome.UNCHANGED
        assert said.detail == KNOWN_KIND
        assert said.tolerance is not None
        assert said.tolerance < 0.007
        assert on_a_gpu_that_nobody_has_met(cycles * 1.01, canary, OF_BOTH).outcome is (
            Outcome.REGRESSED
        )
    blind = on_a_gpu_that_nobody_has_met(1.02, {}, None)
    assert blind.outcome is Outcome.UNCHANGED
    assert blind.detail == OTHER_GPU
    assert blind.tolerance is not None
    assert blind.tolerance > 0.03


def test_a_kind_that_nobody_has_met_is_neither_passed_nor_said_of_the_code() -> None:
    """Whatever it takes there, but for more than kinds can differ by, and more work."""
    of_one = known(*[{}] * 8)
    for cycles in (0.99, 1.0, 1.012, 1.03):
        said = on_a_gpu_that_nobody_has_met(cycles, SHORT, of_one)
        assert said.outcome is Outcome.MACHINE, cycles
        assert said.detail == (
            "the canary moved too: dram_ns -2.3 % (1.9999e+06 -> 1.9539e+06): another kind of GPU, "
            "or somebody else on it"
        )
    # A large loss is the code's, as more than one process have to show.
    for processes, outcome in ((1, Outcome.INCONCLUSIVE), (3, Outcome.REGRESSED)):
        said = on_a_gpu_that_nobody_has_met(1.2, SHORT, of_one, processes=processes)
        assert said.outcome is outcome


def test_code_that_moves_a_step_as_the_other_kind_would_does_not_vanish_in_it() -> None:
    """The canary is no code of the step's: what it reads is that of the kind it runs on."""
    assert on_a_gpu_that_nobody_has_met(1.024, {}, OF_BOTH).outcome is Outcome.REGRESSED
    assert on_a_gpu_that_nobody_has_met(1.001, SHORT, OF_BOTH).outcome is Outcome.IMPROVED


# What moved


@pytest.mark.parametrize("name", TRAITS)
def test_a_reading_moved_that_is_further_off_than_its_noise(name: str) -> None:
    noise = TRAITS[name].noise
    for change, is_moved in ((0.9 * noise, False), (1.1 * noise, True), (-1.1 * noise, True)):
        made = moved(measured({}, {name: math.exp(change)}), AS_BEFORE)
        assert [one.reading for one in made] == ([name] if is_moved else []), change
        if is_moved:
            assert made[0].change == pytest.approx(change)
            assert str(made[0]).startswith(f"{name} {100 * math.expm1(change):+.3g} % (")
            assert TRAITS[name].says in str(made[0])


def test_compared_is_with_the_nearest_of_the_baseline_s_hosts() -> None:
    two_hosts = known({}, {"launch_us": 2.0})
    for factor, is_moved in ((1.0, False), (1.95, False), (2.5, False), (3.2, True)):
        assert bool(moved(measured({}, {"launch_us": factor}), two_hosts)) is is_moved, factor


def test_on_a_gpu_that_the_baseline_knows_only_its_own_readings_count() -> None:
    """Another GPU's may be another kind's."""
    canary = known({}, {"dram_cycles": 1.03})
    gpus = (H200.identity, OTHER_H200.identity)
    for device, factor, is_moved in (
        (H200, 1.0, False),
        (H200, 1.03, True),
        (OTHER_H200, 1.0, True),
        (replace(H200, identity="third"), 1.03, False),
    ):
        made = moved(measured({}, {"dram_cycles": factor}, device=device), canary, gpus)
        assert bool(made) is is_moved, (device, factor)


def test_another_canary_and_none_are_not_comparable() -> None:
    slow = measured({}, {"launch_us": 9.0})
    assert moved(slow, AS_BEFORE) != ()
    assert moved(slow, known({}, code="sm90-000000000000")) == ()
    assert moved(slow, None) == ()
    assert moved([measurement()], AS_BEFORE) == ()
    read = replace(AS_BEFORE, before={"launch_us": (None, 3.3, None)}, after={})
    assert moved(slow, replace(read, after={"launch_us": (3.3, None, None)})) == ()


def test_what_moved_while_it_was_measured_moved_without_a_baseline_too() -> None:
    # An H100 that gets warm goes up by two steps of 15 MHz, which the judge looks at, and by which
    # nothing is measured again.
    assert moved(measured({}, {}, after={"sm_clock_mhz": 1.0152}), None) == ()
    throttled = measured({}, {}, after={"sm_clock_mhz": 0.8})
    (one,) = moved(throttled, None)
    assert one.reading == "sm_clock_mhz"
    assert one.now / one.before == pytest.approx(0.8)
    # The host is interrupted now and then, which passes.
    assert moved(measured({}, {}, after={"launch_us": 9.0, "host_ms": 9.0}), None) == ()


def test_somebody_else_on_the_gpu_shows_whatever_the_baseline_has_read() -> None:
    """It says how much of the GPU's time we had, which alone is all of it on every GPU."""
    read = {name: series for name, series in AS_BEFORE.before.items() if name != "time_share"}
    older = replace(AS_BEFORE, before=read, after=read)
    for canary in (None, known({}, code="another"), older, AS_BEFORE):
        for share, is_moved in ((0.995, False), (0.97, True)):
            made = moved(measured({}, {"time_share": share}), canary)
            assert [one.reading for one in made] == ["time_share"] * is_moved, (share, canary)


def test_what_was_read_by_two_canaries_or_on_one_side_only_is_of_no_kind() -> None:
    """Half of a reading, or of two that cannot be compared, tells no kind of GPU."""
    new = measured({}, {})
    assert kinds(new, AS_BEFORE)[1] is not None
    other = measured({}, {})[0]
    conditions = other.fingerprint.conditions
    assert conditions is not None
    assert conditions.before.canary is not None
    of_another = replace(conditions.before, canary=replace(conditions.before.canary, code="b"))
    for after in (of_another, Reading()):
        made = Conditions(conditions.before, after)
        one = replace(other, fingerprint=replace(other.fingerprint, conditions=made))
        assert kinds([one], AS_BEFORE) == ((), None)
        assert moved([one], AS_BEFORE) == () or after is of_another
    # A process of the baseline that another canary read has no kind among the others.
    mixed = replace(AS_BEFORE, codes=(CODE, "b", CODE))
    assert [kind is None for kind in kinds(new, mixed)[0]] == [False, True, False]


# What it explains


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [((1.105, 1.107, 1.109), "machine"), ((1.115, 1.117, 1.119), "regressed")],
    ids=["its interval begins within", "it begins beyond"],
)
def test_it_explains_a_change_whose_interval_begins_within_what_it_moved(
    changes: Sequence[float], outcome: str
) -> None:
    """A clock that is 10 % slower."""
    processes = [
        replace(measured({"step_time": change}, {"sm_clock_mhz": 1 / 1.10})[0], process=f"p{n}")
        for n, change in enumerate(changes)
    ]
    said = verdicts(processes)["step_time"]
    assert said.outcome.value == outcome
    assert said.high is not None
    assert said.high > 0.1 + 0.005


def test_beside_somebody_else_no_time_is_the_code_s_however_much_they_took() -> None:
    """As recorded on an H200: kernels waited for their turn, and took 3 % more cycles."""
    changes = {"cycles": 1.032, "step_time": 2.51, "instructions": 1.001}
    said = outcomes(measured(changes, {"time_share": 0.4}))
    assert said == {"cycles": "machine", "step_time": "machine", "instructions": "regressed"}
    assert outcomes(measured({"step_time": 0.9}, {"time_share": 0.4})) == {"step_time": "improved"}


def test_what_the_gpu_waits_for_a_slower_host_is_not_said_of_the_code() -> None:
    """A graph of 1.04 ms in a step of 1.15 ms, launched by a host that takes 1.5 times as long."""
    late = {"cycles": 1.12, "step_time": 1.12}
    assert outcomes(measured(late, {})) == {"cycles": "regressed", "step_time": "regressed"}
    slow = measured(late, {"launch_us": 1.52, "host_ms": 1.4})
    assert outcomes(slow) == {"cycles": "machine", "step_time": "machine"}
    detail = verdicts(slow)["cycles"].detail
    assert detail == (
        "the canary moved too: launch_us +52 % (3.3 -> 5.016): the host; host_ms +40 % (0.29 -> "
        "0.406): the host"
    )


def test_more_than_the_gpu_waits_is_the_code_s() -> None:
    """Half as much again, of which the GPU waits a quarter."""
    loss = {"cycles": 1.6, "step_time": 1.6, "kernel_time": 1.5}
    assert outcomes(measured(loss, {"launch_us": 2.0})) == {
        "cycles": "regressed",
        "step_time": "regressed",
        "kernel_time": "regressed",
    }


def test_a_faster_host_explains_no_slowdown_and_a_slower_one_no_gain() -> None:
    for change, factor, outcome in (
        (1.08, 0.5, "regressed"),
        (1.08, 2.0, "machine"),
        (0.95, 0.5, "machine"),
        (0.95, 2.0, "improved"),
    ):
        canary = {"launch_us": factor}
        said = outcomes(measured({"step_time": change}, canary))
        assert said == {"step_time": outcome}, (change, factor)


def test_where_nobody_measured_how_long_kernels_ran_the_host_explains_nothing() -> None:
    slow = measured({"cycles": 1.12}, {"launch_us": 2.0})
    without = [
        replace(one, samples=tuple(s for s in one.samples if s.metric != "kernel_time"))
        for one in slow
    ]
    assert verdicts(without)["cycles"].outcome is Outcome.REGRESSED


def on_another_machine(
    changes: Mapping[str, float], canary: Mapping[str, float], *, gpus: int = 1
) -> dict[str, Verdict]:
    """Against three processes, of so many GPUs of one kind that are not the measured one."""
    samples = {STEP: {name: [[value]] * 3 for name, value in BASELINE.items()}}
    uuids = tuple(f"gpu-{number % gpus}" for number in range(3))
    reference = Reference(samples, gpus=uuids, canary=AS_BEFORE)
    judged = judge(measured(changes, canary), reference, catalogue().metrics, {})
    return {verdict.metric: verdict for verdict in judged}


WAITS = {"cycles": 1.3, "step_time": 1.3}
"""More than any GPU differs, and no more than the GPU then waits: its kernels take no longer."""


def test_how_fast_the_host_of_another_machine_is_only_processes_of_it_can_say() -> None:
    """Seen on two H200s: a step took 15 % longer, and launch_us had moved within its noise."""
    said = on_another_machine(WAITS, {"launch_us": 1.2})
    for metric in ("cycles", "step_time"):
        assert (said[metric].outcome, said[metric].reason) == (Outcome.MACHINE, "unknown-host")
    assert said["step_time"].detail == (
        "no kernel ran in 30% of the step, and how fast this host is the baseline does not know: "
        "accept a run of this machine beside its others"
    )
    assert said["instructions"].outcome is said["kernel_time"].outcome is Outcome.UNCHANGED


def test_one_step_of_two_h200s_is_not_said_to_have_become_slower() -> None:
    """66 ms on the first, whose one process is the baseline, and 76 on the second."""
    causes = ROOT / "docs" / "runs" / "causes"
    (before,) = run_files.load(ROOT / "tests/data/h200-causes/clean.json.xz").measurements
    runs = [run_files.load(causes / f"again-{number}.json.xz") for number in (1, 2, 3)]
    after = [m for run in runs for m in run.measurements if m.test.endswith("[norm-float64]")]
    entry = baseline_files.entry_of([before], recorded="")
    assert before.configuration == after[0].configuration == "meddpm"
    reference = Reference(entry.samples, gpus=entry.gpus, canary=entry.canary)
    said = {v.metric: v for v in judge(after, reference, catalogue().metrics, {})}
    assert said["step_time"].change == pytest.approx(0.152, abs=0.001)
    assert (said["step_time"].outcome, said["step_time"].reason) == (
        Outcome.MACHINE,
        "unknown-host",
    )
    assert not any(v.outcome is Outcome.REGRESSED for v in said.values())


@pytest.mark.parametrize(("gpus", "outcome"), [(2, Outcome.MACHINE), (3, Outcome.REGRESSED)])
def test_a_baseline_of_several_machines_knows_how_far_hosts_differ(
    gpus: int, outcome: Outcome
) -> None:
    assert on_another_machine(WAITS, {}, gpus=gpus)["step_time"].outcome is outcome


@pytest.mark.parametrize(
    "changes",
    [
        {"step_time": 1.6, "kernel_time": 1.6},
        {"step_time": 0.7, "kernel_time": 0.7},
        {"instructions": 1.01},
    ],
    ids=["more than it waits", "faster", "a count"],
)
def test_a_host_that_nobody_knows_explains_no_more_than_it_can(
    changes: Mapping[str, float],
) -> None:
    assert not any(one.reason == "unknown-host" for one in on_another_machine(changes, {}).values())


@pytest.mark.parametrize(
    ("reading", "factor", "cycles", "times"),
    [
        ("sm_clock_mhz", 0.9, "regressed", "machine"),
        ("sm_clock_mhz", 1.1, "regressed", "regressed"),
        ("dram_ns", 1.1, "machine", "machine"),
        ("dram_cycles", 1.1, "machine", "machine"),
        ("dram_cycles", 0.9, "machine", "machine"),
        ("tensor_cycles", 1.1, "machine", "machine"),
        ("l2_cycles", 1.1, "machine", "machine"),
    ],
)
def test_a_gpu_explains_as_much_as_it_moved(
    reading: str, factor: float, cycles: str, times: str
) -> None:
    """A clock changes no count of cycles; another kind of GPU may be slower at one and faster."""
    loss = {"cycles": 1.08, "step_time": 1.08, "kernel_time": 1.08}
    assert outcomes(measured(loss, {reading: factor})) == {
        "cycles": cycles,
        "step_time": times,
        "kernel_time": times,
    }
    twice = dict.fromkeys(loss, 1.3)
    assert set(outcomes(measured(twice, {reading: factor})).values()) == {"regressed"}


def test_counts_are_the_code_s_on_every_machine() -> None:
    said = outcomes(measured({"instructions": 1.01, "cycles": 1.08}, {"dram_cycles": 1.2}))
    assert said == {"instructions": "regressed", "cycles": "machine"}


@pytest.mark.parametrize(("clock", "outcome"), [(0.99, "inconclusive"), (0.95, "machine")])
def test_an_interval_that_is_too_wide_is_explained_where_the_change_itself_is(
    clock: float, outcome: str
) -> None:
    """5 % slower, or not at all: more processes will tell, and a clock of 1 % less does not."""
    processes = [
        replace(measured({"step_time": change}, {"sm_clock_mhz": clock})[0], process=f"p{n}")
        for n, change in enumerate((0.98, 1.05, 1.12))
    ]
    assert verdicts(processes)["step_time"].outcome.value == outcome


def test_what_the_baseline_leaves_in_doubt_is_the_machines_after_one_process() -> None:
    """No others follow that would say so."""
    samples = {
        STEP: {
            name: tuple((value * factor if name == "step_time" else value,) for factor in NOISY)
            for name, value in BASELINE.items()
        }
    }
    reference = Reference(samples, gpus=(H200.identity,) * len(NOISY), canary=known(*[{}] * 5))
    for clock, outcome in ((0.96, Outcome.MACHINE), (1.0, Outcome.INCONCLUSIVE)):
        now = measured({"step_time": 1.004}, {"sm_clock_mhz": clock}, processes=1)
        said = judge(now, reference, catalogue().metrics, {})
        (of_step,) = (v for v in said if v.metric == "step_time" and v.phase == STEP)
        assert of_step.outcome is outcome
        assert (of_step.reason == "baseline-too-noisy") is (outcome is Outcome.INCONCLUSIVE)


NOISY = (0.985, 0.99, 1.0, 1.01, 1.015)
"""Processes of a baseline that leave 1 % in doubt, whatever comes after them."""


def test_what_is_within_its_tolerance_stays_there() -> None:
    assert outcomes(measured({"cycles": 1.003}, {"dram_cycles": 1.2})) == {}


def test_one_process_is_measured_again_before_the_machine_is_blamed() -> None:
    for processes, outcome in ((1, "inconclusive"), (3, "machine")):
        late = measured({"cycles": 1.08}, {"dram_cycles": 1.2}, processes=processes)
        assert outcomes(late) == {"cycles": outcome}


def test_a_gain_that_the_machine_explains_outweighs_no_slowdown() -> None:
    faster = {"cycles": 0.95, "step_time": 0.95, "kernel_time": 0.95, "instructions": 1.01}
    assert outcomes(measured(faster, {}))["instructions"] == "outweighed"
    assert outcomes(measured(faster, {"dram_cycles": 0.9}))["instructions"] == "regressed"


@given(
    st.dictionaries(st.sampled_from(sorted(TRAITS)), st.floats(0.2, 5.0)),
    st.floats(0.5, 2.0),
)
def test_nothing_becomes_a_fault_and_nothing_passes_by_the_canary(
    canary: dict[str, float], change: float
) -> None:
    """What it says is left to the machine, or stays as it was."""
    loss = {"cycles": change, "step_time": change}
    plain, told = verdicts(measured(loss, {})), verdicts(measured(loss, canary))
    for metric, verdict in told.items():
        if verdict.outcome is not Outcome.MACHINE:
            assert verdict.outcome is plain[metric].outcome
        else:
            assert metric in ("cycles", "step_time", "kernel_time")
            assert plain[metric].outcome is not Outcome.UNCHANGED


# At one clock

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


def adjusted(before: Sequence[Measurement], now: Sequence[Measurement]) -> AtOneClock | None:
    entry = baseline_files.entry_of(before, recorded="")
    rounds = samples_by_phase(now)[STEP]["kernel_time"]
    return at_one_clock(
        rounds,
        entry.samples[STEP]["kernel_time"],
        now,
        entry.canary,
        entry.gpus,
        entry.days,
        noise=0.001,
    )


def is_learnt(before: Sequence[Measurement], now: Sequence[Measurement]) -> bool:
    made = adjusted(before, now)
    assert made is not None
    return made.elasticity.is_learnt


@pytest.mark.parametrize("elasticity", [0.0, -0.4, -1.0])
def test_the_elasticity_is_learnt_of_the_baselines_own_processes(elasticity: float) -> None:
    chance = Random(3)
    before, now = at_clocks(chance, 12, elasticity), at_clocks(chance, 3, elasticity, [1970.0])
    made = adjusted(before, now)
    assert made is not None
    assert made.elasticity.mean == pytest.approx(elasticity, abs=0.15)
    assert made.elasticity.is_learnt
    assert made.clock_mhz == pytest.approx(1970.0)
    # What the baseline would have at that clock, and how sure that is.
    expected = KERNELS_NS * (1970 / 1980) ** elasticity
    centre = math.exp(fmean(math.log(series[0]) for series in made.baseline))
    assert centre == pytest.approx(expected, rel=3 * math.hypot(made.error, 0.001))
    assert 0 < made.error < MOST_UNKNOWN * math.log(2010 / 1970)


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


def test_the_least_noise_that_is_supposed_counts_for_the_error() -> None:
    times = [-0.5 * clock for clock in STEPS]
    for noise, known in ((1e-4, True), (5e-3, False)):
        made = elasticity_of(times, STEPS, ALLOCATIONS, noise)
        assert made is not None
        assert made.is_learnt is known
        squares = 6 * 0.004**2
        if not known:  # without any one of the six
            squares *= 0.8
        assert made.error == pytest.approx((squares / noise**2 + 1 / 0.35**2) ** -0.5)


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


def test_an_elasticity_is_learnt_of_two_gpus_with_a_process_at_each_of_two_clocks() -> None:
    times, clocks = [1.0, 0.996, 2.0, 1.996], STEPS[:4]
    made = elasticity_of(times, clocks, [("a", "1"), ("a", "1"), ("b", "1"), ("b", "1")], 1e-4)
    assert made is not None
    assert made.mean == pytest.approx(-0.5)
    assert made.is_learnt


def test_what_the_baseline_does_not_say_is_not_learnt() -> None:
    chance = Random(4)
    now = at_clocks(chance, 3, -1.0, [2010.0])
    several = at_clocks(chance, 8, -1.0)
    assert is_learnt(several, now)
    assert not is_learnt(at_clocks(chance, 8, -1.0, [1995.0]), now)  # one clock
    assert not is_learnt(several[:2], now)  # too few


def test_where_no_clock_moved_and_none_was_read_nothing_is_supposed() -> None:
    chance = Random(4)
    one = at_clocks(chance, 8, -1.0, [1980.0])
    assert adjusted(one, at_clocks(chance, 3, -1.0, [1989.0])) is None  # 0.45 %
    assert adjusted(one, at_clocks(chance, 3, -1.0, [1995.0])) is not None
    several, now = (at_clocks(chance, count, -1.0) for count in (8, 3))
    unread = [replace(one, fingerprint=replace(one.fingerprint, conditions=None)) for one in now]
    assert adjusted(several, unread) is None
    assert adjusted([*several, replace(unread[0], process="x")], now) is None


@pytest.mark.parametrize(("elasticity", "as_measured"), [(0.0, 0), (-0.7, 8), (-1.0, 20)])
def test_identical_code_at_any_clock_is_no_regression_and_2_percent_are_one(
    elasticity: float, as_measured: int
) -> None:
    """Mostly decided. Of a baseline of one clock a faster one may hide what the code lost."""
    chance = Random(5)
    said: Counter[tuple[float, Outcome]] = Counter()
    regressed = 0
    for _ in range(300):
        before = at_clocks(chance, 5, elasticity)
        now = at_clocks(chance, 9, elasticity, [chance.choice(STEPS_MHZ)])
        for factor in (1.0, 1.02):
            slower = [with_factor(one, "kernel_time", factor) for one in now]
            said[factor, judged_by_entry(before, slower, with_canary=True)] += 1
        regressed += judged_by_entry(before, now, with_canary=False) is Outcome.REGRESSED
    assert regressed == as_measured
    assert said[1.0, Outcome.REGRESSED] == 0
    assert said[1.0, Outcome.UNCHANGED] >= 280
    assert said[1.02, Outcome.UNCHANGED] <= 3
    assert said[1.02, Outcome.REGRESSED] >= 250


def test_what_was_compared_at_one_clock_is_not_explained_by_the_clock_again() -> None:
    """1.3 % of the code's, at a clock that is slower by a step."""
    chance = Random(8)
    before = at_clocks(chance, 9, -0.6)
    now = [with_factor(one, "kernel_time", 1.013) for one in at_clocks(chance, 9, -0.6, [1967.0])]
    assert judged_by_entry(before, now, with_canary=True) is Outcome.REGRESSED
    assert judged_by_entry(before, now, with_canary=False) is Outcome.REGRESSED


def in_a_process(number: int, clock_mhz: float, times: Mapping[str, float]) -> Measurement:
    """With these factors of its values, at this clock."""
    (one,) = measured(times, {"sm_clock_mhz": clock_mhz / READ["sm_clock_mhz"]}, processes=1)
    return replace(one, process=f"p{number}")


@pytest.mark.parametrize("loss", [0.01, 0.012])
def test_what_one_process_of_another_clock_took_longer_hides_no_loss(loss: float) -> None:
    """It was slow by chance, its clock does nothing to the step, and what is new has that clock."""
    usual = (-0.0003, 0.0002, 0.0, 0.0001)
    before = [in_a_process(i, 1995.0, {"kernel_time": 1 + by}) for i, by in enumerate(usual)]
    before.append(in_a_process(4, 1980.0, {"kernel_time": 1.0076}))
    now = [in_a_process(i, 1980.0, {"kernel_time": 1 + loss}) for i in range(9)]
    for count in (1, 3, 5, 9):
        said = said_by_entry(before, now[:count])["kernel_time"]
        assert said.outcome in (Outcome.INCONCLUSIVE, Outcome.MACHINE), count


def test_a_clock_that_is_supposed_settles_times_of_kernels_and_nothing_else() -> None:
    """Cycles share their scale with them."""
    chance = Random(12)

    def process(number: int) -> Measurement:
        clock = chance.choice([1980.0, 1995.0])
        others = {name: math.exp(chance.gauss(0, 0.0015)) for name in ("cycles", "step_time")}
        kernels = 1980 / clock * math.exp(chance.gauss(0, 0.001))
        return in_a_process(number, clock, {"kernel_time": kernels, **others})

    settled = 0
    for _ in range(200):
        before, now = ([process(number) for number in range(count)] for count in (5, 1))
        said, as_measured = (
            said_by_entry(before, now, with_canary=known, tolerances={}) for known in (True, False)
        )
        if "supposed" in said["kernel_time"].detail:
            settled += 1
            for metric in ("cycles", "step_time"):
                assert said[metric].low == as_measured[metric].low
    assert settled > 10


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


def test_on_a_gpu_that_is_known_its_own_clocks_are_what_it_is_compared_with() -> None:
    """Of identical code on one at 1980 to 2010 MHz, beside another that is faster by 3 %."""
    chance = Random(10)
    regressed = 0
    for _ in range(100):
        fast = at_clocks(chance, 8, 0.0, [2055.0, 2070.0])
        device = replace(fast[0].fingerprint.device, identity="another")
        others = [
            replace(each, process=f"q{n}", fingerprint=replace(each.fingerprint, device=device))
            for n, each in enumerate(fast)
        ]
        own, now = at_clocks(chance, 4, 0.0), at_clocks(chance, 9, 0.0, [2010.0])
        made = adjusted([*own, *others], now)
        assert made is None or 1980 <= round(made.before_mhz) <= 2010
        regressed += judged_by_entry([*own, *others], now, with_canary=True) is Outcome.REGRESSED
    assert regressed == 0


def test_of_ranks_nobody_knows_whose_clock_and_whose_time_it_is() -> None:
    chance = Random(11)
    before, now = at_clocks(chance, 9, -1.0), at_clocks(chance, 9, -1.0, [1970.0])
    ranks = [replace(one, workload={**one.workload, "ranks": 2}) for one in now]
    for measured_now, change in ((now, 0.0), (ranks, 0.012)):
        said = said_by_entry(before, measured_now)["kernel_time"]
        assert said.change == pytest.approx(change, abs=0.004)


def test_the_baseline_is_shown_as_it_would_be_at_the_clock_of_what_was_measured() -> None:
    chance = Random(12)
    before, now = at_clocks(chance, 9, -1.0), at_clocks(chance, 3, -1.0, [1970.0])
    said = said_by_entry(before, now)["kernel_time"]
    values = [s.values[0] for one in now for s in one.samples if s.metric == "kernel_time"]
    assert said.measured == pytest.approx(median(values))
    assert said.measured is not None
    assert said.baseline is not None
    assert said.measured / said.baseline - 1 == pytest.approx(said.change)


def test_a_failure_says_at_which_clock_times_were_compared() -> None:
    chance = Random(6)
    now = [with_factor(one, "kernel_time", 1.05) for one in at_clocks(chance, 3, -1.0, [1970.0])]
    said = said_by_entry(at_clocks(chance, 9, -1.0), now)["kernel_time"]
    assert said.outcome is Outcome.REGRESSED
    assert said.change == pytest.approx(0.05, abs=0.005)
    assert said.detail.startswith("at 1970 MHz, where the baseline's clock was 2003")
    assert " for 1 % less of it" in said.detail


# On H200s


def recorded(name: str) -> list[Measurement]:
    """The measurements of a run."""
    return [*run_files.load(RECORDED / f"{name}.json.xz").measurements]


@pytest.mark.parametrize("name", ["meddpm-0", "meddpm-1", "convnext-0"])
def test_no_reading_of_two_h200s_moved_while_they_were_measured(name: str) -> None:
    conditions = [one.fingerprint.conditions for one in recorded(name)]
    assert len(conditions) >= 35
    for one in conditions:
        assert one is not None
        assert between(one) == ()


@pytest.mark.parametrize(("baseline", "name"), [("meddpm-0", "meddpm-1"), ("meddpm-1", "meddpm-0")])
def test_two_gpus_of_one_kind_have_the_same_canary(baseline: str, name: str) -> None:
    """By five measurements of the other; the host, which ran both, was not always as fast.

    Of one measurement of 72 the clock was, by the reading before it, 1.7 % slower.
    """
    entry = baseline_files.entry_of(recorded(baseline)[:5], recorded="")
    made = [
        (one.title, part)
        for one in recorded(name)
        for part in moved([one], entry.canary, entry.gpus)
        if not part.trait.host
    ]
    assert [(part.reading, round(part.change, 3)) for _, part in made] == [
        *[("sm_clock_mhz", -0.008)] * (name == "meddpm-1")
    ]


def test_the_step_that_a_slow_host_launched_late_is_left_to_the_machine() -> None:
    """ConvNeXt's time step as one graph: 15.9 % more cycles, where 4.3 % were allowed.

    Its baseline is of two GPUs, of whose hosts no canary was recorded; a host read afterwards
    launched in 3.3 us. The time of the kernels is that of the baseline, within 0.2 %, since this
    run did not measure it.
    """
    late = [m for m in recorded("convnext-0") if "test_time_step[resident_graph]" in m.test]
    kernel_time = measurement({"kernel_time": [1_044_260.0]}).samples
    late = [replace(one, samples=(*one.samples, *kernel_time)) for one in late]
    baseline = baseline_files.load(ROOT / "baselines/sm90/nvidia-h200/convnext_ddpm.yaml")
    assert baseline is not None
    entry = baseline.tests[late[0].test][STEP]
    of_another_host = known(*[{}] * len(entry.gpus))
    for canary, reason in ((None, "unknown-host"), (of_another_host, "canary-moved")):
        reference = Reference(entry.samples, gpus=entry.gpus, days=entry.days, canary=canary)
        said = judge(late, reference, catalogue().metrics, {"step_time": "2%"})
        by_metric = {verdict.metric: verdict for verdict in said if verdict.phase == STEP}
        for metric in ("cycles", "step_time"):
            said_of = by_metric[metric]
            assert (said_of.outcome, said_of.reason) == (Outcome.MACHINE, reason)
        assert by_metric["instructions"].outcome is Outcome.UNCHANGED
    assert "launch_us +" in by_metric["cycles"].detail


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
        for measured_again, outcome in ((1, Outcome.INCONCLUSIVE), (len(now), Outcome.MACHINE)):
            said = said_by_entry(before, now[:measured_again])
            assert said["kernel_time"].outcome is outcome, test
            assert said["instructions"].outcome is Outcome.UNCHANGED
        assert said["kernel_time"].change == pytest.approx(0.006, abs=0.003)
        assert "sm_clock_mhz -0.74" in said["kernel_time"].detail
        # 3 % on top of it are the code's.
        more = [with_factor(one, "kernel_time", 1.03) for one in now]
        assert said_by_entry(before, more)["kernel_time"].outcome is Outcome.REGRESSED


def judged_by_entry(
    before: Sequence[Measurement], now: Sequence[Measurement], with_canary: bool
) -> Outcome:
    """What is said of kernel_time, with as many looks as there are processes for."""
    return last_look(before, now, with_canary=with_canary).outcome


def last_look(
    before: Sequence[Measurement], now: Sequence[Measurement], *, with_canary: bool = True
) -> Verdict:
    count = 1
    while True:
        said = said_by_entry(before, now[:count], with_canary=with_canary)["kernel_time"]
        further = next_look([said], count)
        if further is None or further > len(now):
            return said
        count = further


WAITING = {"cycles": "300%", "step_time": "300%"}
"""The suite's tolerances, which launches of a CPU that is busy and idle in turn come up to."""


def said_by_entry(
    before: Sequence[Measurement],
    now: Sequence[Measurement],
    *,
    with_canary: bool = True,
    tolerances: Mapping[str, str] = WAITING,
) -> dict[str, Verdict]:
    """By metric of the step, what is said of these where those are accepted."""
    entry = baseline_files.entry_of(before, recorded="")
    canary = entry.canary if with_canary else None
    reference = Reference(entry.samples, gpus=entry.gpus, days=entry.days, canary=canary)
    said = judge(now, reference, catalogue().metrics, tolerances)
    return {verdict.metric: verdict for verdict in said if verdict.phase == STEP}


def test_a_baseline_of_two_clocks_says_what_the_clock_does_to_kernels() -> None:
    """ConvNeXt's 21 time steps on two H100s, the baseline's five processes at 1980 and 1995 MHz.

    Of the same code: at one clock 19 are decided by kernel_time, and 3 where no clock is known.
    """
    sessions = ("alone-0", "alone-1", "beside-0", "beside-1")
    accepted = [run_files.load(ROOT / "docs/runs/workers" / f"{one}.json.xz") for one in sessions]
    accepted.append(run_files.load(ROOT / "tests/data/h100-clocks/first.json.xz"))
    again = run_files.load(ROOT / "tests/data/h100-clocks/again.json.xz")
    decided: Counter[tuple[bool, Outcome]] = Counter()
    for test in dict.fromkeys(one.test for one in again.measurements):
        before = [one for run in accepted for one in run.measurements if one.test == test]
        now = [one for one in again.measurements if one.test == test]
        for with_canary in (True, False):
            decided[with_canary, judged_by_entry(before, now, with_canary)] += 1
    assert decided == {
        (True, Outcome.UNCHANGED): 19,
        (True, Outcome.INCONCLUSIVE): 2,
        (False, Outcome.UNCHANGED): 3,
        (False, Outcome.INCONCLUSIVE): 18,
    }


@pytest.mark.parametrize(
    ("supposed", "decided", "processes"),
    [
        (True, {Outcome.UNCHANGED: 81, Outcome.MACHINE: 2, Outcome.INCONCLUSIVE: 1}, 140),
        (False, {Outcome.UNCHANGED: 73, Outcome.MACHINE: 9, Outcome.INCONCLUSIVE: 2}, 184),
    ],
)
def test_what_is_supposed_of_a_clock_settles_what_is_not_learnt(
    monkeypatch: pytest.MonkeyPatch,
    supposed: bool,
    decided: dict[Outcome, int],
    processes: int,
) -> None:
    """ConvNeXt's 21 time steps in four sessions on one or two H100s, the same code.

    Of the five processes of their baseline often one alone had another clock.
    """
    if not supposed:

        def learnt(*of: Any, **named: Any) -> AtOneClock | None:
            made = at_one_clock(*of, **named)
            return made if made and made.elasticity.is_learnt else None

        monkeypatch.setattr(machine, "at_one_clock", learnt)
    folder = ROOT / "tests" / "data" / "h100-workers"
    accepted = [run_files.load(file) for file in sorted(folder.glob("baseline-*"))]
    said = []
    for file in sorted({*folder.iterdir()} - {*folder.glob("baseline-*")}):
        again = run_files.load(file)
        for test in dict.fromkeys(one.test for one in again.measurements):
            before = [one for run in accepted for one in run.measurements if one.test == test]
            said.append(last_look(before, [one for one in again.measurements if one.test == test]))
    assert Counter(one.outcome for one in said) == decided
    assert sum(one.processes for one in said) == processes


def test_ten_of_ten_beside_a_process_that_nvml_does_not_show_are_the_machine_s() -> None:
    """Ten tests of 34 ms on an H200 that products of matrices in another process kept busy.

    They take 86 ms and 3 % more cycles there, and of a queue of kernels the canary had 44 %.
    """
    folder = ROOT / "tests" / "data" / "h200-shared"
    alone = [run_files.load(folder / f"baseline-{number}.json.xz") for number in range(3)]
    shared = run_files.load(folder / "hidden.json.xz")
    said = [*verdicts_where_nvml_shows_nobody(alone, shared)]
    assert len(said) == 10
    for one in said:
        assert one["step_time"].change == pytest.approx(1.5, abs=0.1)
        assert {one["cycles"].outcome, one["step_time"].outcome} == {Outcome.MACHINE}
        assert "time_share -56" in one["step_time"].detail
        assert one["instructions"].outcome is Outcome.UNCHANGED
