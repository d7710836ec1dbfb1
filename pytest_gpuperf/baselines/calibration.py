"""The calibration of the judge by runs of identical code: what `gpuperf calibrate` says and writes.

Rounds lie within processes, processes within allocations (one GPU on one day), allocations within
GPUs. The spread of each level is estimated by the method of moments, per test and metric, and
pooled over a class by degrees of freedom (docs/verdict.md). A trial is one process of one test that
was held out of a baseline, judged against it, with more processes of its allocation where the judge
asks for another look.

Works from saved runs; needs no GPU and runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import NamedTuple

from pytest_gpuperf.catalogue import units
from pytest_gpuperf.catalogue.metric_catalogue import catalogue
from pytest_gpuperf.errors import UsageFailure
from pytest_gpuperf.judge.clock import KERNEL_TIME, clocks_of, elasticity_of
from pytest_gpuperf.judge.noise import LEAST_GROUP, MAD_TO_SIGMA
from pytest_gpuperf.judge.stopping import next_look
from pytest_gpuperf.judge.tolerance import LEAST_SHARE, default_scale
from pytest_gpuperf.judge.verdict import Reference, judge
from pytest_gpuperf.model.entry import BaselineFile, Calibration, Spread
from pytest_gpuperf.model.measurement import STEP, Device, Measurement
from pytest_gpuperf.model.metric import Metric, MetricClass
from pytest_gpuperf.model.result import Outcome, Run
from pytest_gpuperf.storage import baseline_files, files

_SAME_SOFTWARE = ("torch", "cuda", "cudnn")
"""What chooses the kernels: with another version of these the code is not identical."""
BASELINE = 5
"""Processes of a baseline, as `gpuperf record` makes it."""
FOLDS = 3
"""Baselines that each test's processes are judged against."""
CONFIDENCE = 0.95

APART = 5.0
"""Robust standard deviations from its allocation's median at which a process stands apart."""

# The CPU's clock sees the host's load and the launch of the kernels, in every A/A campaign more
# than the GPU does; it is never gated, and would widen the scale of the metrics that are.
_LEFT_OUT = frozenset({"wall_time"})

Test = tuple[str, str]
"""A test's node id and the measurement's name."""


Tests = Mapping[Test, Sequence[Measurement]]
"""The processes of each, every one of them once; `fingerprint.measured` says the day."""


def allocation(measurement: Measurement) -> tuple[str, str]:
    """The GPU (a digest of its UUID) and the day (UTC) of a measurement."""
    return measurement.fingerprint.device.identity, measurement.fingerprint.measured[:10]


@dataclass(frozen=True)
class Estimate:
    """What was found for one class of metrics; all numbers as `Spread` has them."""

    spread: Spread
    default: float
    """The spread between processes that the judge assumes without a calibration (s0)."""

    @property
    def scale(self) -> float:
        """The scale that the judge takes of it: never below a tenth of the default.

        A campaign that was quiet by luck would otherwise make alarms of the next louder day.
        """
        return max(self.spread.processes, LEAST_SHARE * self.default)

    @property
    def days_dominate(self) -> bool:
        """Whether allocations differ by more than their processes do."""
        return (self.spread.allocations or 0.0) > self.spread.processes


@dataclass(frozen=True)
class Trials:
    """What became of the A/A trials."""

    count: int
    """Distinct pairs of a test and a process that was held out."""
    false_alarms: int
    """Those that ended as regressed, in any of the folds."""
    inconclusive: int
    """Those that stayed inconclusive in any of the folds, and did not alarm in one."""

    @property
    def at_most(self) -> float | None:
        """The false alarm rate is below this with 95 % confidence; None without trials.

        One-sided, by Clopper and Pearson: b with P(at most `false_alarms` of `count` | b) = 0.05.
        """
        if not self.count:
            return None
        from scipy import stats

        test = stats.binomtest(self.false_alarms, self.count, alternative="less")
        return float(test.proportion_ci(CONFIDENCE, method="exact").high)


