"""What a failing test says."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.judge.attribution import attribute
from pytest_gpuperf.model.result import Outcome
from pytest_gpuperf.report.text import failure
from pytest_gpuperf.report.text.next_command import CommandContext
from tests.examples import kernels_changed, measurement, result, verdict
from tests.kernel_steps import NAMING, table

COMMAND = "--gpu-arch sm90 suites/meddpm"
SESSION = CommandContext(COMMAND)
NO_BASELINE = verdict(
    outcome=Outcome.NO_BASELINE,
    baseline=None,
    change=None,
    tolerance=None,
    detail="baselines/sm90/nvidia-h200/meddpm.yaml does not exist",
)
UNSUPPORTED = verdict(
    "ipc",
    Outcome.UNSUPPORTED,
    baseline=None,
    measured=None,
    change=None,
    tolerance=None,
    detail="CUPTI may not read counters here",
)
INCONCLUSIVE = verdict("instructions", Outcome.INCONCLUSIVE, change=0.004)


def test_a_regression_names_configuration_metric_numbers_and_what_to_do() -> None:
    text = failure.failure(result(measurement(), verdict()), [verdict()], SESSION)
    assert text == "\n".join(
        [
            "gpuperf: cycles +2.52 %: regressed on NVIDIA H200 (sm90)",
            "configuration: tf32",
            "  metric  baseline  measured   change  tolerance  MDE  verdict",
            "  cycles  437.00 M  448.00 M  +2.52 %      0.5 %    -  regressed",
            "to measure it again by itself:",
            "  pytest --gpu-arch sm90 'suites/meddpm/test_training.py::test_training_step[tf32]'",
            "to accept what is intended:",
            '  gpuperf update-baseline --reason "..."',
        ]
    )


def test_kernels_are_named_before_it_is_said_how_to_accept_them() -> None:
    step = (("conv", 900.0), ("add", 300.0))
    said = attribute(table(*step, ("silu", 600.0), ("silu", 600.0)), table(*step), NAMING)
    # The judge's order; only what fails the test is a row, besides.
    verdicts = [kernels_changed(), verdict(), verdict("ipc", outcome=Outcome.REPORTED)]
    text = failure.failure(
        result(measurement(), *verdicts, attribution=said), verdicts[1:2], SESSION
    )
    assert text.splitlines()[2:] == [
        "  metric   baseline  measured   change  tolerance  MDE  verdict",
        "  kernels      1647      1649        -          -    -  kernels-changed",
        "  cycles   437.00 M  448.00 M  +2.52 %      0.5 %    -  regressed",
        "  2 added",
        "kernels: +1.2 ms (x2) in a step, 100 % of it explained:",
        "  +1.2 ms  100 %  silu  added (new), 2 launches",
        "to measure it again by itself:",
        "  pytest --gpu-arch sm90 'suites/meddpm/test_training.py::test_training_step[tf32]'",
        "to accept what is intended:",
        '  gpuperf update-baseline --reason "..."',
    ]


def test_in_brief_it_is_the_worst_in_a_line() -> None:
    several = [verdict(), verdict("step_time"), verdict("ipc", Outcome.IMPROVED)]
    for verdicts, says in (
        (several, "regressed on NVIDIA H200 (sm90): cycles +2.52 %, step_time +2.52 %"),
        (several[2:], "improved on NVIDIA H200 (sm90): ipc +2.52 %"),
        ([NO_BASELINE], "has no baseline on NVIDIA H200 (sm90)"),
    ):
        one = result(measurement(), *verdicts)
        assert failure.brief(one, 120) == [f"test_training_step[tf32] {says}"]
        assert all(len(line) <= 40 for line in failure.brief(one, 40))
    for calm in (Outcome.UNCHANGED, Outcome.REPORTED):
        assert failure.brief(result(measurement(), verdict(outcome=calm)), 80) == []


def test_the_first_line_has_the_changes_and_the_name_where_a_test_measures_several() -> None:
    rows = [
        verdict(change=3.83),
        verdict("instructions", change=0.02),
        verdict("layout_copies", change=None, baseline=0.0),
    ]
    for measured, says in (
        (measurement(), "cycles x4.83, instructions x1.02, layout_copies from 0: regressed on"),
        (measurement(name="sampling"), "sampling: cycles x4.83, instructions x1.02, "),
    ):
        assert failure.failure(result(measured, *rows), rows, SESSION).startswith(
            f"gpuperf: {says}"
        )


def test_a_terminal_has_no_line_that_is_too_wide_but_for_commands() -> None:
    said = attribute(table(("conv" * 20, 900.0)), table(("conv", 300.0)), NAMING)
    row = replace(verdict(detail="what is odd, " * 20), low=0.02, high=0.03)
    page = result(measurement(), row, attribution=said, notes=("a note " * 30,))
    for width in (40, 80, 200):
        lines = failure.failure(page, [row], SESSION, width).splitlines()
        wide = [line for line in lines if len(line) > width]
        assert [line for line in wide if not line.startswith("  pytest ")] == [], width
        assert '  gpuperf update-baseline --reason "..."' in lines


def test_why_no_kernel_is_named_is_one_line() -> None:
    note = "no kernel can be named: x.kernels.json.xz: no such file. Restore it from git"
    text = failure.failure(result(measurement(), verdict(), notes=(note,)), [verdict()], SESSION)
    assert text.splitlines()[-5] == f"  {note}"


def test_without_a_configuration_none_is_named() -> None:
    text = failure.failure(result(measurement(configuration=""), verdict()), [verdict()], SESSION)
    assert "configuration" not in text


def test_a_regression_says_which_phase_it_is_in() -> None:
    verdicts = [
        verdict(),
        verdict(
            outcome=Outcome.REPORTED, phase="forward", change=0.0, baseline=70.0, measured=70.0
        ),
        verdict(
            outcome=Outcome.REPORTED, phase="backward", change=0.05, baseline=100.0, measured=105.0
        ),
        verdict(
            outcome=Outcome.REPORTED, phase="optimizer", change=0.1, baseline=2.0, measured=2.2
        ),
        verdict("ipc", outcome=Outcome.REPORTED, phase="backward", change=0.07),
        verdict(outcome=Outcome.REPORTED, phase="new", baseline=None, change=None),
    ]
    text = failure.failure(result(measurement(), *verdicts), verdicts[:1], SESSION)
    assert "  cycles by phase: backward +5.00 %\n" in text


def test_a_missing_baseline_says_why_and_the_two_commands() -> None:
    text = failure.failure(result(measurement(), NO_BASELINE), [NO_BASELINE] * 2, SESSION)
    assert text.startswith("gpuperf: no baseline on NVIDIA H200")
    assert text.count("baselines/sm90/nvidia-h200/meddpm.yaml does not exist") == 1
    assert text.endswith(
        "to make a baseline on this device:\n"
        "  gpuperf record --processes 5 -- --gpu-arch sm90 suites/meddpm\n"
        '  gpuperf update-baseline --reason "first baseline"'
    )


def test_too_few_processes_is_what_it_says_when_that_is_all() -> None:
    for reasons, enough in (
        (["too-few-processes"], False),
        (["too-few-processes", "too-few-processes"], False),
        (["too-few-processes", "too-noisy"], True),
        (["seen-in-baseline"], True),
    ):
        looks = [replace(INCONCLUSIVE, reason=reason) for reason in reasons]
        text = failure.failure(result(measurement(), *looks), looks, SESSION, 160)
        needed = (
            "One process in fifty is slow by itself: 3 are needed for a verdict. Allow more by "
            "--gpuperf-processes, or record several: gpuperf record --processes 3"
        )
        assert text.endswith(needed) is not enough, reasons
        assert text.endswith("--gpuperf-inconclusive warn") is enough, reasons
        assert "inconclusive on" in text


def test_a_baseline_that_is_too_noisy_needs_more_processes_itself() -> None:
    for reasons, thin in ((["baseline-too-noisy"], True), (["baseline-too-noisy", "x"], False)):
        looks = [replace(INCONCLUSIVE, reason=reason) for reason in reasons]
        text = failure.failure(result(measurement(), *looks), looks, SESSION, 160)
        assert ("accept runs of more of them, gpuperf record --processes 9" in text) is thin, (
            reasons
        )
        assert text.endswith("--gpuperf-inconclusive warn")


def test_ranks_of_torchrun_are_not_recorded() -> None:
    """`gpuperf record` starts single processes."""
    ranks = replace(SESSION, ranks=2)
    for reason in ("too-few-processes", "baseline-too-noisy"):
        looks = [replace(INCONCLUSIVE, reason=reason)]
        text = failure.failure(result(measurement(), *looks), looks, ranks, 160)
        assert "gpuperf record" not in text


def test_missing_counters_lead_to_the_doctor() -> None:
    text = failure.failure(result(measurement(), UNSUPPORTED), [UNSUPPORTED], SESSION)
    assert "could not read the counters it needs" in text
    assert "CUPTI may not read counters here" in text
    assert text.endswith("`gpuperf doctor` says what is missing and what to do about it")


def test_of_several_the_worst_is_the_headline_and_all_are_listed() -> None:
    for failing, says in (
        ([INCONCLUSIVE, verdict()], "regressed"),
        ([INCONCLUSIVE, UNSUPPORTED, NO_BASELINE], "could not read"),
        ([INCONCLUSIVE, NO_BASELINE], "no baseline on"),
    ):
        text = failure.failure(result(measurement(), *failing), failing, SESSION)
        assert says in text.splitlines()[0], failing
        for said in failing:
            assert any(
                line.split()[0] == said.metric and line.endswith(said.outcome.value)
                for line in text.splitlines()
            )


def test_intervals_of_all_that_fails_are_on_one_line_in_their_own_units() -> None:
    cycles = replace(verdict(change=0.05), low=0.041, high=0.059)
    points = replace(verdict("l2_hit_rate", change=-2.0, points=True), low=-2.5, high=-1.5)
    # From zero there is no ratio, and no interval.
    zero = verdict("layout_copies", change=None, baseline=0.0)
    of_cycles = "cycles +4.10 % to +5.90 %"
    for looks, processes, says in (
        ([cycles], 1, f"1 process: {of_cycles}"),
        ([cycles], 9, f"9 processes: {of_cycles}"),
        ([cycles, points, zero], 3, f"3 processes: {of_cycles}, l2_hit_rate -2.50 pt to -1.50 pt"),
    ):
        failing = [replace(look, processes=processes) for look in looks]
        text = failure.failure(result(measurement(), *failing), failing, SESSION)
        assert f"\n  99.5 % interval, {says}\n" in text
        assert "confidence" not in text


def test_of_counts_that_are_the_same_every_time_no_interval_is_said() -> None:
    counts = replace(verdict(change=3.0), low=3.0, high=3.0, processes=3)
    text = failure.failure(result(measurement(), counts), [counts], SESSION)
    assert "\n  the same in 3 processes\n" in text
    assert "interval" not in text


def test_a_missing_baseline_claims_no_confidence() -> None:
    text = failure.failure(result(measurement(), NO_BASELINE), [NO_BASELINE], SESSION)
    assert "interval" not in text
