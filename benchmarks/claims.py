"""What a suite claims of its configurations, beside what was measured of them in a run."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_gpuperf.catalogue import architectures
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.expectation import ratio
from pytest_gpuperf.model.measurement import Measurement
from pytest_gpuperf.model.result import Run
from suites.claim import Claim


def table(claims: Sequence[Claim], run: Run) -> str:
    """A row per claim that is made of the run's device: the ratio, what is claimed, and what is.

    "here" has the ratio with its interval, or why there is none; a ratio that does not hold, or
    that is undecided, says so.
    """
    rows = ["| ratio | metric | claimed | here |", "| --- | --- | --- | --- |"]
    device = run.measurements[0].fingerprint.device
    for claim in claims:
        if not any(architectures.matches(pattern, device.arch) for pattern in claim.architectures):
            continue
        cells = (
            f"`{claim.numerator}` / `{claim.denominator}`",
            f"`{claim.metric}`",
            _claimed(claim),
            _here(claim, run),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _claimed(claim: Claim) -> str:
    bounds = (("above", claim.above), ("below", claim.below))
    return ", ".join(f"{name} {bound:.3g}" for name, bound in bounds if bound is not None)


def _here(claim: Claim, run: Run) -> str:
    sides = [_measured(run, name) for name in (claim.numerator, claim.denominator)]
    if not all(sides):
        return "not measured"
    metric = catalogue().metrics[claim.metric]
    judged = ratio(metric, *sides, above=claim.above, below=claim.below)
    if judged.measured is None:
        return "not measured"
    said = f"{judged.measured:.3g}"
    if judged.low is not None and judged.high is not None:
        said += f" ({judged.low:.3g} to {judged.high:.3g})"
    return said if judged.reason == "within" else f"{said}: {judged.outcome.value}"


def _measured(run: Run, configuration: str) -> list[Measurement]:
    return [m for m in run.measurements if m.configuration == configuration]