@dataclass(frozen=True)
class Finding:
    """What runs of identical code say of one suite on one device."""

    suite: str
    device: Device
    estimates: Mapping[MetricClass, Estimate]
    trials: Trials
    apart: frozenset[str]
    """The processes that stand apart from the others of their allocation."""
    calibration: Calibration
    warnings: tuple[str, ...] = ()


def findings(runs: Sequence[Run], date: str) -> list[Finding]:
    """One finding per suite of these runs, in their order; `date` is the day of the calibration.

    A process that is in several runs counts once. Raises UsageFailure for runs that do not hold
    what an A/A calibration needs: one device, one workload per test, one version of torch, CUDA
    and cuDNN, and two processes.
    """
    # A process that runs past midnight is of one day. Runs of version 0.1 say only when they were
    # saved.
    days: dict[str, str] = {}
    for run in runs:
        for measured in run.measurements:
            day = measured.fingerprint.measured[:10] or run.created[:10]
            days[measured.process] = min(day, days.get(measured.process, day))
    suites: dict[str, dict[tuple[str, str, str], Measurement]] = {}
    for run in runs:
        for measured in run.measurements:
            key = (measured.test, measured.name, measured.process)
            step = _whole_step(measured, days[measured.process])
            suites.setdefault(measured.suite, {}).setdefault(key, step)
    if not suites:
        raise UsageFailure("these runs have no measurements: there is nothing to calibrate by")
    _one_device(step for steps in suites.values() for step in steps.values())
    return [_finding(suite, list(steps.values()), date) for suite, steps in suites.items()]


def write(findings: Sequence[Finding], folder: Path) -> list[Path]:
    """Stores the calibrations in the suites' baseline files and returns those.

    Raises UsageFailure, before anything is written, where a suite has no baseline file on this
    device, and BadFile where it cannot be trusted.
    """
    by_file = {baseline_files.path_for(folder, f.device, f.suite): f for f in findings}
    for file, finding in by_file.items():
        _existing(folder, finding, file)
    for file, finding in by_file.items():
        with files.changing(folder):
            known = _existing(folder, finding, file)
            rounded = replace(known, calibration=_rounded(finding.calibration))
            baseline_files.save(rounded, file)
    return list(by_file)


def _existing(folder: Path, finding: Finding, file: Path) -> BaselineFile:
    files.check_inside(file, folder)
    known = baseline_files.load_for(folder, finding.device, finding.suite)
    if known is None:
        raise UsageFailure(
            f"{file}: no such baseline file, so there is nowhere to write the calibration. Accept "
            'a baseline first: gpuperf update-baseline RUN --reason "first baseline"'
        )
    return known


def _whole_step(measured: Measurement, day: str) -> Measurement:
    """Of its process's day; without phases, which are not gated and take the judge's time."""
    return replace(
        measured,
        samples=tuple(sample for sample in measured.samples if sample.phase == STEP),
        fingerprint=replace(measured.fingerprint, measured=day),
    )


def _finding(suite: str, measurements: Sequence[Measurement], date: str) -> Finding:
    names = {measured.process for measured in measurements}
    if len(names) < 2:
        raise UsageFailure(
            f"{suite}: {len(names)} process in these runs, and a spread between processes needs "
            "2 or more (20 for a sound estimate). Record them on several days or GPUs: "
            "gpuperf record --processes 5 -- ..."
        )
    tests: dict[Test, list[Measurement]] = {}
    for measured in measurements:
        tests.setdefault((measured.test, measured.name), []).append(measured)
    for (test, name), processes in tests.items():
        _one_workload(test, name, processes)
    _one_software(suite, measurements)

    metrics = catalogue().metrics
    by_class = estimates(tests, metrics)
    if not by_class:
        raise UsageFailure(
            f"{suite}: {len(names)} processes, and no two of one test on one GPU on one day with "
            "values above zero: nothing tells the spread between processes from that between "
            "days. Record several per day: gpuperf record --processes 5 -- ..."
        )
    # The trials are judged as later ones will be: with the scales of these runs.
    unproven = Calibration(
        date=date,
        processes=len(names),
        allocations=len({allocation(measured) for measured in measurements}),
        gpus=len({measured.fingerprint.device.identity for measured in measurements}),
        trials=0,
        false_alarms=0,
        classes={kind.value: estimate.spread for kind, estimate in by_class.items()},
    )
    seen = trials(tests, partial(_ended, unproven))
    return Finding(
        suite=suite,
        device=measurements[0].fingerprint.device,
        estimates=by_class,
        trials=seen,
        apart=apart(tests, metrics),
        calibration=replace(unproven, trials=seen.count, false_alarms=seen.false_alarms),
        warnings=_warnings(measurements),
    )


