"""What to type next: the commands that fit what came of a session."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.model.result import Expectation, Outcome, Result
from pytest_gpuperf.report.text.next_command import CommandContext, lines, of_run, selection
from tests.examples import TEST, measurement, result, run, verdict

SELECTED = "--gpu-arch sm90 suites/meddpm"
SESSION = CommandContext(SELECTED)


def judged(outcome: Outcome, **changes: str) -> Result:
    """A measurement of three processes with this verdict."""
    made = [measurement(process=f"p{number}") for number in range(3)]
    return result(made, replace(verdict(outcome=outcome), **changes))  # type: ignore[arg-type]


def unreadable(metric: str, reason: str) -> Result:
    """A measurement that lacks this metric, for this reason."""
    lacking = measurement({"step_time": [232.0]}, unsupported={metric: reason})
    return result(lacking, verdict(metric, Outcome.UNSUPPORTED, detail=reason))


BROKEN = Expectation(
    TEST, "duration", "ns", "step", None, 2.2e8, outcome=Outcome.BROKEN, reason="beyond"
)
REGRESSED, IMPROVED = judged(Outcome.REGRESSED), judged(Outcome.IMPROVED)
MISSING, UNDECIDED = judged(Outcome.NO_BASELINE), judged(Outcome.INCONCLUSIVE)
UNCHANGED = judged(Outcome.UNCHANGED)
NO_COUNTERS = unreadable("cycles", "CUPTI may not read counters here")
AGAIN = [f"measure it again: pytest --gpu-arch sm90 '{TEST}'"]
ACCEPTED = 'gpuperf update-baseline --reason "..."'
ACCEPT = [*AGAIN, f"accept an intended change: {ACCEPTED}"]
RECORD = [
    "make a baseline on this device:",
    f"  gpuperf record -- {SELECTED}",
    '  gpuperf update-baseline --reason "first baseline"',
]
DOCTOR = ["see why counters cannot be read: gpuperf doctor"]
GAIN = "accept the gain, so that a later slowdown shows"
STATE = ["see the state of the GPU, and its other processes: gpuperf doctor"]
REPLAYED = CommandContext(SELECTED, run="old run.json", replayed=True)
RECORDED = replace(SESSION, recorded=frozenset({(TEST, "step")}))
PASSES = replace(SESSION, missing_passes=True)
FROM_RUN = "make a baseline of this run: gpuperf update-baseline 'old run.json' --reason "


def advised(*results: Result, session: CommandContext = SESSION) -> list[str]:
    return [*lines(results, session, 300)]


@pytest.mark.parametrize(
    ("results", "session", "advice"),
    [
        # When all is well nothing is asked, and a limit is nothing to accept.
        ([UNCHANGED], SESSION, []),
        ([UNCHANGED, Result(TEST, "step", (), expectations=(BROKEN,))], SESSION, AGAIN),
        # A missing baseline comes before accepting, unless it passes.
        ([MISSING], SESSION, RECORD),
        ([REGRESSED, MISSING, IMPROVED], SESSION, RECORD),
        ([UNCHANGED, MISSING], PASSES, RECORD),
        ([REGRESSED, MISSING], PASSES, ACCEPT),
        # A recorded run becomes the baseline itself; one that was just made is not asked for.
        ([MISSING], REPLAYED, [f'{FROM_RUN}"first baseline"']),
        ([MISSING], RECORDED, []),
        ([MISSING, REGRESSED], RECORDED, ACCEPT),
        ([REGRESSED, IMPROVED, UNDECIDED], SESSION, ACCEPT),
        ([IMPROVED, UNCHANGED], SESSION, [f"{GAIN}: {ACCEPTED}"]),
        # Counters that cannot be read are a case for the doctor, who knows who else is there.
        ([NO_COUNTERS], SESSION, DOCTOR),
        ([NO_COUNTERS, MISSING], SESSION, [*DOCTOR, *RECORD]),
        ([judged(Outcome.UNFIT)], SESSION, STATE),
        ([judged(Outcome.MACHINE), UNCHANGED], SESSION, STATE),
        # What is no counter no doctor can give; the baseline was measured with more metrics.
        ([unreadable("layout_copies", "not counted here")], SESSION, []),
        ([judged(Outcome.UNSUPPORTED, detail="the baseline has it, not this")], SESSION, []),
    ],
)
def test_what_is_advised(results: list[Result], session: CommandContext, advice: list[str]) -> None:
    assert advised(*results, session=session) == advice


def test_under_torchrun_all_commands_that_measure_are_started_by_it() -> None:
    ranks = replace(SESSION, launcher="torchrun --nproc-per-node 4 -m", flags="--gpu-arch sm90")
    launched = "torchrun --nproc-per-node 4 -m pytest"
    more = replace(ranks, processes=3)
    for one, session, first in (
        (REGRESSED, ranks, f"{launched} --gpu-arch sm90 '{TEST}'"),
        (UNDECIDED, ranks, f"{launched} {SELECTED}"),
        (UNDECIDED, more, f"{launched} --gpuperf-processes 9 {SELECTED}"),
        (MISSING, ranks, f"gpuperf record -- {launched} {SELECTED}"),
    ):
        commands = " ".join(advised(one, session=session)).partition(":")[2]
        assert commands.strip().startswith(first)


def test_what_is_undecided_takes_more_processes() -> None:
    for session, command in (
        (replace(SESSION, processes=3), f"pytest --gpuperf-processes 9 {SELECTED}"),
        (replace(SESSION, processes=9), f"pytest {SELECTED}"),
        (CommandContext(processes=9), "pytest"),
        (replace(SESSION, replayed=True), f"gpuperf record --processes 9 -- {SELECTED}"),
    ):
        (said,) = advised(UNDECIDED, IMPROVED, session=session)
        assert said.partition(": ")[2] == command


def test_a_second_test_is_recorded_alone() -> None:
    named = replace(SESSION, flags="--gpu-arch sm80")
    test = "a b.py::test_new"
    new = result(measurement(test=test), verdict(outcome=Outcome.NO_BASELINE, test=test))
    alone = "  gpuperf record -- --gpu-arch sm80 'a b.py::test_new'"
    assert advised(UNCHANGED, new, session=named)[1] == alone
    # Where all are missing it is as it was typed, and where nobody knows what are flags.
    assert advised(MISSING, new, session=named) == RECORD
    assert advised(UNCHANGED, new) == RECORD


def test_what_an_acceptance_is_refused_for_is_overruled_or_measured_first() -> None:
    forced = " (--force overrides: dirty tree):"
    accept = 'gpuperf update-baseline --force --reason "..."'
    first = '  gpuperf update-baseline --force --reason "first baseline"'
    one = replace(REGRESSED, measurements=REGRESSED.measurements[:1])
    flags = replace(SESSION, flags="--gpu-arch sm90")
    record = f"  gpuperf record -- --gpu-arch sm90 '{TEST}'"
    replayed = (
        "accept an intended change (--force overrides: 1 process of 3): "
        'gpuperf update-baseline run.json --force --reason "..."'
    )
    for shown, session, advice in (
        (dirty(REGRESSED), SESSION, [*AGAIN, f"accept an intended change{forced} {accept}"]),
        (dirty(IMPROVED), SESSION, [f"{GAIN}{forced} {accept}"]),
        (dirty(MISSING), SESSION, [f"make a baseline on this device{forced}", RECORD[1], first]),
        (one, flags, [*AGAIN, "accept an intended change:", record, f"  {ACCEPTED}"]),
        (one, replace(flags, run="run.json", replayed=True), [*AGAIN, replayed]),
    ):
        assert advised(shown, session=session) == advice


def test_in_another_folder_tests_and_files_are_named_from_there() -> None:
    for folder, named, file in (
        ("/p", "sub/test_x.py::test_a[b::c]", ".gpuperf/runs/a.json"),
        ("/p/sub", "test_x.py::test_a[b::c]", "../.gpuperf/runs/a.json"),
        ("/", "p/sub/test_x.py::test_a[b::c]", "p/.gpuperf/runs/a.json"),
        ("/p/other", "../sub/test_x.py::test_a[b::c]", "../.gpuperf/runs/a.json"),
    ):
        context = CommandContext(flags="", root="/p", folder=folder)
        assert context.named("sub/test_x.py::test_a[b::c]") == named
        assert context.of("sub/test_x.py::test_a[b::c]").command == shlex.quote(named)
        assert context.typed(Path("/p/.gpuperf/runs/a.json")) == file
        elsewhere = context.typed(Path("/elsewhere/a.json"))
        assert elsewhere == ("elsewhere/a.json" if folder == "/" else "/elsewhere/a.json")


def dirty(one: Result) -> Result:
    """The same, of code that is in no commit."""
    made = [
        replace(m, fingerprint=replace(m.fingerprint, revision="0123456789ab+dirty"))
        for m in one.measurements
    ]
    return replace(one, measurements=tuple(made))


def test_what_selects_tests_is_kept_for_the_commands_that_make_a_baseline() -> None:
    for typed, kept in (
        ("suites --gpu-arch sm80", "suites --gpu-arch sm80"),
        ("--gpuperf-run a.json suites", "suites"),
        ("--gpuperf-run=a.json suites", "suites"),
        ("--gpuperf-missing=warn -k tf32", "-k tf32"),
        ("--gpuperf-report=a.md --gpuperf-report b.md x", "x"),
        ("--gpuperf-kernels on-regression x --gpuperf-kernels=always", "x"),
        ("--gpuperf-require-judged x", "x"),
    ):
        assert selection(typed.split()) == kept.split()


def test_of_a_saved_run_commands_are_as_its_own_command_says() -> None:
    made = run([measurement()], [replace(verdict(), processes=3)])
    known = CommandContext("suites", run="a.json", processes=3)
    replayed = replace(known, command="suites --gpuperf-baselines other", baselines="other")
    for typed, expected in (
        ("-k tf32 suites", replace(known, command="-k tf32 suites")),
        *((command, known) for command in ("pytest suites", "gpuperf record -- suites")),
        ("--gpuperf-run=x.json suites", known),
        (
            "suites --gpuperf-baselines other --gpuperf-replay=old.json",
            replace(replayed, replayed=True),
        ),
        ("gpuperf import report.csv", CommandContext(f"'{TEST}'", run="a.json")),
    ):
        assert of_run(replace(made, command=typed), "a.json") == expected
    replay = replace(made, command="suites --gpuperf-replay old.json")
    assert of_run(replay, "").run == "old.json"
