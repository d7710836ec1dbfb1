"""What the canary explains of a change, and what it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.machine import (
    TRAITS,
    MachineState,
    confounded,
    kinds,
    moved,
)
from pytest_gpuperf.judge.verdict import (
    OTHER_GPU,
    Reference,
    judge,
)
from pytest_gpuperf.model.entry import CanarySeries
from pytest_gpuperf.model.measurement import STEP, Conditions, Device, Measurement, Reading
from pytest_gpuperf.model.result import Outcome, Verdict
from tests.examples import H200, OTHER_H200, measurement, verdict
from tests.judge.canaries import BASELINE, CODE, READ, measured, reading
from tests.strategies import few

METRICS = catalogue().metrics


def known(*processes: Mapping[str, float], code: str = CODE) -> CanarySeries:
    """What a baseline's processes read: factors, of each before and after alike."""
    series = {
        name: tuple(value * changes.get(name, 1.0) for changes in processes)
        for name, value in READ.items()
    }
    return CanarySeries((code,) * len(processes), series)


AS_BEFORE = known({}, {}, {})
ELSEWHERE = ("gpu-0",) * 3
"""A GPU that is not the measured one."""


def verdicts(
    measurements: Sequence[Measurement], gpus: Sequence[str] = (H200.identity,) * 3
) -> dict[str, Verdict]:
    """By metric, against three processes of a baseline: on the same GPU, or on these."""
    samples = {STEP: {name: [[value]] * 3 for name, value in BASELINE.items()}}
    reference = Reference(samples, gpus=tuple(gpus), canary=AS_BEFORE)
    judged = judge(measurements, reference, METRICS, {})
    return {verdict.metric: verdict for verdict in judged}


def outcomes(measurements: Sequence[Measurement]) -> dict[str, str]:
    """What is not unchanged."""
    said = verdicts(measurements)
    return {n: v.outcome.value for n, v in said.items() if v.outcome is not Outcome.UNCHANGED}


# Kinds of GPUs


SHORT: Mapping[str, float] = {"dram_cycles": 0.977, "dram_ns": 0.977}
"""What the canary reads on the second kind of H200, and the step takes 2.4 % more cycles there."""


def on_a_gpu_that_nobody_has_met(
    cycles: float,
    canary: Mapping[str, float],
    known_canary: CanarySeries | None,
    *,
    processes: int = 3,
    device: Device = H200,
) -> Verdict:
    """Against two GPUs of each kind, with two processes each."""
    factors = [factor for factor in (1.0, 1.001, 1.024, 1.025) for _ in range(2)]
    reference = Reference(
        {STEP: {"cycles": [[BASELINE["cycles"] * factor] for factor in factors]}},
        gpus=tuple(f"gpu-{number // 2}" for number in range(8)),
        canary=known_canary,
    )
    new = measured({"cycles": cycles}, canary, processes=processes, device=device)
    said = judge(new, reference, METRICS, {})
    return next(verdict for verdict in said if verdict.metric == "cycles")


OF_BOTH = known(*[{}] * 4, *[SHORT] * 4)


def test_on_a_gpu_that_nobody_has_met_its_kind_says_what_to_expect() -> None:
    for cycles, canary in ((1.0, {}), (1.025, SHORT)):
        said = on_a_gpu_that_nobody_has_met(cycles, canary, OF_BOTH)
        assert said.outcome is Outcome.UNCHANGED
        assert said.detail == OTHER_GPU
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
    # H100s whose canaries read alike are less alike, though more than any two.
    other = on_a_gpu_that_nobody_has_met(1.0, {}, OF_BOTH, device=replace(H200, slug="nvidia-h100"))
    assert 0.02 < (other.tolerance or 0.0) < blind.tolerance