Ended = Callable[[Sequence[Measurement], Sequence[Measurement]], Outcome]
"""How a trial ends: against a baseline (the first), with as many of these processes as it takes."""


def _ended(
    calibration: Calibration, baseline: Sequence[Measurement], queue: Sequence[Measurement]
) -> Outcome:
    """What the judge, so calibrated, says in the end had `baseline` been accepted."""
    entry = baseline_files.entry_of(baseline, recorded="")
    known = Reference(
        entry.samples,
        gpus=entry.gpus,
        days=entry.days,
        calibration=calibration,
        canary=entry.canary,
    )
    further: int | None = 1
    while further is not None and further <= len(queue):
        looked = queue[:further]
        verdicts = judge(looked, known, catalogue().metrics, looked[0].tolerance)
        further = next_look(verdicts, len(looked))
    outcomes = {verdict.outcome for verdict in verdicts}
    worst = (o for o in (Outcome.REGRESSED, Outcome.INCONCLUSIVE) if o in outcomes)
    return next(worst, Outcome.UNCHANGED)


def _one_device(measurements: Iterable[Measurement]) -> None:
    devices = {(m.fingerprint.device.name, m.fingerprint.device.arch) for m in measurements}
    if len(devices) > 1:
        listed = " and ".join(f"{name} ({arch})" for name, arch in sorted(devices))
        raise UsageFailure(
            f"these runs are of different devices: {listed}. Calibrate each device by its own runs"
        )


def _one_workload(test: str, name: str, measurements: Sequence[Measurement]) -> None:
    first = measurements[0].workload
    for other in measurements:
        if dict(other.workload) != dict(first):
            raise UsageFailure(
                f'the measurements "{name}" of {test} are of different workloads '
                f"({units.differences(first, other.workload)}). Calibrate by runs of one workload"
            )


def _one_software(suite: str, measurements: Sequence[Measurement]) -> None:
    for name in _SAME_SOFTWARE:
        versions = _distinct(m.fingerprint.software.get(name, "") for m in measurements)
        if len(versions) > 1:
            raise UsageFailure(
                f"{suite}: these runs were measured with {name} {' and '.join(versions)}, so they "
                "are not of identical code. Calibrate by runs of one version"
            )


