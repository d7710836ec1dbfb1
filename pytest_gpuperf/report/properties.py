"""A test's verdicts as properties: what JUnit files carry, and whatever else reads them of pytest.

A handful of short texts per test. Samples and kernels are for the run file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_gpuperf.metrics import catalogue
from pytest_gpuperf.model import STEP, Expectation, Measurement, Outcome, Verdict
from pytest_gpuperf.report import expectations, measured, numbers

PREFIX = "gpuperf."
"""Of all names here."""

Property = tuple[str, str]


def of_measurement(
    measurements: Sequence[Measurement], verdicts: Iterable[Verdict]
) -> Iterator[Property]:
    """Device and configuration, and of each gated metric of the step what was measured and said.

    `gpuperf.cycles` is the outcome, `gpuperf.cycles.measured` the value in the metric's unit,
    `gpuperf.cycles.change` the change as reports write it. A measurement with a name of its own has
    it before the metric: `gpuperf.sampling.cycles`.
    """
    first = measurements[0]
    place = PREFIX if first.name == STEP else f"{PREFIX}{numbers.printable(first.name)}."
    device = first.fingerprint.device
    yield f"{place}device", f"{device.name} ({device.arch})"
    if first.configuration:
        yield f"{place}configuration", first.configuration
    yield f"{place}processes", str(len(measurements))
    known = catalogue().metrics
    said = {verdict.metric: verdict for verdict in verdicts if verdict.phase == STEP}
    for verdict in said.values():
        if verdict.outcome is Outcome.KERNELS_CHANGED:
            yield f"{place}{verdict.metric}", verdict.outcome.value
    for metric, value in measured.step(measurements).items():
        if not known[metric].gated:
            continue
        if metric in said:
            yield f"{place}{metric}", said[metric].outcome.value
        yield f"{place}{metric}.measured", f"{value:.12g}"
        if metric in said and said[metric].change is not None:
            yield f"{place}{metric}.change", numbers.change(said[metric])


def of_expectations(found: Iterable[Expectation]) -> Iterator[Property]:
    """Each limit and ratio as one sentence, all of them under one name."""
    for expectation in found:
        yield f"{PREFIX}expected", expectations.line(expectation)
