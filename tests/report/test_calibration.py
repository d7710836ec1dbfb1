"""What `gpuperf calibrate` prints: a table that fits, false alarms, notes on what is lacking."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.baselines.calibration import Finding
from pytest_gpuperf.commands import calibrate
from pytest_gpuperf.judge.spread import Estimate
from pytest_gpuperf.judge.trials import Trials
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.metric import MetricClass
from tests.examples import H200

CYCLE, DETERMINISTIC, RATIO = MetricClass.CYCLE, MetricClass.DETERMINISTIC, MetricClass.RATIO
ESTIMATES = {
    DETERMINISTIC: Estimate(Spread(0.0, 1.234e-6, 4.01e-7, 0.0), 2e-5),
    CYCLE: Estimate(Spread(2.98e-4, 9.48e-4, 6.62e-4, 0.00614), 1e-3),
    RATIO: Estimate(Spread(7.19e-4, 0.0023, None, None), 1.5e-3),
}


QUIET = Trials(76, 0, 0)


def finding(
    estimates: Mapping[MetricClass, Estimate] = ESTIMATES,
    *,
    trials: Trials = QUIET,
    processes: int = 36,
    allocations: int = 6,
    gpus: int = 3,
    apart: frozenset[str] = frozenset(),
    warnings: tuple[str, ...] = (),
) -> Finding:
    """A sound finding of 36 processes unless told otherwise."""
    return Finding(
        suite="meddpm",
        device=H200,
        estimates=estimates,
        trials=trials,
        apart=apart,
        calibration=Calibration(
            date="2026-03-01",
            processes=processes,
            allocations=allocations,
            gpus=gpus,
            trials=trials.count,
            false_alarms=trials.false_alarms,
            classes={kind.value: estimate.spread for kind, estimate in estimates.items()},
        ),
        warnings=warnings,
    )


def shown(found: Finding, width: int = 100) -> list[str]:
    return [line.text for line in calibrate.lines(found, width)]


def test_a_sound_finding() -> None:
    assert shown(finding()) == [
        "meddpm on NVIDIA H200 (sm90): 36 processes, 6 allocations (a GPU on a day), 3 GPUs",
        "  class           rounds  processes  allocations     GPUs  default    scale",
        "  deterministic      0 %   1.23 ppm    0.401 ppm      0 %   20 ppm    2 ppm",
        "  cycle          298 ppm    948 ppm      662 ppm  0.614 %    0.1 %  948 ppm",
        "  ratio          719 ppm     0.23 %            -        -   0.15 %   0.23 %",
        "false alarms: 0 of 76 A/A trials (at most 3.9 % with 95 % confidence)",
    ]


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    assert any(line.startswith("  class") for line in shown(finding(), 80))
    assert max(map(len, shown(finding(), 80))) <= 80


def test_stacked_lines_where_the_columns_do_not_fit() -> None:
    assert shown(finding({CYCLE: ESTIMATES[CYCLE]}), 50)[2:5] == [
        "  cycle: scale 948 ppm (default 0.1 %)",
        "    rounds 298 ppm, processes 948 ppm, allocations",
        "    662 ppm, GPUs 0.614 %",
    ]


@given(st.integers(20, 120))
def test_no_line_is_too_wide_and_no_number_is_lost(width: int) -> None:
    noisy = finding(processes=4, allocations=2, apart=frozenset({"a"}), warnings=("what " * 30,))
    lines = shown(noisy, width)
    assert all(len(line) <= width for line in lines)
    text = " ".join(" ".join(lines).split())
    for number in ("1.23 ppm", "0.614 %", "0.23 %", "3.9 %", "4 processes", "2 allocations"):
        assert number in text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, "-"),
        (0.0, "0 %"),
        (1e-17, "0 %"),
        (1.234e-6, "1.23 ppm"),
        (4.99e-5, "49.9 ppm"),
        (5e-5, "50 ppm"),
        (1.4e-4, "140 ppm"),
        (9.994e-4, "999 ppm"),
        (9.996e-4, "0.1 %"),
        (1.5e-3, "0.15 %"),
        (0.0314, "3.14 %"),
        (0.5, "50 %"),
    ],
)
def test_shares_are_short_and_never_rounded_to_nothing(number: float | None, text: str) -> None:
    assert calibrate.share(number) == text


@pytest.mark.parametrize(
    ("trials", "text", "tone"),
    [
        (Trials(76, 0, 0), "0 of 76 A/A trials (at most 3.9 % with 95 % confidence)", "good"),
        (Trials(1, 0, 0), "0 of 1 A/A trial (at most 95.0 % with 95 % confidence)", "good"),
        (
            Trials(76, 0, 2),
            "0 of 76 A/A trials (at most 3.9 % with 95 % confidence); 2 stayed inconclusive",
            "doubtful",
        ),
        (Trials(76, 3, 0), "3 of 76 A/A trials (at most 9.9 % with 95 % confidence)", "bad"),
        (Trials(0, 0, 0), "not measured, since no test has 6 processes or more", "doubtful"),
    ],
)
def test_false_alarms(trials: Trials, text: str, tone: str) -> None:
    (line,) = [
        line
        for line in calibrate.lines(finding(trials=trials), 100)
        if line.text.startswith("false alarms")
    ]
    assert (line.text, line.tone) == (f"false alarms: {text}", tone)


def notes(found: Finding) -> list[str]:
    return [line for line in shown(found, 300) if line.startswith(("note:", "warning:"))]


def test_a_sound_finding_has_no_notes() -> None:
    assert notes(finding(processes=20, allocations=3)) == []


def test_days_that_dominate_are_said() -> None:
    estimates = {CYCLE: Estimate(Spread(1e-4, 1e-3, 2e-3, None), 1e-3), RATIO: ESTIMATES[RATIO]}
    assert notes(finding(estimates)) == [
        "note: cycle: days differ more than processes: more processes on one day do not help; "
        "the judge uses the error between allocations"
    ]


@pytest.mark.parametrize(
    ("processes", "allocations", "text"),
    [(19, 3, "19 processes of 3 allocations"), (30, 1, "30 processes of 1 allocation")],
)
def test_what_a_sound_estimate_needs_is_said(processes: int, allocations: int, text: str) -> None:
    assert notes(finding(processes=processes, allocations=allocations)) == [
        f"note: {text}: a sound estimate needs 20 processes or more, of 3 allocations or more "
        "(other GPUs, other days)"
    ]


def test_processes_that_stand_apart_and_warnings_are_said() -> None:
    found = finding(apart=frozenset({"a", "b"}), warnings=("2 revisions of the code",))
    assert notes(found) == [
        "warning: 2 revisions of the code",
        "note: 2 processes more than 5 SD from the others of the same allocation, and counted all "
        "the same",
    ]