def _warnings(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    revisions = _distinct(measurement.fingerprint.revision for measurement in measurements)
    if len(revisions) < 2:
        return ()
    return (
        f"{len(revisions)} revisions of the code: {', '.join(revisions)}. What changed between "
        "them counts as noise here; calibrate by runs of one revision",
    )


def _distinct(texts: Iterable[str]) -> list[str]:
    """Those that are known, in their order."""
    return list(dict.fromkeys(text for text in texts if text))


def _rounded(calibration: Calibration) -> Calibration:
    """With four significant digits, which is more than is known: the file is made for review."""

    def rounded(spread: Spread) -> Spread:
        known = {level: value for level, value in asdict(spread).items() if value is not None}
        return replace(spread, **{level: float(f"{value:.4g}") for level, value in known.items()})

    classes = {name: rounded(spread) for name, spread in calibration.classes.items()}
    return replace(calibration, classes=classes)


def estimates(tests: Tests, metrics: Mapping[str, Metric]) -> dict[MetricClass, Estimate]:
    """The spreads of each class of metrics, over the whole step.

    A class is estimated from its gated metrics where any was measured, otherwise from all of it:
    it is the gated ones that the judge holds against the scale. wall_time is left out, and so are
    metrics of which a test has a tolerance of its own, as the time of a step that waits for its
    host, and a relative metric of a test with a value that is not positive. Times of kernels are
    those at one clock, where the processes say what that does to them (`machine.py`). A class is
    missing in the result when no allocation has two processes with such a metric: then nothing
    tells the spread between processes from that between days.

    With x the median of a process's rounds on the judged scale (the logarithm; for percentages
    points / 100), and each level's squares summed over tests and metrics before they are divided
    by the sum of their degrees of freedom:

    - rounds: squares of rounds about their process's mean; 0 where each process has one round
    - processes: squares of x about their allocation's mean
    - allocations: variance of a GPU's allocation means, less processes^2 x mean(1/n) for n
      processes each; not below 0
    - gpus: variance of the GPUs' means over their allocations, less what the levels below
      contribute to it; not below 0. On GPUs with one day, the days are part of it.
    """
    by_class = {}
    for metric_class, series in _by_class(tests, metrics).items():
        spread = _spread(series)
        if spread is not None:
            by_class[metric_class] = Estimate(spread, default_scale(metric_class))
    return by_class


def apart(tests: Tests, metrics: Mapping[str, Metric]) -> frozenset[str]:
    """The processes that stand apart: further than 5 SD from the median of their allocation.

    In any of the metrics that define their class's estimate, among allocations of at least 3
    processes. SD is robust: 1.4826 x the median absolute deviation within the allocations of that
    test and metric, and at least a tenth of the class's default. Returns the processes' ids.
    """
    names: set[str] = set()
    for metric_class, series in _by_class(tests, metrics).items():
        for nested in series:
            names |= _apart(nested, LEAST_SHARE * default_scale(metric_class))
    return frozenset(names)


def trials(tests: Tests, ended: Ended) -> Trials:
    """Judges each process of each test against baselines that it is no part of.

    A baseline is 5 processes, spread over as many allocations as there are. Each other process
    starts a trial; `ended` says how it ends, given the baseline and the processes of its allocation
    that are not in it, this one first (cyclically).

    The choice of the baseline rotates over 3 folds, so that those of the first are held out too.
    The folds share their processes, so they are no further evidence: what is counted are distinct
    pairs of a test and a held-out process, however many folds judged them, and such a pair is a
    false alarm when it was one in any fold. Each allocation is also judged against baselines of the
    others alone, as a new day or another GPU is. Tests that one process measured are counted apart
    although they may share its luck. Tests of fewer than 6 processes have no trial.
    """
    seen: dict[tuple[object, str], set[Outcome]] = {}
    for test, processes in tests.items():
        for baseline, held_out in (*folds(processes), *strangers(processes)):
            for process in held_out:
                beside = [m for m in held_out if allocation(m) == allocation(process)]
                start = beside.index(process)
                outcome = ended(baseline, beside[start:] + beside[:start])
                seen.setdefault((test, process.process), set()).add(outcome)
    alarms = sum(Outcome.REGRESSED in outcomes for outcomes in seen.values())
    return Trials(
        count=len(seen),
        false_alarms=alarms,
        inconclusive=sum(
            Outcome.INCONCLUSIVE in outcomes and Outcome.REGRESSED not in outcomes
            for outcomes in seen.values()
        ),
    )


def folds(
    processes: Sequence[Measurement],
) -> Iterator[tuple[list[Measurement], list[Measurement]]]:
    """Baselines of 5 of these processes, each with those that are held out of it.

    The order of `processes` does not matter: they are taken in turn from their allocations, those
    first that were not in the baseline before.
    """
    by_allocation: dict[tuple[str, str], list[Measurement]] = {}
    for process in sorted(processes, key=lambda m: (allocation(m), m.process)):
        by_allocation.setdefault(allocation(process), []).append(process)
    if len(processes) <= BASELINE:
        return
    rows = list(by_allocation.values())
    for _ in range(FOLDS):
        order = [row[i] for i in range(max(map(len, rows))) for row in rows if i < len(row)]
        baseline, held_out = order[:BASELINE], order[BASELINE:]
        yield baseline, held_out
        # Next time those come first that were not taken, of this allocation and of others.
        taken = {process.process for process in baseline}
        rows = [sorted(row, key=lambda m: m.process in taken) for row in (*rows[1:], rows[0])]


def strangers(
    processes: Sequence[Measurement],
) -> Iterator[tuple[list[Measurement], list[Measurement]]]:
    """Per allocation that leaves 5 processes elsewhere: a baseline of those, and its own."""
    places = sorted({allocation(process) for process in processes})
    for place in places:
        elsewhere = [process for process in processes if allocation(process) != place]
        own = sorted((p for p in processes if allocation(p) == place), key=lambda m: m.process)
        if len(elsewhere) == BASELINE:
            yield elsewhere, own
        elif len(elsewhere) > BASELINE:
            yield next(iter(folds(elsewhere)))[0], own


class _Inside(NamedTuple):
    """One process on the judged scale."""

    process: str
    median: float
    rounds: tuple[float, ...]


_Measured = tuple[Measurement, tuple[float, ...]]
"""A process, and its rounds of one metric."""
_Nested = dict[str, dict[str, list[_Inside]]]
"""The processes of one test and metric by GPU and day."""


def _by_class(tests: Tests, metrics: Mapping[str, Metric]) -> dict[MetricClass, list[_Nested]]:
    """Per class the series of the metrics that define it: the gated ones where there are any."""
    gated: dict[MetricClass, list[_Nested]] = {}
    others: dict[MetricClass, list[_Nested]] = {}
    for processes in tests.values():
        measured: dict[str, list[_Measured]] = {}
        for process in processes:
            for sample in process.samples:
                written = sample.metric in process.tolerance
                if sample.phase == STEP and not written and sample.metric not in _LEFT_OUT:
                    measured.setdefault(sample.metric, []).append((process, sample.values))
        for name, values in measured.items():
            metric = metrics[name]
            nested = _nested(_at_one_clock(values, metric), metric)
            if nested is not None:
                series = gated if metric.gated else others
                series.setdefault(metric.metric_class, []).append(nested)
    both = others | gated
    return {
        metric_class: both[metric_class] for metric_class in MetricClass if metric_class in both
    }


def _at_one_clock(values: Sequence[_Measured], metric: Metric) -> Sequence[_Measured]:
    """Times of kernels as the judge compares them (`machine.py`), where the processes say how."""
    processes = [process for process, _ in values]
    clocks, _ = clocks_of(processes) if metric.name == KERNEL_TIME else ([], "")
    times = [median(rounds) for _, rounds in values]
    if len(clocks) != len(values) or min(times) <= 0:
        return values
    noise = default_scale(metric.metric_class)
    made = elasticity_of([*map(math.log, times)], clocks, [*map(allocation, processes)], noise)
    if made is None or not made.is_learnt:
        return values
    usual = fmean(clocks)
    factors = [math.exp(made.mean * (usual - clock)) for clock in clocks]
    return [
        (process, tuple(factor * value for value in rounds))
        for (process, rounds), factor in zip(values, factors, strict=True)
    ]


def _nested(values: Sequence[_Measured], metric: Metric) -> _Nested | None:
    """The processes on the judged scale; None for values without a logarithm that need one."""
    if not metric.percentage and min(v for _, rounds in values for v in rounds) <= 0:
        return None
    # Relative to one number of the series, so that equal values differ by nothing, not by the
    # rounding of their mean.
    origin = median(median(rounds) for _, rounds in values)

    def judged(value: float) -> float:
        if metric.percentage:
            return (value - origin) / 100
        return math.log(value) - math.log(origin)

    by_gpu: _Nested = {}
    for process, rounds in values:
        gpu, day = allocation(process)
        inside = _Inside(process.process, judged(median(rounds)), tuple(map(judged, rounds)))
        by_gpu.setdefault(gpu, {}).setdefault(day, []).append(inside)
    return by_gpu


class _Sum(NamedTuple):
    """A sum of squares, with its degrees of freedom."""

    squares: float
    degrees: int

    @property
    def variance(self) -> float | None:
        return self.squares / self.degrees if self.degrees else None


def _pooled(sums: Iterable[_Sum]) -> _Sum:
    listed = list(sums)
    return _Sum(math.fsum(s.squares for s in listed), sum(s.degrees for s in listed))


def _about_mean(values: Sequence[float]) -> _Sum:
    mean = fmean(values)
    return _Sum(math.fsum((value - mean) ** 2 for value in values), len(values) - 1)


def _spread(series: Sequence[_Nested]) -> Spread | None:
    """The spreads of all levels; None where no allocation has two processes."""
    rounds = _pooled(_about_mean(p.rounds) for nested in series for p in _processes(nested))
    within = [_between_processes(nested) for nested in series]
    pooled = _pooled(within).variance
    if pooled is None:
        return None
    # Each series is freed of its own noise, since tests and metrics differ in it. Only the pooled
    # variance is held above zero: doing so series by series would find days that are none.
    own = [pooled if s.variance is None else s.variance for s in within]
    days = [_between_days(nested, noise) for nested, noise in zip(series, own, strict=True)]
    day = _pooled(days).variance
    of_days = [(day or 0.0) if s.variance is None else s.variance for s in days]
    gpu = _pooled(
        _between_gpus(nested, noise, between)
        for nested, noise, between in zip(series, own, of_days, strict=True)
    ).variance
    return Spread(
        rounds=math.sqrt(rounds.variance or 0.0),
        processes=math.sqrt(pooled),
        allocations=None if day is None else math.sqrt(max(day, 0.0)),
        gpus=None if gpu is None else math.sqrt(max(gpu, 0.0)),
    )


def _processes(nested: _Nested) -> list[_Inside]:
    return [p for days in nested.values() for processes in days.values() for p in processes]


def _between_processes(nested: _Nested) -> _Sum:
    return _pooled(
        _about_mean([process.median for process in processes])
        for days in nested.values()
        for processes in days.values()
    )


def _between_days(nested: _Nested, noise: float) -> _Sum:
    """Squares of allocation means about their GPU's, less what processes of variance `noise` do."""
    sums = []
    for days in nested.values():
        seen = _about_mean(_day_means(days))
        explained = noise * fmean(1 / len(processes) for processes in days.values())
        sums.append(_Sum(seen.squares - seen.degrees * explained, seen.degrees))
    return _pooled(sums)


def _between_gpus(nested: _Nested, noise: float, between: float) -> _Sum:
    """Squares of the GPUs' means, less what days (variance `between`) and processes do."""
    seen = _about_mean([fmean(_day_means(days)) for days in nested.values()])
    explained = fmean(
        between / len(days) + noise * math.fsum(1 / len(p) for p in days.values()) / len(days) ** 2
        for days in nested.values()
    )
    return _Sum(seen.squares - seen.degrees * explained, seen.degrees)


def _day_means(days: Mapping[str, Sequence[_Inside]]) -> list[float]:
    return [fmean(process.median for process in processes) for processes in days.values()]


def _apart(nested: _Nested, least: float) -> set[str]:
    away: list[tuple[float, str]] = []
    deviations: list[float] = []
    for days in nested.values():
        for processes in days.values():
            if len(processes) < LEAST_GROUP:
                continue
            middle = median(process.median for process in processes)
            distances = sorted((abs(p.median - middle), p.process) for p in processes)
            away += distances
            # In an odd group one process is the median itself, and says nothing of the spread.
            deviations += [distance for distance, _ in distances[len(distances) % 2 :]]
    if not away:
        return set()
    robust = max(MAD_TO_SIGMA * median(deviations), least)
    return {process for distance, process in away if distance > APART * robust}
