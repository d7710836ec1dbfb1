"""What `gpuperf update-baseline` shows before it asks: old -> new, and what speaks against it."""

from __future__ import annotations

from dataclasses import replace

from pytest_gpuperf import objections
from pytest_gpuperf.acceptance import Proposal
from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Outcome, Verdict
from pytest_gpuperf.report import messages, numbers


def lines(proposal: Proposal) -> list[str]:
    """One proposal as text: the test, a line per metric of the whole step, and what to know.

    That is how the new entry stands against the anchor, what is objected, and what is overruled.
    """
    first = proposal.measurements[0]
    count = proposal.acceptance.processes
    processes = f"{count} process{'es' if count > 1 else ''}"
    found = [f"{messages.subject(first)} on {proposal.device.name}, {processes}"]
    for metric, change in proposal.acceptance.changes.items():
        known = catalogue().metrics[metric]
        verdict = Verdict(
            test=first.test,
            name=first.name,
            phase=STEP,
            metric=metric,
            unit=known.unit,
            outcome=Outcome.REPORTED,
            reason="accepted",
            points=known.percentage,
        )
        if change.old is not None and change.new is not None:
            moved = change.new - change.old
            share = moved if known.percentage else moved / change.old if change.old else None
            verdict = replace(verdict, baseline=change.old, measured=change.new, change=share)
        old = "(new)" if change.old is None else numbers.value(change.old, known.unit)
        new = "(gone)" if change.new is None else numbers.value(change.new, known.unit)
        found.append(f"  {metric:24} {old:>13} -> {new:>13}  {numbers.change(verdict)}".rstrip())
    if proposal.anchor:
        since = ", ".join(f"{d.metric} {objections.change(d)}" for d in proposal.since)
        found.append(f"  since the anchor of {proposal.anchor.recorded}: {since}")
    found += [f"  note: {note}" for note in proposal.notes]
    found += [f"  objection: {objection.text}" for objection in proposal.objections]
    if proposal.acceptance.forced:
        found.append(f"  the log will say: forced: {', '.join(proposal.acceptance.forced)}")
    return found
