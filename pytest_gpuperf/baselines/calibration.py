"""The calibration of the judge by runs of identical code: what `gpuperf calibrate` says and writes.

Rounds lie within processes, processes within allocations (one GPU on one day), allocations within
GPUs. The spread of each level is estimated by the method of moments, per test and metric, and
pooled over a class by degrees of freedom (docs/verdict.md). A trial is one process of one test,
judged against a baseline without it, with more processes of its allocation where the judge asks for
another look.

Works from saved runs; needs no GPU and runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuperf.baselines.reference import reference_of
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.verdict import judge
from pytest_gpuperf.model.entry import Calibration, Spread
from pytest_gpuperf.model.measurement import STEP, Device, Measurement, grouped
from pytest_gpuperf.model.metric import Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, files

_SAME_SOFTWARE = ("torch", "cuda", "cudnn")
"""The software that chooses the kernels: with another version of it the code is not identical."""
BASELINE = 5
"""Processes of a baseline, as `gpuperf record` makes it."""
_CONFIDENCE = 0.95
_DIGITS = 4
"""Significant digits of a spread: enough for a file that is made for review."""

_LEFT_OUT = "wall_time"
"""The clock of the CPU: it sees the load of the host, and is never gated."""

Trial = tuple[Sequence[Measurement], Sequence[Measurement]]
"""A baseline, and the processes that are judged against it, in the order of the looks."""


def allocation(measurement: Measurement) -> tuple[str, str]:
    """The GPU (a digest of its UUID) and the day (UTC) of a measurement."""
    return measurement.fingerprint.device.identity, measurement.fingerprint.measured[:10]


@dataclass(frozen=True)
class Finding:
    """The rates and spreads that runs of identical code show for one suite on one device."""

    suite: str
    device: Device
    calibration: Calibration
    inconclusive: int
    """Trials that stayed inconclusive."""
    revisions: tuple[str, ...] = ()
    """The revisions of the code; the differences of several count as noise."""


def alarms_at_most(alarms: int, trials: int) -> float:
    """The upper bound, with 95 % confidence, of the rate behind `alarms` false alarms in `trials`.

    One-sided, by Clopper and Pearson: b with P(at most `alarms` of `trials` | b) = 0.05.
    """
    from scipy import stats

    test = stats.binomtest(alarms, trials, alternative="less")
    return float(test.proportion_ci(_CONFIDENCE, method="exact").high)


def findings(runs: Sequence[Run], date: str) -> list[Finding]:
    """One finding per suite of these runs, in their order; `date` is the day of the calibration.

    A process that is in several runs counts once. Raises UsageFailure for runs that do not hold
    what an A/A calibration needs: one device, one workload per test, one version of torch, CUDA
    and cuDNN, and two processes.
    """
    suites: dict[str, dict[tuple[str, str, str], Measurement]] = {}
    for measured in (measured for run in runs for measured in run.measurements):
        key = (measured.test, measured.name, measured.process)
        suites.setdefault(measured.suite, {}).setdefault(key, measured)
    if not suites:
        raise UsageFailure("these runs have no measurements to calibrate with")
    devices = (one.fingerprint.device for of in suites.values() for one in of.values())
    _only_one("these runs are of different devices", (f"{d.name} ({d.arch})" for d in devices))
    return [_finding(suite, list(of.values()), date) for suite, of in suites.items()]


def write(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Stores the calibrations in the suites' baseline files and returns those.

    Raises UsageFailure, before anything is written, where a suite has no baseline file on this
    device, and BadFile where it cannot be trusted.
    """
    by_file = {baseline_files.path_for(folder, f.device, f.suite): f for f in findings}
    with files.changing(folder):
        calibrated = {}
        for file, finding in by_file.items():
            known = baseline_files.load_for(folder, finding.device, finding.suite)
            if known is None:
                raise UsageFailure(
                    f"{file} does not exist, so the calibration has no baseline file to go to. "
                    'Accept a baseline first: gpuperf update-baseline RUN --reason "first baseline"'
                )
            calibrated[file] = replace(known, calibration=finding.calibration)
        for file, known in calibrated.items():
            baseline_files.save(known, file)
    return list(by_file)


