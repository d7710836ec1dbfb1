"""Tests on a GPU that somebody else uses meanwhile, whom NVML does not show."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.measurement import STEP, Conditions, Measurement
from pytest_gpuperf.model.result import Run, Verdict
from pytest_gpuperf.storage import baseline_files

PROCESSES = 3


def verdicts_where_nvml_shows_nobody(
    alone: Sequence[Run], shared: Run
) -> Iterator[dict[str, Verdict]]:
    """By metric of the step, of each of the tests, which are all the same.

    Each three of them stand for the processes of one, against those that ran alone.
    """
    entry = baseline_files.entry_of([run.measurements[0] for run in alone], recorded="")
    reference = Reference({STEP: entry.step}, gpus=entry.gpus, days=entry.days, canary=entry.canary)
    unseen = [_unseen(measurement) for measurement in shared.measurements]
    for first in range(len(unseen)):
        processes = [unseen[(first + number) % len(unseen)] for number in range(PROCESSES)]
        said = judge(processes, reference, catalogue().metrics, {})
        yield {verdict.metric: verdict for verdict in said if verdict.phase == STEP}


def _unseen(measurement: Measurement) -> Measurement:
    """The same, as where the other process is in another container."""
    conditions = measurement.fingerprint.conditions
    assert conditions is not None
    before, after = (
        replace(state, other_processes=()) for state in (conditions.before, conditions.after)
    )
    fingerprint = replace(measurement.fingerprint, conditions=Conditions(before, after))
    return replace(measurement, process=measurement.test, fingerprint=fingerprint)
