"""What to type next: the commands that fit what came of a session."""

from __future__ import annotations

import shlex
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pytest_gpuperf.model.result import Expectation, Outcome, Result
from pytest_gpuperf.report.text.next_command import CommandContext, command_lines, lines
from tests.examples import TEST, measurement, result, verdict

SELECTED = "--gpu-arch sm90 suites/meddpm"
SESSION = CommandContext(SELECTED)


def judged(outcome: Outcome, **changes: str) -> Result:
    """A measurement with this verdict."""
    return result(measurement(), replace(verdict(outcome=outcome), **changes))  # type: ignore[arg-type]


def unreadable(metric: str, reason: str) -> Result:
    """A measurement that lacks this metric, for this reason."""
    lacking = measurement({"step_time": [232.0]}, unsupported={metric: reason})
    return result(lacking, verdict(metric, Outcome.UNSUPPORTED, detail=reason))


def advised(*results: Result, session: CommandContext = SESSION) -> list[str]:
    """What is said, in lines as long as they like."""
    return list(lines(results, session, 300))


BROKEN = Expectation(
    TEST, "duration", "ns", "step", None, 2.2e8, outcome=Outcome.BROKEN, reason="beyond"
)
REGRESSED, IMPROVED, MISSING, UNDECIDED, UNCHANGED = map(
    judged,
    (
        *(Outcome.REGRESSED, Outcome.IMPROVED, Outcome.NO_BASELINE),
        *(Outcome.INCONCLUSIVE, Outcome.UNCHANGED),
    ),
)
ACCEPT = '  gpuperf update-baseline --reason "..."'
RECORD = [
    "to make a baseline on this device:",
    f"  gpuperf record --processes 5 -- {SELECTED}",
    '  gpuperf update-baseline --reason "first baseline"',
]
DOCTOR = ["to see why counters cannot be read:", "  gpuperf doctor"]


def test_when_all_is_well_nothing_is_asked() -> None:
    assert advised(UNCHANGED) == []


# No baseline


def test_without_a_baseline_the_two_commands_that_make_one() -> None:
    assert advised(MISSING) == RECORD


def test_a_missing_baseline_comes_before_accepting() -> None:
    assert advised(REGRESSED, MISSING, IMPROVED) == RECORD


def test_where_a_missing_baseline_passes_a_regression_comes_first() -> None:
    session = replace(SESSION, missing_passes=True)
    assert advised(REGRESSED, MISSING, session=session) == ["to accept what is intended:", ACCEPT]
    assert advised(UNCHANGED, MISSING, session=session) == RECORD


def test_a_recorded_run_becomes_the_baseline_itself() -> None:
    session = CommandContext(SELECTED, run="old run.json", replayed=True)
    assert advised(MISSING, session=session) == [
        "to make a baseline of this run:",
        "  gpuperf update-baseline 'old run.json' --reason \"first baseline\"",
    ]


def test_a_baseline_that_was_just_made_is_not_asked_for() -> None:
    session = replace(SESSION, recorded=frozenset({(TEST, "step")}))
    assert advised(MISSING, session=session) == []
    assert advised(MISSING, REGRESSED, session=session) == ["to accept what is intended:", ACCEPT]


# Regressions


def test_a_regression_says_how_to_accept_what_is_intended() -> None:
    assert advised(REGRESSED, IMPROVED, UNDECIDED) == ["to accept what is intended:", ACCEPT]


def test_a_regression_is_compared_with_a_run_from_before() -> None:
    session = replace(SESSION, compared=(".gpuperf/runs/a.json", "my run.json"))
    assert advised(REGRESSED, session=session) == [
        "to see what changed since a run that had not regressed:",
        "  gpuperf compare .gpuperf/runs/a.json 'my run.json'",
        "to accept what is intended:",
        ACCEPT,
    ]


def test_a_limit_is_nothing_to_accept() -> None:
    assert advised(UNCHANGED, Result(TEST, "step", (), expectations=(BROKEN,))) == []


def test_what_is_accepted_is_named_where_it_is_not_the_newest() -> None:
    for session, command in (
        (SESSION, 'gpuperf update-baseline --reason "..."'),
        (CommandContext(run="run.json"), 'gpuperf update-baseline run.json --reason "..."'),
        (
            CommandContext(run="a b.json", baselines="perf/accepted"),
            "gpuperf update-baseline 'a b.json' --baselines perf/accepted --reason \"...\"",
        ),
    ):
        assert session.accept() == command, session


# The rest


def test_what_is_undecided_takes_more_processes() -> None:
    for session, command in (
        (replace(SESSION, processes=3), f"pytest --gpuperf-processes 9 {SELECTED}"),
        (replace(SESSION, processes=9), f"pytest {SELECTED}"),
        (CommandContext(processes=9), "pytest"),
        (replace(SESSION, replayed=True), f"gpuperf record --processes 9 -- {SELECTED}"),
    ):
        _, found = advised(UNDECIDED, IMPROVED, session=session)
        assert found.strip() == command, session


def test_counters_that_cannot_be_read_are_a_case_for_the_doctor() -> None:
    found = unreadable("cycles", "CUPTI may not read counters here")
    assert advised(found) == DOCTOR
    assert advised(found, MISSING) == [*DOCTOR, *RECORD]


def test_what_does_not_exist_is_not() -> None:
    for found in (
        # What is no counter no doctor can give.
        unreadable("layout_copies", "not counted here"),
        # The baseline was measured with more metrics.
        judged(Outcome.UNSUPPORTED, detail="the baseline has it, this measurement does not"),
    ):
        assert advised(found) == [], found


def test_on_an_unfit_device_the_doctor_knows_who_else_is_there() -> None:
    assert advised(judged(Outcome.UNFIT)) == [
        "to see who else uses the device:",
        "  gpuperf doctor",
    ]


def test_an_improvement_asks_to_be_accepted() -> None:
    assert advised(IMPROVED, UNCHANGED) == [
        "1 improved; to accept, so that a later loss shows:",
        ACCEPT,
    ]


# Commands in few columns


def test_a_command_is_broken_between_its_words() -> None:
    for width, shown in (
        (80, ["  gpuperf record --processes 5 -- -k 'one or two' suites/meddpm"]),
        (50, ["  gpuperf record --processes 5 -- \\", "    -k 'one or two' suites/meddpm"]),
        (
            24,
            [
                "  gpuperf record \\",
                "    --processes 5 -- \\",
                "    -k 'one or two' \\",
                "    suites/meddpm",
            ],
        ),
    ):
        command = "gpuperf record --processes 5 -- -k 'one or two' suites/meddpm"
        assert list(command_lines(command, width)) == shown, width


words = st.lists(
    st.text("abc./=[]'\" ", min_size=1, max_size=14) | st.text("x/", min_size=60, max_size=90),
    min_size=1,
    max_size=12,
)


@given(words, st.integers(40, 200))
def test_what_is_pasted_is_the_command(command: list[str], width: int) -> None:
    text = shlex.join(command)
    shown = list(command_lines(text, width))
    assert all(len(line) <= width for line in shown)
    assert shlex.split("\n".join(shown).replace("\\\n", "")) == command