def test_a_kind_that_nobody_has_met_is_neither_passed_nor_said_of_the_code() -> None:
    """Whatever it takes there, but for more than kinds can differ by, and more work."""
    of_one = known(*[{}] * 8)
    for cycles in (0.99, 1.0, 1.012, 1.03):
        said = on_a_gpu_that_nobody_has_met(cycles, SHORT, of_one)
        assert said.outcome is Outcome.MACHINE, cycles
        assert said.detail == (
            "gpuperf's reference kernels (canary) changed too: dram_ns -2.3 % (1.9999e+06 -> "
            "1.9539e+06) suggests another kind of GPU or other processes on it"
        )
    # A large loss is the code's, as more than one process have to show.
    for processes, outcome in ((1, Outcome.INCONCLUSIVE), (3, Outcome.REGRESSED)):
        said = on_a_gpu_that_nobody_has_met(1.2, SHORT, of_one, processes=processes)
        assert said.outcome is outcome


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
    read = replace(AS_BEFORE, readings={"launch_us": (None, None, None)})
    assert moved(slow, read) == ()
    assert moved(slow, replace(read, readings={"launch_us": (None, 3.3, None)})) != ()


def test_what_moved_while_it_was_measured_moved_without_a_baseline_too() -> None:
    # An H100 that gets warm goes up by two steps of 15 MHz, which the judge looks at, and by which
    # nothing is measured again.
    assert moved(measured({}, {}, after={"sm_clock_mhz": 1.0152}), None) == ()
    for disturbed in (
        {"time_share": 0.96},
        {"l2_cycles": 1.035},
        {"tensor_clock_mhz": 0.965},
        {"dram_cycles": 1.02, "dram_ns": 1.02},
    ):
        after = {"sm_clock_mhz": 1.0, **disturbed}
        assert next(iter(disturbed)) in [
            one.reading for one in moved(measured({}, {}, after=after), None)
        ]
    for follows in ("dram_cycles", "l2_cycles", "time_share"):
        for clock in ("sm_clock_mhz", "dram_cycles"):  # of which that one takes as many
            assert moved(measured({}, {}, after={clock: 0.97, follows: 0.97}), None) == ()
    throttled = measured({}, {}, after={"sm_clock_mhz": 0.8})
    (one,) = moved(throttled, None)
    assert one.reading == "sm_clock_mhz"
    assert one.now / one.before == pytest.approx(0.8)
    # The host is interrupted now and then, which passes.
    assert moved(measured({}, {}, after={"launch_us": 9.0, "host_ms": 9.0}), None) == ()


def test_what_was_read_by_two_canaries_or_on_one_side_only_is_of_no_kind() -> None:
    """Half of a reading, or of two that cannot be compared, tells no kind of GPU."""
    (new,) = measured({}, {}, processes=1)
    assert kinds([new], AS_BEFORE)[1] is not None
    before = reading()
    assert before.canary is not None
    of_another = replace(before, canary=replace(before.canary, code="b"))
    for after in (of_another, Reading()):
        conditions = Conditions(before, after)
        one = replace(new, fingerprint=replace(new.fingerprint, conditions=conditions))
        assert kinds([one], AS_BEFORE) == ((), None)
        assert moved([one], AS_BEFORE) == () or after is of_another
    # A process of the baseline that another canary read has no kind among the others.
    mixed = replace(AS_BEFORE, code=(CODE, "b", CODE))
    assert [kind is None for kind in kinds([new], mixed)[0]] == [False, True, False]


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
        "gpuperf's reference kernels (canary) changed too: launch_us +52 % (3.3 -> 5.016) suggests "
        "another host; host_ms +40 % (0.29 -> 0.406) suggests another host"
    )


def test_a_host_that_the_gpu_waits_for_explains_nothing_of_its_kernels() -> None:
    """It waits a quarter of the step, in which no kernel is slower for that."""
    loss = {"cycles": 1.3, "step_time": 1.3, "kernel_time": 1.08}
    assert outcomes(measured(loss, {"launch_us": 2.0})) == {
        "cycles": "machine",
        "step_time": "machine",
        "kernel_time": "regressed",
    }
    said = verdicts(measured(loss, {"launch_us": 1.2}), ELSEWHERE)
    assert said["step_time"].reason == "unknown-host"
    assert said["kernel_time"].outcome is Outcome.REGRESSED


def test_over_ranks_it_is_not_the_host_that_is_waited_for_while_no_kernel_runs() -> None:
    """But other ranks, in collectives, which are no kernel_time."""
    slow = measured({"step_time": 1.12}, {"launch_us": 2.0})
    assert verdicts(slow)["step_time"].outcome is Outcome.MACHINE
    ranks = [replace(one, workload={**one.workload, "ranks": 2}) for one in slow]
    assert verdicts(ranks)["step_time"].outcome is Outcome.REGRESSED


