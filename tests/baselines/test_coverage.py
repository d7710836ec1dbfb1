"""Which measurements are judged, what the others lack, and which sessions may not be green."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuperf.baselines.judgement import Unjudged, lacking, none_judged, unjudged_reason
from pytest_gpuperf.model.result import Outcome, Result
from tests.examples import default_settings, kernels_changed, measurement, result, verdict

REPORTED = verdict("ipc", Outcome.REPORTED, reason="not-gated")
TOLERATED = verdict("cycles", Outcome.REPORTED, reason="any-tolerated")
NOISY = verdict("cycles", Outcome.REPORTED, reason="too-noisy")
UNREAD = verdict("instructions", Outcome.UNSUPPORTED, reason="not-collected")
UNREAD_IPC = verdict("ipc", Outcome.UNSUPPORTED, reason="not-collected")
UNFIT = verdict(outcome=Outcome.UNFIT, reason="device-unfit", detail="shared with 1 other process")
MACHINE = verdict(outcome=Outcome.MACHINE, reason="canary-moved", detail="launch_us +52 %")
UNFIT_AND_NEW = replace(UNFIT, baseline=None)
JUDGED = result(measurement(), verdict(outcome=Outcome.UNCHANGED))
NOT_JUDGED = result(measurement(), UNFIT)


def missing(reason: str) -> Result:
    """What has no baseline, for this reason."""
    said = verdict(outcome=Outcome.NO_BASELINE, reason=reason, baseline=None)
    return result(measurement(), said, REPORTED, UNREAD)


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        *(
            (result(measurement(), REPORTED, UNREAD, verdict("cycles", outcome)), None)
            for outcome in (
                Outcome.UNCHANGED,
                Outcome.IMPROVED,
                Outcome.REGRESSED,
                Outcome.INCONCLUSIVE,
            )
        ),
        (result(measurement(), UNFIT, REPORTED, UNREAD), Unjudged.UNFIT),
        # What else is unchanged says nothing of the metric that is left open; a loss does.
        (
            result(measurement(), MACHINE, verdict("instructions", Outcome.UNCHANGED)),
            Unjudged.MACHINE,
        ),
        (result(measurement(), MACHINE, verdict("instructions", Outcome.REGRESSED)), None),
        (missing("no-file"), Unjudged.NO_BASELINE),
        (missing("no-entry"), Unjudged.NO_BASELINE),
        (missing("other-workload"), Unjudged.OTHER_WORKLOAD),
        (missing("other-collector"), Unjudged.OTHER_COLLECTOR),
        (missing("no-metric"), Unjudged.OTHER_METRICS),
        (result(measurement(), REPORTED, UNREAD), Unjudged.NOT_COLLECTED),
        # Other kernels explain a verdict, and what is not gated never has one.
        (result(measurement(), kernels_changed(), REPORTED), Unjudged.NOT_GATED),
        (result(measurement(), UNREAD_IPC), Unjudged.NOT_GATED),
        (result(measurement(), REPORTED, TOLERATED), Unjudged.TOLERATED),
        (result(measurement(), REPORTED, NOISY), Unjudged.TOO_NOISY),
        (result(measurement(), TOLERATED, verdict("launches")), None),
        (result(measurement()), Unjudged.NOT_ASKED),
    ],
)
def test_a_measurement_is_judged_by_a_gated_metric_or_lacks_something(
    judged: Result, expected: Unjudged | None
) -> None:
    assert unjudged_reason(judged) is expected


@pytest.mark.parametrize(
    ("executions", "expected"),
    [
        ([NOT_JUDGED, JUDGED], None),
        ([JUDGED, NOT_JUDGED], None),
        ([missing("no-file"), NOT_JUDGED], Unjudged.UNFIT),
    ],
)
def test_a_test_that_was_run_again_counts_once(
    executions: list[Result], expected: Unjudged | None
) -> None:
    assert [its for _, its in lacking(executions)] == [expected]


def test_a_ratio_is_no_measurement_and_names_tell_measurements_apart() -> None:
    other = result(measurement(name="sampling"), verdict(outcome=Outcome.UNCHANGED))
    assert len(lacking([JUDGED, other, Result("a.py::test_ratio", "a / b", ())])) == 2


@pytest.mark.parametrize(
    ("results", "changes", "count"),
    [
        ([], {}, 0),
        ([NOT_JUDGED], {}, 1),
        ([NOT_JUDGED], {"judge": False}, 0),
        ([result(measurement(name="b"), MACHINE), NOT_JUDGED], {"missing": "warn"}, 2),
        ([NOT_JUDGED, result(measurement(name="b"), verdict(outcome=Outcome.UNCHANGED))], {}, 0),
        # What cannot be read, and what is not gated: nobody would hear of a loss.
        ([NOT_JUDGED, result(measurement(name="b"), UNREAD)], {}, 2),
        ([result(measurement(), REPORTED)], {"missing": "warn"}, 1),
        # What has no baseline is for other settings to fail.
        ([NOT_JUDGED, result(measurement(name="b"), *missing("no-file").verdicts)], {}, 1),
        ([missing("no-file")], {}, 0),
        # Where a missing baseline may pass, a fit device would have changed nothing.
        ([result(measurement(), UNFIT_AND_NEW)], {}, 1),
        ([result(measurement(), UNFIT_AND_NEW)], {"missing": "warn"}, 0),
        ([result(measurement(), UNFIT_AND_NEW)], {"missing": "record"}, 0),
        ([NOT_JUDGED], {"missing": "warn"}, 1),
    ],
)
def test_a_session_is_not_green_where_nothing_was_judged_that_should_have_been(
    results: list[Result], changes: dict[str, object], count: int
) -> None:
    settings = replace(default_settings(Path()), **changes)  # type: ignore[arg-type]
    assert len(none_judged(results, settings)) == count
