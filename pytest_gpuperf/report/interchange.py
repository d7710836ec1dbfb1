"""A test's verdicts as properties: what JUnit files carry, and whatever else reads them of pytest.

A handful of short texts per test. Samples and kernels are for the run file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.model.measurement import STEP, Fingerprint, Measurement
from pytest_gpuperf.model.result import Expectation, Outcome, Run, Verdict
from pytest_gpuperf.report.text import expectation_lines, step_tables

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
    place = PREFIX if first.name == STEP else f"{PREFIX}{units.printable(first.name)}."
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
    for metric, value in step_tables.step_values(measurements).items():
        if not known[metric].gated:
            continue
        if metric in said:
            yield f"{place}{metric}", said[metric].outcome.value
        yield f"{place}{metric}.measured", f"{value:.12g}"
        if metric in said and said[metric].change is not None:
            yield f"{place}{metric}.change", units.change(said[metric])


def of_expectations(found: Iterable[Expectation]) -> Iterator[Property]:
    """Each limit and ratio as one sentence, all of them under one name."""
    for expectation in found:
        yield f"{PREFIX}expected", expectation_lines.line(expectation)


# Measurements as pytest-benchmark has them: counters beside its times, and times of ours in its
# format.

KEY = "gpuperf"
"""Under which `extra_info` has what we add."""
TIMES = ("step_time", "wall_time", "duration")
"""What a benchmark's time is taken from: the first of these that was measured."""
_SECONDS = {"ms": 1e-3, "ns": 1e-9}


def extra_info(measurements: Sequence[Measurement], verdicts: Iterable[Verdict]) -> dict[str, Any]:
    """The counters of one measurement and what was said of them, as plain data.

    `metrics` has, per metric of the whole step, `value` (the median over processes) and `unit`,
    where it was judged `outcome`, and `change` (a share, or percentage points of a percentage).
    """
    first = measurements[0]
    known = catalogue().metrics
    said = {verdict.metric: verdict for verdict in verdicts if verdict.phase == STEP}
    metrics: dict[str, dict[str, Any]] = {}
    for name, value in step_tables.step_values(measurements).items():
        metrics[name] = {"value": value, "unit": known[name].unit}
        if name in said and said[name].outcome is not Outcome.REPORTED:
            metrics[name]["outcome"] = said[name].outcome.value
        if name in said and said[name].change is not None:
            metrics[name]["change"] = said[name].change
    device = first.fingerprint.device
    return {
        "device": device.name,
        "arch": device.arch,
        "gpus": sorted({m.fingerprint.device.identity for m in measurements}),
        "configuration": first.configuration,
        "workload": dict(first.workload),
        "revision": first.fingerprint.revision,
        "processes": len({m.process for m in measurements}),
        "metrics": metrics,
    }


def exported(run: Run) -> tuple[dict[str, Any], list[str]]:
    """`run` in the format of `--benchmark-json`, and the measurements without a time in it.

    Every round of every process is one of a benchmark's. The statistics are pytest-benchmark's own,
    so that they mean what they mean there. Raises ImportError where it is not installed.
    """
    import pytest_benchmark

    groups: dict[tuple[str, str], list[Measurement]] = {}
    for measurement in run.measurements:
        groups.setdefault((measurement.test, measurement.name), []).append(measurement)
    benchmarks, timeless = [], []
    for key, measurements in groups.items():
        time = _time(measurements)
        if time is None:
            timeless.append(_named(key[0], measurements[0]))
            continue
        verdicts = [v for v in run.verdicts if (v.test, v.name) == key]
        benchmarks.append(_benchmark(time, measurements, verdicts))
    first = run.measurements[0].fingerprint if run.measurements else None
    exported_run = {
        "machine_info": _machine(first) if first else {},
        "commit_info": _commit(first.revision if first else ""),
        "benchmarks": benchmarks,
        "datetime": run.created,
        "version": pytest_benchmark.__version__,
    }
    return exported_run, timeless


def _benchmark(
    time: str, measurements: Sequence[Measurement], verdicts: Sequence[Verdict]
) -> dict[str, Any]:
    """One entry of `benchmarks`; times are in seconds."""
    from pytest_benchmark import stats

    first = measurements[0]
    path, bracket, parameters = first.test.partition("[")
    statistics: Any = stats.Stats  # it has no types
    found = statistics()
    scale = _SECONDS[catalogue().metrics[time].unit]
    for value in _values(time, measurements):
        found.update(value * scale)
    return {
        "group": None,
        "name": _named(path.rsplit("::", 1)[-1] + bracket + parameters, first),
        "fullname": _named(first.test, first),
        "params": None,
        "param": parameters.removesuffix("]") if bracket else None,
        "extra_info": {KEY: {first.name: {"time": time, **extra_info(measurements, verdicts)}}},
        "options": {"timer": time},
        "stats": {**found.as_dict(), "data": found.data, "iterations": 1},
    }


def _time(measurements: Sequence[Measurement]) -> str | None:
    """The first of TIMES that all of these have."""
    return next((time for time in TIMES if all(_values(time, [m]) for m in measurements)), None)


def _values(metric: str, measurements: Sequence[Measurement]) -> list[float]:
    return [
        value
        for measurement in measurements
        for sample in measurement.samples
        if (sample.phase, sample.metric) == (STEP, metric)
        for value in sample.values
    ]


def _named(test: str, measurement: Measurement) -> str:
    """A test's name for a table, with that of its measurement where it has one of its own."""
    name = test if measurement.name == STEP else f"{test}/{measurement.name}"
    return units.printable(name)


def _machine(fingerprint: Fingerprint) -> dict[str, Any]:
    device = fingerprint.device
    return {"gpu": device.name, "arch": device.arch, "software": dict(fingerprint.software)}


def _commit(revision: str) -> dict[str, Any]:
    """What is known of the commit, under pytest-benchmark's names."""
    return {"id": revision.removesuffix("+dirty") or None, "dirty": revision.endswith("+dirty")}