def _finding(suite: str, measurements: Sequence[Measurement], date: str) -> Finding:
    names = {measured.process for measured in measurements}
    revisions = dict.fromkeys(measured.fingerprint.revision for measured in measurements)
    tests = grouped(measurements, lambda measured: (measured.test, measured.name))
    for (test, name), processes in tests.items():
        what = f'the measurements "{name}" of {test} have different workloads'
        _only_one(what, (str(dict(sorted(one.workload.items()))) for one in processes))
    for package in _SAME_SOFTWARE:
        versions = (m.fingerprint.software.get(package, "") for m in measurements)
        _only_one(f"{suite}: these runs were measured with several versions of {package}", versions)

    by_class = spreads(tests)
    if not by_class:
        raise UsageFailure(
            f"{suite}: no two processes (of {len(names)}) ran one test on one GPU and day with "
            "values above zero. gpuperf cannot separate processes from days. Record several per "
            "day: gpuperf record --processes 5 -- ..."
        )
    # The trials are judged as later ones will be: with the scales of these runs.
    unproven = Calibration(
        date=date,
        processes=len(names),
        allocations=len({allocation(measured) for measured in measurements}),
        gpus=len({measured.fingerprint.device.identity for measured in measurements}),
        trials=0,
        false_alarms=0,
        classes={kind.value: spread for kind, spread in by_class.items()},
    )
    ends = [
        _ended(unproven, baseline, queue)
        for processes in tests.values()
        for baseline, queue in trials(processes)
    ]
    alarms = ends.count(Outcome.REGRESSED)
    return Finding(
        suite=suite,
        device=measurements[0].fingerprint.device,
        calibration=replace(unproven, trials=len(ends), false_alarms=alarms),
        inconclusive=ends.count(Outcome.INCONCLUSIVE),
        revisions=tuple(filter(None, revisions)),
    )


def _ended(
    calibration: Calibration, baseline: Sequence[Measurement], queue: Sequence[Measurement]
) -> Outcome:
    """The outcome of a trial: regressed, inconclusive or unchanged, of a judge so calibrated."""
    entry = baseline_files.entry_of(baseline, recorded="")
    known = reference_of(entry, calibration)
    further: int | None = 1
    while further is not None and further <= len(queue):
        looked = queue[:further]
        verdicts = judge(looked, known, catalogue().metrics, looked[0].tolerance)
        further = next_look(verdicts, len(looked))
    outcomes = {verdict.outcome for verdict in verdicts}
    worst = (o for o in (Outcome.REGRESSED, Outcome.INCONCLUSIVE) if o in outcomes)
    return next(worst, Outcome.UNCHANGED)


def _only_one(what: str, values: Iterable[str]) -> None:
    """Raises UsageFailure if `values` has several known values: the code is not identical."""
    listed = sorted({value for value in values if value})
    if len(listed) > 1:
        raise UsageFailure(
            f"{what}: {' and '.join(listed)}. Calibrate with runs of identical code on one device"
        )


def trials(processes: Sequence[Measurement]) -> Iterator[Trial]:
    """One trial per process of a test: a baseline without it, and it with more of its allocation.

    The baseline has 5 processes from elsewhere, so that each trial judges a new day, or another
    GPU. Where fewer are elsewhere, it has processes of the same allocation too. Tests of fewer than
    6 processes have no trial.
    """
    order = _in_turn(processes)
    for process in order:
        others = [other for other in order if other is not process]
        elsewhere = [other for other in others if allocation(other) != allocation(process)]
        baseline = (elsewhere if len(elsewhere) >= BASELINE else others)[:BASELINE]
        beside = [m for m in others if m not in elsewhere and m not in baseline]
        if len(baseline) == BASELINE:
            yield baseline, [process, *beside]


def _in_turn(processes: Iterable[Measurement]) -> list[Measurement]:
    """The processes in turn from each allocation: the first few span all allocations."""
    rows = grouped(sorted(processes, key=lambda m: (allocation(m), m.process)), allocation)
    return [m for turn in zip_longest(*rows.values()) for m in turn if m is not None]


# Spreads


class _Value(NamedTuple):
    """A value on the judged scale: of a round, of a process, or the mean of an allocation, a GPU.

    That scale is the logarithm; for percentages points / 100.
    """

    place: tuple[str, ...]
    """The place that contains the value: GPU and day for a process, the GPU for an allocation."""
    value: float
    noise: float = 0.0
    """The variance of the value that comes from the levels below."""


_Rounds = Sequence[tuple[Measurement, tuple[float, ...]]]
"""The rounds of one metric of one test, by process."""