WAITS = {"cycles": 1.3, "step_time": 1.3}
"""More than any GPU differs, and no more than the GPU then waits: its kernels take no longer."""


def test_how_fast_the_host_of_another_machine_is_only_processes_of_it_can_say() -> None:
    """Seen on two H200s: a step took 15 % longer, and launch_us had moved within its noise."""
    said = verdicts(measured(WAITS, {"launch_us": 1.2}), ELSEWHERE)
    for metric in ("cycles", "step_time"):
        assert (said[metric].outcome, said[metric].reason) == (Outcome.MACHINE, "unknown-host")
    assert said["step_time"].detail == (
        "no kernel ran in 30% of the step, and this host may be slower than the baseline's. Accept "
        "runs of both: gpuperf update-baseline RUN RUN --reason TEXT"
    )
    assert said["instructions"].outcome is said["kernel_time"].outcome is Outcome.UNCHANGED


@pytest.mark.parametrize(
    ("canary", "cycles", "times"),
    [
        ({"sm_clock_mhz": 0.9}, "regressed", "machine"),
        ({"sm_clock_mhz": 1.1}, "regressed", "regressed"),
        ({"dram_ns": 1.1}, "machine", "machine"),
        ({"dram_cycles": 1.1}, "machine", "machine"),
        ({"dram_cycles": 0.9}, "machine", "machine"),
        ({"tensor_cycles": 1.1}, "machine", "machine"),
        ({"l2_cycles": 1.1}, "machine", "machine"),
        # Cycles that the clock explains explain no time: they are as many as it is fast, and more.
        ({"dram_cycles": 1.1, "sm_clock_mhz": 1.1}, "machine", "regressed"),
        ({"l2_cycles": 1.1, "sm_clock_mhz": 1.1}, "machine", "regressed"),
        ({"l2_cycles": 1.2, "sm_clock_mhz": 1.1}, "machine", "machine"),
    ],
)
def test_a_gpu_explains_as_much_as_it_moved(
    canary: Mapping[str, float], cycles: str, times: str
) -> None:
    """A clock changes no count of cycles; another kind of GPU may be slower at one and faster."""
    loss = {"cycles": 1.08, "step_time": 1.08, "kernel_time": 1.08}
    said = outcomes(measured(loss, canary))
    assert said == {"cycles": cycles, "step_time": times, "kernel_time": times}
    twice = dict.fromkeys(loss, 1.3)
    assert {*outcomes(measured(twice, canary)).values()} == {"regressed"}


def test_no_machine_explains_a_time_that_is_gone() -> None:
    assert outcomes(measured({"cycles": 0.0}, {"dram_cycles": 1.2})) == {"cycles": "improved"}


@pytest.mark.parametrize(("change", "waits"), [(-0.01, False), (0.0, False), (0.01, True)])
def test_a_step_that_takes_no_longer_does_not_wait_for_a_host_that_nobody_knows(
    change: float, waits: bool
) -> None:
    """In doubt by 2 % to either side of this change."""
    doubt = verdict("step_time", Outcome.INCONCLUSIVE, reason="too-noisy", tolerance=0.005)
    doubt = replace(doubt, change=change, low=change - 0.02, high=change + 0.02)
    now = measured({"step_time": 1 + change}, {})
    machine = MachineState(now, AS_BEFORE, (H200.identity,), is_unseen=True)
    said = confounded(replace(doubt, processes=3), METRICS["step_time"], machine)
    outcome = (Outcome.MACHINE, "unknown-host") if waits else (doubt.outcome, doubt.reason)
    assert (said.outcome, said.reason) == outcome


def test_what_is_within_its_tolerance_stays_there() -> None:
    assert outcomes(measured({"cycles": 1.003}, {"dram_cycles": 1.2})) == {}


@few
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
    for metric, said in told.items():
        if said.outcome is not Outcome.MACHINE:
            assert said.outcome is plain[metric].outcome
        else:
            assert metric in ("cycles", "step_time", "kernel_time")
            assert plain[metric].outcome is not Outcome.UNCHANGED
