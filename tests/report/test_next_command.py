"""What to type next: the commands that fit what came of a session."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf.model.result import Expectation, Outcome, Result
from pytest_gpuperf.report.text.next_command import CommandContext, lines, of_run, selection
from tests.examples import TEST, measurement, result, run, verdict

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
AGAIN = ["to measure it again by itself:", f"  pytest --gpu-arch sm90 '{TEST}'"]
ACCEPTED = ["to accept what is intended:", '  gpuperf update-baseline --reason "..."']
ACCEPT = [*AGAIN, *ACCEPTED]
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
        ([UNCHANGED, Result(TEST, "step", (), expectations=(BROKEN,))], SESSION, AGAIN),
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
                *AGAIN,
                "to see what changed since a run that had not regressed:",
                "  gpuperf compare .gpuperf/runs/a.json 'my run.json'",
                *ACCEPTED,
            ],
        ),
        (
            [IMPROVED, UNCHANGED],
            SESSION,
            ["1 improved; to accept, so that a later slowdown shows:", ACCEPTED[1]],
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


def test_under_torchrun_all_commands_that_measure_are_started_by_it() -> None:
    ranks = replace(SESSION, launcher="torchrun --nproc-per-node 4 -m", flags="--gpu-arch sm90")
    launched = "  torchrun --nproc-per-node 4 -m pytest"
    for results, session, first in (
        ([REGRESSED], ranks, f"{launched} --gpu-arch sm90 '{TEST}'"),
        ([UNDECIDED], ranks, f"{launched} {SELECTED}"),
        (
            [UNDECIDED],
            replace(ranks, processes=3),
            f"{launched} --gpuperf-processes 9 {SELECTED}",
        ),
        (
            [MISSING],
            ranks,
            f"  gpuperf record --processes 5 --{launched[1:]} {SELECTED}",
        ),
    ):
        assert [*lines(results, session, 300)][1] == first


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


def test_a_second_test_is_recorded_alone() -> None:
    named = replace(SESSION, flags="--gpu-arch sm80")
    new = result(
        measurement(test="a b.py::test_new"),
        verdict(outcome=Outcome.NO_BASELINE, test="a b.py::test_new"),
    )
    alone = "gpuperf record --processes 5 -- --gpu-arch sm80 'a b.py::test_new'"
    assert list(lines([UNCHANGED, new], named, 300))[1].strip() == alone
    # Where all are missing it is as it was typed, and where nobody knows what are flags.
    assert list(lines([MISSING, new], named, 300)) == RECORD
    assert list(lines([UNCHANGED, new], SESSION, 300)) == RECORD


def test_what_is_in_no_commit_is_committed_first() -> None:
    for one, said in (
        (REGRESSED, "to accept what is intended, commit it and measure that:"),
        (
            IMPROVED,
            "1 improved; to accept, so that a later slowdown shows, commit it and measure that:",
        ),
    ):
        advice = [*(AGAIN if one is REGRESSED else ()), said, f"  pytest {SELECTED}"]
        assert list(lines([dirty(one)], SESSION, 300)) == advice
    assert list(lines([dirty(MISSING)], SESSION, 300)) == [
        "to make a baseline on this device, once all is committed:",
        *RECORD[1:],
    ]


def dirty(one: Result) -> Result:
    """The same, of code that is in no commit."""
    (made,) = one.measurements
    fingerprint = replace(made.fingerprint, revision="0123456789ab+dirty")
    return replace(one, measurements=(replace(made, fingerprint=fingerprint),))


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
    for typed, expected in (
        ("-k tf32 suites", CommandContext("-k tf32 suites", run="a.json", processes=3)),
        ("pytest suites", CommandContext("suites", run="a.json", processes=3)),
        ("--gpuperf-run=x.json suites", CommandContext("suites", run="a.json", processes=3)),
        (
            "suites --gpuperf-baselines other --gpuperf-replay=old.json",
            CommandContext(
                "suites --gpuperf-baselines other",
                run="a.json",
                replayed=True,
                baselines="other",
                processes=3,
            ),
        ),
        (
            "gpuperf record --processes 5 -- suites",
            CommandContext("suites", run="a.json", processes=3),
        ),
        ("gpuperf import report.csv", CommandContext(f"'{TEST}'", run="a.json")),
    ):
        assert of_run(replace(made, command=typed), "a.json") == expected
    replayed = replace(made, command="suites --gpuperf-replay old.json")
    assert of_run(replayed, "").run == "old.json"
