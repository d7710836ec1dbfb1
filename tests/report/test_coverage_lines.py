"""How many measurements were judged, in a line; what a test says that has to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_gpuperf.baselines.judgement import Lack
from pytest_gpuperf.model.result import Outcome, Result, Verdict
from pytest_gpuperf.report.text.failure import unjudged
from pytest_gpuperf.report.text.next_command import CommandContext
from pytest_gpuperf.report.view import coverage as line
from pytest_gpuperf.report.view import none_judged
from tests.examples import measurement, result, verdict

HOT = "throttled at the end: hardware thermal slowdown (SM clock 1980 -> 1200 MHz)"
SHARED = "shared with 1 other process (pid 4711)"
SESSION = CommandContext("suites/meddpm", run="run.json")


def unfit(detail: str) -> Verdict:
    return verdict(outcome=Outcome.UNFIT, reason="device-unfit", detail=detail)


MACHINE = verdict(
    outcome=Outcome.MACHINE, reason="canary-moved", change=0.12, detail="the canary moved too: ..."
)


def missing(reason: str) -> Verdict:
    return verdict(outcome=Outcome.NO_BASELINE, reason=reason, detail=f"because of {reason}")


def named(*verdicts: Verdict | None) -> list[Result]:
    """A measurement for each of these verdicts; for None one without."""
    return [
        result(measurement(name=f"m{number}"), *([one] if one else []))
        for number, one in enumerate(verdicts)
    ]


UNREAD = verdict("cycles", Outcome.UNSUPPORTED, detail="not on a MIG instance")
UNREAD_TOO = verdict("instructions", Outcome.UNSUPPORTED, detail="not on a MIG instance")
UNCHANGED = verdict(outcome=Outcome.UNCHANGED)
REPORTED = verdict("ipc", Outcome.REPORTED)
EVERY_LACK = (
    *(unfit(HOT), unfit(f"{HOT}; {SHARED}"), missing("no-file"), missing("no-entry")),
    *(missing("other-workload"), missing("other-collector"), missing("no-metric")),
    *(UNREAD, REPORTED, None, MACHINE),
)


@pytest.mark.parametrize(
    ("results", "says"),
    [
        ([], ""),
        (named(UNCHANGED), "judged: the one measurement"),
        (named(*[UNCHANGED] * 36), "judged: all 36 measurements"),
        (
            named(*[UNCHANGED] * 34, unfit(HOT), missing("no-file")),
            "judged: 34 of 36 measurements; 1 unfit (throttled), 1 without a baseline",
        ),
        (named(unfit(SHARED)), "judged: none of 1 measurement; 1 unfit (shared)"),
        (
            named(*EVERY_LACK),
            "judged: none of 11 measurements; 2 unfit (throttled, shared), 1 on a machine that is "
            "not what it was, 2 without a baseline, "
            "1 with a baseline of another workload, 1 with a baseline of another collector, "
            "1 with a baseline of other metrics, 1 whose gated metrics were not collected, "
            "1 without a gated metric, 1 compared with nothing",
        ),
    ],
)
def test_the_line_says_how_many_were_judged_and_what_the_others_lack(
    results: list[Result], says: str
) -> None:
    assert line(results) == says


def test_it_says_why_nothing_was_to_be_judged() -> None:
    assert line(named(None, None), "--gpuperf-no-judge") == (
        "judged: none of 2 measurements; 2 compared with nothing (--gpuperf-no-judge)"
    )


def test_a_session_without_a_verdict_says_so_and_what_to_do() -> None:
    again = (
        "Measure again when the GPU is cool and nothing else uses it (`gpuperf doctor` says who "
        "does)"
    )
    back = (
        "Measure again when the canary is back, or accept a run of this machine beside the others"
    )
    for said, lacks, why, remedy in (
        (
            [unfit(HOT), unfit(SHARED)],
            [Lack.UNFIT] * 2,
            "the GPU was throttled and shared in 2 measurements",
            again,
        ),
        (
            [MACHINE, unfit(HOT)],
            [Lack.MACHINE, Lack.UNFIT],
            "the GPU was throttled in 1 measurement, 1 measurement on a machine that is not what "
            "it was",
            f"{again}. {back}",
        ),
        (
            [UNREAD, REPORTED],
            [Lack.NOT_COLLECTED, Lack.NOT_GATED],
            "no gated metric could be read in 1 measurement, 1 measurement without a gated metric",
            "`gpuperf doctor` says what is missing and what to do about it. Use a collector that "
            "counts a metric that is gated: `gpuperf metrics` marks them",
        ),
    ):
        assert none_judged([*zip(named(*said), lacks, strict=True)]) == (
            f"nothing was judged, which fails the session: {why}, and no other has a verdict. "
            f"{remedy}"
        )


@pytest.mark.parametrize(
    ("said", "lack", "reason", "remedy"),
    [
        ([unfit(HOT)], Lack.UNFIT, f"the device was {HOT}", "Measure again when the GPU is cool"),
        (
            [MACHINE],
            Lack.MACHINE,
            "the canary moved too: ...",
            "Measure again when the canary is back, or accept a run of this machine beside the "
            "others",
        ),
        (
            [missing("no-file")],
            Lack.NO_BASELINE,
            "because of no-file",
            "Make a baseline on this device:\n  gpuperf record --processes 5 -- suites/meddpm",
        ),
        (
            [missing("other-workload")],
            Lack.OTHER_WORKLOAD,
            "because of other-workload",
            "Run the workload of the baseline, or make one of this workload:\n  gpuperf record",
        ),
        (
            [missing("other-collector")],
            Lack.OTHER_COLLECTOR,
            "because of other-collector",
            "Measure by --gpuperf-collector as the baseline was, or make one:\n  gpuperf record",
        ),
        (
            [missing("no-metric")],
            Lack.OTHER_METRICS,
            "because of no-metric",
            "Measure the metrics of the baseline, or make one of these:\n  gpuperf record",
        ),
        (
            [UNREAD, UNREAD_TOO],
            Lack.NOT_COLLECTED,
            "cycles, instructions: not on a MIG instance",
            "`gpuperf doctor` says what is missing",
        ),
        (
            [REPORTED],
            Lack.NOT_GATED,
            "cupti counted no metric that may fail a test",
            "Use a collector that counts a metric that is gated: `gpuperf metrics` marks them",
        ),
        (
            [REPORTED, replace(REPORTED, metric="cycles", reason="any-tolerated")],
            Lack.TOLERATED,
            "any change is tolerated of cycles",
            'Give a gated metric of it another tolerance than "any"',
        ),
    ],
)
def test_a_test_that_has_to_be_judged_says_what_it_lacks_and_the_remedy(
    said: list[Verdict], lack: Lack, reason: str, remedy: str
) -> None:
    made = result(measurement(settings={"collector": "cupti"}), *said, notes=("a note",))
    text = unjudged(made, lack, SESSION)
    start = (
        "gpuperf: test_training_step[tf32] was not judged on NVIDIA H200 (sm90), "
        f"which is required\nconfiguration: tf32\n  {reason}\n  a note\n{remedy}"
    )
    assert text.startswith(start), text


def test_of_a_replayed_run_a_baseline_is_made_by_accepting_it() -> None:
    context = CommandContext("suites/meddpm", run="run.json", replayed=True)
    (made,) = named(missing("no-file"))
    text = unjudged(made, Lack.NO_BASELINE, context)
    assert text.endswith('  gpuperf update-baseline run.json --reason "first baseline"')