def spreads(
    tests: Mapping[tuple[str, str], Sequence[Measurement]],
) -> dict[MetricClass, Spread]:
    """The spreads of each class of metrics, over the whole step of `tests`.

    A class is estimated from its gated metrics where any was measured, otherwise from all of it:
    it is the gated ones that the judge holds against the scale. wall_time is left out, and so are
    metrics of which a test has a tolerance of its own, as the time of a step that waits for its
    host, and a relative metric of a test with a value that is not positive. A class is missing in
    the result when no allocation has two processes with such a metric: then nothing tells the
    spread between processes from that between days.

    With x the median of a process's rounds on the judged scale, and each level's squares summed
    over tests and metrics before they are divided by the sum of their degrees of freedom:

    - rounds: squares of rounds about their process's mean; 0 where each process has one round
    - processes: squares of x about their allocation's mean
    - allocations: variance of a GPU's allocation means, less processes^2 x mean(1/n) for n
      processes each; not below 0
    - gpus: variance of the GPUs' means over their allocations, less what the levels below
      contribute to it; not below 0. On GPUs with one day, the days are part of it.
    """
    series: dict[tuple[MetricClass, bool], list[_Rounds]] = {}
    for processes in tests.values():
        for metric, rounds in _judged(processes):
            series.setdefault((metric.metric_class, metric.gated), []).append(rounds)
    found = {
        kind: _spread(series.get((kind, True)) or series.get((kind, False)) or [])
        for kind in MetricClass
    }
    return {kind: spread for kind, spread in found.items() if spread is not None}


def _judged(processes: Sequence[Measurement]) -> Iterator[tuple[Metric, _Rounds]]:
    """The metrics of one test that show the noise of their class, with rounds on the judged scale.

    Relative to one number of the series, so that equal values differ by nothing, not by the
    rounding of their mean.
    """
    measured: dict[str, list[tuple[Measurement, tuple[float, ...]]]] = {}
    for process in processes:
        for sample in process.samples:
            if sample.phase == STEP and sample.metric not in {*process.tolerance, _LEFT_OUT}:
                measured.setdefault(sample.metric, []).append((process, sample.values))
    for name, rounds in measured.items():
        metric = catalogue().metrics[name]
        origin = median(median(values) for _, values in rounds)
        if metric.percentage:
            yield metric, [(p, tuple((v - origin) / 100 for v in values)) for p, values in rounds]
        elif min(min(values) for _, values in rounds) > 0:
            yield metric, [(p, tuple(math.log(v / origin) for v in values)) for p, values in rounds]


def _spread(series: Sequence[_Rounds]) -> Spread | None:
    """The spreads of all levels; None where no allocation has two processes."""
    rounds, _ = _level([[_Value((p.process,), v) for p, vs in one for v in vs] for one in series])
    processes, allocations = _level(
        [[_Value(allocation(process), median(values)) for process, values in one] for one in series]
    )
    if processes is None:
        return None
    days, gpus = _level(allocations)
    between_gpus, _ = _level(gpus)
    return Spread(_root(rounds) or 0.0, _root(processes) or 0.0, _root(days), _root(between_gpus))


def _level(series: Sequence[Sequence[_Value]]) -> tuple[float | None, list[list[_Value]]]:
    """The variance between values of one place, and each series' means of these places.

    It is without what the levels below do, and pooled over all series; None where no place has two
    values. Each series is freed of its own noise, since tests and metrics differ in it: a variance
    below zero stays so until it is a spread, else there would be days that are none.
    """
    sums = []
    for values in series:
        places = grouped(values, lambda value: value.place)
        squares = math.fsum(map(_squares, places.values()))
        sums.append((squares, len(values) - len(places), places))
    degrees = sum(own for _, own, _ in sums)
    pooled = math.fsum(squares for squares, _, _ in sums) / degrees if degrees else None
    above = []
    for squares, own, places in sums:
        variance = squares / own if own else pooled or 0.0
        above.append([_mean(place, inside, variance) for place, inside in places.items()])
    return pooled, above


def _squares(values: Sequence[_Value]) -> float:
    """Squares about the mean, less what the levels below contribute to them."""
    mean = fmean(one.value for one in values)
    explained = (len(values) - 1) * fmean(one.noise for one in values)
    return math.fsum((one.value - mean) ** 2 for one in values) - explained


def _mean(place: tuple[str, ...], values: Sequence[_Value], variance: float) -> _Value:
    """The mean of the values of a place, which differ by this variance and by their own noise."""
    noise = (variance + fmean(one.noise for one in values)) / len(values)
    return _Value(place[:-1], fmean(one.value for one in values), noise)


def _root(variance: float | None) -> float | None:
    """The standard deviation, rounded; None where the variance is not known."""
    if variance is None:
        return None
    return float(f"{math.sqrt(max(variance, 0.0)):.{_DIGITS}g}")
