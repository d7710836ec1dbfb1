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
NO_COUNTERS = unreadable("cycles", "CUPTI may not read counters here")
ACCEPT = ["to accept what is intended:", '  gpuperf update-baseline --reason "..."']
RECORD = [
    "to make a baseline on this device:",
    f"  gpuperf record --processes 5 -- {SELECTED}",
    '  gpuperf update-baseline --reason "first baseline"',
]
DOCTOR = ["to see why counters cannot be read:", "  gpuperf doctor"]


def test_what_is_advised() -> None:
    replayed = CommandContext(SELECTED, run="old run.json", replayed=True)
    recorded = replace(SESSION, recorded=frozenset({(TEST, "step")}))
    compared = replace(SESSION, compared=(".gpuperf/runs/a.json", "my run.json"))
    passes = replace(SESSION, missing_passes=True)
    for results, session, advice in (
        # When all is well nothing is asked, and a limit is nothing to accept.
        ([UNCHANGED], SESSION, []),
        ([UNCHANGED, Result(TEST, "step", (), expectations=(BROKEN,))], SESSION, []),
        # A missing baseline comes before accepting, unless it passes.
        ([MISSING], SESSION, RECORD),
        ([REGRESSED, MISSING, IMPROVED], SESSION, RECORD),
        ([UNCHANGED, MISSING], passes, RECORD),
        ([REGRESSED, MISSING], passes, ACCEPT),
        # A recorded run becomes the baseline itself; one that was just made is not asked for.
        (
            [MISSING],
            replayed,
            [
                "to make a baseline of this run:",
                "  gpuperf update-baseline 'old run.json' --reason \"first baseline\"",
            ],
        ),
        ([MISSING], recorded, []),
        ([MISSING, REGRESSED], recorded, ACCEPT),
        # A regression is compared with a run from before.
        ([REGRESSED, IMPROVED, UNDECIDED], SESSION, ACCEPT),
        (
            [REGRESSED],
            compared,
            [
                "to see what changed since a run that had not regressed:",
                "  gpuperf compare .gpuperf/runs/a.json 'my run.json'",
                *ACCEPT,
            ],
        ),
        (
            [IMPROVED, UNCHANGED],
            SESSION,
            ["1 improved; to accept, so that a later loss shows:", ACCEPT[1]],
        ),
        # Counters that cannot be read are a case for the doctor, who knows who else is there.
        ([NO_COUNTERS], SESSION, DOCTOR),
        ([NO_COUNTERS, MISSING], SESSION, [*DOCTOR, *RECORD]),
        (
            [judged(Outcome.UNFIT)],
            SESSION,
            ["to see what the device is and who else uses it:", "  gpuperf doctor"],
        ),
        (
            [judged(Outcome.MACHINE), UNCHANGED],
            SESSION,
            ["to see what the device is and who else uses it:", "  gpuperf doctor"],
        ),
        # What is no counter no doctor can give; the baseline was measured with more metrics.
        ([unreadable("layout_copies", "not counted here")], SESSION, []),
        ([judged(Outcome.UNSUPPORTED, detail="the baseline has it, not this")], SESSION, []),
    ):
        assert list(lines(results, session, 300)) == advice, session


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
        _, said = lines([UNDECIDED, IMPROVED], session, 300)
        assert said.strip() == command


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
